package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// notCompared are settings of a process, not of the engine.
var notCompared = []string{"LINUS_STATE_DIR", "LINUS_LOG_LEVEL", "HTTP_ADDR", "HTTP_TOKEN", "HTTP_HOSTS"}

// Effective answers every setting's value as text; of secrets only enough of a
// hash to tell whether two are the same.
func (c Config) Effective() map[string]string {
	values := map[string]string{}
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("envconfig")
		if name == "" {
			continue
		}
		switch value := v.Field(i).Interface().(type) {
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

// Differs answers the settings this process was given that are not the
// engine's, as lines for people. What was not given is the engine's to decide.
func (c Config) Differs(engine map[string]string) []string {
	var lines []string
	own := c.Effective()
	var names []string
	for _, s := range Table() {
		names = append(names, s.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Secrets)) {
		names = append(names, secretPrefix+name)
	}
	for _, name := range names {
		if c.given[name] && own[name] != engine[name] && !slices.Contains(notCompared, name) {
			lines = append(lines, fmt.Sprintf("%s is %q here, %q in the engine", name, own[name], engine[name]))
		}
	}
	return lines
}

// fingerprint tells two values apart, and no more.
func fingerprint(name string, s Secret) string {
	sum := sha256.Sum256([]byte(name + "\x00" + s.value))
	return "[secret " + hex.EncodeToString(sum[:3]) + "]"
}
