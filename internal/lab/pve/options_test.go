package pve

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"linus/internal/lab/state"
)

// qmSchema is one version's qm as its option list describes it.
type qmSchema map[string]struct {
	Alias      string                  `json:"alias"`
	Positional []string                `json:"positional"`
	Options    map[string]schemaOption `json:"options"`
}

type schemaOption struct {
	Type      string                  `json:"type"`
	Format    string                  `json:"format"`
	Minimum   *float64                `json:"minimum"`
	Maximum   *float64                `json:"maximum"`
	MaxLength int                     `json:"maxLength"`
	MaxIndex  *int                    `json:"max_index"`
	Enum      []string                `json:"enum"`
	Keys      map[string]schemaOption `json:"keys"`
	Default   bool                    `json:"default_key"`
	Alias     string                  `json:"alias"`
}

// TestOptions_AreWhatTheRealQmTakes holds the lab's table against the option
// lists of real versions in testdata/pve: what the lab accepts, those accept.
func TestOptions_AreWhatTheRealQmTakes(t *testing.T) {
	for _, version := range []string{"8.2", "9.2"} {
		t.Run(version, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "pve", "qm-options-"+version+".json"))
			if err != nil {
				t.Fatal(err)
			}
			var schema qmSchema
			if err := json.Unmarshal(raw, &schema); err != nil {
				t.Fatal(err)
			}
			for _, v := range verbs() {
				real, ok := schema[v.name]
				if ok && real.Alias != "" {
					real, ok = schema[real.Alias]
				}
				if !ok {
					t.Errorf("qm %s does not exist", v.name)
					continue
				}
				positional := slices.DeleteFunc(slices.Clone(real.Positional), func(name string) bool { return name == "extra-args" })
				if !slices.Equal(v.positional, positional) {
					t.Errorf("qm %s takes %v, the real one %v", v.name, v.positional, positional)
				}
				for _, o := range v.options {
					name := o.name
					if o.maxIndex >= 0 {
						name += "[n]"
					}
					found, ok := real.Options[name]
					if !ok {
						t.Errorf("qm %s --%s does not exist", v.name, name)
						continue
					}
					compareOption(t, "qm "+v.name+" --"+name, o, found)
				}
			}
		})
	}
}

func compareOption(t *testing.T, where string, o option, real schemaOption) {
	t.Helper()
	kinds := map[string][]optionKind{
		"boolean": {kindBool}, "integer": {kindInteger}, "number": {kindNumber}, "string": {kindString, kindProps},
	}
	if !slices.Contains(kinds[real.Type], o.kind) {
		t.Errorf("%s: the real one is a %s", where, real.Type)
	}
	if real.Minimum != nil && float64(o.min) < *real.Minimum {
		t.Errorf("%s: takes %d, the real one begins at %v", where, o.min, *real.Minimum)
	}
	if real.Maximum != nil && (o.max == 0 || float64(o.max) > *real.Maximum) {
		t.Errorf("%s: goes to %d, the real one ends at %v", where, o.max, *real.Maximum)
	}
	if real.MaxLength > 0 && (o.max == 0 || o.max > real.MaxLength) {
		t.Errorf("%s: may be %d long, the real one %d", where, o.max, real.MaxLength)
	}
	anything := o.kind == kindString && o.enum == nil && o.pattern == nil && o.check == nil
	if anything && real.Format != "" && real.Format != "urlencoded" { // qm itself encodes a file of keys
		t.Errorf("%s: takes anything, the real one only a %s", where, real.Format)
	}
	if o.defaultKey != "" && !real.Keys[o.defaultKey].Default {
		t.Errorf("%s: %s is not what the real one takes a value without a key for", where, o.defaultKey)
	}
	if real.MaxIndex != nil && o.maxIndex > *real.MaxIndex {
		t.Errorf("%s: index goes to %d, the real one's to %d", where, o.maxIndex, *real.MaxIndex)
	}
	for _, value := range o.enum {
		if !slices.Contains(real.Enum, value) {
			t.Errorf("%s: %s is no value of the real one", where, value)
		}
	}
	if len(real.Enum) > 0 && anything {
		t.Errorf("%s: takes anything, the real one only %v", where, real.Enum)
	}
	for _, key := range o.keys {
		found, ok := real.Keys[key.name]
		if !ok {
			t.Errorf("%s: has no key %s", where, key.name)
			continue
		}
		if found.Alias == "" {
			compareOption(t, where+","+key.name, key, found)
		}
	}
}

func TestParse(t *testing.T) {
	tests := []struct {
		name string
		args string
		want string // key=value of what was read, sorted
		err  string
	}{
		{"options anywhere", "--full 1 9000 --name a 100", "full=1 name=a newid=100 vmid=9000", ""},
		{"one dash", "9000 100 -name a", "name=a newid=100 vmid=9000", ""},
		{"equals sign", "9000 100 --name=a", "name=a newid=100 vmid=9000", ""},
		{"flag without a value", "9000 100 --full --name a", "full=1 name=a newid=100 vmid=9000", ""},
		{"flag in words", "9000 100 --full off", "full=0 newid=100 vmid=9000", ""},
		{"flag that is none", "9000 100 --full maybe", "", "full: type check ('boolean') failed - got 'maybe'"},
		{"value missing", "9000 100 --name", "", "400 unable to parse option"},
		{"value that begins with a dash", "9000 100 --description -x", "description=-x newid=100 vmid=9000", ""},
	}
	all := verbs()
	clone := all[slices.IndexFunc(all, func(v *verb) bool { return v.name == "clone" })]
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			opts, _, err := clone.parse(strings.Fields(tt.args), &strings.Builder{})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, key := range state.SortedKeys(opts) {
				got = append(got, key+"="+opts[key])
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}
