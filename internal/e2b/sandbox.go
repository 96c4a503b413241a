package e2b

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/vm"
)

const (
	defaultTime = 15  // seconds, of a sandbox requested without a time
	secondTime  = 300 // the same, in version 2 of the protocol
	pageSize    = 100
	makingTime  = 10 * time.Minute // for a sandbox to become ready
	endTime     = 30 * time.Second // to have a sandbox destroyed that is of no use
)

func (s *server) route(w http.ResponseWriter, r *http.Request) error {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if len(parts) > 1 && parts[0] == "v2" {
		parts = parts[1:]
	}
	at := r.Method + " " + parts[0]
	id := ""
	if len(parts) > 1 {
		at, id = at+"/{id}", parts[1]
	}
	if len(parts) > 2 {
		at += "/" + strings.Join(parts[2:], "/")
	}
	if at == "GET sandboxes/{id}" && id == "metrics" {
		return s.allMetrics(w, r)
	}
	if do := map[string]func(http.ResponseWriter, *http.Request, vm.VM) error{
		"GET sandboxes/{id}":            s.show,
		"DELETE sandboxes/{id}":         s.kill,
		"POST sandboxes/{id}/timeout":   s.timeout,
		"POST sandboxes/{id}/refreshes": s.refresh,
		"GET sandboxes/{id}/metrics":    s.metrics,
		"GET sandboxes/{id}/logs":       s.logs,
		"POST sandboxes/{id}/fork":      s.fork,
		"POST sandboxes/{id}/snapshots": s.save,
		"PUT sandboxes/{id}/network":    s.setNetwork,
		"POST sandboxes/{id}/pause":     s.pause,
		"POST sandboxes/{id}/resume":    s.connect,
		"POST sandboxes/{id}/connect":   s.connect,
	}[at]; do != nil {
		return s.with(r, id, func(v vm.VM) error { return do(w, r, v) })
	}
	switch at {
	case "POST sandboxes":
		return s.create(w, r)
	case "GET sandboxes":
		return s.list(w, r)
	case "GET snapshots":
		return s.snapshots(w, r)
	case "DELETE templates/{id}":
		return s.unsave(w, r, id)
	case "GET templates":
		return s.listTemplates(w, r)
	case "GET templates/{id}/" + last(parts):
		if id == "aliases" {
			return s.alias(w, r, last(parts))
		}
	case "POST templates", "POST v3/{id}":
		return s.buildRoute(w, r, at, parts)
	}
	if parts[0] == "volumes" {
		return s.volumes(w, r, at, id)
	}
	if len(parts) > 3 && parts[0] == "templates" {
		return s.buildRoute(w, r, at, parts)
	}
	return errUnknown(r)
}

func errUnknown(r *http.Request) error {
	return &refusal{http.StatusNotFound, fmt.Sprintf("linus has no %s %.200q: linus help e2b lists what there is", r.Method, r.URL.Path)}
}

func last(parts []string) string { return parts[len(parts)-1] }

// with runs do with a sandbox, or returns errNoSandbox if the sandbox is gone.
func (s *server) with(r *http.Request, id string, do func(vm.VM) error) error {
	known := vmOf(id)
	if known == "" {
		return errNoSandbox
	}
	v, err := s.Sandboxes.Sandbox(r.Context(), known)
	if err == nil && stateOf(v) == gone {
		err = errNoSandbox
	}
	if err != nil {
		return err
	}
	return do(v)
}

// asked is a request for a sandbox.
type asked struct {
	Template   string            `json:"templateID"`
	Timeout    *int              `json:"timeout"`
	Metadata   map[string]string `json:"metadata"`
	Env        map[string]string `json:"envVars"`
	AutoPause  bool              `json:"autoPause"`
	Memory     *bool             `json:"autoPauseMemory"`
	AutoResume struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	Internet *bool          `json:"allow_internet_access"`
	Network  *network       `json:"network"`
	Mounts   []vm.Mount     `json:"volumeMounts"`
	MCP      map[string]any `json:"mcp"`
	IAM      map[string]any `json:"iam"`
}

// forgets reports whether a sandbox is paused without its memory at its end.
func (a asked) forgets() bool { return a.Memory != nil && !*a.Memory }

