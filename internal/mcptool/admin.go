package mcptool

import (
	"context"
	"fmt"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/sleep"
)

type checkOutput struct {
	OK     bool        `json:"ok" jsonschema_description:"No check failed: jobs can run."`
	Host   string      `json:"host" jsonschema_description:"Address linus reaches the host at."`
	Node   string      `json:"node" jsonschema_description:"The host's Proxmox node name."`
	Checks []hostCheck `json:"checks"`
}

type hostCheck struct {
	Node   string `json:"node,omitempty"`
	Name   string `json:"name"`
	Level  string `json:"level" jsonschema:"enum=ok,enum=warn,enum=fail"`
	Text   string `json:"text" jsonschema_description:"What was found."`
	Remedy string `json:"remedy,omitempty" jsonschema_description:"What to do."`
}

type checkInput struct {
	Deep bool `json:"deep,omitempty" jsonschema_description:"Also try all VMs can do; call until done."`
}

func (o Options) checkHost() server.ServerTool {
	const name, title, does = "check_host", "Check the Proxmox host", "Check the host: each finding is ok or has a remedy. For the first job, and after provision_failed."
	if o.ReadOnly {
		return define(name, title, does, hints{readOnly: true, idempotent: true, openWorld: true}, func(ctx context.Context, _ job.None) (checkOutput, error) {
			return checkReport(ctx, o.Engine)
		})
	}
	return define(name, title, does, hints{openWorld: true}, func(ctx context.Context, in checkInput) (checkOutput, error) {
		if !in.Deep {
			return checkReport(ctx, o.Engine)
		}
		t, err := deepCheck(ctx, o.Engine)
		if err != nil {
			return checkOutput{}, err
		}
		out, err := checkReport(ctx, o.Engine)
		for _, s := range t.Steps {
			out.Checks = append(out.Checks, hostCheck{Node: t.Node, Name: "test: " + s.Name, Level: s.Level(), Text: s.Text, Remedy: s.Remedy})
		}
		out.OK = out.OK && t.Status == job.HostTestPassed
		return out, err
	})
}

// deepTime is how long a call waits for a test of the host. deepFor is how long after its end a
// test counts as the requested one.
const (
	deepTime = 45 * time.Second
	deepFor  = 10 * time.Minute
)

// deepCheck returns the test of the host that is running or has just ended, or else begins one.
func deepCheck(ctx context.Context, e job.Engine) (job.HostTest, error) {
	var t job.HostTest
	for deadline := time.Now().Add(deepTime); ; {
		all, err := e.HostTests(ctx)
		for _, one := range all {
			if !one.Quick && (one.Status == job.HostTestRunning || time.Since(one.EndedAt) < deepFor) && one.Outdated == "" {
				t = one
			}
		}
		if err == nil && t.ID == "" {
			t, err = e.TestHost(ctx, job.HostTestSpec{})
		}
		if err != nil || t.Status != job.HostTestRunning || time.Now().After(deadline) {
			return t, err
		}
		if err := sleep.For(ctx, time.Second); err != nil {
			return t, err
		}
	}
}

func checkReport(ctx context.Context, e job.Engine) (checkOutput, error) {
	r, err := e.CheckHost(ctx)
	return checkOutput{OK: r.OK, Host: r.Host, Node: r.Node, Checks: each(r.Checks, func(c job.Check) hostCheck { return hostCheck(c) })}, err
}

type cleanupInput struct {
	OlderThan string `json:"older_than,omitempty" jsonschema_description:"Such as 24h; default: all finished jobs."`
}

type cleanupOutput struct {
	Count int `json:"count" jsonschema_description:"Jobs deleted."`
}

func (o Options) cleanupCompletedJobs() server.ServerTool {
	return define("cleanup_completed_jobs", "Delete finished jobs",
		"Delete finished jobs with their output and artifacts, except those whose VM still exists.",
		hints{destructive: true, idempotent: true},
		func(ctx context.Context, in cleanupInput) (cleanupOutput, error) {
			var age time.Duration
			if in.OlderThan != "" {
				var err error
				if age, err = job.ParseDuration(in.OlderThan); err != nil || age < 0 {
					return cleanupOutput{}, &job.FieldError{Field: "older_than", Problem: fmt.Sprintf("%q is not a duration", in.OlderThan), Remedy: "give one such as 30m or 24h"}
				}
			}
			count, err := o.Engine.Cleanup(ctx, age)
			return cleanupOutput{Count: count}, err
		})
}
