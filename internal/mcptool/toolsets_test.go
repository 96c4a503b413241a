package mcptool

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// offer is all a client can see of a server, by name.
type offer struct {
	tools, prompts, resources []string
	instructions              string
}

func offered(t *testing.T, o Options) offer {
	t.Helper()
	s := newServer(o, server.WithOutputSchemaValidation())
	t.Cleanup(s.close)
	c, err := client.NewInProcessClient(s.MCPServer)
	begin(t, c, err)
	var all offer
	tools, err := c.ListTools(t.Context(), mcp.ListToolsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools {
		all.tools = append(all.tools, tool.Name)
	}
	prompts, err := c.ListPrompts(t.Context(), mcp.ListPromptsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prompts.Prompts {
		all.prompts = append(all.prompts, p.Name)
	}
	resources, err := c.ListResources(t.Context(), mcp.ListResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.Resources {
		all.resources = append(all.resources, r.Name)
	}
	templates, err := c.ListResourceTemplates(t.Context(), mcp.ListResourceTemplatesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range templates.ResourceTemplates {
		all.resources = append(all.resources, r.Name)
	}
	for _, list := range [][]string{all.tools, all.prompts, all.resources} {
		slices.Sort(list)
	}
	all.instructions = instructions(havingTools(toolsOf(o)))
	for name := range havingTools(toolsOf(options(&engine{}))) { // of all tools
		if !slices.Contains(all.tools, name) {
			if strings.Contains(all.instructions, name) {
				t.Errorf("the instructions speak of %s, which is missing: %s", name, all.instructions)
			}
			var req mcp.CallToolRequest
			req.Params.Name = name
			if r, err := c.CallTool(t.Context(), req); err == nil {
				t.Errorf("%s is missing and can be called: %v", name, r)
			}
		}
	}
	return all
}

func toolsOf(o Options) []server.ServerTool { return tools(o) }

func TestToolsets_LeaveOutWhatMeansAMissingTool(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Options)
		want   offer
	}{
		{
			"jobs", func(o *Options) { o.Toolsets = []string{"jobs"} },
			offer{
				tools:     []string{"cancel_job", "get_job_result", "get_job_status", "list_jobs", "schedule", "submit_job"},
				prompts:   []string{"delegate_task", "diagnose_job"},
				resources: []string{"job-artifact", "job-output", "job-result", "manifest", "usage"},
			},
		},
		{
			"exec and admin", func(o *Options) { o.Toolsets = []string{"admin", "exec"} },
			offer{
				tools:     []string{"check_host", "cleanup_completed_jobs", "execute_command", "get_job_output", "interact_with_job", "kill_job", "list_templates", "tail_job_output"},
				resources: []string{"host-report", "job-output"},
			},
		},
		{
			"read only", func(o *Options) { o.ReadOnly = true },
			offer{
				tools:     []string{"check_host", "get_job_output", "get_job_result", "get_job_status", "get_vm", "list_files", "list_jobs", "list_snapshots", "list_templates", "list_vms", "list_volumes", "read_file", "tail_job_output"},
				prompts:   []string{"diagnose_job"},
				resources: []string{"host-report", "job-artifact", "job-output", "job-result", "usage"},
			},
		},
		{
			"nothing destructive", func(o *Options) { o.DisableDestructive = true },
			offer{
				tools: []string{
					"attach_volume", "check_host", "create_volume", "detach_volume", "execute_command", "expose_port", "fork_vm", "get_job_output", "get_job_result", "get_job_status", "get_vm", "interact_with_job", "list_files", "list_jobs", "list_snapshots", "list_templates", "list_vms", "list_volumes",
					"provision_vm", "read_file", "resume_vm", "save_vm", "snapshot_vm", "start_vm", "submit_job", "suspend_vm", "tail_job_output",
				},
				prompts:   []string{"delegate_task", "diagnose_job"},
				resources: []string{"host-report", "job-artifact", "job-output", "job-result", "manifest", "usage"},
			},
		},
		{
			"VMs, read only", func(o *Options) { o.Toolsets, o.ReadOnly = []string{"vm"}, true },
			offer{tools: []string{"get_vm", "list_snapshots", "list_vms", "list_volumes"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := options(&engine{})
			tt.change(&o)
			got := offered(t, o)
			got.instructions = ""
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(offer{})); diff != "" {
				t.Errorf("offered (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInstructions_SpeakOfEveryWayThereIs(t *testing.T) {
	all := offered(t, options(&engine{}))
	for _, name := range []string{"submit_job", "get_job_result", "provision_vm", "execute_command", "destroy_vm", "get_job_output", "interact_with_job", "check_host"} {
		if !strings.Contains(all.instructions, name) {
			t.Errorf("%s is not in the instructions", name)
		}
	}
	o := options(&engine{})
	o.ReadOnly = true
	if text := offered(t, o).instructions; !strings.Contains(text, "starts nothing") {
		t.Errorf("read only: %s", text)
	}
}
