package mcptool

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/job"
	"linus/internal/vm"
)

// many is an engine with VMs and pages of jobs; every third has failed.
type many struct {
	*engine
	jobs int
}

func (m many) List(_ context.Context, f job.Filter) (job.Page, error) {
	m.calls = append(m.calls, "list")
	from, _ := strconv.Atoi(f.Cursor)
	var page job.Page
	for i := from; i < min(from+f.Limit, m.jobs); i++ {
		s := job.Summary{ID: fmt.Sprintf("job-%04d", i), Status: job.Running}
		if i%3 == 0 {
			s.Status = job.Failed
		}
		page.Jobs = append(page.Jobs, s)
	}
	if from+f.Limit < m.jobs {
		page.Next = strconv.Itoa(from + f.Limit)
	}
	return page, m.err
}

func (m many) VMs(context.Context) ([]job.VMInfo, error) {
	return []job.VMInfo{
		{VM: vm.VM{ID: 105, Name: "dev"}, Lifecycle: vm.Persistent},
		{VM: vm.VM{ID: 106, Name: "linus-job-1"}, Lifecycle: vm.Ephemeral},
		{VM: vm.VM{Name: "draft"}, Lifecycle: vm.Persistent},
	}, nil
}

func TestCompletion_OfJobsVMsAndArtifacts(t *testing.T) {
	few := many{&engine{job: job.Job{ID: knownID, Artifacts: []job.Artifact{{Path: "dist/a"}, {Path: "dist/b c"}, {Path: "log"}}}}, 5}
	prompt := func(name string) any { return mcp.PromptReference{Type: "ref/prompt", Name: name} }
	resource := func(uri string) any { return mcp.ResourceReference{Type: "ref/resource", URI: uri} }
	tests := []struct {
		name            string
		ref             any
		argument, typed string
		given           map[string]string
		want            []string
	}{
		{"jobs that ended badly", prompt("diagnose_job"), "job_id", "", nil, []string{"job-0000", "job-0003"}},
		{"by their beginning", prompt("diagnose_job"), "job_id", "job-0003", nil, []string{"job-0003"}},
		{"none", prompt("diagnose_job"), "job_id", "x", nil, []string{}},
		{"VMs that stay", prompt("delegate_task"), "vm_id", "", nil, []string{"dev", "draft"}},
		{"VMs by name", prompt("delegate_task"), "vm_id", "de", nil, []string{"dev"}},
		{"VMs by ID", prompt("delegate_task"), "vm_id", "10", nil, []string{"105"}},
		{"free text", prompt("delegate_task"), "task", "a", nil, []string{}},
		{"all jobs", resource("linus://jobs/{id}/output"), "id", "", nil, []string{"job-0000", "job-0001", "job-0002", "job-0003", "job-0004"}},
		{"ended jobs", resource("linus://jobs/{id}/result"), "id", "", nil, []string{"job-0000", "job-0003"}},
		{"artifacts", resource("linus://jobs/{id}/artifacts/{+path}"), "path", "dist/", map[string]string{"id": knownID}, []string{"dist/a", "dist/b c"}},
		{"artifacts of no job", resource("linus://jobs/{id}/artifacts/{+path}"), "path", "", nil, []string{}},
	}
	for way, connect := range transports {
		t.Run(way, func(t *testing.T) {
			c := connect(t, few)
			for _, tt := range tests {
				var req mcp.CompleteRequest
				req.Params.Ref = tt.ref
				req.Params.Argument = mcp.CompleteArgument{Name: tt.argument, Value: tt.typed}
				req.Params.Context = mcp.CompleteContext{Arguments: tt.given}
				r, err := c.Complete(t.Context(), req)
				if err != nil {
					t.Fatalf("%s: %v", tt.name, err)
				}
				if diff := cmp.Diff(tt.want, r.Completion.Values); diff != "" || r.Completion.HasMore {
					t.Errorf("%s: more %v (-want +got):\n%s", tt.name, r.Completion.HasMore, diff)
				}
			}
		})
	}
}

func TestCompletion_ReturnsTheNewestHundredAndSaysThatThereAreMore(t *testing.T) {
	for jobs, more := range map[int]bool{100: false, 101: true, 5000: true} {
		e := &engine{}
		r, err := completer{many{e, jobs}}.CompleteResourceArgument(t.Context(), outputTemplate, mcp.CompleteArgument{Name: "id"}, mcp.CompleteContext{})
		if err != nil || len(r.Values) != 100 || r.Values[99] != "job-0099" || r.HasMore != more {
			t.Errorf("of %d jobs: %d values, more %v, %v", jobs, len(r.Values), r.HasMore, err)
		}
		if len(e.calls) != 1 {
			t.Errorf("of %d jobs: %d pages were read for what the first one has", jobs, len(e.calls))
		}
	}
	r, err := completer{many{&engine{}, 5000}}.CompleteResourceArgument(t.Context(), outputTemplate, mcp.CompleteArgument{Name: "id", Value: "job-4"}, mcp.CompleteContext{})
	if err != nil || len(r.Values) != 0 {
		t.Errorf("beyond the newest thousand: %v, %v", r.Values, err)
	}
}
