package web

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"linus/internal/job"
)

// draft is what a form is about: a job, a VM, a pool or a token that does not exist yet.
type draft struct {
	manifest job.Manifest
	pool     string // its name
	size     job.PoolSize
	token    job.TokenSpec
}

// input is one field of a form.
type input struct {
	Name        string // as field errors name it, below "manifest." or "pool."
	Label, Hint string
	Kind        string   // text, number, area, choice or check
	Options     []string // of a choice; the first is selected where nothing is
	When        string   // where it applies: NAME=PATTERN of other inputs, divided by blanks; empty: always

	get func(*draft) string
	set func(d *draft, typed string) (problem string)
}

// textInput is an input of one line, or of several for kind area.
func textInput[T ~string](in input, at func(*draft) *T) input {
	in.get = func(d *draft) string { return string(*at(d)) }
	in.set = func(d *draft, typed string) string {
		if in.Kind != "area" {
			typed = strings.TrimSpace(typed)
		}
		*at(d) = T(typed)
		return ""
	}
	return in
}

// numberInput is an input of a whole number; nothing is the default: what the draft has
// where zero is a number like others, else zero.
func numberInput(in input, zero bool, at func(*draft) *int) input {
	in.Kind = "number"
	in.get = func(d *draft) string {
		if *at(d) == 0 && !zero {
			return ""
		}
		return strconv.Itoa(*at(d))
	}
	in.set = func(d *draft, typed string) string {
		if typed = strings.TrimSpace(typed); typed == "" {
			if !zero {
				*at(d) = 0
			}
			return ""
		}
		n, err := strconv.Atoi(typed)
		switch {
		case err != nil:
			return strconv.Quote(typed) + " is not a whole number"
		case n == 0 && !zero:
			return "0 is out of range; leave it empty for the default"
		}
		*at(d) = n
		return ""
	}
	return in
}

// checkInput is a box to tick: at holds the value on or off.
func checkInput[T comparable](in input, on T, at func(*draft) *T) input {
	in.Kind = "check"
	in.get = func(d *draft) string {
		if *at(d) == on {
			return "on"
		}
		return ""
	}
	in.set = func(d *draft, typed string) string {
		if typed == "on" {
			*at(d) = on
		}
		return ""
	}
	return in
}

// listInput is an input of several texts, divided by newlines, or by blanks and
// commas too if they are words.
func listInput(in input, words bool, at func(*draft) *[]string) input {
	in.get = func(d *draft) string {
		if words {
			return strings.Join(*at(d), " ")
		}
		return strings.Join(*at(d), "\n")
	}
	in.set = func(d *draft, typed string) string {
		divides := func(r rune) bool { return r == '\n' || words && (r == ' ' || r == ',' || r == '\t') }
		*at(d) = nil
		for _, text := range strings.FieldsFunc(typed, divides) {
			if strings.TrimSpace(text) != "" {
				*at(d) = append(*at(d), text)
			}
		}
		return ""
	}
	return in
}

// group is a part of a form. Extra names what the template adds that is not an
// input: env or files.
type group struct {
	Title  string
	Rare   bool // folded unless something in it is filled in
	Extra  string
	When   string // as an input's
	inputs []input
}

// control is an input with what was typed, and what is wrong with it.
type control struct {
	input

	Value  string
	Errors []string
	Offers []string // what there is to choose from, beside what can be typed
	First  bool     // the first that is wrong
}

// ID is the control's address within the page.
func (c control) ID() string { return "f-" + strings.ReplaceAll(c.Name, ".", "-") }

// Number reports whether a keyboard with digits will do.
func (c control) Number() bool { return c.Kind == "number" }

// filled is a group as the template shows it.
type filled struct {
	group

	Controls []control
	Open     bool
}

// pair is a variable of the environment.
type pair struct{ Name, Value string }

// formFile is a file that a form has been given before, and gives again.
type formFile struct {
	job.File

	Size int64
}

// formView is a form for a template.
type formView struct {
	viewer

	Heading  string
	Crumb    string // the section it belongs to
	Base     string // the address of that section
	Action   string // the address it is sent to
	Button   string
	CanPlan  bool
	Key      string // makes one job of a form that is sent twice
	Groups   []filled
	Env      []pair
	Files    []formFile
	paths    []string            // of all files, also of those that are not given back
	Dir      string              // where the chosen files go
	Problems []string            // those of no field
	Errors   map[string][]string // those of env and files
	Faulty   bool
	Wrong    []wrongField
	Pools    []poolOffer
	Planned  bool
	Plan     []string
}