// manifest returns the manifest of the sandbox's VM.
func (a asked) manifest() (m job.Manifest, err error) {
	switch {
	case a.MCP != nil:
		return m, invalid("mcp", "there is no gateway of MCP servers in sandboxes", "leave it out, and start the servers by commands")
	case len(a.IAM) > 0:
		return m, invalid("iam", "sandboxes have no workload identity", "leave it out; a job's credentials are what linus has for that: linus help credentials")
	case a.forgets() && a.AutoResume.Enabled:
		return m, invalid("autoResume", "a sandbox that is paused without its memory is not resumed by requests to it", "leave it out, or keep the memory")
	}
	template, _, _ := strings.Cut(a.Template, ":") // tags are ignored: a template has only one version
	if template != base {
		m.VMTemplate = template
	}
	m.VMName = newName("sandbox")
	m.Network, err = a.Network.egress(a.Internet)
	return m, err
}

// create makes a sandbox, and answers when its program does. A sandbox whose client has left is
// destroyed, because nobody else knows its ID.
func (s *server) create(w http.ResponseWriter, r *http.Request) error {
	var a asked
	if err := decode(r, &a); err != nil {
		return err
	}
	if a.Template == "" {
		return invalid("templateID", "is required", "name a template of linus, or base for the one that is the default")
	}
	seconds := secondsOf(r, a.Timeout)
	if err := checkTime("timeout", seconds); err != nil {
		return err
	}
	m, err := a.manifest()
	if err == nil && m.VMTemplate != "" {
		var sizes map[string]vm.Resources
		sizes, err = s.sizes(r.Context())
		m.Resources = sizes[m.VMTemplate]
	}
	if err != nil {
		return err
	}
	if a.Network.public(false) && (!s.PublicPorts || s.Domain == "") {
		return invalid("network.allowPublicTraffic", "ports of sandboxes are not public here", "leave it out, and send the sandbox's trafficAccessToken; E2B_DOMAIN and E2B_PUBLIC_PORTS allow it")
	}
	if !s.mayUse(r.Context()) {
		return errNoUse
	}
	if a.AutoPause {
		m.AtEnd = vm.EndSuspend
	}
	of := vm.Sandbox{Metadata: a.Metadata, Env: slices.Sorted(maps.Keys(a.Env)), Public: a.Network.public(s.PublicFirst), Forgets: a.forgets()}
	if a.Network != nil {
		of.Host = a.Network.Mask
	}
	if a.AutoResume.Enabled {
		of.Wakes = max(seconds, leastWake)
	}
	v, err := s.make(r.Context(), m, of, a.Env, seconds, a.Mounts...)
	if err != nil {
		return err
	}
	respond(w, http.StatusCreated, s.known(v))
	return nil
}

// make makes a sandbox that ends after so many seconds.
func (s *server) make(ctx context.Context, m job.Manifest, of vm.Sandbox, env map[string]string, seconds int, mounts ...vm.Mount) (v vm.VM, err error) {
	ctx, cancel := context.WithTimeout(ctx, makingTime)
	defer cancel()
	m.TTL = max(seconds, 1) // counted from when it is ready
	info, err := s.Engine.CreateVM(ctx, job.Submission{Manifest: m, Client: client, Sandbox: &of})
	if err != nil {
		return v, err
	}
	defer func() {
		if err != nil {
			s.end(ctx, info.Job)
		}
	}()
	_, j, err := s.Engine.Watch(ctx, info.Job, job.OnlyEnd)
	switch {
	case err != nil:
		return v, err
	case ctx.Err() != nil:
		return v, context.Cause(ctx)
	case j.Outcome != nil && j.Outcome.Status != job.Success:
		return v, &refusal{http.StatusServiceUnavailable, "the sandbox could not be made: " + j.Outcome.Error}
	}
	for _, m := range mounts {
		if _, err = s.Engine.AttachVolume(ctx, job.VolumeAttach{Volume: m.Name, VM: info.Job, Path: m.Path}); err != nil {
			return v, err
		}
	}
	if v, err = s.Sandboxes.Sandbox(ctx, info.Job); err == nil {
		env, err = s.proxied(ctx, v, env)
	}
	if err == nil {
		err = s.initialize(ctx, v, envd.Init{EnvVars: env})
	}
	return v, err
}

