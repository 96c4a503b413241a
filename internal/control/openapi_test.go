package control

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/doctest"
	"linus/internal/job"
)

var update = flag.Bool("update", false, "make openapi.json and the document's table anew")

// TestOpenAPI_IsWhatTheTableSays makes the OpenAPI document from the table of verbs, the
// types in it, and their doc comments.
func TestOpenAPI_IsWhatTheTableSays(t *testing.T) {
	d := newDescriber(t)
	text, err := json.MarshalIndent(d.document(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if *update {
		if err := os.WriteFile("openapi.json", text, 0o644); err != nil { //nolint:gosec // a source file
			t.Fatal(err)
		}
	} else if !bytes.Equal(text, openapi) {
		t.Error("openapi.json is stale: run make golden")
	}
	doctest.Keep(t, "api", d.table(), *update)
}

// object is a JSON object.
type object = map[string]any

// describer makes schemas of Go types.
type describer struct {
	t       *testing.T
	types   map[string]string   // doc comments, by type
	fields  map[string]string   // by type.field
	verbs   map[string]string   // comments of job.Engine's methods, by name
	enums   map[string][]string // constants, by type
	schemas object
}

func newDescriber(t *testing.T) *describer {
	d := &describer{t: t, types: map[string]string{}, fields: map[string]string{}, verbs: map[string]string{}, enums: map[string][]string{}, schemas: object{}}
	interfaces := map[string]*ast.InterfaceType{}
	for _, dir := range []string{".", "../job", "../vm"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d files of Go in %s, %v", len(files), dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			d.read(file, describedAs(filepath.Base(dir)), interfaces)
		}
	}
	for _, part := range interfaces["Engine"].Methods.List { // each is an interface that it is made of
		for _, m := range interfaces[part.Type.(*ast.Ident).Name].Methods.List {
			d.verbs[m.Names[0].Name] = m.Doc.Text()
		}
	}
	return d
}

// describedAs returns the names by which a package's types are described: a VM's state and
// status begin with VM, apart from a job's.
func describedAs(pkg string) func(string) string {
	return func(name string) string {
		if pkg == "vm" && (name == "State" || name == "Status" || name == "Source") {
			return "VM" + name
		}
		return name
	}
}

// nameOf is the name by which a type is described.
func nameOf(t reflect.Type) string { return describedAs(filepath.Base(t.PkgPath()))(t.Name()) }

// read collects the comments of a file's types, its constants and its interfaces.
func (d *describer) read(file *ast.File, named func(string) string, interfaces map[string]*ast.InterfaceType) {
	for _, decl := range file.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				doc := s.Doc.Text()
				if doc == "" && len(g.Specs) == 1 {
					doc = g.Doc.Text()
				}
				d.types[named(s.Name.Name)] = doc
				switch of := s.Type.(type) {
				case *ast.StructType:
					for _, f := range of.Fields.List {
						for _, name := range f.Names {
							d.fields[named(s.Name.Name)+"."+name.Name] = f.Doc.Text() + f.Comment.Text()
						}
					}
				case *ast.InterfaceType:
					interfaces[s.Name.Name] = of
				}
			case *ast.ValueSpec:
				of, ok := s.Type.(*ast.Ident)
				if g.Tok != token.CONST || !ok {
					continue
				}
				for _, v := range s.Values {
					if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						text, _ := strconv.Unquote(lit.Value)
						d.enums[named(of.Name)] = append(d.enums[named(of.Name)], text)
					}
				}
			}
		}
	}
}

// oneLine makes a comment a description.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// about is the description of an operation, without Go's name of it.
func (d *describer) about(name string) string {
	text := oneLine(d.verbs[name])
	for _, verb := range []string{name + " ", name + "s "} {
		if rest, ok := strings.CutPrefix(text, verb); ok {
			return strings.ToUpper(rest[:1]) + rest[1:]
		}
	}
	return text
}

