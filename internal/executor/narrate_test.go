package executor_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
)

// claudeSays is a line of what the Claude CLI prints.
func claudeSays(text string) string {
	return fmt.Sprintf(`{"type":"assistant","message":{"content":[{"type":"text","text":%q}]}}`+"\n", text)
}

const claudeEnds = `{"type":"result","subtype":"success","result":"It is done."}` + "\n"

func TestClaude_TellsWhatItDoesAndItsAnswer(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name      string
		mode      job.StatusMode
		callbacks bool
		narrated  bool
	}{
		{"streaming by callbacks", job.StatusStreaming, true, true},
		{"detailed over SSH", job.StatusDetailed, false, true},
		{"simple is left as it is", job.StatusSimple, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			stream := []byte(claudeSays("looks around") + claudeSays("finds it") + claudeEnds)
			var token atomic.Value
			do, release := hold(t, providertest.Task{Stdout: stream})
			r.fake.Set(providertest.Behaviour{Task: do, Ways: []job.CallbackWay{job.CallbacksNone}, OnStart: func(_ job.Job, p job.Payload) { token.Store(p.Token) }})
			id := r.submit(func(m *job.Manifest) { m.AgentType, m.StatusMode = job.AgentClaude, tt.mode })
			r.until(id, func(j job.Job) bool { return j.Status == job.Running })
			if tt.callbacks {
				for at := int64(0); at < int64(len(stream)); { // cut anywhere
					next, err := r.AppendOutput(t.Context(), id, token.Load().(string), job.Stdout, at, stream[at:min(at+50, int64(len(stream)))])
					if err != nil {
						t.Fatal(err)
					}
					at = next
				}
			}
			if tt.narrated {
				r.until(id, func(j job.Job) bool { return j.Progress == "finds it" })
				before := time.Now()
				if err := r.Report(t.Context(), id, token.Load().(string), job.Report{Kind: job.ReportStatus, Progress: "running for 5 s"}); err != nil {
					t.Error(err)
				}
				if j := r.eventually(id, func(j job.Job) bool { return j.LastHeartbeat.After(before) }); j.Progress != "finds it" {
					t.Errorf("progress %q", j.Progress)
				}
			}
			release()
			if err := r.Report(t.Context(), id, token.Load().(string), job.Report{Kind: job.ReportComplete}); err != nil {
				t.Error(err)
			}
			r.wait(id)
			result, err := r.Result(t.Context(), id)
			if want := map[bool]string{true: "It is done.", false: string(stream)}[tt.narrated]; err != nil || string(result.Stdout) != want || result.StdoutInfo.Total != int64(len(want)) {
				t.Errorf("stdout %q, %+v, %v", result.Stdout, result.StdoutInfo, err)
			}
			if c, err := r.Output(t.Context(), id, job.Stdout, 0, 0); err != nil || string(c.Data) != string(stream) {
				t.Errorf("output %q, %v", c.Data, err)
			}
			events, err := r.store.Events(t.Context(), id, 0)
			if err != nil {
				t.Fatal(err)
			}
			var steps []string
			for _, event := range events {
				if event.Kind == job.EventProgress && event.Phase == "run" && !strings.Contains(event.Text, "callbacks") {
					steps = append(steps, event.Text)
				}
			}
			if want := map[bool][]string{true: {"looks around", "finds it"}}[tt.narrated]; !slices.Equal(steps, want) {
				t.Errorf("told %q, want %q", steps, want)
			}
		})
	}
}

func TestClaude_TellsNoMoreThanOneCanRead(t *testing.T) {
	r := newRig(t, 1)
	var token atomic.Value
	do, release := hold(t, providertest.Task{})
	r.fake.Set(providertest.Behaviour{Task: do, OnStart: func(_ job.Job, p job.Payload) { token.Store(p.Token) }})
	id := r.submit(func(m *job.Manifest) { m.AgentType, m.StatusMode = job.AgentClaude, job.StatusStreaming })
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	var stream strings.Builder
	for i := range 100 {
		stream.WriteString(claudeSays(fmt.Sprint("step ", i)))
	}
	if _, err := r.AppendOutput(t.Context(), id, token.Load().(string), job.Stdout, 0, []byte(stream.String())); err != nil {
		t.Fatal(err)
	}
	r.eventually(id, func(j job.Job) bool { return j.Progress == "step 99" })
	events, err := r.store.Events(t.Context(), id, 0)
	steps := slices.DeleteFunc(events, func(event job.Event) bool { return !strings.HasPrefix(event.Text, "step ") })
	if err != nil || len(steps) != 3 || steps[2].Text != "step 99" {
		t.Errorf("told %+v, %v", steps, err)
	}
	release()
	if err := r.Report(t.Context(), id, token.Load().(string), job.Report{Kind: job.ReportComplete}); err != nil {
		t.Error(err)
	}
	r.wait(id)
}
