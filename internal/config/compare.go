package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
)

// notCompared are settings of a process, not of the engine.
var notCompared = []string{"LINUS_STATE_DIR", "LINUS_LOG_LEVEL"}

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
				sum := sha256.Sum256([]byte(name + "\x00" + value.value))
				values[name] = "[secret " + hex.EncodeToString(sum[:3]) + "]"
			}
		default:
			values[name] = fmt.Sprint(value)
		}
	}
	return values
}

// Differs answers the settings this process was given that are not the
// engine's, as lines for people. What was not given is the engine's to decide.
func (c Config) Differs(engine map[string]string) []string {
	var lines []string
	own := c.Effective()
	for _, s := range Table() {
		if c.given[s.Name] && own[s.Name] != engine[s.Name] && !slices.Contains(notCompared, s.Name) {
			lines = append(lines, fmt.Sprintf("%s is %q here, %q in the engine", s.Name, own[s.Name], engine[s.Name]))
		}
	}
	return lines
}
