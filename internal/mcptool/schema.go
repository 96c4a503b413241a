package mcptool

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"linus/internal/field"
	"linus/internal/job"
)

// schemaOf returns the JSON schema of a struct, in the subset that every MCP client's model
// accepts: one type per value, no $ref, no anyOf, no null. mcp-go's own generator writes
// ["null","array"] for slices and has no bounds. Properties are in the order of the fields. A field
// is required unless it is a pointer or has omitempty or omitzero. The fields of an embedded struct
// count as the struct's own; none of them is required if the embedded field is a pointer.
func schemaOf[T any](of detail) json.RawMessage {
	data, err := schemaFor(reflect.TypeFor[T](), about{}, of).appendTo(nil)
	if err != nil {
		panic(fmt.Sprintf("schema of %v: %v", reflect.TypeFor[T](), err)) // cannot happen with the types in use
	}
	return data
}

// detail is how much a schema says.
type detail int

const (
	// result is for a tool's result: what the fields' tags say.
	result detail = iota
	// whole is result, and refuses unknown properties.
	whole
	// arguments is for a tool's arguments in the list of tools, which every client pays for in each
	// conversation: it prefers the descriptions of the tag brief ("-": none), and leaves out what
	// the error for a wrong argument says soon enough.
	arguments
	// bare is a part of arguments with the tag bare, whose description says enough: only names and
	// types.
	bare
)

// The schema of arguments leaves out limits that any sensible value meets.
const (
	leastSaid = 2
	mostSaid  = 1 << 20
)

// object is a JSON object with its members in order.
type object []member

type member struct {
	name  string
	value any
}

// appendTo appends the object's JSON, with the members in order. It is not MarshalJSON, whose
// result would be parsed again at every level: all schemas are made when a client starts.
func (o object) appendTo(b []byte) ([]byte, error) {
	b = append(b, '{')
	for i, m := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, m.name), ':')
		if inner, ok := m.value.(object); ok {
			var err error
			if b, err = inner.appendTo(b); err != nil {
				return nil, err
			}
			continue
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b = append(b, value...)
	}
	return append(b, '}'), nil
}

// lists are the values that a tag names, as in enum=@systems.
var lists = map[string][]string{
	"@signals":  job.Signals,
	"@statuses": each(job.Statuses, func(s job.Status) string { return string(s) }),
}

func schemaFor(t reflect.Type, says about, of detail) object {
	inner := of
	if says.bare && of == arguments {
		inner = bare
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var s object
	switch {
	case says.elsewhere && of == arguments:
		s = object{{"type", "object"}}
	case t == reflect.TypeFor[time.Time]():
		s = object{{"type", "string"}, {"format", "date-time"}}
	case t.Kind() == reflect.Struct:
		s = structSchema(t, inner)
	case t.Kind() == reflect.Slice:
		s = object{{"type", "array"}, {"items", schemaFor(t.Elem(), about{}, inner)}}
	case t.Kind() == reflect.Map:
		s = object{{"type", "object"}, {"additionalProperties", schemaFor(t.Elem(), about{}, inner)}}
	case t.Kind() == reflect.Bool:
		s = object{{"type", "boolean"}}
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		s = object{{"type", "integer"}}
	case t.Kind() == reflect.Float64:
		s = object{{"type", "number"}}
	case t.Kind() == reflect.String:
		s = object{{"type", "string"}}
	default:
		panic("no schema for " + t.String())
	}
	l := says.limits
	if l.bounded && (of < arguments || inner == arguments && l.least >= leastSaid) {
		s = append(s, member{"minimum", l.least})
	}
	if l.most != 0 && l.most < math.MaxInt32 && (of < arguments || inner == arguments && l.most < mostSaid) {
		s = append(s, member{"maximum", l.most})
	}
	if l.words != nil && inner != bare {
		s = append(s, member{"enum", l.words})
	}
	if text := says.description(of); text != "" {
		s = append(s, member{"description", text})
	}
	return s
}

// about describes a field, according to its tags and to the manifest field that it stands for.
type about struct {
	text, brief string // brief: empty: as text; "-": nothing
	bare        bool
	elsewhere   bool // arguments only say that it is an object: another tool describes its fields
	limits      limits
}

type limits struct {
	bounded     bool
	least, most int
	words       []string // nil: any
}

// aboutOf describes a field of a struct. A field that becomes a field of a manifest has that one's
// bounds; the tag is names it if the names differ.
func aboutOf(in reflect.Type, f reflect.StructField) about {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	says := about{text: f.Tag.Get("jsonschema_description"), brief: f.Tag.Get("brief"), bare: f.Tag.Get("bare") != "", elsewhere: f.Tag.Get("elsewhere") != "", limits: limitsOf(f.Tag)}
	row, own := job.FieldOf(in, name)
	if is := f.Tag.Get("is"); is != "" {
		row = field.Some(is)[0]
	}
	if own {
		says.text, says.brief = row.Says(), row.Brief
	}
	switch f.Type.Kind() {
	case reflect.Int:
		if row.Most > 0 {
			says.limits = limits{bounded: true, least: row.Least, most: row.Most}
		}
	case reflect.String:
		if row.Values != nil {
			says.limits.words = row.Values
		}
	}
	return says
}

func (a about) description(of detail) string {
	switch {
	case of < arguments || of == arguments && a.brief == "":
		return a.text
	case of == bare || a.brief == "-":
		return ""
	}
	return a.brief
}

func limitsOf(tag reflect.StructTag) limits {
	l := limits{most: math.MaxInt32}
	for option := range strings.SplitSeq(tag.Get("jsonschema"), ",") {
		name, value, _ := strings.Cut(option, "=")
		n, _ := strconv.Atoi(value) // a test compares all schemas
		switch name {
		case "enum":
			if list, ok := lists[value]; ok {
				l.words = append(l.words, list...)
			} else {
				l.words = append(l.words, value)
			}
		case "minimum":
			l.least, l.bounded = n, true
		case "maximum":
			l.most = n
		}
	}
	return l
}

func structSchema(t reflect.Type, of detail) object {
	properties, required := fieldSchemas(t, of)
	s := object{{"type", "object"}, {"properties", properties}}
	if len(required) > 0 {
		s = append(s, member{"required", required})
	}
	if of == whole {
		s = append(s, member{"additionalProperties", false})
	}
	return s
}

// fieldSchemas returns a struct's properties and the names of the required ones.
func fieldSchemas(t reflect.Type, of detail) (properties object, required []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			more, needed := fieldSchemas(inner, of)
			properties = append(properties, more...)
			if f.Type.Kind() != reflect.Pointer {
				required = append(required, needed...)
			}
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		properties = append(properties, member{name, schemaFor(f.Type, aboutOf(t, f), of)})
		if f.Type.Kind() != reflect.Pointer && !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	return properties, required
}
