package capture_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/capture"
	"linus/internal/job"
	"linus/internal/secret"
	"linus/internal/store"
	"linus/internal/storetest"
)

const (
	id      = "0192d3c4-0000-7000-8000-000000000001"
	planted = "S3cret-of-the-Test"
)

// guest is a VM in which a task has written to stdout, and left one file.
type guest struct{ stdout, file string }

func (g guest) ReadOutput(_ context.Context, _ job.Job, stream string, offset, limit int64) ([]byte, error) {
	if stream == job.Stderr {
		return nil, nil
	}
	return []byte(g.stdout)[offset:min(offset+limit, int64(len(g.stdout)))], nil
}

func (g guest) Sums(_ context.Context, _ job.Job, stdout, _ int64) ([2]string, error) {
	return [2]string{sum(g.stdout[:stdout]), sum("")}, nil
}

func (g guest) Artifacts(context.Context, job.Job, job.ArtifactLimits) ([]job.FoundArtifact, job.SkippedArtifacts, error) {
	a := job.Artifact{Path: "out-" + planted, Size: int64(len(g.file)), SHA256: sum(g.file)}
	return []job.FoundArtifact{{Artifact: a, Source: "/out"}}, job.SkippedArtifacts{}, nil
}

func (g guest) ReadArtifact(_ context.Context, _ job.Job, _ string, offset, limit int64) ([]byte, error) {
	return []byte(g.file)[offset:min(offset+limit, int64(len(g.file)))], nil
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// rig is a capture of a job with a secret, and the store it keeps things in.
type rig struct {
	*capture.Capture
	t     *testing.T
	store *store.Store
	job   job.Job
}

func newRig(t *testing.T, g guest) *rig {
	t.Helper()
	return newRigOf(t, g, time.Minute)
}

func newRigOf(t *testing.T, g capture.Runner, patience time.Duration) *rig {
	t.Helper()
	s, err := storetest.Open(t.Context(), store.Options{Dir: t.TempDir(), MaxOutput: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	j := job.Job{
		ID: id, Kind: job.KindTask, Status: job.Pending, CreatedAt: time.Now(),
		Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, Secrets: []string{"KEY"}, Artifacts: []string{"out*"}},
	}
	if j, _, err = s.Insert(t.Context(), j, "", job.Limits{}); err != nil {
		t.Fatal(err)
	}
	j.Outcome = &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus}
	c := capture.New(capture.Options{
		Store: s, Runner: g, Log: slog.New(slog.DiscardHandler), Update: func(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
			return s.Update(ctx, id, job.EventsOnly(change))
		},
		Secrets: func(job.Manifest) ([]secret.Value, error) {
			return []secret.Value{secret.NewValue("KEY", planted)}, nil
		},
		MaxOutput: 1 << 10, Artifacts: job.ArtifactLimits{Files: 10, Each: 1 << 10, All: 1 << 10}, Patience: patience,
	}, j)
	return &rig{Capture: c, t: t, store: s, job: j}
}

func (r *rig) append(offset int64, text string) (next int64) {
	r.t.Helper()
	next, err := r.Append(r.t.Context(), job.Stdout, offset, []byte(text))
	if err != nil {
		r.t.Fatal(err)
	}
	return next
}

func (r *rig) held() string {
	r.t.Helper()
	data, err := r.store.Output(r.t.Context(), id, job.Stdout, 0, 1<<10)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(data)
}

func settled(g guest) func(context.Context) (job.RunState, error) {
	return func(context.Context) (job.RunState, error) {
		return job.RunState{Started: true, Exited: true, StdoutBytes: int64(len(g.stdout))}, nil
	}
}

func TestAppend_TakesNoPartOfASecretAndNothingAfterClose(t *testing.T) {
	r := newRig(t, guest{})
	text := "it is " + planted + " indeed, and more than a secret's length of text follows, so that nothing of it is held back: " + strings.Repeat("-", 500)
	if next := r.append(0, text[:10]); next > 6 {
		t.Errorf("%d bytes were taken, a part of the secret with them", next)
	}
	if next := r.append(0, text); next < int64(strings.Index(text, "indeed")) {
		t.Fatalf("%d bytes were taken of %d", next, len(text))
	}
	before := r.held()
	if want := "it is " + strings.Repeat("*", len(planted)) + " indeed"; !strings.HasPrefix(before, want) {
		t.Errorf("held: %q", before)
	}
	r.Close()
	if next := r.append(int64(len(before)), text); next != int64(len(before)) || r.held() != before {
		t.Errorf("%d bytes were taken after Close, of %d before", next, len(before))
	}
}

func TestCollect_WhatTheVMHasWins(t *testing.T) {
	g := guest{stdout: "what the task has written, and " + planted, file: "kept"}
	r := newRig(t, g)
	r.append(0, "what the task has forged"+strings.Repeat(".", 500))
	r.Close()
	state, got, err := r.Collect(t.Context(), t.Context(), r.job, time.Minute, settled(g))
	if err != nil || !state.Exited || got.Output[0].Incomplete {
		t.Fatalf("state %+v, output %+v, %v", state, got.Output, err)
	}
	if want := strings.ReplaceAll(g.stdout, planted, strings.Repeat("*", len(planted))); r.held() != want {
		t.Errorf("held: %q", r.held())
	}
	if len(got.Artifacts) != 1 || got.Artifacts[0].Path != "out-"+strings.Repeat("*", len(planted)) {
		t.Errorf("artifacts: %+v, skipped %+v", got.Artifacts, got.Skipped)
	}
	events, err := r.store.Events(t.Context(), id, 0)
	if err != nil || !slices.ContainsFunc(events, func(e job.Event) bool { return strings.Contains(e.Text, "from byte 18 on: fetched again") }) {
		t.Errorf("events %+v, %v", events, err)
	}
}

// mute is a VM that says nothing about artifacts.
type mute struct{ guest }

func (mute) Artifacts(ctx context.Context, _ job.Job, _ job.ArtifactLimits) ([]job.FoundArtifact, job.SkippedArtifacts, error) {
	<-ctx.Done()
	return nil, job.SkippedArtifacts{}, ctx.Err()
}

func TestCollect_OfAMuteVMSaysThatItWasGivenUp(t *testing.T) {
	r := newRigOf(t, mute{}, 10*time.Millisecond)
	r.Close()
	_, got, err := r.Collect(t.Context(), t.Context(), r.job, time.Minute, settled(guest{}))
	if err != nil {
		t.Fatal(err)
	}
	if w := got.Warnings(); len(w) != 1 || !strings.Contains(w[0].Text, "the VM was given up, too little data arrived in time") {
		t.Errorf("warnings %+v", w)
	}
}

// A caller who cuts collecting off keeps what is held, and is told what is missing.
func TestCollect_CutOffKeepsWhatIsHeld(t *testing.T) {
	r := newRig(t, guest{})
	next := r.append(0, "held"+strings.Repeat(".", 500))
	r.Close()
	work, cut := context.WithCancelCause(t.Context())
	cut(capture.ErrCut)
	_, got, err := r.Collect(t.Context(), work, r.job, time.Minute, func(ctx context.Context) (job.RunState, error) {
		return job.RunState{}, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	if o := got.Output[0]; !o.Incomplete || o.Why != capture.ErrCut.Error() || o.Held != next {
		t.Errorf("output %+v, want %d bytes", o, next)
	}
	if len(got.Artifacts) != 0 || len(got.Warnings()) != 1 || !strings.Contains(got.Warnings()[0].Text, "no artifact: out*: not searched for") {
		t.Errorf("artifacts %+v, warnings %+v", got.Artifacts, got.Warnings())
	}
}

func TestShownError_HidesSecretsAndStaysTheError(t *testing.T) {
	r := newRig(t, guest{})
	fault := &job.HostError{Op: "read", Host: "a VM", Class: job.HostUnreachable, Text: "\x1b[31m" + planted}
	err := r.ShownError(fault)
	if strings.Contains(err.Error(), planted) || strings.Contains(err.Error(), "\x1b") || !errors.Is(err, fault) {
		t.Errorf("error %q", err)
	}
	if err := r.ShownError(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}
