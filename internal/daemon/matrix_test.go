package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/doctest"
	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// What is decided about one call.
const (
	unauthorized = "unauthorized"
	denied       = "denied"
	hidden       = "hidden" // as if what it is about did not exist
	allowed      = "allowed"
)

// rule is what a call needs: the least role, and whether it is about one job or VM.
type rule struct {
	role job.Role
	of   string // job, vm, or empty
}

// looks reports whether a route of the page shows that a job or VM does not exist before
// it asks whether the role may do it: those of VMs' forms, and of a task's input.
func looks(name string) bool {
	return strings.HasPrefix(name, "POST /vms/{ref}/") || name == "POST /jobs/{id}/input"
}

// decide says what becomes of a call, as access.md promises it.
func (r rule) decide(c caller, owner string) string {
	rank := map[job.Role]int{job.RoleRead: 1, job.RoleRun: 2, job.RoleAdmin: 3}
	switch {
	case c.role == "":
		return unauthorized
	case rank[c.role] < rank[r.role]:
		return denied
	case r.of != "" && c.role != job.RoleAdmin && c.name != owner:
		return hidden
	}
	return allowed
}

// verbRules is decided here, and not by the code that is tested.
func verbRules() map[string]rule {
	rules := map[string]rule{"Submit": {job.RoleRun, ""}, "Plan": {job.RoleRun, ""}, "CreateVM": {job.RoleRun, ""},
		"CreateVolume": {job.RoleRun, ""}, "ReportDispatcher": {job.RoleRun, ""}, "DrainDispatcher": {job.RoleRun, ""}, "UndrainDispatcher": {job.RoleRun, ""}, "RemoveVolume": {job.RoleRun, ""}, "AttachVolume": {job.RoleRun, ""}, "DetachVolume": {job.RoleRun, ""},
		"CreateSchedule": {job.RoleRun, ""}, "PauseSchedule": {job.RoleRun, ""}, "RunSchedule": {job.RoleRun, ""}, "RemoveSchedule": {job.RoleRun, ""}}
	for role, of := range map[job.Role]map[string]string{
		job.RoleRead: {
			"job": "Job Manifest Result Watch Output Artifacts OpenArtifact Terminal", "vm": "VM ListSnapshots ListPorts", "": "Info List VMs CheckHost Volumes Volume Dispatchers Usage Schedules Schedule",
		},
		job.RoleRun: {
			"job": "Cancel Kill Input Resize",
			"vm":  "StartVM StopVM SuspendVM ResumeVM SetVM ForkVM SnapshotVM RevertVM DeleteSnapshot DestroyVM ListFiles ReadFile WriteFile EditFile ReadTree WriteTree DialVM LoginVM ExposePort UnexposePort Network",
		},
		job.RoleAdmin: {
			"vm": "ForgetVM SaveVM", "job": "DeleteJob", "": "Cleanup Tokens CreateToken RevokeToken Credentials CreateCredential RemoveCredential Pools Pool CreatePool ResizePool RemovePool Checkpoints Checkpoint CreateCheckpoint RemoveCheckpoint Engines Nodes CordonNode UncordonNode TestHost HostTests CancelHostTest",
		},
	} {
		for subject, names := range of {
			for name := range strings.FieldsSeq(names) {
				rules[name] = rule{role, subject}
			}
		}
	}
	return rules
}

// toolRules are those of MCP's tools.
func toolRules() map[string]rule {
	rules := map[string]rule{}
	for role, of := range map[job.Role]map[string]string{
		job.RoleRead: {"job": "get_job_status get_job_result get_job_output tail_job_output", "vm": "get_vm list_snapshots", "": "list_jobs list_vms list_volumes check_host"},
		job.RoleRun: {
			"job": "cancel_job kill_job interact_with_job", "": "submit_job schedule execute_command provision_vm create_volume attach_volume detach_volume delete_volume",
			"vm": "start_vm stop_vm suspend_vm resume_vm fork_vm snapshot_vm revert_vm delete_snapshot expose_port destroy_vm list_files read_file write_file edit_file",
		},
		job.RoleAdmin: {"vm": "save_vm", "": "cleanup_completed_jobs list_templates"},
	} {
		for subject, names := range of {
			for name := range strings.FieldsSeq(names) {
				rules[name] = rule{role, subject}
			}
		}
	}
	return rules
}

