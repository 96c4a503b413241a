package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// history is a watcher of a job whose events are known; it answers two at a time.
type history struct {
	events []job.Event
	job    job.Job
}

func (h history) Watch(_ context.Context, _ string, after int64) ([]job.Event, job.Job, error) {
	rest := h.events[min(int(after), len(h.events)):]
	if len(rest) <= 2 { // a job that is done may still have something to tell
		return rest[:min(1, len(rest))], h.job, nil
	}
	return rest[:2], job.Job{Status: job.Provisioning}, nil
}

func (h history) Result(context.Context, string) (job.Result, error) { return job.Result{}, nil }

func (h history) List(context.Context, job.Filter) (job.Page, error) { return job.Page{}, nil }

func events(list ...job.Event) []job.Event {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range list {
		list[i].Seq, list[i].At = int64(i+1), at.Add(time.Duration(i)*1500*time.Millisecond)
	}
	return list
}

func TestFollow_LinePerPhaseAndStep(t *testing.T) {
	h := history{
		job: job.Job{Status: job.Failed},
		events: events(
			job.Event{Kind: job.EventPhaseStarted, Phase: "provision"},
			job.Event{Kind: job.EventProgress, Phase: "create_vm", Text: "cloning\x1b[31m it"},
			job.Event{Kind: job.EventProgress, Phase: "start_vm", Text: "starting"},
			job.Event{Kind: job.EventPhaseEnded, Phase: "provision", Text: "no address"},
			job.Event{Kind: job.EventDecided, Text: "provision_failed"},
			job.Event{Kind: job.EventWarning, Text: "look\nhere"},
		),
	}
	var out bytes.Buffer
	a := &app{stderr: &out}
	if _, err := a.follow(t.Context(), h, "j", following{}); err != nil {
		t.Fatal(err)
	}
	want := "  create_vm               1.5 s  cloning it\n" +
		"  start_vm                1.5 s  starting\n" +
		"provision                 4.5 s  failed\n" +
		"warning: look here\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFollow_DoesNotWaitForAVMThatCannotBeDestroyedNow(t *testing.T) {
	h := history{
		job: job.Job{Status: job.Success, VM: &vm.VM{State: vm.Created}},
		events: events(
			job.Event{Kind: job.EventPhaseStarted, Phase: "destroy"},
			job.Event{Kind: job.EventPhaseEnded, Phase: "destroy", Text: "host is down"},
		),
	}
	a := &app{stderr: &bytes.Buffer{}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := a.follow(ctx, h, "j", following{}); err != nil {
		t.Errorf("follow = %v, want an end", err)
	}
}

func TestProgress_LiveLineFitsAndIsCleared(t *testing.T) {
	var out bytes.Buffer
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &progress{out: &out, live: true}
	p.drawLive(at)
	if out.Len() != 0 {
		t.Errorf("nothing is under way, drawn %q", out.String())
	}
	p.show(job.Event{Kind: job.EventPhaseStarted, Phase: "provision", At: at})
	p.show(job.Event{Kind: job.EventProgress, Phase: "create_vm", Text: strings.Repeat("ü", 200), At: at})
	p.drawLive(at.Add(2 * time.Second))
	line := strings.TrimPrefix(out.String(), "\r\x1b[K")
	if !strings.HasPrefix(line, "  create_vm               2.0 s  ü") || len([]rune(line)) != 79 {
		t.Errorf("live line %q of %d columns", line, len([]rune(line)))
	}
	out.Reset()
	p.show(job.Event{Kind: job.EventPhaseEnded, Phase: "provision", At: at.Add(3 * time.Second)})
	if !strings.HasPrefix(out.String(), "\r\x1b[K  create_vm") || !strings.HasSuffix(out.String(), "provision                 3.0 s  ok\n") {
		t.Errorf("after the live line: %q", out.String())
	}
}

// runs is a watcher of jobs that have ended.
type runs map[string]job.Job

func (runs) Job(context.Context, string) (job.Job, error) { return job.Job{}, nil }
func (runs) Output(context.Context, string, string, int64, int64) (job.Chunk, error) {
	return job.Chunk{}, nil
}
func (runs) OpenArtifact(context.Context, string, string) (io.ReadCloser, job.Artifact, error) {
	return nil, job.Artifact{}, nil
}

func (r runs) Watch(_ context.Context, id string, _ int64) ([]job.Event, job.Job, error) {
	return nil, r[id], nil
}

func (r runs) Result(_ context.Context, id string) (job.Result, error) {
	return job.Result{JobID: id, Status: r[id].Status, Reason: r[id].Outcome.Reason, ExitCode: r[id].Outcome.ExitCode, Stdout: []byte("of " + id + "\n")}, nil
}

func (runs) List(context.Context, job.Filter) (job.Page, error) { return job.Page{}, nil }

func TestWait_GoesOnWithTheJobThatRunsALostOneAgain(t *testing.T) {
	t.Parallel()
	seven := 7
	lost := &job.Outcome{Reason: job.ReasonLost}
	e := runs{
		"a": {ID: "a", Status: job.Failed, Outcome: lost, RetriedAs: "b"},
		"b": {ID: "b", Status: job.Failed, Outcome: &job.Outcome{Reason: job.ReasonExitStatus, ExitCode: &seven}},
	}
	var out, said bytes.Buffer
	a := &app{stdout: &out, stderr: &said}
	if err := a.waitFor(t.Context(), e, "a"); !errors.Is(err, exitError(7)) || out.String() != "of b\n" || !strings.Contains(said.String(), "job a was lost; job b runs it again\n") {
		t.Errorf("%v, %q, %q", err, out.String(), said.String())
	}
}
