package mcptool

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

func TestAllTools_AreWhatTheyAreSaidToBe(t *testing.T) {
	for _, row := range allTools() {
		made := row.define(Options{}).Tool.Name
		narrow := job.Principal{Name: "ci", Role: job.RoleAdmin, Toolsets: []string{row.toolset}}
		if made != row.name || !slices.Contains(job.Toolsets, row.toolset) || !narrow.May(row.verb) {
			t.Errorf("%s of toolset %s is %s", row.name, row.toolset, made)
		}
	}
}

func TestPermitted_ByRoleAndToolset(t *testing.T) {
	offered := func(p job.Principal) (names []string) {
		ctx := job.WithPrincipal(t.Context(), p)
		for _, tool := range allTools() {
			if refusal(ctx, tool.name) == nil {
				names = append(names, tool.name)
			}
		}
		slices.Sort(names)
		return names
	}
	if got := offered(job.Operator()); len(got) != len(allTools()) {
		t.Errorf("the operator: %v", got)
	}
	read := offered(job.Principal{Name: "a", Role: job.RoleRead})
	want := []string{"check_host", "get_job_output", "get_job_result", "get_job_status", "get_vm", "list_jobs", "list_snapshots", "list_vms", "list_volumes", "tail_job_output"}
	if !slices.Equal(read, want) {
		t.Errorf("read: %v", read)
	}
	if got := offered(job.Principal{Name: "a", Role: job.RoleRun, Toolsets: []string{"jobs"}}); !slices.Equal(got, []string{"cancel_job", "get_job_result", "get_job_status", "list_jobs", "schedule", "submit_job"}) {
		t.Errorf("jobs only: %v", got)
	}
	if got := offered(job.Principal{Name: "a"}); len(got) > 0 {
		t.Errorf("no role: %v", got)
	}
	if got := offered(job.Principal{Name: "a", Role: job.RoleRun}); slices.Contains(got, "cleanup_completed_jobs") || slices.Contains(got, "save_vm") || slices.Contains(got, "list_templates") || len(got) != len(allTools())-3 {
		t.Errorf("run: %v", got)
	}
}

// as returns a client whose requests are made by a principal.
func as(t *testing.T, p job.Principal) (context.Context, *client.Client) {
	t.Helper()
	c, err := client.NewInProcessClient(inProcess(t, &engine{job: job.Job{ID: knownID, Status: job.Running}}))
	return job.WithPrincipal(t.Context(), p), begin(t, c, err)
}