// pageRules are those of the page's routes, by method and path as in http.md.
func pageRules() map[string]rule {
	return map[string]rule{
		"GET /jobs": {job.RoleRead, ""}, "GET /jobs/live": {job.RoleRead, ""},
		"GET /jobs/{id}": {job.RoleRead, "job"}, "GET /jobs/{id}/events": {job.RoleRead, "job"}, "GET /jobs/{id}/live": {job.RoleRead, "job"},
		"GET /jobs/{id}/output": {job.RoleRead, "job"}, "GET /jobs/{id}/lines": {job.RoleRead, "job"}, "GET /jobs/{id}/artifacts/{path}": {job.RoleRead, "job"}, "GET /jobs/{id}/terminal": {job.RoleRead, "job"},
		"GET /jobs/{id}/diff": {job.RoleRead, "job"}, "GET /jobs/{id}/tests": {job.RoleRead, "job"}, "GET /jobs/{id}/files": {job.RoleRun, "job"}, "GET /jobs/{id}/file": {job.RoleRun, "job"}, "POST /jobs/{id}/files": {job.RoleRun, "job"},
		"GET /jobs/new": {job.RoleRun, ""}, "POST /jobs/new": {job.RoleRun, ""},
		"POST /jobs/{id}/cancel": {job.RoleRun, "job"}, "POST /jobs/{id}/kill": {job.RoleRun, "job"}, "POST /jobs/{id}/input": {job.RoleRun, "job"},
		"GET /vms": {job.RoleRead, ""}, "GET /vms/live": {job.RoleRead, ""}, "GET /vms/{ref}": {job.RoleRead, "vm"}, "GET /vms/{ref}/live": {job.RoleRead, "vm"},
		"GET /vms/new": {job.RoleRun, ""}, "POST /vms/new": {job.RoleRun, ""}, "GET /vms/{ref}/{verb}": {job.RoleRun, "vm"},
		"POST /vms/{ref}/start": {job.RoleRun, "vm"}, "POST /vms/{ref}/stop": {job.RoleRun, "vm"}, "POST /vms/{ref}/suspend": {job.RoleRun, "vm"},
		"POST /vms/{ref}/resume": {job.RoleRun, "vm"}, "POST /vms/{ref}/fork": {job.RoleRun, "vm"}, "POST /vms/{ref}/snapshot": {job.RoleRun, "vm"}, "POST /vms/{ref}/revert": {job.RoleRun, "vm"}, "POST /vms/{ref}/remove-snapshot": {job.RoleRun, "vm"}, "POST /vms/{ref}/save": {job.RoleAdmin, "vm"}, "POST /vms/{ref}/expose": {job.RoleRun, "vm"}, "POST /vms/{ref}/unexpose": {job.RoleRun, "vm"},
		"POST /vms/{ref}/destroy": {job.RoleRun, "vm"}, "POST /vms/{ref}/terminal": {job.RoleRun, "vm"}, "POST /vms/{ref}/forget": {job.RoleAdmin, "vm"},
		"GET /pools": {job.RoleAdmin, ""}, "GET /pools/live": {job.RoleAdmin, ""}, "GET /pools/{pool}": {job.RoleAdmin, ""},
		"GET /pools/new": {job.RoleAdmin, ""}, "POST /pools/new": {job.RoleAdmin, ""}, "POST /pools/{pool}/resize": {job.RoleAdmin, ""}, "POST /pools/{pool}/remove": {job.RoleAdmin, ""},
		"GET /nodes": {job.RoleAdmin, ""}, "GET /nodes/live": {job.RoleAdmin, ""}, "POST /nodes/{node}/cordon": {job.RoleAdmin, ""}, "POST /nodes/{node}/uncordon": {job.RoleAdmin, ""},
		"GET /tokens": {job.RoleAdmin, ""}, "GET /tokens/new": {job.RoleAdmin, ""}, "POST /tokens/new": {job.RoleAdmin, ""}, "POST /tokens/{token}/revoke": {job.RoleAdmin, ""},
		"GET /templates": {job.RoleAdmin, ""}, "GET /checkpoints": {job.RoleAdmin, ""}, "GET /volumes": {job.RoleRead, ""}, "GET /queues": {job.RoleRead, ""}, "GET /credentials": {job.RoleAdmin, ""}, "GET /usage": {job.RoleRead, ""}, "GET /schedules": {job.RoleRead, ""},
		"GET /host": {job.RoleRead, ""}, "GET /host/live": {job.RoleAdmin, ""}, "POST /host/test": {job.RoleAdmin, ""}, "POST /host/test/{test}/cancel": {job.RoleAdmin, ""}, "GET /metrics": {job.RoleRead, ""},
	}
}

