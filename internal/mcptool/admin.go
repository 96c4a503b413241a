package mcptool

import (
	"context"
	"fmt"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
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

func (o Options) checkHost() server.ServerTool {
	return define("check_host", "Check the Proxmox host",
		"Check whether the Proxmox host can run jobs (login, node, storage, bridge, template ...): each is ok or has a remedy. "+
			"For the first job, and after provision_failed.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, _ job.None) (checkOutput, error) {
			return checkReport(ctx, o.Engine)
		})
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
