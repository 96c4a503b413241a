package web

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/vm"
)

// shown returns the value of a struct's field as its control shows it.
func shown(f field.Field, of any) string {
	switch at := f.Of(of); {
	case f.IsBox(at):
		return f.Typed(at)
	case at.Kind() == reflect.Map:
		return strings.Join(job.LabelTexts(at.Interface().(map[string]string)), "\n")
	case at.Type() == reflect.TypeFor[[]vm.Mount]():
		var lines []string
		for _, m := range at.Interface().([]vm.Mount) {
			lines = append(lines, m.Text())
		}
		return strings.Join(lines, "\n")
	case at.Kind() == reflect.Slice && f.Lines:
		return strings.Join(at.Interface().([]string), "\n")
	case at.Kind() == reflect.Slice:
		return strings.Join(at.Interface().([]string), " ")
	case at.Kind() == reflect.Int && at.IsZero() && !f.Zero:
		return ""
	case f.Seconds:
		return durationText(at.Int())
	default:
		return fmt.Sprint(at)
	}
}

// durationText returns seconds as people write them: 90m, 2h, 7d.
func durationText(seconds int64) string {
	for _, unit := range []struct {
		seconds int64
		name    string
	}{{24 * 3600, "d"}, {3600, "h"}, {60, "m"}} {
		if seconds > 0 && seconds%unit.seconds == 0 {
			return strconv.FormatInt(seconds/unit.seconds, 10) + unit.name
		}
	}
	return strconv.FormatInt(seconds, 10)
}

// set parses typed into the field of the struct that to points to. If typed is empty, the field
// stays as it is.
func set(f field.Field, to any, typed string) (problem string) {
	if !f.Lines {
		typed = strings.TrimSpace(typed)
	}
	if typed == "" {
		return ""
	}
	switch at := f.Of(to); {
	case f.IsBox(at) && typed != "on":
	case at.Kind() == reflect.Bool:
		at.SetBool(true)
	case f.IsBox(at):
		at.SetString(f.On)
	case at.Kind() == reflect.Int:
		n, err := strconv.Atoi(typed)
		if d, wrong := job.ParseDuration(typed); err != nil && f.Seconds && wrong == nil && d%time.Second == 0 {
			n, err = int(d/time.Second), nil
		}
		switch {
		case err != nil && f.Seconds:
			return strconv.Quote(typed) + " is not a time: give seconds, or 90m, 2h or 7d"
		case err != nil:
			return strconv.Quote(typed) + " is not a whole number"
		case n == 0 && f.Nothing != 0:
			n = f.Nothing
		case n == 0 && !f.Zero:
			return "0 is out of range; leave it empty for the default"
		}
		at.SetInt(int64(n))
	case at.Kind() == reflect.Map:
		pairs := map[string]string{}
		for line := range strings.Lines(typed) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			switch _, twice := pairs[key]; {
			case key == "" && !ok:
				continue
			case !ok:
				return strconv.Quote(key) + " has no value; give KEY=VALUE"
			case twice:
				return strconv.Quote(key) + " is given twice"
			}
			pairs[key] = value
		}
		at.Set(reflect.ValueOf(pairs))
	case at.Type() == reflect.TypeFor[[]vm.Mount]():
		var mounts []vm.Mount
		for line := range strings.FieldsSeq(typed) {
			m, ok := vm.ParseMount(line)
			if !ok {
				return strconv.Quote(line) + " is not NAME:/PATH or NAME:/PATH:ro"
			}
			mounts = append(mounts, m)
		}
		at.Set(reflect.ValueOf(mounts))
	case at.Kind() == reflect.Slice:
		list := strings.FieldsFunc(typed, func(r rune) bool { return r == '\n' || !f.Lines && (r == ' ' || r == ',' || r == '\t') })
		list = slices.DeleteFunc(list, func(text string) bool { return strings.TrimSpace(text) == "" })
		at.Set(reflect.ValueOf(list))
	default:
		at.SetString(typed)
	}
	return ""
}

// group is a part of a form. Extra names the field that the template renders itself: env or files.
type group struct {
	Title  string
	Rare   bool // folded unless something in it is filled in
	Extra  string
	When   string // condition, as in field.Field
	fields []field.Field
}

// control is a field with what was typed into it and what is wrong with that.
type control struct {
	field.Field

	Kind    string // text, number, area, choice or check
	Value   string
	Errors  []string
	Default string   // the value if it is left out; empty: nothing, or unknown
	Choose  []string // values to choose from, besides what can be typed
	First   bool     // the first control with an error
}

// ID returns the control's anchor within the page.
func (c control) ID() string { return "f-" + strings.ReplaceAll(c.Name, ".", "-") }

// Number reports whether a numeric keyboard suffices.
func (c control) Number() bool { return c.Kind == "number" }

type filled struct {
	group

	Controls []control
	Open     bool
}

type pair struct{ Name, Value string }

// formFile is a file that the browser has sent already and sends again with the form.
type formFile struct {
	job.File

	Size int64
}

