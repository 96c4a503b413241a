package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The API's description is valid to a validator from elsewhere, which finds what is
// wrong with broken ones.
func TestOpenAPI_IsValidForOthers(t *testing.T) {
	t.Parallel()
	validator := npmClients(t)
	node, script := validator.node, filepath.Join(validator.scripts(t, "openapi.mjs"), "openapi.mjs")
	document := string(described())

	for _, c := range []struct{ name, old, new, problem string }{
		{"as served", "", "", ""},
		{"a type that is none", `"type": "integer"`, `"type": "int"`, "(struct)"},
		{"a parameter that the path lacks", `"name": "id"`, `"name": "ident"`, "(path-parameters-defined)"},
		{"a schema that is missing", `#/components/schemas/Job"`, `#/components/schemas/Jobs"`, "(no-unresolved-refs)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			given := strings.Replace(document, c.old, c.new, 1)
			if c.old != "" && given == document {
				t.Fatalf("the document has no %s", c.old)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, node, script)
			cmd.Stdin, cmd.Stderr = strings.NewReader(given), t.Output()
			problems, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if c.problem == "" && len(problems) > 0 || !strings.Contains(string(problems), c.problem) {
				t.Errorf("the validator found %q, want %q", problems, c.problem)
			}
		})
	}
}
