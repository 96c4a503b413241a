package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/mcptask"
	"linus/internal/term"
)

// hints tell clients what a tool may do.
type hints struct {
	readOnly, destructive, idempotent, openWorld bool
	long                                         bool // the result may have all the requested output
}

// Claude Code gives its model results longer than this, in characters, as a file. Without it the
// limit is 25,000 tokens. It accepts no larger number.
const (
	maxSizeKey = "anthropic/maxResultSizeChars"
	maxSize    = 500_000
)

// define returns a tool with the arguments In and the result Out, both structs. run is only called
// with arguments in which faultsOf finds nothing wrong. Its errors become tool errors that say what
// to do next, with the names of the tool's arguments.
func define[In, Out any](name, title, description string, h hints, run func(context.Context, In) (Out, error)) server.ServerTool {
	return defineCall(name, title, description, h, func(ctx context.Context, in In, _ call) (Out, error) { return run(ctx, in) })
}

func defineCall[In, Out any](name, title, description string, h hints, run func(context.Context, In, call) (Out, error)) server.ServerTool {
	tool := newTool(name, title, description, h)
	tool.RawInputSchema, tool.RawOutputSchema = schemaOf[In](arguments), schemaOf[Out](result)
	return server.ServerTool{Tool: tool, Handler: handler(reflect.TypeFor[In](), func(ctx context.Context, in any, c call) (any, error) { return run(ctx, *in.(*In), c) })}
}

func newTool(name, title, description string, h hints) mcp.Tool {
	tool := mcp.Tool{
		Name:        name,
		Title:       title,
		Description: description,
		Annotations: mcp.ToolAnnotation{
			ReadOnlyHint:    &h.readOnly,
			DestructiveHint: &h.destructive,
			IdempotentHint:  &h.idempotent,
			OpenWorldHint:   &h.openWorld,
		},
	}
	if h.long {
		tool.Meta = &mcp.Meta{AdditionalFields: map[string]any{maxSizeKey: maxSize}}
	}
	return tool
}

// handler is the part of defineCall that needs no type parameters, and so is compiled once. run is
// called with a pointer to arguments of type of.
func handler(of reflect.Type, run func(context.Context, any, call) (any, error)) server.ToolHandlerFunc {
	bounds := sync.OnceValue(func() []bound { return boundsOf(of) })
	return func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx = job.WithClient(ctx, clientName(ctx))
		in := reflect.New(of)
		var out any
		tree, err := decodeCall(req.GetRawArguments(), in.Interface())
		if err == nil {
			err = faultsOf(in.Interface(), bounds())
		}
		if err == nil {
			out, err = run(ctx, in.Interface(), call{tree: tree, params: req.Params})
			if names, ok := in.Interface().(interface{ named(error) error }); ok && err != nil {
				err = names.named(err)
			} else if _, whole := of.FieldByName("Manifest"); !whole {
				err = renamed(err, of)
			}
		}
		if ask, ok := errors.AsType[*askError](err); ok {
			return ask.result(), nil
		}
		if begun, ok := errors.AsType[*begunError](err); ok {
			return mcptask.Begun(begun.task), nil
		}
		if err != nil {
			return mcp.NewToolResultError(term.Text(errorText(err))), nil
		}
		return structured(out)
	}
}

// listed returns a tool for the list of tools, which every client pays for in each conversation:
// without the schema of its result, which no model sees, and without hints at their defaults.
func listed(t mcp.Tool) mcp.Tool {
	t.RawOutputSchema = nil
	said := func(hint *bool, assumed bool) *bool {
		if hint == nil || *hint == assumed {
			return nil
		}
		return hint
	}
	a := &t.Annotations
	if a.ReadOnlyHint != nil && *a.ReadOnlyHint { // the two others only concern tools that change something
		a.DestructiveHint, a.IdempotentHint = nil, nil
	}
	a.ReadOnlyHint, a.DestructiveHint = said(a.ReadOnlyHint, false), said(a.DestructiveHint, true)
	a.IdempotentHint, a.OpenWorldHint = said(a.IdempotentHint, false), said(a.OpenWorldHint, true)
	return t
}

// structured returns a result as structured content, and as text for models and for clients that
// only read text: JSON, followed by the output of programs as it is, not as JSON strings.
func structured(out any) (*mcp.CallToolResult, error) {
	shown := out
	if short, ok := out.(interface{ inText() any }); ok {
		shown = short.inText()
	}
	text, err := plainJSON(shown)
	if err != nil {
		return nil, err
	}
	text, blocks := takeTexts(text)
	result := mcp.NewToolResultStructured(out, text)
	for _, block := range blocks {
		result.Content = append(result.Content, mcp.NewTextContent(block))
	}
	if linked, ok := out.(interface{ links() []mcp.ResourceLink }); ok {
		for _, link := range linked.links() {
			result.Content = append(result.Content, link)
		}
	}
	return result, nil
}

