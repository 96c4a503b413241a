package mcptool

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/job"
	"linus/internal/vm"
)

// Bounds of a completion: mostValues is the protocol's, mostScanned is how many jobs are
// considered, newest first.
const (
	mostValues  = 100
	mostScanned = 1000
)

// completer completes IDs of jobs and VMs and paths of artifacts, in the arguments of prompts and
// in resource templates.
type completer struct{ engine job.Engine }

// CompletePromptArgument returns the values that begin with what was typed.
func (c completer) CompletePromptArgument(ctx context.Context, prompt string, a mcp.CompleteArgument, _ mcp.CompleteContext) (*mcp.Completion, error) {
	switch {
	case prompt == diagnosePrompt && a.Name == "job_id":
		return c.jobs(ctx, a.Value, job.Failed, job.Timeout)
	case prompt == delegatePrompt && a.Name == "vm_id":
		return c.vms(ctx, a.Value)
	}
	return &mcp.Completion{}, nil
}

// CompleteResourceArgument is CompletePromptArgument for a resource template.
func (c completer) CompleteResourceArgument(ctx context.Context, uri string, a mcp.CompleteArgument, given mcp.CompleteContext) (*mcp.Completion, error) {
	switch {
	case uri == outputTemplate && a.Name == "id":
		return c.jobs(ctx, a.Value)
	case (uri == resultTemplate || uri == artifactTemplate) && a.Name == "id":
		return c.jobs(ctx, a.Value, job.Success, job.Failed, job.Timeout)
	case uri == artifactTemplate && a.Name == "path" && given.Arguments["id"] != "":
		return c.artifacts(ctx, given.Arguments["id"], a.Value)
	case uri == usageTemplate && a.Name == "by":
		var found values
		for _, by := range append([]string{"all", job.UsageLabel}, job.UsageKinds...) {
			found.add(a.Value, by)
		}
		return found.completion(), nil
	}
	return &mcp.Completion{}, nil
}

// jobs completes the newest jobs with one of these statuses, or any if none is given.
func (c completer) jobs(ctx context.Context, typed string, statuses ...job.Status) (*mcp.Completion, error) {
	var found values
	f := job.Filter{Limit: mostPage}
	for seen := 0; seen < mostScanned && len(found) <= mostValues; {
		page, err := c.engine.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, j := range page.Jobs {
			if len(statuses) == 0 || slices.Contains(statuses, j.Status) {
				found.add(typed, j.ID)
			}
		}
		seen += len(page.Jobs)
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	return found.completion(), nil
}

// vms completes the VMs that accept commands, by name, or also by ID once anything is typed.
func (c completer) vms(ctx context.Context, typed string) (*mcp.Completion, error) {
	vms, err := c.engine.VMs(ctx)
	if err != nil {
		return nil, err
	}
	var found values
	for _, v := range vms {
		if v.Lifecycle != vm.Persistent {
			continue
		}
		found.add(typed, v.Name)
		if v.ID != 0 && typed != "" {
			found.add(typed, strconv.Itoa(v.ID))
		}
	}
	return found.completion(), nil
}

func (c completer) artifacts(ctx context.Context, id, typed string) (*mcp.Completion, error) {
	j, err := c.engine.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	var found values
	for _, a := range j.Artifacts {
		found.add(typed, a.Path)
	}
	return found.completion(), nil
}

// values are the values that match what was typed.
type values []string

func (v *values) add(typed, value string) {
	if strings.HasPrefix(value, typed) {
		*v = append(*v, value)
	}
}

func (v values) completion() *mcp.Completion {
	return &mcp.Completion{Values: v[:min(len(v), mostValues)], HasMore: len(v) > mostValues}
}