// form describes a kind of form, which creates a thing of a section.
type form struct {
	groups  func() []group
	Heading string
	Crumb   string // the section it belongs to
	Base    string // the address of that section
	Button  string
	CanPlan bool
}

// Action returns the address that the form is sent to.
func (f form) Action() string { return f.Base + "/new" }

// view is the form without its fields.
func (f form) view(p *pages, r *http.Request) formView {
	return formView{form: f, viewer: p.viewer(r), Errors: map[string][]string{}}
}

type formView struct {
	viewer
	form

	Key      string // idempotency key: makes one job of a form that is sent twice
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

// wrongField links to a field and says what is wrong with it.
type wrongField struct{ ID, Label, Text string }

// FirstWrong returns the ID of the first field with an error, or "".
func (v formView) FirstWrong() string {
	if len(v.Wrong) == 0 {
		return ""
	}
	return v.Wrong[0].ID
}

// values returns what was typed into a form's field.
type values func(name string) string

func faulty(bad []*job.FieldError) error {
	if len(bad) == 0 {
		return nil
	}
	return &job.InvalidError{Fields: bad}
}

// typed fills the struct that d points to with what was typed, and returns the fields that cannot
// be parsed.
func typed(d any, groups []group, value values) []*job.FieldError {
	var bad []*job.FieldError
	for _, g := range groups {
		for _, f := range g.fields {
			if problem := set(f, d, newlines(value(f.Name))); problem != "" {
				bad = append(bad, &job.FieldError{Field: f.Name, Problem: problem})
			}
		}
	}
	return bad
}

// newlines undoes the CRLF line ends of browsers.
func newlines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// show adds the fields to a view, with what was typed, or with the values of d if value is nil.
func (v *formView) show(d any, value values) {
	for _, g := range v.groups() {
		section := filled{group: g}
		for _, f := range g.fields {
			c := control{Field: f, Kind: kind(f, f.Of(d)), Value: shown(f, d)}
			if value != nil {
				c.Value = newlines(value(f.Name))
			}
			section.Open = section.Open || c.Value != "" && !(c.Kind == "choice" && c.Value == f.Preset)
			section.Controls = append(section.Controls, c)
		}
		v.Groups = append(v.Groups, section)
	}
}

// defaults sets the default of each control from a struct that has the defaults filled in.
func (v *formView) defaults(of any) {
	for i := range v.Groups {
		for j := range v.Groups[i].Controls {
			c := &v.Groups[i].Controls[j]
			c.Default = shown(c.Field, of)
		}
	}
}

func kind(f field.Field, at reflect.Value) string {
	switch {
	case f.IsBox(at):
		return "check"
	case f.Values != nil:
		return "choice"
	case f.Lines:
		return "area"
	case at.Kind() == reflect.Int:
		return "number"
	}
	return "text"
}

// refused shows a form again with its errors.
func (p *pages) refused(w http.ResponseWriter, r *http.Request, v formView, err error) {
	v.blame(err)
	p.render(w, r, p.codeOf(r, err), "form", v)
}

// blame attaches an engine's errors to the fields they are about.
func (v *formView) blame(err error) {
	var (
		invalid *job.InvalidError
		one     *job.FieldError
	)
	v.Faulty = true
	switch {
	case errors.As(err, &invalid):
		for _, f := range invalid.Fields {
			v.blameField(f.Field, fieldText(f))
		}
	case errors.As(err, &one):
		text := fieldText(one)
		if err.Error() != one.Error() { // err has more context
			text = err.Error()
		}
		v.blameField(one.Field, text)
	default:
		v.Problems = append(v.Problems, words.In(err.Error()))
	}
	v.lead()
}

// lead lists the fields with errors, in the order of the page.
func (v *formView) lead() {
	for i, g := range v.Groups {
		for _, text := range v.Errors[g.Extra] {
			v.Wrong = append(v.Wrong, wrongField{g.Extra, field.Some(g.Extra)[0].Label, text})
		}
		for j, c := range g.Controls {
			for _, text := range c.Errors {
				v.Wrong = append(v.Wrong, wrongField{c.ID(), c.Label, text})
			}
			v.Groups[i].Controls[j].First = len(v.Wrong) > 0 && v.Wrong[0].ID == c.ID()
		}
	}
}

// labelled names a field by its label in the form.
func labelled(path, value string, _ bool) string {
	_, name, _ := strings.Cut(path, ".")
	label := field.Some(name)[0].Label
	switch {
	case label == "":
		return job.Written(name, value, false)
	case value == "true":
		return "tick " + label
	}
	return job.Written(label, value, false)
}

func fieldText(f *job.FieldError) string {
	if f.Remedy == "" {
		return f.Problem
	}
	return f.Problem + "; " + f.Remedy
}

func (v *formView) blameField(path, text string) {
	text = words.In(job.Naming(labelled).In(text))
	name := strings.TrimPrefix(strings.TrimPrefix(path, "manifest."), "pool.")
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