// undecided are routes that show nothing of the engine, lead on to another route, or are
// other faces.
var undecided = []string{
	"GET /", "ANY /mcp", "ANY /mcp/", "ANY /.well-known/oauth-protected-resource", "ANY /.well-known/oauth-protected-resource/mcp", "ANY /api/", "GET /api/v1/jobs/{id}/terminal", "GET /health", "GET /login", "GET /login/begin", "GET /login/issuer", "POST /login", "POST /logout", "GET /static/{hash}/{file}",
	"ANY /ports/{port}", "POST /hooks/{dispatcher}", "GET /help", "GET /help/{topic}", "GET /help/{plot}", "GET /jobs/{id}/{verb}", "GET /pools/{pool}/{verb}", "GET /nodes/{node}/{verb}", "GET /tokens/{token}/revoke", "GET /host/test", "GET /host/test/{test}/cancel",
}

// caller is who makes a call.
type caller struct {
	is    string
	name  string
	role  job.Role // empty: not let in
	token string

	cookie, form string // of a session on the page
}

type matrix struct {
	t       *testing.T
	e       *engine
	url     string
	callers []caller
	jobs    map[string]string // by owner
	vms     map[string]string
}

func newMatrix(t *testing.T) *matrix {
	dir := t.TempDir()
	t.Setenv("LINUS_STATE_DIR", dir)
	t.Setenv("CALLBACK_PORT", "0")
	t.Setenv("HTTP_ADDR", "127.0.0.1:0")
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	fake := providertest.NewFake()
	o := Options{Config: c, Log: slog.New(slog.DiscardHandler), Version: "v1", Backend: func(config.Config, Installation, *slog.Logger) Backend {
		return Backend{Provider: fake, Guest: fake, Close: func() {}}
	}}
	e, err := openEngine(t.Context(), o)
	if err == nil {
		err = e.start(t.Context(), func(error) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	face, err := openHTTP(t.Context(), o, e, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(face.close(context.Background()), e.close(context.Background())); err != nil { //nolint:usetesting // it has ended
			t.Error(err)
		}
	})
	m := &matrix{t: t, e: e, url: "http://" + face.Addr, jobs: map[string]string{}, vms: map[string]string{}}
	operator, err := os.ReadFile(filepath.Join(dir, "http-token"))
	if err != nil {
		t.Fatal(err)
	}
	m.callers = []caller{
		{is: "nobody"}, {is: "somebody with a wrong token", token: "linus_wrong"},
		{is: "the operator", name: "", role: job.RoleAdmin, token: strings.TrimSpace(string(operator))},
	}
	for _, name := range []string{"alice", "bob"} {
		for _, role := range job.Roles {
			m.callers = append(m.callers, caller{is: name + " who may " + string(role), name: name, role: role, token: m.newToken(name, role)})
		}
	}
	revoked := m.newToken("carol", job.RoleAdmin)
	if _, err := e.guarded.RevokeToken(m.as(""), "carol"); err != nil {
		t.Fatal(err)
	}
	expired, err := e.guarded.CreateToken(m.as(""), job.TokenSpec{Name: "erin", Role: job.RoleAdmin, TTL: 1})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := e.Authenticate(t.Context(), expired.Secret); errors.Is(err, job.ErrUnauthorized) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a token does not expire")
		}
	}
	m.callers = append(m.callers, caller{is: "a revoked token", token: revoked}, caller{is: "an expired token", token: expired.Secret})
	for _, owner := range []string{"alice", ""} {
		m.ensure(owner)
	}
	return m
}

// as is the context of an owner's requests.
func (m *matrix) as(owner string) context.Context {
	if owner == "" {
		return job.WithPrincipal(m.t.Context(), job.Operator())
	}
	return job.WithPrincipal(m.t.Context(), job.Principal{Name: owner, Role: job.RoleRun})
}

