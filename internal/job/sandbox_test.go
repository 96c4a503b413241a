package job

import (
	"fmt"
	"strings"
	"testing"

	"linus/internal/vm"
)

func TestCheckVM_BoundsWhatIsKeptOfASandbox(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint(i)] = ""
	}
	for name, test := range map[string]struct {
		is   *vm.Sandbox
		want string // of the error; empty: none
	}{
		"none":              {nil, ""},
		"any text":          {&vm.Sandbox{Metadata: map[string]string{"User ID": "Ä\x00\n<b>", "x": ""}, Env: []string{"API_KEY"}}, ""},
		"an empty key":      {&vm.Sandbox{Metadata: map[string]string{"": "x"}}, "has an empty key"},
		"no text":           {&vm.Sandbox{Metadata: map[string]string{"x": "\xff"}}, `"x" is not text`},
		"too many":          {&vm.Sandbox{Metadata: many}, "are 65"},
		"too much":          {&vm.Sandbox{Metadata: map[string]string{"x": strings.Repeat("y", 16<<10)}}, "are 16385 bytes, the limit is 16384"},
		"no name":           {&vm.Sandbox{Env: []string{"A", "B=secret"}}, `"B=secret" is not a variable's name`},
		"too many of those": {&vm.Sandbox{Env: make([]string, 257)}, "are 257 variables"},
	} {
		err := Submission{Sandbox: test.is}.CheckVM()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
