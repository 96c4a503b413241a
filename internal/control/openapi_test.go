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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/doctest"
	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/view"
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
	enums   map[string][]string // constants, by type
	schemas object
}

func newDescriber(t *testing.T) *describer {
	d := &describer{t: t, types: map[string]string{}, fields: map[string]string{}, enums: map[string][]string{}, schemas: object{}}
	for _, dir := range []string{".", "../job", "../vm", "../view"} {
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
			d.read(file, describedAs(filepath.Base(dir)))
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

// read collects the comments of a file's types, and its constants.
func (d *describer) read(file *ast.File, named func(string) string) {
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
				if of, ok := s.Type.(*ast.StructType); ok {
					for _, f := range of.Fields.List {
						for _, name := range f.Names {
							d.fields[named(s.Name.Name)+"."+name.Name] = f.Doc.Text() + f.Comment.Text()
						}
					}
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

// more is what there is to say of an operation beyond its summary.
var more = map[string]string{
	"submitJob":      "The job is stored, and begins when there is room. With wait_seconds the response waits for its end, and has the job as it is then: ended, or not yet. A key used before returns the first job, if that was submitted with the same manifest.",
	"planJob":        "Nothing is changed. A manifest with a vm_name and without a task is one of a VM.",
	"getJobManifest": "The contents of files are removed when the job is done.",
	"cancelJob":      "The outcome is decided when the response comes; the VM is destroyed after that.",
	"killTask":       "The result is killed, already_terminated or not_found.",
	"listJobs":       "A page of a search may have fewer jobs than asked for, even none, though others follow: it looks at a bounded number of them.",
	"watchJob":       "Waits up to 50 seconds for events after the given number, and returns them with the job; none if there were none, or the job is done. With Accept: text/event-stream each event is sent as it happens, with its number as id, and the job at the end as the event end; a client that was cut off continues with Last-Event-ID.",
	"getOutput":      "For a running task, what there is so far: Linus-Next-Offset is where to continue, and Linus-Complete says whether more can come. A Range takes the place of offset and limit. With Accept: text/event-stream each piece is sent as it comes, as JSON with text, and base64 besides where it is not UTF-8.",
	"sendInput":      "The body is the input, at most 4 MiB. With close the input ends after it.",
	"getArtifact":    "Ranges and If-None-Match work; the ETag is the file's SHA-256.",
	"createVM":       "The VM is stored, and made after that. The response is what stands for the job that makes it, whose events say how far it is. A key used before returns the first VM, if that was asked for with the same manifest.",
	"startVM":        "A VM that is already running is not an error.",
	"stopVM":         "No job may run in it. A VM that is already stopped is not an error.",
	"destroyVM":      "No job may run in it. It is decided when the response comes; the engine tries until the VM is gone.",
	"revertVM":       "With a snapshot of its memory it continues as it was then; otherwise it is started.",
	"updateVM":       "What is left out stays. The time without use starts over. A VM that is suspended because it was idle stays so until its next use resumes it. The VM of a pool is destroyed with its job, and has no such time.",
	"listFiles":      "For anything but a directory, the entry itself.",
	"readFile":       "At most 4 MiB at a time. Linus-Next-Offset is where to continue, and Linus-End says whether the file ends there. A Range takes the place of offset and limit.",
	"writeFile":      "The body is the content, at most 10 MiB. A file that exists keeps its owner, and its mode unless one is given; a symbolic link stays one, and what it points to is written. With new, a file that exists is left as it is, and an error.",
	"editFile":       "The old text must be there, and exactly once unless all is set.",
	"readTree":       "The trailer Linus-Error is empty unless the archive is not complete.",
	"checkNetwork":   "The rules are as the VM's node has them. For connections the VM must run.",
	"resizePool":     "What is left out stays. With If-Match it is changed only if its size is still the one of that ETag. Sizes 0 drain it. One that has stopped tries again.",
	"removePool":     "Its idle VMs are destroyed.",
	"revokeToken":    "Within 5 seconds no engine accepts it any more, and its open connections are closed.",
	"deleteJob":      "A job whose VM is still there, or that has not ended, stays: that is a conflict.",
}

func (d *describer) document() object {
	paths, tags := object{}, map[string]bool{}
	for _, s := range d.shapes() {
		if s.socket() {
			continue // a WebSocket is no operation of OpenAPI: the API's page describes them
		}
		path := APIPrefix + strings.ReplaceAll(s.path, "...}", "}")
		item, ok := paths[path].(object)
		if !ok {
			item = object{}
			paths[path] = item
		}
		item[strings.ToLower(s.method)] = d.operation(s)
		tags[tagOf(s)] = true
	}
	var tagList []object
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		if tagAbout[tag] == "" {
			d.t.Errorf("nothing is said about the tag %s", tag)
		}
		tagList = append(tagList, object{"name": tag, "description": tagAbout[tag]})
	}
	d.schema(reflect.TypeFor[view.Problem]())
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "linus", "version": "1", "summary": "Runs jobs in Proxmox VE virtual machines of their own.",
			"description": "What belongs to another principal does not exist for a token. Unknown fields and parameters of a request are refused; new ones may appear in responses, and new values in lists of values. Within v1 nothing is taken away or changes its meaning; what is to go in a v2 is said by the headers Deprecation and Sunset at least six months before. The terminal of a job, and ports of VMs, are WebSockets, which the page about the API describes.",
			"contact":     object{"name": "the operator of this server"},
			"license":     object{"name": "as in the repository", "identifier": "LicenseRef-linus"},
		},
		"servers":  []object{{"url": "/"}},
		"tags":     tagList,
		"security": []object{{"token": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas":         d.schemas,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer", "description": "The token of linus serve, or one of linus token create. Never in a URL."}},
			"responses": object{"Problem": object{
				"description": "What is wrong, and what to do.",
				"headers":     object{view.RequestHeader: object{"description": "The request's ID: the client's own, or a new one.", "schema": object{"type": "string"}}},
				"content":     object{view.ProblemType: object{"schema": object{"$ref": "#/components/schemas/Problem"}}},
			}},
		},
	}
}