var errNoUse = &refusal{http.StatusForbidden, "not allowed: a sandbox is for running commands and changing files, and this key may not; use one with the role run, and with the toolsets exec and files if it is narrowed to some"}

// end destroys a VM that is of no use.
func (s *server) end(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	if _, err := s.Engine.DestroyVM(ctx, id); err != nil {
		s.Log.Warn("a sandbox that could not be used stays until it ends", "vm", id, "err", err)
	}
}

// maxTime is the longest time that a sandbox may have from now, in seconds: a year.
const maxTime = 365 * 24 * 3600

func checkTime(field string, seconds int) error {
	return job.Within(field, int64(seconds), 0, maxTime)
}

func (s *server) list(w http.ResponseWriter, r *http.Request) error {
	q, err := choiceOf(r.URL.Query(), strings.HasPrefix(r.URL.Path, "/v2/"))
	if err != nil {
		return err
	}
	all, err := s.Sandboxes.Sandboxes(r.Context())
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(v vm.VM) bool { return !q.takes(v) })
	up := 0
	for _, v := range all {
		if stateOf(v) == running {
			up++
		}
	}
	slices.SortStableFunc(all, q.order)
	if len(q.states) == 0 || slices.Contains(q.states, running) {
		w.Header().Set("X-Total-Running", strconv.Itoa(up))
	}
	if q.after != "" {
		at := slices.IndexFunc(all, func(v vm.VM) bool { return q.past(v) })
		if at < 0 {
			at = len(all)
		}
		all = all[at:]
	}
	if len(all) > q.limit {
		all = all[:q.limit]
		w.Header().Set("X-Next-Token", tokenOf(all[q.limit-1]))
	}
	page := make([]detail, len(all))
	for i, v := range all {
		page[i] = describe(v)
	}
	respond(w, http.StatusOK, page)
	return nil
}

// choice selects and orders the sandboxes of a list.
type choice struct {
	metadata  map[string]string
	states    []state
	since     time.Time
	template  string
	ascending bool
	limit     int
	after     string // tokenOf the last sandbox of the previous page
}

func choiceOf(q url.Values, paged bool) (c choice, err error) {
	c.limit = 1 << 30
	if paged {
		c.limit = pageSize
	}
	if text := q.Get("limit"); text != "" {
		if c.limit, err = strconv.Atoi(text); err != nil || c.limit < 1 || c.limit > pageSize {
			return c, invalid("limit", fmt.Sprintf("%.40q is not a number of sandboxes", text), fmt.Sprintf("give 1 to %d", pageSize))
		}
	}
	for _, text := range q["state"] {
		for one := range strings.SplitSeq(text, ",") {
			if one != string(running) && one != string(paused) {
				return c, invalid("state", fmt.Sprintf("%.40q is unknown", one), "give running, paused or both")
			}
			c.states = append(c.states, state(one))
		}
	}
	if !paged && len(c.states) == 0 {
		c.states = []state{running}
	}
	if text := q.Get("metadata"); text != "" {
		pairs, err := url.ParseQuery(text)
		if err != nil {
			return c, invalid("metadata", "cannot be read", "give key=value, with & between pairs, each escaped as in a query")
		}
		c.metadata = map[string]string{}
		for key, values := range pairs {
			k, errKey := url.QueryUnescape(key)
			v, errValue := url.QueryUnescape(values[0])
			if errKey != nil || errValue != nil {
				k, v = key, values[0]
			}
			c.metadata[k] = v
		}
	}
	if text := q.Get("startedAfter"); text != "" {
		if c.since, err = time.Parse(time.RFC3339, text); err != nil {
			return c, invalid("startedAfter", fmt.Sprintf("%.40q is not a time", text), "give one such as 2026-01-02T15:04:05Z")
		}
	}
	switch q.Get("order") {
	case "", "desc":
	case "asc":
		c.ascending = true
	default:
		return c, invalid("order", fmt.Sprintf("%.40q is unknown", q.Get("order")), "give asc or desc")
	}
	c.template, c.after = q.Get("template"), q.Get("nextToken")
	return c, nil
}

func (c choice) takes(v vm.VM) bool {
	if is := stateOf(v); is == gone || len(c.states) > 0 && !slices.Contains(c.states, is) {
		return false
	}
	for key, value := range c.metadata {
		if has, ok := v.Sandbox().Metadata[key]; !ok || has != value {
			return false
		}
	}
	return !startOf(v).Before(c.since) && (c.template == "" || templateOf(v) == c.template)
}