func (m *matrix) newToken(name string, role job.Role) string {
	m.t.Helper()
	created, err := m.e.guarded.CreateToken(m.as(""), job.TokenSpec{Name: name, Role: role, Toolsets: job.TokenToolsets})
	if err != nil {
		m.t.Fatal(err)
	}
	return created.Secret
}

// ensure sees to it that an owner has a finished job and a VM.
func (m *matrix) ensure(owner string) {
	m.t.Helper()
	if _, err := m.e.guarded.Job(m.as(owner), m.jobs[owner]); err != nil {
		m.jobs[owner] = m.run(owner, job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript}})
	}
	if v, err := m.e.guarded.VM(m.as(owner), m.vms[owner]); err != nil || v.Status != vm.Running {
		if err == nil {
			if _, err := m.e.guarded.StartVM(m.as(owner), m.vms[owner]); err == nil {
				return
			}
		}
		m.vms[owner] = fmt.Sprintf("vm-%s-%d", owner, time.Now().UnixNano())
		if owner == "" {
			m.vms[owner] = fmt.Sprintf("vm-%d", time.Now().UnixNano())
		}
		m.run(owner, job.Submission{Manifest: job.Manifest{VMName: m.vms[owner]}})
	}
}

func (m *matrix) run(owner string, s job.Submission) string {
	m.t.Helper()
	var j job.Job
	var v job.VMInfo
	var err error
	if s.Manifest.VMName == "" {
		j, err = m.e.guarded.Submit(m.as(owner), s)
	} else {
		v, err = m.e.guarded.CreateVM(m.as(owner), s)
		j.ID = v.Job
	}
	for deadline := time.Now().Add(time.Minute); err == nil && !j.Done(); time.Sleep(5 * time.Millisecond) {
		if j, err = m.e.guarded.Job(m.as(owner), j.ID); time.Now().After(deadline) {
			err = fmt.Errorf("it is %s", j.Status)
		}
	}
	if err != nil || j.Status != job.Success {
		m.t.Fatalf("%s: %+v, %v", j.Manifest.Task, j.Outcome, err)
	}
	return j.ID
}

// what no caller has.
const noJob, noVM = "019aa000-0000-7000-8000-000000000000", "no-such-vm"

// cells tries each rule as each caller on what each owner has. call makes a call about a
// job and a VM and returns its status, or the kind of decision, and its text.
func (m *matrix) cells(face string, rules map[string]rule, call func(c *caller, name, id, vm string) (decision, text string)) {
	m.t.Helper()
	names := make([]string, 0, len(rules))
	for name := range rules {
		names = append(names, name)
	}
	slices.Sort(names)
	n := 0
	for _, name := range names {
		r := rules[name]
		owners := []string{""}
		if r.of != "" {
			owners = []string{"alice", ""}
		}
		for i := range m.callers {
			c := &m.callers[i]
			for _, owner := range owners {
				want := r.decide(*c, owner)
				if want == denied && looks(name) && c.name != owner {
					want = hidden
				}
				m.ensure(owner) // the last call may have destroyed it
				got, text := call(c, name, m.jobs[owner], m.vms[owner])
				if r.of != "" && got == allowed {
					_, none := call(c, name, noJob, noVM)
					plain := strings.NewReplacer(m.jobs[owner], "REF", m.vms[owner], "REF", noJob, "REF", noVM, "REF").Replace
					if plain(text) == plain(none) {
						got = hidden
					}
				}
				if got != want {
					m.t.Errorf("%s: %s, as %s, on what belongs to %q: %s, want %s: %.300s", face, name, c.is, owner, got, want, text)
				}
				n++
			}
		}
	}
	m.t.Logf("%s: %d cells", face, n)
}

// send makes a request and returns its response, with the body read.
func (m *matrix) send(req *http.Request) (*http.Response, string) {
	m.t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read
	if resp.StatusCode == http.StatusSwitchingProtocols || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") && req.Method == http.MethodGet {
		return resp, "a stream"
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return resp, string(body)
}

func (m *matrix) request(method, path, body string) *http.Request {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	m.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, m.url+path, strings.NewReader(body))
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Request-Id", "matrix") // so that what is hidden can be compared with what is not there
	return req
}