func tagOf(s shape) string { return strings.Split(s.path, "/")[2] }

var tagAbout = map[string]string{
	"jobs": "Jobs, their events, output and artifacts", "plan": "What would be done",
	"vms": "VMs, their files, snapshots and network", "pools": "VMs that are kept ready", "checkpoints": "VMs from whose memory others continue", "volumes": "Disks that outlive VMs", "engines": "The engines of this installation", "dispatchers": "The dispatchers that serve external queues",
	"tokens": "Who may do what", "credentials": "What VMs may use but not read", "host": "The Proxmox VE host", "nodes": "The nodes of its cluster", "usage": "What jobs and VMs have used", "schedules": "Jobs at given times", "info": "This server",
}

// shapes are those of the API's rows.
func (d *describer) shapes() []shape {
	var all []shape
	for _, r := range verbs(nil) {
		all = append(all, r.shape)
	}
	return append(all, shapeOf(infoVerb))
}

func (d *describer) operation(s shape) object {
	op := object{"operationId": s.ID, "summary": s.Does, "description": strings.TrimSpace(s.Does + ". " + more[s.ID]), "tags": []string{tagOf(s)}}
	var parameters []object
	elsewhere := map[string]bool{}
	for _, p := range s.params {
		f := s.in.FieldByIndex(p.field)
		elsewhere[p.name] = true
		one := object{"name": p.name, "in": string(p.in), "required": p.in == inPath || p.need, "schema": d.schema(f.Type)}
		if s.List != nil {
			list(one["schema"].(object), p.name, s.List())
		}
		text := d.describe(s.in, f)
		if p.rest {
			text = strings.TrimSpace(text + " Slashes in it stay as they are.")
		}
		if text == "" {
			text = paramAbout[p.name]
		}
		if text == "" {
			d.t.Errorf("%s: nothing is said about the parameter %s", s.ID, p.name)
		}
		one["description"] = text
		parameters = append(parameters, one)
	}
	if bodyOf(s.Out) != nil {
		parameters = append(parameters, object{"name": "Range", "in": "header", "required": false, "description": "One range of bytes.", "schema": object{"type": "string", "examples": []string{"bytes=0-1023"}}})
	}
	if parameters != nil {
		op["parameters"] = parameters
	}
	bytes := object{"application/octet-stream": object{"schema": object{"type": "string", "format": "binary"}}}
	switch {
	case s.streams():
		op["requestBody"] = object{"required": true, "content": object{treeType: object{"schema": object{"type": "string", "format": "binary"}}}}
	case s.whole != nil:
		op["requestBody"] = object{"required": true, "content": bytes}
	case s.Verb == job.VerbCreateVM.Verb:
		manifest := d.structure(reflect.TypeFor[job.Manifest](), map[string]bool{"": true, "vm_name": false, "labels": false, "os": false, "template": false, "resources": false, "network": false, "ttl_seconds": false})
		manifest["description"] = "What the VM is to be."
		d.schemas["VMManifest"] = manifest
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": object{"type": "object", "required": []string{"manifest"}, "properties": object{"manifest": object{"$ref": "#/components/schemas/VMManifest"}}}}}}
	case s.body:
		op["requestBody"] = object{"required": true, "content": object{"application/json": object{"schema": d.structure(s.in, elsewhere)}}}
	}
	problem := object{"$ref": "#/components/responses/Problem"}
	code, response := "200", object{"description": "Done."}
	switch s.Makes {
	case job.Done:
	case job.Created:
		code, response["description"] = "201", "Made."
	case job.Accepted:
		code, response["description"] = "202", "Decided; the work continues."
	}
	headers := object{}
	if s.At != nil {
		headers["Location"] = object{"description": "Where it is.", "schema": object{"type": "string"}}
	}
	responses := object{"4XX": problem, "5XX": problem}
	switch {
	case s.Out == reflect.TypeFor[job.Download]():
		response = object{"description": "The file's bytes.", "content": bytes}
		headers["ETag"] = object{"description": "The file's SHA-256.", "schema": object{"type": "string"}}
		headers[modeHeader] = object{"description": "Its octal permissions.", "schema": object{"type": "string"}}
	case s.Out == reflect.TypeFor[io.ReadCloser]():
		response = object{"description": "A tar archive.", "content": object{treeType: object{"schema": object{"type": "string", "format": "binary"}}}}
	case s.Out == reflect.TypeFor[job.None]():
		if code == "200" {
			code = "204"
		}
	case bodyOf(s.Out) != nil:
		for _, f := range view.Fields(s.Out) {
			if !f.Body {
				headers[headerOf(f)] = object{"description": d.describe(s.Out, f.StructField), "schema": d.schema(f.Type)}
			}
		}
		response = object{"description": "The bytes.", "content": bytes}
		responses["206"] = object{"description": "The bytes of the range.", "content": bytes}
	case s.Key != "":
		properties := object{s.Key: d.schema(s.Out)}
		if s.Select != nil {
			properties["next_cursor"] = object{"type": "string", "description": "Empty or missing on the last page."}
		}
		schema := object{"type": "object", "required": []string{s.Key}, "properties": properties}
		response["content"] = object{"application/json": object{"schema": schema}}
	default:
		response["content"] = object{"application/json": object{"schema": d.schema(s.Out)}}
	}
	if len(headers) > 0 {
		response["headers"] = headers
	}
	responses[code] = response
	op["responses"] = responses
	return op
}

