package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
)

// Effective returns every setting's value as text. For a secret, the text is a short hash that only
// serves to compare two values.
func (c Config) Effective() map[string]string {
	values := map[string]string{}
	v := reflect.ValueOf(c)
	for name, field := range fields() {
		switch value := v.FieldByIndex(field.Index).Interface().(type) {
		case Secret:
			if value.value != "" {
				values[name] = fingerprint(name, value)
			}
		default:
			values[name] = fmt.Sprint(value)
		}
	}
	for name, value := range c.Secrets {
		values[secretPrefix+name] = fingerprint(secretPrefix+name, value)
	}
	return values
}

// Differs returns the settings given to this process that differ from the engine's, as lines for
// people. The engine decides settings that were not given.
func (c Config) Differs(engine map[string]string) []string { return c.differs(engine, c.names()) }

// OtherStore is Differs for the settings that say where jobs are stored: an engine that differs
// there does not know this process's jobs.
func (c Config) OtherStore(engine map[string]string) []string {
	return c.differs(engine, []string{"LINUS_DATABASE_URL"})
}

func (c Config) differs(engine map[string]string, names []string) []string {
	var lines []string
	own := c.Effective()
	for _, name := range names {
		if _, given := c.given[name]; given && own[name] != engine[name] && fields()[name].Tag.Get("of") != "process" {
			lines = append(lines, fmt.Sprintf("%s is %q here, %q in the engine", name, own[name], engine[name]))
		}
	}
	return lines
}

// Value is an effective setting.
type Value struct {
	Name  string `json:"name"`
	Value string `json:"value"` // for a secret [redacted], else as in the environment
	// From is "default", "environment", "flag --host", or an env file's path and line.
	From   string `json:"from"`
	Given  bool   `json:"-"` // not a default
	Secret bool   `json:"secret,omitempty"`
}

// Values returns every effective setting, in the order of Table, followed by the secrets of manifests.
func (c Config) Values() []Value {
	var values []Value
	for _, name := range c.names() {
		given, ok := c.given[name]
		v := Value{Name: name, Value: given.text, From: given.from, Given: ok, Secret: isSecret(name)}
		field := fields()[name]
		if !ok {
			v.Value, v.From = field.Tag.Get("default"), "default"
		}
		if isPath(name) {
			v.Value = reflect.ValueOf(c).FieldByIndex(field.Index).String() // the absolute path
		}
		values = append(values, v)
	}
	return values
}

// Environ returns this process's environment with every given setting, for an engine that is to have
// the same settings. It names no env file, since the file's settings are included. It contains secrets.
func (c Config) Environ() []string {
	environ := slices.DeleteFunc(os.Environ(), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		return isSetting(name) || strings.HasPrefix(name, secretPrefix)
	})
	for _, v := range c.Values() {
		if !v.Given || v.Name == envFileSetting {
			continue
		}
		if v.Secret {
			v.Value = c.secret(v.Name).value
		}
		environ = append(environ, v.Name+"="+v.Value)
	}
	return append(environ, envFileSetting+"=")
}

// secret returns the value of a secret setting.
func (c Config) secret(name string) Secret {
	if of, ok := strings.CutPrefix(name, secretPrefix); ok {
		return c.Secrets[of]
	}
	value, _ := reflect.ValueOf(c).FieldByIndex(fields()[name].Index).Interface().(Secret)
	return value
}

// names returns the settings in the order of Table, then the secrets of manifests.
func (c Config) names() []string {
	names := settingNames()
	for _, name := range slices.Sorted(maps.Keys(c.Secrets)) {
		names = append(names, secretPrefix+name)
	}
	return names
}

// fingerprint distinguishes values without revealing them.
func fingerprint(name string, s Secret) string {
	sum := sha256.Sum256([]byte(name + "\x00" + s.value))
	return "[secret " + hex.EncodeToString(sum[:3]) + "]"
}
