package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type checkInput struct{}

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

func checkHost(e job.Engine) server.ServerTool {
	return define("check_host", "Check the Proxmox host",
		"Check whether the Proxmox host can run jobs: login, version, node, storage, bridge, template, tools; each is ok or has a remedy. "+
			"Use it before the first job and when a job failed with provision_failed.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, _ checkInput) (checkOutput, error) {
			return checkReport(ctx, e)
		})
}

func checkReport(ctx context.Context, e job.Engine) (checkOutput, error) {
	r, err := e.CheckHost(ctx)
	if err != nil {
		return checkOutput{}, err
	}
	out := checkOutput{OK: r.OK, Host: r.Host, Node: r.Node, Checks: make([]hostCheck, len(r.Checks))}
	for i, c := range r.Checks {
		out.Checks[i] = hostCheck{Node: c.Node, Name: c.Name, Level: c.Level, Text: c.Text, Remedy: c.Remedy}
	}
	return out, nil
}