// list says in a parameter's schema what a list can be asked for.
func list(schema object, param string, l job.Listing) {
	switch param {
	case "status":
		schema["enum"] = l.Statuses
	case "sort":
		var by []string
		for _, name := range l.Sorts {
			by = append(by, name, "-"+name)
		}
		schema["enum"] = by
	}
}

// paramAbout describes parameters by their names.
var paramAbout = map[string]string{
	"id": "The job's ID.", "vm": "The VM's name, its number on the host, or the ID of the job that has made it or runs in it.",
	"pool": "The pool's name.", "checkpoint": "The checkpoint's ID or name, or the VM ID of its template.", "volume": "The volume's name or ID.", "schedule": "The schedule's name.", "token": "The token's ID, or the name of all of them.", "node": "The node's name.", "test": "The test's ID.", "credential": "The credential's name.", "snapshot": "The snapshot's name.",
	"path":      "The path: absolute, or from the home of the VM's user.",
	"principal": "Only what belongs to this one; without it, all that the token may see.",
	"signal":    "The signal: TERM, KILL, INT, HUP or QUIT.", "port": "The port's number, or the name of one that has a URL.",
	"If-Match":        "The ETag of the pool as it was read: it is changed only if that is still its size.",
	"Idempotency-Key": "Any text that is new for a new one: with it a request can be repeated without harm.",
}