func decisionOf(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return unauthorized
	case http.StatusForbidden:
		return denied
	}
	return allowed
}

// Every verb, role, owner and face: what is decided is what access.md says.
func TestMatrix(t *testing.T) {
	loops.NotInCheck(t)
	m := newMatrix(t)
	t.Run("API", func(t *testing.T) { m.t = t; m.api() })
	t.Run("MCP", func(t *testing.T) { m.t = t; m.mcp() })
	t.Run("page", func(t *testing.T) { m.t = t; m.page() })
	t.Run("socket", func(t *testing.T) { m.t = t; m.socket() })
}

func (m *matrix) api() {
	var doc struct {
		Paths map[string]map[string]operation
	}
	req := m.request("GET", "/api/v1/openapi.json", "")
	req.Header.Set("Authorization", "Bearer "+m.callers[2].token)
	_, text := m.send(req)
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		m.t.Fatal(err)
	}
	all, rules := map[string]operation{}, verbRules()
	for path, methods := range doc.Paths {
		for method, o := range methods {
			o.method, o.path = strings.ToUpper(method), path
			o.ID = verbOf(o.ID)
			all[o.ID] = o
			if _, decided := rules[o.ID]; !decided {
				m.t.Errorf("nobody has decided who may call %s", o.ID)
			}
		}
	}
	inPath := func(names ...string) (all []parameter) {
		for _, name := range names {
			all = append(all, parameter{Name: name, In: "path"})
		}
		return all
	}
	all["DialVM"] = operation{ID: "DialVM", method: "GET", path: "/api/v1/vms/{vm}/ports/{port}", Parameters: inPath("vm", "port")} // WebSockets, which OpenAPI has no word for
	all["LoginVM"] = operation{ID: "LoginVM", method: "GET", path: "/api/v1/vms/{vm}/ssh", Parameters: append(inPath("vm"), parameter{Name: "key", In: "query"})}
	all["Terminal"] = operation{ID: "Terminal", method: "GET", path: "/api/v1/jobs/{id}/terminal", Parameters: inPath("id")}
	for name := range rules {
		if _, there := all[name]; !there {
			m.t.Errorf("there is no operation %s", name)
			delete(rules, name)
		}
	}
	bodies := map[string]string{
		"Submit": `{"manifest":{"task":"true","agent_type":"script"}}`, "Plan": `{"manifest":{"task":"","agent_type":"","vm_name":"other"}}`,
		"CreateVM":   `{"manifest":{"vm_name":"dev","resources":{"cpu":99}}}`, // which is refused, but not by the guard
		"CreatePool": `{"name":"p","warm":0}`, "ResizePool": `{"warm":0}`, "Input": "x", "WriteFile": "x", "Kill": `{"signal":"INT"}`, "Resize": `{"rows":24,"columns":80}`,
		"SetVM": `{}`, "ForkVM": `{"count":99}`, "SnapshotVM": `{"name":"clean"}`, "SaveVM": `{"name":"setup"}`, "Network": `{}`, "EditFile": `{"old":"x","new":"y"}`, "CreateToken": `{"name":"dave","role":"read"}`, "CreateCredential": `{"name":"github","host":"api.github.com","header":"Authorization: Bearer","value":"of no worth"}`,
		"CreateSchedule": `{"name":"s","cron":"x","manifest":{"task":"true","agent_type":"script"}}`, "PauseSchedule": `{"paused":true}`, "CreateVolume": `{"name":"v","size":"x"}`, "AttachVolume": `{"vm":"x","path":"/x"}`, "DetachVolume": `{"vm":"x"}`, "ExposePort": `{"port":80}`, "TestHost": `{"node":"elsewhere"}`,
	}
	m.cells("API", rules, func(c *caller, name, id, vm string) (string, string) {
		values := map[string]string{"id": id, "name": "none", "vm": vm, "pool": "p", "checkpoint": "c", "volume": "v", "schedule": "s", "node": "pve", "test": "t", "token": "dave", "credential": "github", "snapshot": "clean", "signal": "INT", "path": "x", "port": "1", "key": "x", "stream": "stdout", "rows": "24", "columns": "80", "older_than_seconds": "3600000"}
		o := all[name]
		path, query := o.path, url.Values{}
		for _, p := range o.Parameters {
			if p.In == "path" {
				path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(values[p.Name]))
			} else if values[p.Name] != "" {
				query.Set(p.Name, values[p.Name])
			}
		}
		req := m.request(o.method, path+"?"+query.Encode(), bodies[name])
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		if name == "DialVM" || name == "LoginVM" || name == "Terminal" {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "websocket")
			req.Header.Set("Sec-WebSocket-Version", "13")
			req.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
		}
		resp, text := m.send(req)
		return decisionOf(resp.StatusCode), fmt.Sprint(resp.StatusCode, text)
	})
}