func TestLists_ShowWhatThePrincipalMayUse(t *testing.T) {
	t.Parallel()
	all := []string{hostURI, artifactTemplate, outputTemplate, resultTemplate, usageTemplate, delegatePrompt, diagnosePrompt}
	for _, test := range []struct {
		name  string
		p     job.Principal
		hides []string
	}{
		{"admin", job.Operator(), nil},
		{"run", job.Principal{Name: "a", Role: job.RoleRun}, nil},
		{"read", job.Principal{Name: "a", Role: job.RoleRead}, []string{delegatePrompt}},
		{"jobs only", job.Principal{Name: "a", Role: job.RoleRun, Toolsets: []string{"jobs"}}, []string{hostURI}},
		{"exec only", job.Principal{Name: "a", Role: job.RoleRun, Toolsets: []string{"exec"}}, []string{hostURI, artifactTemplate, resultTemplate, usageTemplate, delegatePrompt, diagnosePrompt}},
		{"no role", job.Principal{Name: "a"}, all},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, c := as(t, test.p)
			shown := map[string]bool{}
			prompts, err := c.ListPrompts(ctx, mcp.ListPromptsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range prompts.Prompts {
				shown[p.Name] = true
			}
			resources, err := c.ListResources(ctx, mcp.ListResourcesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range resources.Resources {
				shown[r.URI] = true
			}
			templates, err := c.ListResourceTemplates(ctx, mcp.ListResourceTemplatesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range templates.ResourceTemplates {
				shown[r.URITemplate.Raw()] = true
			}
			for _, name := range all {
				if hidden := slices.Contains(test.hides, name); hidden == shown[name] {
					t.Errorf("%s: hidden %v, want %v", name, !shown[name], hidden)
				}
			}
			tools, err := c.ListTools(ctx, mcp.ListToolsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			for _, tool := range allTools() {
				if refusal(ctx, tool.name) == nil {
					want++
				}
			}
			if len(tools.Tools) != want {
				t.Errorf("%d tools, want %d", len(tools.Tools), want)
			}
		})
	}
}

func TestRefusals_NameWhatIsNeeded(t *testing.T) {
	t.Parallel()
	call := func(p job.Principal, tool string) string {
		ctx, c := as(t, p)
		var r mcp.CallToolRequest
		r.Params.Name = tool
		result, err := c.CallTool(ctx, r)
		if err != nil || !result.IsError {
			t.Fatalf("%s: %+v, %v", tool, result, err)
		}
		return text(result)
	}
	if got := call(job.Principal{Name: "a", Role: job.RoleRun}, "cleanup_completed_jobs"); !strings.Contains(got, "cleanup_completed_jobs needs role admin, and this token has role run") {
		t.Errorf("beyond the role: %s", got)
	}
	if got := call(job.Principal{Name: "a", Role: job.RoleRun, Toolsets: []string{"jobs"}}, "kill_job"); !strings.Contains(got, "kill_job belongs to toolset exec, and this token has only jobs") {
		t.Errorf("beyond the toolsets: %s", got)
	}
	ctx, c := as(t, job.Principal{Name: "a", Role: job.RoleRead, Toolsets: []string{"exec"}})
	var prompt mcp.GetPromptRequest
	prompt.Params.Name, prompt.Params.Arguments = delegatePrompt, map[string]string{"task": "x"}
	if _, err := c.GetPrompt(ctx, prompt); err == nil || !strings.Contains(err.Error(), "submit_job needs role run") {
		t.Errorf("prompt: %v", err)
	}
	var read mcp.ReadResourceRequest
	read.Params.URI = resourcePrefix + knownID + "/result"
	if _, err := c.ReadResource(ctx, read); err == nil || !strings.Contains(err.Error(), "get_job_result belongs to toolset jobs") {
		t.Errorf("resource: %v", err)
	}
}

// As the MCP authorization specification has it; a token of linus cannot get more scopes.
func TestHTTP_AnOAuthTokenLearnsWhichScopeAToolNeeds(t *testing.T) {
	t.Parallel()
	o := options(&engine{})
	o.Challenge = func(need job.Role) string { return "get " + need.Scope() }
	h := NewHTTP(o)
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil { //nolint:usetesting // it has ended
			t.Error(err)
		}
	})
	var session string
	post := func(p job.Principal, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(job.WithPrincipal(t.Context(), p), http.MethodPost, "/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			r.Header.Set(server.HeaderKeySessionID, session)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, test := range []struct {
		name string
		p    job.Principal
	}{
		{"oauth", job.Principal{Name: "oauth:0:a", Token: "1", OAuth: true, Role: job.RoleRun}},
		{"a token of linus", job.Principal{Name: "a", Token: "1", Role: job.RoleRun}},
	} {
		session = ""
		session = post(test.p, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`).Header().Get(server.HeaderKeySessionID)
		test.p.Token = "2" // the client has refreshed it
		if !test.p.OAuth {
			test.p.Token = "1"
		}
		for call, want := range map[string]struct {
			code            int
			challenge, text string
		}{
			`"tools/call","params":{"name":"cleanup_completed_jobs"}`:  {http.StatusForbidden, "get linus:admin", "needs role admin"},
			`"tools/call","params":{"name":"list_jobs"}`:               {http.StatusOK, "", `"jobs"`},
			`"tools/call","params":{"name":"no_such_tool"}`:            {http.StatusOK, "", "not found"},
			`"prompts/get","params":{"name":"cleanup_completed_jobs"}`: {http.StatusOK, "", "not found"},
		} {
			if !test.p.OAuth && want.challenge != "" {
				want.code, want.challenge = http.StatusOK, ""
			}
			got := post(test.p, `{"jsonrpc":"2.0","id":2,"method":`+call+`}`)
			if got.Code != want.code || got.Header().Get("WWW-Authenticate") != want.challenge || !strings.Contains(got.Body.String(), want.text) {
				t.Errorf("%s, %s: %d %v %s", test.name, call, got.Code, got.Header(), got.Body)
			}
		}
	}
}