// describe returns a field's description.
func (d *describer) describe(t reflect.Type, f reflect.StructField) string {
	if row, ok := rowOf(t, f); ok && row.Says() != "" {
		return publicWords(row.Says())
	}
	return readable(f.Name, d.fields[nameOf(t)+"."+f.Name])
}

// rowOf returns the row of a field of a manifest.
func rowOf(t reflect.Type, f reflect.StructField) (field.Field, bool) {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return job.FieldOf(t, name)
}

// numbers are constants that comments name.
var numbers = strings.NewReplacer(
	"MaxFileList", "1000", "MaxFileChunk", "4194304", "MaxFileWrite", "10 MiB", "MaxSearch", "200", "MaxSkipped", "50", "MaxNetworkTargets", "10", "MaxNetworkConnections", "20",
)

// readable makes a Go comment of a name a description: a sentence that does not begin with it.
func readable(name, comment string) string {
	text := numbers.Replace(oneLine(comment))
	if rest, ok := strings.CutPrefix(text, name+" "); ok {
		for _, verb := range []string{"is ", "are ", "says "} {
			rest = strings.TrimPrefix(rest, verb)
		}
		text = rest
	}
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// schema returns the schema of a type; a struct's is a component.
func (d *describer) schema(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[time.Duration]():
		return object{"type": "number"}
	case reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	}
	switch t.Kind() { //nolint:exhaustive // the others are not used
	case reflect.Pointer:
		return d.schema(t.Elem())
	case reflect.Struct:
		name := strings.ToUpper(nameOf(t)[:1]) + nameOf(t)[1:]
		if _, known := d.schemas[name]; !known {
			d.schemas[name] = nil // it may contain itself
			d.schemas[name] = d.structure(t, nil)
		}
		return object{"$ref": "#/components/schemas/" + name}
	case reflect.Slice:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Uint32:
		return object{"type": "integer"}
	case reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.String:
		if values := d.enums[nameOf(t)]; t.PkgPath() != "" && len(values) > 0 {
			return object{"type": "string", "enum": values}
		}
		return object{"type": "string"}
	}
	d.t.Fatalf("no schema for %v", t)
	return nil
}

