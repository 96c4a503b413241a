package job

import (
	"errors"
	"strings"

	"linus/internal/lazyregexp"
)

// Naming returns a field's name as the caller writes it. The domain names fields by path, as in
// manifest.resources.memory, and asks for a value by "set manifest.tty=true"; then value is not
// empty and the result says how to set it. subject says that the field is what the line is about.
type Naming func(path, value string, subject bool) string

// fieldNames matches field names in texts of the domain: of a manifest, a pool or a volume.
var fieldNames = lazyregexp.New(`(?m)(^|\bset )?\b((?:manifest|pool|volume)\.[A-Za-z_]+(?:\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]+\])*)(=[a-z_]+|:)?`)

// In returns a text with its field names as the caller writes them.
func (n Naming) In(text string) string {
	if !strings.Contains(text, ".") {
		return text
	}
	return fieldNames.ReplaceAllStringFunc(text, func(found string) string {
		part := fieldNames.FindStringSubmatch(found)
		path, after := part[2], part[3]
		if value, ok := strings.CutPrefix(after, "="); ok && part[1] != "" {
			return n(path, value, false)
		}
		return part[1] + n(path, "", after == ":" && strings.HasPrefix(found, path)) + after
	})
}

// Error returns an error about fields with their names as the caller writes them.
func (n Naming) Error(err error) error {
	name := func(f *FieldError) *FieldError {
		named := *f
		named.Field, named.Problem, named.Remedy = n(f.Field, "", true), n.In(f.Problem), n.In(f.Remedy)
		return &named
	}
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		return &InvalidError{Fields: each(invalid.Fields, name)}
	}
	if field, ok := errors.AsType[*FieldError](err); ok {
		return name(field)
	}
	return err
}

// Written is the naming for callers that write a manifest's JSON.
func Written(path, value string, _ bool) string {
	if value == "" {
		return path
	}
	return "set " + path + " to " + value
}
