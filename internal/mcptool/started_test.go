package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/job"
	"linus/internal/vm"
)

// submitting are the tools that submit a task, with arguments each accepts.
func submitting(wait any) map[string]map[string]any {
	submit := manifest(nil)
	submit["wait_seconds"] = wait
	return map[string]map[string]any{
		"submit_job":      submit,
		"execute_command": {"command": "echo hi", "wait_seconds": wait},
	}
}

// calling makes a call with a progress token, in the background.
func calling(ctx context.Context, t *testing.T, e *engine, way, tool string, args any) (*heard, chan *mcp.CallToolResult) {
	t.Helper()
	c := transports[way](t, e)
	progress := listen(c, "notifications/progress")
	answer := make(chan *mcp.CallToolResult, 1)
	go func() {
		var req mcp.CallToolRequest
		req.Params.Name, req.Params.Arguments = tool, args
		req.Params.Meta = &mcp.Meta{ProgressToken: "p1"}
		r, err := c.CallTool(ctx, req)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		answer <- r
	}()
	return progress, answer
}

// until waits for something to become true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestStarted_TheResultIsInTheCallThatStartsTheJob(t *testing.T) {
	code := 3
	for way := range transports {
		for tool, args := range submitting(30) {
			t.Run(tool+" "+way, func(t *testing.T) {
				e := &engine{job: job.Job{ID: knownID, Status: job.Provisioning, Phase: "provision", Progress: "1"}}
				progress, answer := calling(t.Context(), t, e, way, tool, args)
				progress.await(t, 1)
				e.change(func() { e.job.Status, e.job.Phase, e.job.Progress = job.Running, "run", "12" })
				progress.await(t, 2)
				e.change(func() {
					e.out, e.err2 = "hi\n\xff", "oh\n"
					e.job.Status, e.job.Phase, e.job.Progress, e.job.StartedAt = job.Failed, "destroy", "", at
					e.job.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, Error: "exit status 3", At: at.Add(1500 * time.Millisecond)}
					e.job.Stdout = job.OutputInfo{Total: 9, Incomplete: true, Why: "the disk was full"}
					e.job.Artifacts = []job.Artifact{{Path: "a"}, {Path: "b"}}
				})
				r := <-answer
				want := `{"job_id":"` + knownID + `","status":"failed","phase":"destroy","reason":"exit_status","exit_code":3,"error":"exit status 3",` +
					`"stdout":"hi\n\ufffd","stdout_next":4,"stderr":"oh\n","stderr_next":3,"complete":true,"invalid_utf8":true,` +
					`"output_incomplete":true,"output_incomplete_reason":"the disk was full","duration_seconds":1.5,"artifacts_count":2}`
				structured, err := json.Marshal(r.StructuredContent)
				if err != nil || r.IsError {
					t.Fatalf("error %v %s", err, text(r))
				}
				for what, got := range map[string]string{"text": text(r), "structured content": string(structured)} {
					if diff := cmp.Diff(parse(t, want), parse(t, got)); diff != "" {
						t.Errorf("%s (-want +got):\n%s", what, diff)
					}
				}
				if len(e.submitted) != 1 {
					t.Errorf("%d jobs submitted", len(e.submitted))
				}
			})
		}
	}
}