// structure returns the schema of a struct without some fields; with "" among them, without
// all that are not named.
func (d *describer) structure(t reflect.Type, without map[string]bool) object {
	s := object{"type": "object"}
	if text := readable(t.Name(), d.types[nameOf(t)]); text != "" {
		s["description"] = text
	}
	properties, required := object{}, []string{}
	for _, f := range view.Fields(t) {
		left, named := without[f.Name]
		if left || without[""] && !named || f.Body || f.Header || f.Type == reflect.TypeFor[io.Reader]() {
			continue
		}
		one := d.schema(f.Type)
		if row, ok := rowOf(t, f.StructField); ok && row.Most > 0 {
			one["minimum"], one["maximum"] = row.Least, row.Most
		}
		if f.Text || f.String {
			one = object{"type": "string"}
		}
		if text := d.describe(t, f.StructField); text != "" {
			one["description"] = text
		}
		properties[f.Name] = one
		if f.Text {
			properties[f.Name+"_base64"] = object{"type": "string", "contentEncoding": "base64", "description": "The same bytes, where they are not UTF-8."}
		}
		if f.Needed || !f.Omitted && !isInput[t] {
			required = append(required, f.Name)
		}
	}
	s["properties"] = properties
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// isInput are the types of requests alone: of their fields those that are required are.
var isInput = map[reflect.Type]bool{}

// table lists the operations for people.
func (d *describer) table() string {
	var b strings.Builder
	b.WriteString("| operation | route | what |\n| --- | --- | --- |\n")
	for _, s := range d.shapes() {
		path := s.path
		var query []string
		for _, p := range s.params {
			if p.in == inQuery {
				query = append(query, p.name)
			}
		}
		if len(query) > 0 {
			path += "?" + strings.Join(query, "&")
		}
		fmt.Fprintf(&b, "| %s | `%s %s` | %s |\n", s.ID, s.method, APIPrefix+path, doctest.Cell(s.Does))
	}
	return b.String()
}

// goWords are what a reader of the API's description does not know.
var goWords = regexp.MustCompile(`\b(vm|job|context|time)\.[A-Z]|\b[A-Z][a-z]+[A-Z]\w+|\bErr[A-Z]|\*[A-Z]`)

// What the document says is about the API, and not about how it is written: names are
// snake_case, times have their unit, no operation is without a word, and none names Go's.
func TestOpenAPI_IsWrittenForItsReaders(t *testing.T) {
	var parsed any
	if err := json.Unmarshal(openapi, &parsed); err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case []any:
			for i, e := range v {
				walk(at+"/"+strconv.Itoa(i), e)
			}
		case map[string]any:
			for k, e := range v {
				walk(at+"/"+k, e)
				if k == "properties" {
					for p := range e.(map[string]any) {
						if !name.MatchString(p) {
							t.Errorf("%s: %s is not snake_case", at, p)
						}
					}
				}
				text, _ := e.(string)
				if (k == "description" || k == "summary") && (text == "" || goWords.MatchString(strings.ReplaceAll(text, "WebSocket", ""))) {
					t.Errorf("%s: %q is not for the API's readers", at, text)
				}
			}
		}
	}
	walk("", parsed)
	for _, s := range newDescriber(t).shapes() {
		for _, of := range []reflect.Type{s.in, s.Out} {
			seconds(t, s.ID, of, map[reflect.Type]bool{})
		}
	}
}

// seconds checks that durations are named so.
func seconds(t *testing.T, at string, of reflect.Type, seen map[reflect.Type]bool) {
	for of != nil && (of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice) {
		of = of.Elem()
	}
	if of == nil || of.Kind() != reflect.Struct || seen[of] || of == reflect.TypeFor[time.Time]() {
		return
	}
	seen[of] = true
	for _, f := range view.Fields(of) {
		if f.Type == reflect.TypeFor[time.Duration]() && !strings.HasSuffix(f.Name, "_seconds") {
			t.Errorf("%s: %s.%s is a duration: give it a name with _seconds", at, of, f.Name)
		}
		seconds(t, at, f.Type, seen)
	}
}

// Texts that name a manifest's field as it is stored name it as the API does.
func TestPublicWords_KnowEachFieldThatHasAnother(t *testing.T) {
	found := 0
	for _, of := range []reflect.Type{reflect.TypeFor[job.Manifest](), reflect.TypeFor[job.Agent]()} {
		for _, f := range view.Fields(of) {
			stored, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if stored == strings.ToLower(stored) {
				continue // a word of prose, too
			}
			found++
			if of == reflect.TypeFor[job.Agent]() {
				stored, f.Name = "agent."+stored, "agent."+f.Name
			}
			if got := publicWords("give " + stored + " too"); got != "give "+f.Name+" too" {
				t.Errorf("%s is %q in texts, and %s in the API", stored, got, f.Name)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d fields are looked at", found)
	}
}
