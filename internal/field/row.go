package field

import (
	"reflect"
	"strings"

	"linus/internal/lazyregexp"
)

// Row is a field that was looked up in a struct type, with its needs compiled: each submission is
// checked against all rows, several times.
type Row struct {
	Field

	places [][]int
	needs  []rowNeed
}

type rowNeed struct {
	Need

	of         *lazyregexp.Regexp // nil: all values
	conditions []condition
}

// condition requires that one of fields has a matching value.
type condition struct {
	fields []*Row
	is     *lazyregexp.Regexp
}

// RowsOf returns the rows of a struct's fields, except those of list elements.
func RowsOf(t reflect.Type, fields []Field) []*Row {
	var rows []*Row
	named := map[string]*Row{}
	for _, f := range fields {
		if !strings.Contains(f.Name, "[]") {
			rows = append(rows, &Row{Field: f, places: placesOf(t, f.Name)})
			named[f.Name] = rows[len(rows)-1]
		}
	}
	patterns := map[string]*lazyregexp.Regexp{}
	compiled := func(pattern string) *lazyregexp.Regexp {
		if patterns[pattern] == nil {
			patterns[pattern] = lazyregexp.New(pattern)
		}
		return patterns[pattern]
	}
	for _, r := range rows {
		for _, n := range r.Needs {
			if n.Problem == "" {
				continue
			}
			need := rowNeed{Need: n}
			if n.Of != "" {
				need.of = compiled(n.Of)
			}
			for text := range strings.FieldsSeq(n.Where) {
				names, pattern, _ := strings.Cut(text, "=")
				c := condition{is: compiled(pattern)}
				for name := range strings.SplitSeq(names, ",") {
					c.fields = append(c.fields, named[name])
				}
				need.conditions = append(need.conditions, c)
			}
			r.needs = append(r.needs, need)
		}
	}
	return rows
}

// In returns the field of a struct's value, without changing the value.
func (r *Row) In(v reflect.Value) reflect.Value { return within(v, r.places, false) }

// Unmet returns the first need of the field that the struct's value does not meet; other is the
// value of the field that does not match.
func (r *Row) Unmet(v reflect.Value) (need Need, other string, unmet bool) {
	for i := range r.needs {
		n := &r.needs[i]
		if n.of != nil && !n.of.MatchString(text(r.In(v))) {
			continue
		}
		for _, c := range n.conditions {
			met := false
			for _, f := range c.fields {
				other = f.Typed(f.In(v))
				met = met || c.is.MatchString(other)
			}
			if !met {
				return n.Need, other, true
			}
		}
	}
	return Need{}, "", false
}
