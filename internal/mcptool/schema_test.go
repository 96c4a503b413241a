package mcptool

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the tool schemas in testdata and README's table anew")

// Schemas are a contract with clients: a change must be seen in review.
func TestTools_SchemasMatchTheSnapshots(t *testing.T) {
	for _, tool := range tools(options(&engine{}), nil) {
		t.Run(tool.Tool.Name, func(t *testing.T) {
			got, err := json.MarshalIndent(tool.Tool, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			path := filepath.Join("..", "..", "testdata", "tools", tool.Tool.Name+".json")
			if *update {
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, got, 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s differs (%v); make golden rewrites it:\n%s", path, err, cmp.Diff(string(want), string(got)))
			}
			for _, word := range []string{"$ref", "anyOf", "oneOf", `"null"`, `"type": [`} {
				if bytes.Contains(got, []byte(word)) {
					t.Errorf("schema has %s, which some clients' models refuse", word)
				}
			}
			a := tool.Tool.Annotations
			if tool.Tool.Title == "" || a.ReadOnlyHint == nil || a.DestructiveHint == nil || a.IdempotentHint == nil || a.OpenWorldHint == nil {
				t.Error("title or a hint is missing")
			}
		})
	}
}

// Every client pays for the list of tools with each conversation: about a token
// for four bytes.
func TestTools_ListFitsItsBudget(t *testing.T) {
	const budget = 35_000 // bytes, some 8,700 tokens
	total := 0
	for _, tool := range tools(options(&engine{}), nil) {
		data, err := json.Marshal(tool.Tool)
		if err != nil {
			t.Fatal(err)
		}
		total += len(data)
		if len(tool.Tool.Description) > 400 {
			t.Errorf("%s is described in %d bytes, the limit is 400", tool.Tool.Name, len(tool.Tool.Description))
		}
	}
	if total > budget {
		t.Errorf("the list of tools is %d bytes, the budget %d", total, budget)
	}
}

func TestTools_ReadmeTableIsCurrent(t *testing.T) {
	const begin, end = "<!-- tools:begin -->\n", "<!-- tools:end -->"
	var table strings.Builder
	table.WriteString("| tool | toolset | arguments | what |\n| --- | --- | --- | --- |\n")
	set := map[string]string{}
	for _, name := range Toolsets {
		for _, tool := range toolset(name, options(&engine{}), nil) {
			set[tool.Tool.Name] = name
		}
	}
	for _, tool := range tools(options(&engine{}), nil) {
		var schema struct {
			Properties map[string]any
			Required   []string
		}
		if err := json.Unmarshal(tool.Tool.RawInputSchema, &schema); err != nil {
			t.Fatal(err)
		}
		var args []string
		for name := range schema.Properties {
			if !slices.Contains(schema.Required, name) {
				name += "?"
			}
			args = append(args, "`"+name+"`")
		}
		slices.Sort(args)
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", tool.Tool.Name, set[tool.Tool.Name], strings.Join(args, ", "), tool.Tool.Description)
	}
	path := filepath.Join("..", "..", "README.md")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("README.md has no place for the table of tools")
	}
	want := before + begin + table.String() + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(old) != want {
		t.Error("README.md's table of tools is stale: make golden rewrites it")
	}
}