// mcp calls tools by HTTP.
func (m *matrix) mcp() {
	sessions := map[string]string{}
	post := func(c *caller, message string) (*http.Response, string) {
		req := m.request("POST", "/mcp", message)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		if id := sessions[c.is]; id != "" {
			req.Header.Set("Mcp-Session-Id", id)
		}
		resp, text := m.send(req)
		if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
			for line := range strings.Lines(text) {
				if data, ok := strings.CutPrefix(line, "data: "); ok && strings.Contains(data, `"id":`) {
					text = data
				}
			}
		}
		return resp, text
	}
	offered := map[string]map[string]bool{}
	for i := range m.callers {
		c := &m.callers[i]
		resp, _ := post(c, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"matrix","version":"1"}}}`)
		if got := decisionOf(resp.StatusCode); (got == unauthorized) != (c.role == "") {
			m.t.Errorf("initialize as %s: %d", c.is, resp.StatusCode)
		}
		sessions[c.is] = resp.Header.Get("Mcp-Session-Id")
		_, text := post(c, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		var list struct {
			Result struct{ Tools []struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil && c.role != "" {
			m.t.Fatalf("%s: %v, %s", c.is, err, text)
		}
		offered[c.is] = map[string]bool{}
		for _, tool := range list.Result.Tools {
			offered[c.is][tool.Name] = true
		}
	}
	rules := toolRules()
	for tool := range offered["the operator"] {
		if _, decided := rules[tool]; !decided {
			m.t.Errorf("nobody has decided who may use %s", tool)
		}
	}
	if len(offered["the operator"]) != len(rules) {
		m.t.Errorf("the operator is offered %d tools of %d", len(offered["the operator"]), len(rules))
	}
	more := map[string]string{
		"submit_job": `"manifest":{"task":"true","agentType":"script"}`, "execute_command": `"command":"true"`, "provision_vm": `"dry_run":true`,
		"snapshot_vm": `"snapshot":"clean"`, "revert_vm": `"snapshot":"clean","confirm":true`, "delete_snapshot": `"snapshot":"clean","confirm":true`, "destroy_vm": `"confirm":true`, "expose_port": `"port":80`, "save_vm": `"name":"setup"`,
		"create_volume": `"name":"v","size":"x"`, "attach_volume": `"volume":"v","vm_id":"x","path":"/x"`, "detach_volume": `"volume":"v","vm_id":"x"`, "delete_volume": `"volume":"v","confirm":true`,
		"read_file": `"path":"x"`, "write_file": `"path":"x","content":"y"`, "edit_file": `"path":"x","old_string":"y","new_string":"z"`,
		"interact_with_job": `"input":"x"`, "schedule": `"action":"list"`, "cleanup_completed_jobs": `"older_than_hours":1000`,
	}
	m.cells("MCP", rules, func(c *caller, name, id, vm string) (string, string) {
		args := []string{}
		switch rules[name].of {
		case "job":
			args = append(args, fmt.Sprintf(`"job_id":%q`, id))
		case "vm":
			args = append(args, fmt.Sprintf(`"vm_id":%q`, vm))
		}
		if more[name] != "" {
			args = append(args, more[name])
		}
		resp, text := post(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":%q,"arguments":{%s}}}`, name, strings.Join(args, ",")))
		switch {
		case resp.StatusCode == http.StatusUnauthorized:
			return unauthorized, text
		case resp.StatusCode != http.StatusOK:
			m.t.Fatalf("%s as %s: %d %s", name, c.is, resp.StatusCode, text)
		case !offered[c.is][name]:
			if !strings.Contains(text, `"error"`) && !strings.Contains(text, `"isError":true`) {
				return allowed, text
			}
			return denied, text
		}
		return allowed, text
	})
}

