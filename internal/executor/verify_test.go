package executor_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
)

// countingReads is a guest that counts what is read of output over SSH.
type countingReads struct {
	slyGuest
	bytes  atomic.Int64
	before func() // each read
}

func (g *countingReads) ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error) {
	if g.before != nil {
		g.before()
	}
	data, err := g.Runner.ReadOutput(ctx, j, stream, offset, limit)
	g.bytes.Add(int64(len(data)))
	return data, err
}

// Output that callbacks brought is what the VM has, or it is fetched again: who has
// seen the token can send what he likes.
func TestCollect_ForgedOutputIsReplaced(t *testing.T) {
	truth := counted(3000)
	long := counted(3 * maxOutput)
	secretly := bytes.ReplaceAll(truth, []byte("0001000"), []byte("T0ken/1"))
	starred := bytes.ReplaceAll(secretly, []byte("T0ken/1"), []byte("*******"))
	tests := []struct {
		name   string
		stdout []byte // of the task
		sent   []byte // by a callback
		want   []byte // kept; nil: the task's
		forged bool
		read   int64 // bytes of stdout at most read over SSH
	}{
		{"as it is", truth, truth, nil, false, 0},
		{"a part of it", truth, truth[:1000], nil, false, 2000},
		{"forged from the first byte", truth, bytes.Repeat([]byte("lie "), 750), nil, true, 6000},
		{"forged in the middle", truth, bytes.Replace(truth, []byte("0001600"), []byte("1111111"), 1), nil, true, 6000},
		{"forged behind its end", truth, append(bytes.Clone(truth), "and more"...), nil, true, 0},
		{"forged beyond what is kept", truth, append(bytes.Clone(truth), make([]byte, 2*maxOutput)...), nil, true, 0},
		{"forged where there is none", nil, []byte("lie"), []byte{}, true, 0},
		{"with a secret", secretly, secretly, starred, false, 4000},
		{"forged, with a secret", secretly, []byte("lie"), starred, true, 8000},
		{"longer than what is kept", long, long[:maxOutput], nil, false, maxOutput},
		{"longer, and forged", long, bytes.Repeat([]byte("lie "), maxOutput/4), nil, true, 5 * maxOutput},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := withSecrets(t, 1, map[string]string{"TOKEN": "T0ken/1"})
			g := &countingReads{}
			r.stop()
			g.Runner, r.opts.Runner = r.fake, g
			r.restart()
			do, release := hold(t, providertest.Task{Stdout: tt.stdout})
			tokens := make(chan string, 1)
			r.fake.Set(providertest.Behaviour{Task: do, OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token }})
			id := r.submit(func(m *job.Manifest) { m.Secrets = []string{"TOKEN"} })
			token := <-tokens
			if next, err := r.AppendOutput(t.Context(), id, token, job.Stdout, 0, tt.sent); err != nil || next == 0 {
				t.Fatalf("%d, %v", next, err)
			}
			release()
			if err := r.Report(t.Context(), id, token, job.Report{Kind: job.ReportComplete}); err != nil {
				t.Fatal(err)
			}
			j := r.wait(id)
			got, err := r.Result(t.Context(), id)
			want := tt.want
			if want == nil {
				want = tt.stdout
			}
			if len(want) > maxOutput {
				half := maxOutput / 2
				if err != nil || !bytes.HasPrefix(got.Stdout, want[:half]) || !bytes.HasSuffix(got.Stdout, want[len(want)-half:]) || j.Stdout.Total != int64(len(want)) {
					t.Errorf("%d bytes, %+v, %v", len(got.Stdout), j.Stdout, err)
				}
			} else if err != nil || !bytes.Equal(got.Stdout, want) || j.Stdout.Incomplete || j.Stdout.Total != int64(len(want)) {
				t.Errorf("%d bytes, want %d: %.60q, %+v, %v", len(got.Stdout), len(want), got.Stdout, j.Stdout, err)
			}
			if _, warnings := r.artifacts(id); strings.Contains(warnings, "differs from the VM's") != tt.forged {
				t.Errorf("warnings %q", warnings)
			}
			if n := g.bytes.Load(); n > tt.read {
				t.Errorf("%d bytes were read over SSH, want %d at most", n, tt.read)
			}
		})
	}
}

// What comes when the output is being collected is not taken any more.
func TestAppendOutput_TakesNothingWhileItIsCollected(t *testing.T) {
	r := newRig(t, 1)
	truth := counted(3000)
	do, release := hold(t, providertest.Task{Stdout: truth})
	tokens := make(chan string, 1)
	var id, token string
	g := &countingReads{}
	g.before = func() {
		if next, err := r.AppendOutput(t.Context(), id, token, job.Stdout, 0, []byte("a lie")); err != nil || next != 0 {
			t.Errorf("next %d, %v", next, err)
		}
	}
	r.stop()
	g.Runner, r.opts.Runner = r.fake, g
	r.restart()
	r.fake.Set(providertest.Behaviour{Task: do, OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token }})
	id, token = r.submit(), <-tokens
	release()
	if err := r.Report(t.Context(), id, token, job.Report{Kind: job.ReportComplete}); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
	if got, err := r.Result(t.Context(), id); err != nil || !bytes.Equal(got.Stdout, truth) {
		t.Errorf("%d bytes, %v", len(got.Stdout), err)
	}
}