func (d *describer) document() object {
	paths := object{}
	for _, s := range d.shapes() {
		path := APIPrefix + strings.ReplaceAll(s.path, "...}", "}")
		item, ok := paths[path].(object)
		if !ok {
			item = object{}
			paths[path] = item
		}
		item[strings.ToLower(s.method)] = d.operation(s)
	}
	d.schema(reflect.TypeFor[TerminalNews](), "")
	d.schema(reflect.TypeFor[TerminalRequest](), "")
	d.schemas["Error"] = object{
		"type": "object", "required": []string{"error"},
		"description": "Every response that is no success. A client goes by the code, people by the text.",
		"properties":  object{"error": d.schema(reflect.TypeFor[failure](), "")},
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "linus", "version": "1", "summary": "Runs jobs in Proxmox VE virtual machines of their own.",
			"description": "The verbs of a linus engine. What belongs to another principal does not exist for a token. Unknown fields and parameters of a request are refused; new ones may appear in responses. Bytes are base64 in JSON.",
			"license":     object{"name": "see the repository", "identifier": "LicenseRef-linus"},
		},
		"servers":  []object{{"url": "/"}},
		"security": []object{{"token": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas":         d.schemas,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer", "description": "The token of linus serve, or one of linus token create. Never in a URL."}},
			"responses": object{"Error": object{
				"description": "What is wrong, and what to do.",
				"content":     object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Error"}}},
			}},
		},
	}
}

// shapes are those of the API's rows.
func (d *describer) shapes() []shape {
	var all []shape
	for _, r := range verbs(nil) {
		all = append(all, r.shape)
	}
	d.verbs["Info"] = "Info returns the version of the engine."
	d.verbs["Terminal"] = "Terminal is the terminal of a job with tty, as a WebSocket. Binary messages of at most 64 KiB are its bytes, both ways. Text messages are TerminalNews from the server, of which the first has state and input, and TerminalRequest from the client. After a lost connection, a client goes on with the offset and the input it has been told."
	d.verbs["DialVM"] += " Over HTTP it is a WebSocket: binary messages of at most 64 KiB are its bytes, both ways, and an empty one ends its direction."
	return append(all, shapeOf(process(nil), "Info"))
}

func (d *describer) operation(s shape) object {
	op := object{"operationId": s.name, "summary": d.summary(s.name), "description": d.about(s.name), "tags": []string{strings.Split(s.path, "/")[2]}}
	var parameters []object
	inURL := map[string]bool{}
	for _, p := range s.params {
		f := s.in.Field(p.field)
		inURL[p.name] = true
		one := object{"name": p.name, "in": "path", "required": true, "schema": d.schema(f.Type, f.Tag)}
		if p.query {
			one["in"], one["required"] = "query", false
		}
		text := d.describe(s.in, f)
		if p.rest {
			text = strings.TrimSpace(text + " Slashes in it stay as they are.")
		}
		if text != "" {
			one["description"] = text
		}
		parameters = append(parameters, one)
	}
	if parameters != nil {
		op["parameters"] = parameters
	}
	switch {
	case s.stream >= 0:
		op["requestBody"] = object{"required": true, "content": object{treeType: object{"schema": object{}}}}
	case s.body && len(s.params) == 0:
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": d.schema(s.in, "")}}}
	case s.body:
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": d.structure(s.in, inURL)}}}
	}
	errors := object{"$ref": "#/components/responses/Error"}
	responses := object{"4XX": errors, "5XX": errors}
	switch {
	case s.out == nil:
		responses["101"] = object{"description": "The WebSocket."}
	case s.out == reflect.TypeFor[job.Download]():
		d.schema(reflect.TypeFor[job.Artifact](), "")
		responses["200"] = object{
			"description": "The file's bytes.", "content": object{"application/octet-stream": object{"schema": object{}}},
			"headers": object{artifactHeader: object{"description": "An Artifact as JSON, percent-encoded.", "schema": object{"type": "string"}}},
		}
	case s.out == reflect.TypeFor[io.ReadCloser]():
		responses["200"] = object{"description": "A tar archive. Unless the trailer " + treeTrailer + " is empty, it is not complete.", "content": object{treeType: object{"schema": object{}}}}
	case s.out == reflect.TypeFor[job.None]():
		responses["200"] = object{"description": "Done.", "content": object{"application/json": object{"schema": object{"type": "object"}}}}
	default:
		schema := d.schema(s.out, "")
		if s.out.Kind() == reflect.Slice {
			schema["type"] = "array"
		}
		responses["200"] = object{"description": "Done.", "content": object{"application/json": object{"schema": schema}}}
	}
	op["responses"] = responses
	return op
}

// summary is the first sentence of an operation's description.
func (d *describer) summary(name string) string {
	first, _, more := strings.Cut(d.about(name), ". ")
	if !more {
		first = strings.TrimSuffix(first, ".")
	}
	return first
}

// describe returns a field's description.
func (d *describer) describe(t reflect.Type, f reflect.StructField) string {
	if text := f.Tag.Get("jsonschema_description"); text != "" {
		return text
	}
	return oneLine(d.fields[nameOf(t)+"."+f.Name])
}