func (c choice) order(a, b vm.VM) int {
	n := cmp.Compare(tokenOf(a), tokenOf(b))
	if !c.ascending {
		n = -n
	}
	return n
}

// tokenOf returns the position of a sandbox in a list. It never changes.
func tokenOf(v vm.VM) string {
	return fmt.Sprintf("%016x-%s", startOf(v).UnixMilli(), vm.SandboxID(v.Job))
}

// past reports whether a sandbox comes after the previous page.
func (c choice) past(v vm.VM) bool {
	if c.ascending {
		return tokenOf(v) > c.after
	}
	return tokenOf(v) < c.after
}

// show answers with a sandbox, and with its access token if the caller may use it.
func (s *server) show(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	d := describe(v)
	if s.mayUse(r.Context()) {
		d.Token = s.accessToken(d.ID)
	}
	d.Domain = s.Domain
	onTimeout := "kill"
	if pauses(v) && !v.Meanwhile {
		onTimeout = "pause"
	}
	internet := v.Network.Mode() != vm.EgressNone
	d.Lifecycle, d.Internet = &lifecycle{AutoResume: v.Sandbox().Wakes > 0, OnTimeout: onTimeout}, &internet
	respond(w, http.StatusOK, d)
	return nil
}

// MayUse reports whether a principal may run commands and change files in sandboxes.
func MayUse(p job.Principal) bool { return p.May(job.VerbSubmit) && p.May(job.VerbWriteFile) }

// mayUse is MayUse for the caller.
func (s *server) mayUse(ctx context.Context) bool {
	p, ok := job.PrincipalFrom(ctx)
	return ok && MayUse(p)
}

func (s *server) kill(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	if _, err := s.Engine.DestroyVM(r.Context(), v.Job); err != nil {
		return err
	}
	s.ways.drop(vm.SandboxID(v.Job))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// span is the body of requests about a sandbox's end.
type span struct {
	Timeout  *int `json:"timeout"`
	Duration *int `json:"duration"`

	Memory *bool `json:"memory"` // false: a paused sandbox boots
}

// secondsOf returns the requested time, or the default of the protocol's version.
func secondsOf(r *http.Request, asked *int) int {
	switch {
	case asked != nil:
		return *asked
	case strings.HasPrefix(r.URL.Path, "/v2/"):
		return secondTime
	}
	return defaultTime
}

func (s *server) timeout(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	var in span
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Timeout == nil {
		return invalid("timeout", "is required", "give seconds from now")
	}
	if stateOf(v) != running {
		return errNoSandbox
	}
	if _, err := s.endAt(r.Context(), v, *in.Timeout); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// refresh extends a sandbox's time, and never shortens it.
func (s *server) refresh(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	var in span
	if err := decode(r, &in); err != nil {
		return err
	}
	seconds := secondsOf(r, in.Duration)
	if stateOf(v) != running { // setting a time would end it
		return errNoSandbox
	}
	if _, err := s.extend(r.Context(), v, seconds); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *server) extend(ctx context.Context, v vm.VM, seconds int) (vm.VM, error) {
	if err := checkTime("timeout", seconds); err != nil {
		return v, err
	}
	if !v.ExpiresAt.IsZero() && v.ExpiresAt.After(time.Now().Add(time.Duration(seconds)*time.Second)) {
		return v, nil
	}
	return s.endAt(ctx, v, seconds)
}

// connect returns a sandbox that runs for at least a time from now, and resumes it if it is paused.
func (s *server) connect(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	var in span
	if err := decode(r, &in); err != nil {
		return err
	}
	seconds := secondsOf(r, in.Timeout)
	if !s.mayUse(r.Context()) {
		return errNoUse
	}
	if in.Memory != nil && !*in.Memory && stateOf(v) == paused && v.Off != vm.Stopped {
		return invalid("memory", "a sandbox that was paused with its memory continues with it", "leave it out, and pause it with keepMemory: false for one that boots")
	}
	code := http.StatusOK
	if stateOf(v) == paused {
		code = http.StatusCreated
	}
	v, err := s.resumed(r.Context(), v, seconds)
	if err != nil {
		return err
	}
	respond(w, code, s.known(v))
	return nil
}