// page uses the pages as browsers do.
func (m *matrix) page() {
	for i := range m.callers {
		c := &m.callers[i]
		req := m.request("POST", "/login", url.Values{"token": {c.token}, "next": {"/jobs"}}.Encode())
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", m.url)
		resp, _ := m.send(req)
		if cookies := resp.Cookies(); len(cookies) > 0 {
			c.cookie = cookies[0].Name + "=" + cookies[0].Value
		}
		if (c.cookie != "") != (c.role != "") {
			m.t.Errorf("login as %s: %d", c.is, resp.StatusCode)
		}
		req = m.request("GET", "/jobs", "")
		req.Header.Set("Cookie", c.cookie)
		_, text := m.send(req)
		if found := regexp.MustCompile(`name="form_token" value="([^"]+)"`).FindStringSubmatch(text); found != nil {
			c.form = found[1]
		} else if c.role != "" {
			m.t.Fatalf("no form on the page of %s: %s", c.is, text)
		}
	}
	rules := pageRules()
	for _, found := range regexp.MustCompile("`([A-Z]+ /[^`]*)`").FindAllStringSubmatch(doctest.Part(m.t, "routes"), -1) {
		if _, decided := rules[found[1]]; !decided && !slices.Contains(undecided, found[1]) {
			m.t.Errorf("nobody has decided who may %s", found[1])
		}
	}
	m.cells("page", rules, func(c *caller, name, id, vm string) (string, string) {
		method, path, _ := strings.Cut(name, " ")
		path = strings.NewReplacer("{id}", id, "{ref}", vm, "{pool}", "p", "{node}", "pve", "{token}", "dave", "{path}", "x", "{verb}", "destroy").Replace(path)
		about, _ := m.e.guarded.VM(m.as(""), vm)
		form := url.Values{"job": {about.Job}, "form_token": {c.form}, "snapshot": {"clean"}, "signal": {"INT"}, "input": {"x"}, "name": {"dave"}, "role": {"read"}}
		body := ""
		if method == http.MethodPost {
			body = form.Encode()
		}
		kind := "application/x-www-form-urlencoded"
		if (strings.HasSuffix(path, "/new") || strings.HasSuffix(path, "/files")) && method == http.MethodPost {
			var parts strings.Builder
			w := multipart.NewWriter(&parts)
			for field, values := range form {
				_ = w.WriteField(field, values[0]) // into memory
			}
			_ = w.Close()
			kind, body = w.FormDataContentType(), parts.String()
		}
		req := m.request(method, path, body)
		req.Header.Set("Accept", "text/html")
		if method == http.MethodPost {
			req.Header.Set("Content-Type", kind)
			req.Header.Set("Origin", m.url)
		}
		if c.cookie != "" {
			req.Header.Set("Cookie", c.cookie)
		}
		resp, text := m.send(req)
		return decisionOf(resp.StatusCode), fmt.Sprint(resp.StatusCode, resp.Header.Get("Location"), text)
	})
}

// socket: whoever can open it is the operator, whatever it says it is.
func (m *matrix) socket() {
	dir, err := os.MkdirTemp("", "linus-matrix") // a socket's path is short
	if err != nil {
		m.t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := control.Listen(m.t.Context(), dir)
	if err != nil {
		m.t.Fatal(err)
	}
	s := control.NewServer(m.e.guarded, control.Options{Stop: func() {}, Log: slog.New(slog.DiscardHandler)})
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	client, err := control.Dial(m.t.Context(), l.Addr().String())
	if err != nil {
		m.t.Fatal(err)
	}
	m.ensure("alice")
	ctx := job.WithPrincipal(m.t.Context(), job.Principal{Name: "bob", Role: job.RoleRead})
	if j, err := client.Job(ctx, m.jobs["alice"]); err != nil || j.Principal != "alice" {
		m.t.Errorf("the operator does not see a job of alice: %+v, %v", j, err)
	}
	if _, err := client.Tokens(ctx); err != nil {
		m.t.Error(err)
	}
	client.Close()
	if err := errors.Join(s.Close(m.t.Context()), <-ended); err != nil {
		m.t.Error(err)
	}
}
