package job_test

import (
	"context"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/verbtest"
)

func TestVerbs_HasEveryMethodOnce(t *testing.T) {
	subjects := []job.Subject{job.OfJob, job.OfJobs, job.OfVM, job.OfVMs, job.OfFile, job.OfVolume, job.OfQueues, job.OfSchedule, job.OfNew, job.OfAll}
	var got, want []string
	routes := map[string]string{}
	for _, v := range job.Verbs() {
		got = append(got, v.Name)
		if !slices.Contains(job.Roles, v.Role) || !slices.Contains(subjects, v.Of) || len(v.Toolsets) == 0 {
			t.Errorf("who may call %s is not decided: %q, %q, %q", v.Name, v.Role, v.Of, v.Toolsets)
		}
		for _, set := range v.Toolsets {
			if !slices.Contains(job.TokenToolsets, set) {
				t.Errorf("%s is of toolset %s, which there is not", v.Name, set)
			}
		}
		if other, twice := routes[v.Route]; twice {
			t.Errorf("%s has the route of %s", v.Name, other)
		}
		routes[v.Route] = v.Name
	}
	for m := range reflect.TypeFor[job.Engine]().Methods() {
		want = append(want, m.Name)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("decided: %v\nthe engine has: %v", got, want)
	}
}

// A method's row calls that method, and the method calls its row, with what it was given.
func TestThrough_EveryMethodIsACallOfItsRow(t *testing.T) {
	for _, v := range job.Verbs() {
		in, want := verbtest.Full(v.In, "in"), verbtest.Full(v.Out, "out")
		calls := 0
		e := job.Through(func(_ context.Context, called *job.Verb, got any) (any, error) {
			calls++
			if called != v {
				t.Errorf("%s calls %s", v.Name, called.Name)
			}
			if diff := cmp.Diff(in, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
				t.Errorf("%s (-given +arrived):\n%s", v.Name, diff)
			}
			return want, io.ErrUnexpectedEOF
		})
		for _, of := range []job.Engine{e, struct{ job.Engine }{e}} { // what is made of calls is called without its methods
			calls = 0
			got, err := v.Do(t.Context(), of, in)
			if diff := cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" || !errors.Is(err, io.ErrUnexpectedEOF) || calls != 1 {
				t.Errorf("%s is called %d times, %v (-want +got):\n%s", v.Name, calls, err, diff)
			}
		}
	}
}

// A call may have no result with its error; a verb always has one.
func TestThrough_AFailedCallHasAResult(t *testing.T) {
	e := job.Through(func(context.Context, *job.Verb, any) (any, error) { return nil, io.ErrUnexpectedEOF })
	for _, v := range job.Verbs() {
		got, err := v.Do(t.Context(), e, verbtest.Full(v.In, "in"))
		if want := reflect.Zero(v.Out).Interface(); reflect.TypeOf(got) != reflect.TypeOf(want) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s returns %T, %v", v.Name, got, err)
		}
	}
}

// The guard looks for what a verb is about where Ref says it is.
func TestVerb_RefIsWhatItIsAbout(t *testing.T) {
	for _, v := range job.Verbs() {
		ref := v.Ref(verbtest.Full(v.In, "in"))
		switch v.Of {
		case job.OfJob, job.OfVM, job.OfFile:
			if !strings.HasPrefix(ref, "in") {
				t.Errorf("%s is about the %s %q", v.Name, v.Of, ref)
			}
		default:
			if ref != "" {
				t.Errorf("%s is about %q, and said to be about %s", v.Name, ref, v.Of)
			}
		}
	}
}
