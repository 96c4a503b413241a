package mcptool

import (
	"context"
	"slices"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// promptTools returns the tools that each prompt refers to. Principals that may use all get it.
func promptTools() map[string][]string {
	return map[string][]string{
		delegatePrompt: {"submit_job", "get_job_result"},
		diagnosePrompt: {"get_job_result", "get_job_status"},
	}
}

// resourceTools returns the tools that return each resource's content. Principals that may use one
// of them get it.
func resourceTools() map[string][]string {
	return map[string][]string{
		hostURI:          {"check_host"},
		manifestURI:      {"submit_job"},
		usageTemplate:    {"list_jobs"},
		outputTemplate:   {"get_job_output", "tail_job_output", "get_job_result"},
		resultTemplate:   {"get_job_result"},
		artifactTemplate: {"get_job_result"},
	}
}

// refusal returns why the principal of a request may not use a tool; nil: it may. The engine checks
// again on each call; refusal keeps a client from being offered what it would be refused.
func refusal(ctx context.Context, name string) error {
	p, ok := job.PrincipalFrom(ctx)
	if !ok {
		return nil // the engine refuses
	}
	need, toolset := job.RoleAdmin, "" // a tool not in the table: a fixture of a test
	for _, t := range allTools() {
		if t.name == name {
			need, toolset = job.Needs(t.verb), t.toolset
		}
	}
	if !p.Role.Includes(need) {
		return &job.DeniedError{Verb: name, Role: p.Role, Need: need}
	}
	return p.Narrowed(name, toolset)
}

// refusalOfAll returns why the principal of a request may not use all tools; nil: it may.
func refusalOfAll(ctx context.Context, tools []string) error {
	for _, name := range tools {
		if err := refusal(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// refusalOfAny returns why the principal of a request may not use any of the tools; nil: it may.
func refusalOfAny(ctx context.Context, tools []string) (err error) {
	for _, name := range tools {
		if err = refusal(ctx, name); err == nil {
			return nil
		}
	}
	return err
}

// filterLists limits lists to what the request's principal may use, and to what clients need.
func filterLists(h *server.Hooks) {
	h.AddAfterListTools(func(ctx context.Context, _ any, _ *mcp.ListToolsRequest, r *mcp.ListToolsResult) {
		r.Tools = each(only(r.Tools, func(t mcp.Tool) error { return refusal(ctx, t.Name) }), listed)
	})
	h.AddAfterListPrompts(func(ctx context.Context, _ any, _ *mcp.ListPromptsRequest, r *mcp.ListPromptsResult) {
		r.Prompts = only(r.Prompts, func(p mcp.Prompt) error { return refusalOfAll(ctx, promptTools()[p.Name]) })
	})
	h.AddAfterListResources(func(ctx context.Context, _ any, _ *mcp.ListResourcesRequest, r *mcp.ListResourcesResult) {
		r.Resources = only(r.Resources, func(of mcp.Resource) error { return refusalOfAny(ctx, resourceTools()[of.URI]) })
	})
	h.AddAfterListResourceTemplates(func(ctx context.Context, _ any, _ *mcp.ListResourceTemplatesRequest, r *mcp.ListResourceTemplatesResult) {
		r.ResourceTemplates = only(r.ResourceTemplates, func(t mcp.ResourceTemplate) error { return refusalOfAny(ctx, resourceTools()[t.URITemplate.Raw()]) })
	})
}

// only returns the elements of a list that are not refused.
func only[T any](list []T, refusal func(T) error) []T {
	return slices.DeleteFunc(slices.Clone(list), func(one T) bool { return refusal(one) != nil })
}

// refuseTools refuses calls of tools that the principal of the request may not use.
func refuseTools(next server.ToolHandlerFunc) server.ToolHandlerFunc {
	return func(ctx context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if err := refusal(ctx, r.Params.Name); err != nil {
			return mcp.NewToolResultError(err.Error()), nil
		}
		return next(ctx, r)
	}
}