func TestStarted_AJobThatTakesLongerIsReturnedAsFarAsItIs(t *testing.T) {
	for tool, args := range submitting(1) {
		t.Run(tool, func(t *testing.T) {
			e := &engine{out: "so far\n> ", job: job.Job{ID: knownID, Status: job.Running, Phase: "run", Progress: "3 of 9"}}
			c := transports["stdio"](t, e)
			began := time.Now()
			r := callTool(t, c, tool, args)
			want := `{"job_id":"` + knownID + `","status":"running","phase":"run","progress":"3 of 9","stdout":"so far\n> ","stdout_next":9,"stderr":"","stderr_next":0,"complete":false}`
			if diff := cmp.Diff(parse(t, want), parse(t, text(r))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if took := time.Since(began); took < time.Second {
				t.Errorf("waited for %s", took)
			}
		})
	}
}

// A failed build says why at its end.
func TestStarted_LongOutputHasItsBeginningAndItsEnd(t *testing.T) {
	zero := 0
	whole := strings.Repeat("ü", defaultBytes) + "x: *** [Makefile:3: all] Error 1\n" // two bytes each, and the middle of one at both cuts
	e := &engine{out: whole, err2: "x", job: job.Job{ID: knownID, Status: job.Success, Outcome: &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus, ExitCode: &zero}}}
	c := transports["in process"](t, e)
	args := map[string]any{"command": "yes", "wait_seconds": 5}
	var got waitedOutput
	if err := json.Unmarshal([]byte(text(callTool(t, c, "execute_command", args))), &got); err != nil {
		t.Fatal(err)
	}
	head, tail, cut := strings.Cut(got.Stdout, fmt.Sprintf("\n[linus: %d bytes left out here; get_job_output with offset %d returns them]\n", int64(len(whole))-got.StdoutNext-defaultBytes/2+1, got.StdoutNext))
	if !cut || head != whole[:got.StdoutNext] || len(head) != defaultBytes/2 || len(tail) != defaultBytes/2-1 || !strings.HasSuffix(whole, tail) || got.Stderr != "x" || got.Complete || got.InvalidUTF8 || got.ExitCode == nil || *got.ExitCode != 0 {
		t.Errorf("%d and %d bytes, next %d, stderr %q, complete %v, exit code %v: %.200s", len(head), len(tail), got.StdoutNext, got.Stderr, got.Complete, got.ExitCode, tail)
	}
	var rest outputOutput
	if err := json.Unmarshal([]byte(text(callTool(t, c, "get_job_output", map[string]any{"job_id": knownID, "offset": got.StdoutNext, "stderr_offset": got.StderrNext, "limit": 1 << 20}))), &rest); err != nil {
		t.Fatal(err)
	}
	if head+rest.Stdout != whole || rest.Stderr != "" || !rest.Complete {
		t.Errorf("%d and %d bytes of %d, complete %v", len(got.Stdout), len(rest.Stdout), len(whole), rest.Complete)
	}
}

func TestStarted_AnAgentsAnswerIsItsStdout(t *testing.T) {
	zero := 0
	e := &engine{
		out:    `{"type":"system"}` + "\n",
		result: job.Result{JobID: knownID, Status: job.Success, Stdout: []byte("All tests pass.")},
		job: job.Job{
			ID: knownID, Status: job.Success, Manifest: job.Manifest{AgentType: job.AgentClaude}, Stdout: job.OutputInfo{Total: 18},
			Outcome: &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus, ExitCode: &zero},
		},
	}
	args := manifest(map[string]any{"agentType": "claude"})
	args["wait_seconds"] = 5
	r := callTool(t, transports["in process"](t, e), "submit_job", args)
	want := `{"job_id":"` + knownID + `","status":"success","reason":"exit_status","exit_code":0,"stdout":"All tests pass.","stdout_next":18,"stderr":"","stderr_next":0,"complete":true}`
	if diff := cmp.Diff(parse(t, want), parse(t, text(r))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// unwatchable is an engine that accepts jobs and cannot be asked about them.
type unwatchable struct{ *engine }

func (unwatchable) Watch(context.Context, string, int64) ([]job.Event, job.Job, error) {
	return nil, job.Job{}, errors.New("the engine was stopped")
}

func TestStarted_AWaitThatFailsDoesNotLoseTheJob(t *testing.T) {
	for tool, args := range submitting(30) {
		t.Run(tool, func(t *testing.T) {
			e := &engine{job: job.Job{ID: knownID, Status: job.Running}}
			r := callTool(t, transports["stdio"](t, unwatchable{e}), tool, args)
			for _, want := range []string{`"job_id":"` + knownID, `"status":"pending"`, `"complete":false`, "get_job_result with wait_seconds waits for it", "the engine was stopped"} {
				if r.IsError || !strings.Contains(text(r), want) {
					t.Errorf("error %v, %s; want %s", r.IsError, text(r), want)
				}
			}
		})
	}
}

// noted notes what is done to jobs, and when a wait ends.
type noted struct {
	*engine
	waitOver chan struct{}
}

func (n *noted) Cancel(_ context.Context, id string) error { return n.note("cancel", id) }

func (n *noted) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	events, j, err := n.engine.Watch(ctx, id, after)
	if ctx.Err() != nil {
		close(n.waitOver)
	}
	return events, j, err
}

