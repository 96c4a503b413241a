package mcptool

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/doctest"
	"linus/internal/field"
	"linus/internal/job"
)

var update = flag.Bool("update", false, "write the tool schemas in testdata and the documents' tables anew")

// Schemas are a contract with clients: a change must be seen in review. That of a result, which
// the list leaves out, is what structured content is checked against in these tests.
func TestTools_SchemasMatchTheSnapshots(t *testing.T) {
	for _, tool := range tools(options(&engine{})) {
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
	const budget = 24_000 // bytes, some 6,000 tokens
	s := inProcess(t, &engine{})
	message := s.HandleMessage(job.WithPrincipal(t.Context(), job.Operator()), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	list, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Result struct{ Tools []json.RawMessage }
	}
	if err := json.Unmarshal(list, &answer); err != nil || len(answer.Result.Tools) != len(allTools()) {
		t.Fatalf("%d tools are listed (%v), want %d", len(answer.Result.Tools), err, len(allTools()))
	}
	t.Logf("the list of %d tools is %d bytes", len(answer.Result.Tools), len(list))
	if len(list) > budget {
		sizes := each(answer.Result.Tools, func(tool json.RawMessage) string { return fmt.Sprintf("%d bytes: %.60s", len(tool), tool) })
		t.Errorf("the list of tools is %d bytes, the budget %d:\n%s", len(list), budget, strings.Join(sizes, "\n"))
	}
	for _, tool := range tools(options(&engine{})) {
		if len(tool.Tool.Description) > 400 {
			t.Errorf("%s is described in %d bytes, the limit is 400", tool.Tool.Name, len(tool.Tool.Description))
		}
	}
}

// What the list leaves out is what the protocol assumes, so that each client learns the same.
func TestListed_HintsMeanTheSame(t *testing.T) {
	for _, tool := range tools(options(&engine{})) {
		whole, short := tool.Tool.Annotations, listed(tool.Tool).Annotations
		meant := func(hint *bool, assumed bool) bool {
			if hint == nil {
				return assumed
			}
			return *hint
		}
		readOnly := *whole.ReadOnlyHint
		if meant(short.ReadOnlyHint, false) != readOnly || meant(short.OpenWorldHint, true) != *whole.OpenWorldHint ||
			!readOnly && (meant(short.DestructiveHint, true) != *whole.DestructiveHint || meant(short.IdempotentHint, false) != *whole.IdempotentHint) {
			t.Errorf("%s is listed with %+v, and has %+v", tool.Tool.Name, short, whole)
		}
	}
}

// The list has the short form of what the resource has in full.
func TestSubmitJob_ManifestHasTheFieldsOfItsResource(t *testing.T) {
	var names func(schema object) []string
	names = func(schema object) (all []string) {
		if items, ok := value(schema, "items").(object); ok {
			schema = items
		}
		properties, _ := value(schema, "properties").(object)
		for _, p := range properties {
			all = append(all, p.name)
			for _, inner := range names(p.value.(object)) {
				all = append(all, p.name+"."+inner)
			}
		}
		return all
	}
	of := reflect.TypeFor[job.Manifest]()
	if diff := cmp.Diff(names(schemaFor(of, about{}, whole)), names(schemaFor(of, about{}, arguments))); diff != "" {
		t.Errorf("the list of tools lacks what the resource has:\n%s", diff)
	}
}

func TestDocs_HaveTheTableOfTools(t *testing.T) {
	var table strings.Builder
	table.WriteString("| tool | toolset | arguments | what |\n| --- | --- | --- | --- |\n")
	set := map[string]string{}
	for _, row := range allTools() {
		set[row.name] = row.toolset
	}
	for _, tool := range tools(options(&engine{})) {
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
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", tool.Tool.Name, set[tool.Tool.Name], strings.Join(args, ", "), doctest.Cell(tool.Tool.Description))
	}
	doctest.Keep(t, "tools", table.String(), *update)
}

// The manifest's table in the documents is generated from submit_job's schema,
// which also applies to the command line's manifests, and the table of their options.
func TestDocs_HaveTheTableOfTheManifest(t *testing.T) {
	options := map[string]string{}
	for _, f := range field.For(field.Submit) {
		options[f.Name] = "`--" + f.Flag + "`"
	}
	var table strings.Builder
	table.WriteString("| field | option | type | what |\n| --- | --- | --- | --- |\n")
	var rows func(prefix string, schema object)
	rows = func(prefix string, schema object) {
		properties, _ := value(schema, "properties").(object)
		required, _ := value(schema, "required").([]string)
		for _, p := range properties {
			name, of := p.name, p.value.(object)
			kind, text := fmt.Sprint(value(of, "type")), fmt.Sprint(value(of, "description"))
			option := options[prefix+name]
			if slices.Contains(required, name) {
				text = "Required. " + text
			}
			if enum, ok := value(of, "enum").([]string); ok {
				kind = "`" + strings.Join(enum, "`, `") + "`"
			}
			if items, ok := value(of, "items").(object); ok {
				kind = fmt.Sprintf("list of %vs", value(items, "type"))
				if of = items; value(items, "properties") != nil {
					name += "[]"
				}
			}
			fmt.Fprintf(&table, "| `%s%s` | %s | %s | %s |\n", prefix, name, option, kind, doctest.Cell(text))
			rows(prefix+name+".", of)
		}
	}
	rows("", schemaFor(reflect.TypeFor[job.Manifest](), about{}, whole))
	doctest.Keep(t, "manifest", table.String(), *update)
}

// value returns the member of an object, nil where it has none.
func value(o object, name string) any {
	for _, m := range o {
		if m.name == name {
			return m.value
		}
	}
	return nil
}