func (v formView) title() string { return v.Heading }

// wrongField leads to a field and says what is wrong with it.
type wrongField struct{ ID, Label, Text string }

// FirstWrong is the address of the first field that is wrong; empty: none is.
func (v formView) FirstWrong() string {
	if len(v.Wrong) == 0 {
		return ""
	}
	return v.Wrong[0].ID
}

// values are what was typed into a form, by field.
type values func(name string) string

// typed fills a draft with what was typed, and returns what cannot be read.
func typed(d *draft, groups []group, value values) []*job.FieldError {
	var bad []*job.FieldError
	for _, g := range groups {
		for _, in := range g.inputs {
			if problem := in.set(d, newlines(value(in.Name))); problem != "" {
				bad = append(bad, &job.FieldError{Field: in.Name, Problem: problem})
			}
		}
	}
	return bad
}

// newlines undoes what browsers do to the lines of a text.
func newlines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// show adds the groups to a view, with what was typed, or what d has if value is
// nil.
func (v *formView) show(groups []group, d *draft, value values) {
	for _, g := range groups {
		f := filled{group: g}
		for _, in := range g.inputs {
			c := control{input: in, Value: in.get(d)}
			if value != nil {
				c.Value = newlines(value(in.Name))
			}
			f.Open = f.Open || c.Value != "" && !(in.Kind == "choice" && c.Value == in.Options[0])
			f.Controls = append(f.Controls, c)
		}
		v.Groups = append(v.Groups, f)
	}
}

// blame puts an engine's errors at the fields they are about.
func (v *formView) blame(err error) {
	var (
		invalid *job.InvalidError
		field   *job.FieldError
	)
	v.Faulty = true
	switch {
	case errors.As(err, &invalid):
		for _, f := range invalid.Fields {
			v.blameField(f.Field, fieldText(f))
		}
	case errors.As(err, &field):
		text := fieldText(field)
		if err.Error() != field.Error() { // it says more
			text = err.Error()
		}
		v.blameField(field.Field, text)
	default:
		v.Problems = append(v.Problems, words.In(err.Error()))
	}
	v.lead()
}

// lead lists the fields that are wrong, in the order of the page.
func (v *formView) lead() {
	for i, g := range v.Groups {
		for _, text := range v.Errors[g.Extra] {
			v.Wrong = append(v.Wrong, wrongField{g.Extra, extraLabels[g.Extra], text})
		}
		for j, c := range g.Controls {
			for _, text := range c.Errors {
				v.Wrong = append(v.Wrong, wrongField{c.ID(), c.Label, text})
			}
			v.Groups[i].Controls[j].First = len(v.Wrong) > 0 && v.Wrong[0].ID == c.ID()
		}
	}
}

// extraLabels are those of what is not a control, by its address.
var extraLabels = map[string]string{"env": "Variables", "files": "Files"}

func fieldText(f *job.FieldError) string {
	if f.Remedy == "" {
		return f.Problem
	}
	return f.Problem + "; " + f.Remedy
}

func (v *formView) blameField(field, text string) {
	text = words.In(text)
	name := strings.TrimPrefix(strings.TrimPrefix(field, "manifest."), "pool.")
	for i := range v.Groups {
		for j := range v.Groups[i].Controls {
			if c := &v.Groups[i].Controls[j]; c.Name == name {
				c.Errors = append(c.Errors, text)
				v.Groups[i].Open = true
				return
			}
		}
	}
	for _, extra := range []string{"env", "files"} {
		if rest, ok := strings.CutPrefix(name, extra); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			for i := range v.Groups {
				if v.Groups[i].Extra == extra {
					v.Groups[i].Open = true
					v.Errors[extra] = append(v.Errors[extra], strings.TrimSpace(v.which(rest)+" "+text))
					return
				}
			}
		}
	}
	v.Problems = append(v.Problems, fmt.Sprintf("%s: %s", name, text))
}

// which names the variable or file that the rest of a field's path is about.
func (v *formView) which(rest string) string {
	if index, _, ok := strings.Cut(strings.TrimPrefix(rest, "["), "]"); ok {
		if i, err := strconv.Atoi(index); err == nil && i < len(v.paths) {
			return v.paths[i]
		}
	}
	return strings.TrimPrefix(rest, ".")
}