func TestStarted_ACancelledCallEndsTheWaitAndNotTheJob(t *testing.T) {
	for _, way := range []string{"stdio", "stdio, 2025-11-25", "HTTP", "HTTP, 2025-11-25"} {
		t.Run(way, func(t *testing.T) {
			e := &noted{engine: &engine{job: job.Job{ID: knownID, Status: job.Running, Phase: "run", Progress: "1"}}, waitOver: make(chan struct{})}
			c := transports[way](t, e)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				var req mcp.CallToolRequest
				req.Params.Name, req.Params.Arguments = "execute_command", map[string]any{"command": "sleep 60", "wait_seconds": 45}
				_, _ = c.CallTool(ctx, req)
			}()
			until(t, "the job is submitted", func() (there bool) {
				e.change(func() { there = len(e.submitted) == 1 })
				return there
			})
			cancel()
			<-ended
			select {
			case <-e.waitOver:
			case <-time.After(time.Minute):
				t.Error("the server waits on for a call that was cancelled")
			}
			e.change(func() {
				if len(e.calls) > 0 {
					t.Errorf("the engine was asked %q", e.calls)
				}
			})
		})
	}
}

func TestStarted_BadTimesAreRefusedBeforeAnythingHappens(t *testing.T) {
	for given, want := range map[any]string{
		46: "wait_seconds: 46 is out of range; give 0 to 45", -1: "wait_seconds: -1 is out of range; give 0 to 45",
		"5": "wait_seconds: is a string, want a whole number", 0.5: "wait_seconds: 0.5 is not a whole number",
	} {
		e := &engine{}
		c := transports["stdio"](t, e)
		for tool, args := range submitting(given) {
			if r := callTool(t, c, tool, args); !r.IsError || !strings.Contains(text(r), want) {
				t.Errorf("%s: error %v, %q; want %q", tool, r.IsError, text(r), want)
			}
		}
		if len(e.submitted) > 0 {
			t.Errorf("%v: %d jobs submitted", given, len(e.submitted))
		}
	}
}

// followed notes after which event the engine is asked for more.
type followed struct {
	*engine
	after []int64
}

func (a *followed) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	a.change(func() { a.after = append(a.after, after) })
	return a.engine.Watch(ctx, id, after)
}

// Without a token for progress, a wait is for the end only.
func TestStarted_AWaitWithoutProgressAsksOnce(t *testing.T) {
	e := &followed{engine: &engine{job: job.Job{ID: knownID, Status: job.Running, Phase: "run", Progress: "1"}}}
	ended := make(chan *mcp.CallToolResult, 1)
	c := transports["stdio"](t, e)
	go func() {
		ended <- callTool(t, c, "execute_command", map[string]any{"command": "true", "wait_seconds": 45})
	}()
	until(t, "the engine is asked", func() (is bool) {
		e.change(func() { is = len(e.after) > 0 })
		return is
	})
	e.change(func() { e.job.Status, e.job.Outcome = job.Success, &job.Outcome{} })
	<-ended
	if diff := cmp.Diff([]int64{job.OnlyEnd}, e.after); diff != "" {
		t.Error(diff)
	}
}

// What outlasts its call goes on, and the result says where to look.
func TestSave_GoesOnAfterItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{hang: make(chan struct{}), vm: job.VMInfo{VM: vm.VM{Name: "dev"}}}
		o := options(e)
		o.background = newBackground(o.Log)
		req := mcp.CallToolRequest{}
		req.Params.Arguments = map[string]any{"vm_id": "dev", "name": "tools"}
		r, err := o.saveVM().Handler(t.Context(), req)
		if err != nil || r.IsError || !strings.Contains(text(r), "continues") {
			t.Errorf("%v %s", err, text(r))
		}
		close(e.hang)
		synctest.Wait()
		if diff := cmp.Diff([]string{"save dev tools false"}, e.calls); diff != "" {
			t.Errorf("the save (-want +got):\n%s", diff)
		}
		o.background.close()
	})
}