// schema returns the schema of a type; a struct's is a component.
func (d *describer) schema(t reflect.Type, tag reflect.StructTag) object {
	s := d.bare(t)
	for option := range strings.SplitSeq(tag.Get("jsonschema"), ",") {
		name, value, _ := strings.Cut(option, "=")
		if n, err := strconv.Atoi(value); err == nil && (name == "minimum" || name == "maximum") {
			s[name] = n
		}
	}
	return s
}

func (d *describer) bare(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case reflect.TypeFor[job.DurationText]():
		return object{"type": "string", "examples": []string{"24h"}}
	case reflect.TypeFor[[]byte]():
		return object{"type": []string{"string", "null"}, "contentEncoding": "base64"}
	}
	switch t.Kind() { //nolint:exhaustive // the others are not used
	case reflect.Pointer:
		return d.bare(t.Elem())
	case reflect.Struct:
		name := strings.ToUpper(nameOf(t)[:1]) + nameOf(t)[1:]
		if _, known := d.schemas[name]; !known {
			d.schemas[name] = nil // it may contain itself
			d.schemas[name] = d.structure(t, nil)
		}
		return object{"$ref": "#/components/schemas/" + name}
	case reflect.Slice:
		return object{"type": []string{"array", "null"}, "items": d.bare(t.Elem())}
	case reflect.Map:
		return object{"type": []string{"object", "null"}, "additionalProperties": d.bare(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint32:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		if values := d.enums[nameOf(t)]; t.PkgPath() != "" && len(values) > 0 {
			return object{"type": "string", "enum": slices.Concat(values, []string{""})} // empty: not set
		}
		return object{"type": "string"}
	}
	d.t.Fatalf("no schema for %v", t)
	return nil
}

// structure returns the schema of a struct without some fields.
func (d *describer) structure(t reflect.Type, without map[string]bool) object {
	s := object{"type": "object"}
	if text := oneLine(d.types[nameOf(t)]); text != "" {
		s["description"] = text
	}
	properties, required := object{}, []string{}
	d.addFields(t, without, properties, &required)
	s["properties"] = properties
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func (d *describer) addFields(t reflect.Type, without map[string]bool, properties object, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			d.addFields(inner, without, properties, required)
			continue
		case name == "-", without[name], !f.IsExported(), f.Type == reflect.TypeFor[io.Reader]():
			continue
		case name == "":
			d.t.Errorf("%s.%s has no JSON name", nameOf(t), f.Name)
		}
		one := d.schema(f.Type, f.Tag)
		if text := d.describe(t, f); text != "" {
			if more, ok := one["description"].(string); ok {
				text = more + ": " + text
			}
			one["description"] = text
		}
		properties[name] = one
		if !strings.Contains(options, "omit") && !slices.Contains(*required, name) {
			*required = append(*required, name)
		}
	}
}

// table lists the operations for people.
func (d *describer) table() string {
	var b strings.Builder
	b.WriteString("| operation | route | what |\n| --- | --- | --- |\n")
	for _, s := range d.shapes() {
		path := s.path
		var query []string
		for _, p := range s.params {
			if p.query {
				query = append(query, p.name)
			}
		}
		if len(query) > 0 {
			path += "?" + strings.Join(query, "&")
		}
		fmt.Fprintf(&b, "| %s | `%s %s` | %s |\n", s.name, s.method, APIPrefix+path, doctest.Cell(d.summary(s.name)))
	}
	return b.String()
}

// An operation without a word about it helps nobody.
func TestOpenAPI_DescribesEveryOperation(t *testing.T) {
	d := newDescriber(t)
	for _, s := range d.shapes() {
		if len(d.about(s.name)) < 15 {
			t.Errorf("%s has no description: give the method of job.Engine a comment", s.name)
		}
	}
	// job.Provider has methods of the same names, which do something else.
	for name, want := range map[string]string{"List": "Returns a page of jobs, newest first.", "SuspendVM": "Writes a VM's memory to its disk and turns it off, until ResumeVM or StartVM."} {
		if got := d.about(name); got != want {
			t.Errorf("%s is described as %q, want %q", name, got, want)
		}
	}
	var parsed struct {
		Components struct{ Schemas map[string]object }
	}
	if err := json.Unmarshal(openapi, &parsed); err != nil {
		t.Fatal(err)
	}
	if names := slices.Collect(maps.Keys(parsed.Components.Schemas)); len(names) < 20 {
		t.Errorf("only %d schemas: %v", len(names), names)
	}
}