// plainJSON returns a value as JSON without HTML escapes: models read it.
func plainJSON(value any) (string, error) {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return "", fmt.Errorf("encode the result: %w", err)
	}
	return string(term.JSON([]byte(strings.TrimSuffix(text.String(), "\n")))), nil
}

// textFields are the fields with the output of programs, and with files.
var textFields = []string{"stdout", "stderr", "output", "content"}

// takeTexts moves the texts of outputs and files out of a JSON object, each to a block that begins
// with its name. A file with invisible characters stays in the JSON.
func takeTexts(object string) (rest string, blocks []string) {
	has := func(name string) bool { return strings.Contains(object, `"`+name+`":`) }
	if !slices.ContainsFunc(textFields, has) { // most objects have none
		return object, nil
	}
	d := json.NewDecoder(strings.NewReader(object))
	begin, err := d.Token()
	if err != nil || begin != json.Delim('{') {
		return object, nil
	}
	var fields []string
	for d.More() {
		key, _ := d.Token() // plainJSON made it: there can be no error
		var value json.RawMessage
		_ = d.Decode(&value)
		var text string
		if name, ok := key.(string); ok && slices.Contains(textFields, name) {
			_ = json.Unmarshal(value, &text)
		}
		shown := term.Plain(nil, []byte(text))
		if text == "" || key == "content" && term.Visible(text) != text {
			fields = append(fields, fmt.Sprintf("%q:%s", key, value))
			continue
		}
		if key == "content" {
			shown = text
		}
		blocks = append(blocks, fmt.Sprintf("%s:\n%s", key, shown))
	}
	return "{" + strings.Join(fields, ",") + "}", blocks
}

// renamed returns an error with the names of a tool's own arguments. The tag is on a field names
// the manifest field that it becomes, if the names differ.
func renamed(err error, in reflect.Type) error {
	own := map[string]string{"vm": "vm_id"}
	for f := range in.Fields() {
		if of := f.Tag.Get("is"); of != "" {
			own[of], _, _ = strings.Cut(f.Tag.Get("json"), ",")
		}
	}
	return job.Naming(func(path, value string, _ bool) string {
		path = strings.TrimPrefix(path, "manifest.")
		for whole := path; ; {
			if name, ok := own[whole]; ok {
				path = name + path[len(whole):]
				break
			}
			cut := strings.LastIndexByte(whole, '.')
			if cut < 0 {
				break
			}
			whole = whole[:cut]
		}
		return job.Written(path, value, false)
	}).Error(err)
}

// faults collects the problems with a call's arguments, so that a caller can correct all at once.
type faults struct{ fields []*job.FieldError }

func (f *faults) add(name, problem, remedy string) {
	f.fields = append(f.fields, &job.FieldError{Field: name, Problem: problem, Remedy: remedy})
}

func (f *faults) required(name, value, remedy string) {
	if value == "" {
		f.add(name, "is required", remedy)
	}
}

// bound is what the tags of a struct's field allow (see schemaOf): an optional number within a
// range, or a word of a fixed set.
type bound struct {
	limits

	name string
	at   []int
}

func boundsOf(of reflect.Type) (all []bound) {
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Anonymous {
			for _, inner := range boundsOf(f.Type) {
				inner.at = append([]int{i}, inner.at...)
				all = append(all, inner)
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if l := aboutOf(of, f).limits; l.words != nil || f.Type == reflect.TypeFor[*int]() {
			all = append(all, bound{l, name, []int{i}})
		}
	}
	return all
}

// faultsOf returns what is wrong with a tool's arguments, according to their bounds and to their
// own check method, if they have one. in may be a pointer to the arguments.
func faultsOf(in any, bounds []bound) error {
	var bad faults
	if of, ok := in.(interface{ check(bad *faults) }); ok {
		of.check(&bad)
	}
	of := reflect.Indirect(reflect.ValueOf(in))
	for _, b := range bounds {
		switch at := of.FieldByIndex(b.at); {
		case at.Kind() == reflect.Pointer && !at.IsNil():
			if n := int(at.Elem().Int()); n < b.least || n > b.most {
				bad.add(b.name, fmt.Sprintf("%d is out of range", n), fmt.Sprintf("give %d to %d", b.least, b.most))
			}
		case b.words != nil && !at.IsZero() && !slices.Contains(b.words, at.String()):
			bad.add(b.name, fmt.Sprintf("%q is unknown", at), "use one of: "+strings.Join(b.words, ", "))
		}
	}
	return bad.err()
}

func given(n *int, def int) int {
	if n == nil {
		return def
	}
	return *n
}

// each returns f of each element of a list. The result is never nil.
func each[T, U any](list []T, f func(T) U) []U {
	made := make([]U, len(list))
	for i, one := range list {
		made[i] = f(one)
	}
	return made
}

func (f *faults) err() error {
	if len(f.fields) == 0 {
		return nil
	}
	return &job.InvalidError{Fields: f.fields}
}
