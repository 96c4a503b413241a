package pve

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// What the lab plays of qm exists in every version that it plays.
func TestVerbs_AreThoseOfTheRealQm(t *testing.T) {
	for _, version := range []string{"8.2", "9.2"} {
		for name := range played() {
			if _, err := qmVerb(version, name); err != nil {
				t.Error(err)
			}
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
	clone, err := qmVerb("9.2", "clone")
	if err != nil {
		t.Fatal(err)
	}
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
			for _, key := range slices.Sorted(maps.Keys(opts)) {
				got = append(got, key+"="+opts[key])
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
}
