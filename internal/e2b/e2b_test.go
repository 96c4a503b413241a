package e2b

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// lab is a face with an engine of its own, whose VMs answer as worker does.
type lab struct {
	*server
	url string

	worker http.HandlerFunc
	broken func(context.Context, *job.Verb) error // what becomes of calls; nil: nothing

	mu     sync.Mutex
	vms    []vm.VM
	inits  []string // what the programs in VMs were told
	calls  []string // of verbs
	holds  map[string]bool
	dialed int
	dial   func() (net.Conn, error) // to the program in a VM; nil: one that is served here

	removed []string // templates
	shelf   []vm.VM  // those that there are
	rows    []vm.SavedTemplate
	notes   map[string]string // of builds
	saves   func(name string)
	sizes   []vm.Resources    // that VMs were asked for with
	locks   map[string]string // which names of templates engines build

	made     job.Outcome // what becomes of making a VM
	attached []job.VolumeAttach
	lists    int // of sandboxes that were asked for
}

// keys are who shows which.
var keys = map[string]job.Principal{
	"e2b_aa": {Name: "ann", Role: job.RoleRun, Token: "t1"},
	"e2b_bb": {Name: "bob", Role: job.RoleRun, Token: "t2"},
	"e2b_cc": {Name: "ann", Role: job.RoleRead, Token: "t3"},
	"e2b_ee": {Name: "root", Role: job.RoleAdmin, Token: "t5"},
	"e2b_0f": {Name: "fay", Role: job.RoleRun, Token: "t6", Templates: []string{"other"}},
	"e2b_dd": {Name: "dan", Role: job.RoleRun, Token: "t4", Toolsets: []string{"vm"}},
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{made: job.Outcome{Status: job.Success}, notes: map[string]string{}, locks: map[string]string{}, holds: map[string]bool{"ann": true, "bob": true, "dan": true}}
	l.shelf = []vm.VM{{Name: "agent-template"}, {Name: "saved", Provenance: &vm.Provenance{VM: "one"}}}
	l.worker = func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Method+" "+r.URL.String()) }
	l.server = newServer(Options{
		Engine: job.Through(l.call), Sandboxes: l, Builds: l,
		Authenticate: func(_ context.Context, key string) (job.Principal, error) {
			p, ok := keys[key]
			if !ok {
				return p, job.ErrUnauthorized
			}
			return p, nil
		},
		Holds:     func(_ context.Context, owner string) bool { l.mu.Lock(); defer l.mu.Unlock(); return l.holds[owner] },
		Templates: func(context.Context) ([]vm.VM, error) { return slices.Clone(l.shelf), nil },
		RemoveTemplate: func(_ context.Context, name string) error {
			l.removed = append(l.removed, name)
			l.shelf = slices.DeleteFunc(l.shelf, func(t vm.VM) bool { return t.Name == name })
			l.rows = slices.DeleteFunc(l.rows, func(t vm.SavedTemplate) bool { return t.Name == name })
			return nil
		},
		Saved: func(context.Context) ([]vm.SavedTemplate, error) { return slices.Clone(l.rows), nil },
		RenameTemplate: func(_ context.Context, from, to string) error {
			l.removed = append(l.removed, from+" is "+to)
			named(l.shelf, from).Name = to
			for i := range l.rows {
				if l.rows[i].Name == from {
					l.rows[i].Name = to
				}
			}
			return nil
		},
		Defaults: job.Defaults{VMTemplate: "agent-template"},
		Secret:   []byte("secret"), Log: slog.New(slog.DiscardHandler),
		bounds: bounds{each: 64, sandbox: 4, links: 50 * time.Millisecond, notes: 10 * time.Millisecond},
	})
	front := httptest.NewServer(l.server)
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		l.ways.close()
	})
	l.url = front.URL
	return l
}

// call is the engine.
func (l *lab) call(ctx context.Context, v *job.Verb, in any) (any, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, v.Name)
	p, _ := job.PrincipalFrom(ctx)
	if err := p.Refusal(v); err != nil {
		return nil, err
	}
	if l.broken != nil {
		if err := l.broken(ctx, v); err != nil {
			return nil, err
		}
	}
	switch v.Name {
	case "CreateVM":
		s := in.(job.Submission)
		l.sizes = append(l.sizes, s.Manifest.Resources)
		made := vm.VM{
			ID: 100 + len(l.vms), Job: fmt.Sprintf("01930000-0000-7000-8000-%012d", len(l.vms)), Name: s.Manifest.VMName, State: vm.Created, User: "debian",
			ExpiresAt: time.Now().Add(time.Duration(s.Manifest.TTL) * time.Second),
			Made:      vm.Made{Principal: p.Owner(), Template: "agent-template", Network: s.Manifest.Network, AtEnd: s.Manifest.AtEnd, Lifecycle: vm.Persistent, CreatedAt: time.Now(), Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}},
			Own:       &vm.Own{ReadyAt: time.Now().Add(time.Duration(len(l.vms)) * time.Millisecond), Sandbox: s.Sandbox},
		}
		l.vms = append(l.vms, made)
		return job.VMInfo{VM: made}, nil
	case "Watch":
		return job.WatchedJob{Events: []job.Event{{Text: "VM 100 is there"}}, Job: job.Job{Outcome: &l.made}}, nil
	case "Volumes":
		return []job.VolumeInfo{{ID: "1", Name: "data"}}, nil
	case "CreateVolume":
		spec := in.(job.VolumeSpec)
		return job.VolumeInfo{ID: "2", Name: spec.Name + " " + spec.Size}, nil
	case "Volume", "RemoveVolume":
		if fmt.Sprint(in) != "{1}" {
			return nil, job.ErrNotFound
		}
		return job.VolumeInfo{ID: "1", Name: "data"}, nil
	case "AttachVolume":
		l.attached = append(l.attached, in.(job.VolumeAttach))
		return job.VolumeInfo{}, nil
	case "ForkVM":
		spec := in.(job.ForkSpec)
		var out job.Forked
		for n := range spec.Count {
			made := l.vms[0]
			made.Job, made.Name = fmt.Sprintf("01930000-0000-7000-8000-%012d", len(l.vms)), strings.Replace(spec.Name, "%d", strconv.Itoa(n+1), 1)
			made.ExpiresAt = time.Now().Add(time.Duration(spec.TTL) * time.Second)
			l.vms = append(l.vms, made)
			out.VMs = append(out.VMs, job.VMInfo{VM: made})
		}
		return out, nil
	}
	at := slices.IndexFunc(l.vms, func(one vm.VM) bool { return one.Job == v.Ref(in) })
	if at < 0 {
		return nil, job.ErrNotFound
	}
	one := &l.vms[at]
	switch v.Name {
	case "DestroyVM":
		one.Unwanted = true
	case "SetVM":
		change := in.(job.VMEdit)
		if change.TTL != nil {
			if one.ExpiresAt = (time.Time{}); *change.TTL > 0 {
				one.ExpiresAt = time.Now().Add(time.Duration(*change.TTL) * time.Second)
			}
		}
		if change.AtEnd != nil {
			one.Meanwhile = change.Meanwhile && (one.AtEnd != vm.EndSuspend || one.Meanwhile)
			one.AtEnd = *change.AtEnd
		}
		if change.Network != nil {
			one.Network = change.NetworkOf(one.Network, job.Defaults{})
		}
	case "SuspendVM":
		one.Off = vm.Suspended
	case "StopVM":
		one.Off = vm.Stopped
	case "StartVM":
		one.Off = ""
	case "VM":
		info := job.VMInfo{VM: *one}
		if info.Status = one.Off; one.Off == "" {
			info.Status = vm.Running
		}
		return info, nil
	case "SaveVM":
		name := reflect.ValueOf(in).FieldByName("Name").String()
		if l.saves != nil {
			l.saves(name)
		}
		l.shelf = append(l.shelf, vm.VM{Name: name, Provenance: &vm.Provenance{VM: one.Name}})
		row := vm.SavedTemplate{Name: name, Client: job.ClientFrom(ctx)}
		if one.Sandbox().Build {
			row.Build, row.CPU, row.MemoryMB = one.Name, l.sizes[len(l.sizes)-1].CPU, job.SizeMB(l.sizes[len(l.sizes)-1].Memory)
		}
		l.rows = append(l.rows, row)
		return job.SavedTemplate{Name: name}, nil
	default:
		return nil, errors.New("the lab has no " + v.Name)
	}
	return job.VMInfo{VM: *one}, nil
}

func (l *lab) Build(_ context.Context, id string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if note, ok := l.notes[id]; ok {
		return note, nil
	}
	return "", job.ErrNotFound
}

func (l *lab) NoteBuild(_ context.Context, id, note, _ string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notes[id] = note
	return nil
}

func (l *lab) Sandboxes(ctx context.Context) ([]vm.VM, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lists++
	return slices.DeleteFunc(slices.Clone(l.vms), func(v vm.VM) bool { return !job.Visible(ctx, v.OwnedBy()) }), nil
}

func (l *lab) Sandbox(ctx context.Context, id string) (vm.VM, error) {
	all, err := l.Sandboxes(ctx)
	l.mu.Lock()
	l.lists-- // one row is read
	l.mu.Unlock()
	at := slices.IndexFunc(all, func(v vm.VM) bool { return v.Job == id })
	if at < 0 {
		return vm.VM{}, errors.Join(err, job.ErrNotFound)
	}
	return all[at], err
}

func (l *lab) BuildAlone(_ context.Context, template string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if by := l.locks[template]; by != "" {
		return nil, errors.New(by + " has it")
	}
	l.locks[template] = "this engine"
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.locks, template)
	}, nil
}

// DialSandbox serves the other end of the connection as the program in the VM.
func (l *lab) DialSandbox(ctx context.Context, id string) (net.Conn, error) {
	if _, err := l.Sandbox(ctx, id); err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.dialed++
	dial := l.dial
	l.mu.Unlock()
	if dial != nil {
		return dial()
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		conn, err := listener.Accept()
		_ = listener.Close()
		if err != nil {
			return
		}
		_ = http.Serve(&once{conn: conn}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // of a test
			if r.URL.Path == "/init" {
				told, _ := io.ReadAll(r.Body)
				l.mu.Lock()
				l.inits = append(l.inits, string(told))
				l.mu.Unlock()
				w.WriteHeader(http.StatusNoContent)
				return
			}
			l.mu.Lock()
			worker := l.worker
			l.mu.Unlock()
			worker(w, r)
		}))
	}()
	return (&net.Dialer{}).DialContext(ctx, "tcp", listener.Addr().String())
}

// once is a listener of one connection.
type once struct {
	conn net.Conn
	done bool
}

func (o *once) Accept() (net.Conn, error) {
	if o.done {
		return nil, net.ErrClosed
	}
	o.done = true
	return o.conn, nil
}
func (o *once) Close() error   { return nil }
func (o *once) Addr() net.Addr { return o.conn.LocalAddr() }

// ask asks the control plane, and returns the status, the headers and the body.
func (l *lab) ask(t *testing.T, key, method, path, body string) (int, http.Header, string) {
	t.Helper()
	return l.send(t, method, path, body, "X-API-KEY", key)
}

func (l *lab) send(t *testing.T, method, path, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, l.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(headers); at += 2 {
		r.Header.Set(headers[at], headers[at+1])
	}
	r.Host = r.Header.Get("Host")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(data)
}

// create makes a sandbox.
func (l *lab) create(t *testing.T, key, body string) known {
	t.Helper()
	code, _, text := l.ask(t, key, http.MethodPost, "/sandboxes", body)
	if code != http.StatusCreated {
		t.Fatalf("create: %d %s", code, text)
	}
	var made known
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		t.Fatal(err)
	}
	return made
}

// list returns the IDs of the sandboxes on a page, and the token of the next.
func (l *lab) list(t *testing.T, key, path string) (ids []string, next string) {
	t.Helper()
	code, header, text := l.ask(t, key, http.MethodGet, path, "")
	var all []detail
	if code != http.StatusOK || json.Unmarshal([]byte(text), &all) != nil {
		t.Fatalf("list: %d %s", code, text)
	}
	for _, d := range all {
		ids = append(ids, d.ID)
	}
	return ids, header.Get("X-Next-Token")
}

func (l *lab) change(t *testing.T, id string, how func(*vm.VM)) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.vms, func(v vm.VM) bool { return v.Job == vmOf(id) })
	if at < 0 {
		t.Fatal("no sandbox", id)
	}
	how(&l.vms[at])
}

func sign(path, operation, user, token, expiration string) string {
	text := path + ":" + operation + ":" + user + ":" + token
	if expiration != "" {
		text += ":" + expiration
	}
	sum := sha256.Sum256([]byte(text))
	return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
}

func TestCreate_IsAVMOfItsOwner(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"secure":true,"metadata":{"userId":"Ü 1","a":"b"},"envVars":{"B":"2","A":"1"},"autoPause":true,"allow_internet_access":false,"somethingNew":1}`)
	if len(l.vms) != 1 || made.ID != strings.ReplaceAll(l.vms[0].Job, "-", "") || made.Token == "" || made.Envd == "" {
		t.Fatalf("made %+v of %+v", made, l.vms)
	}
	v := l.vms[0]
	if v.Principal != "ann" || !strings.HasPrefix(v.Name, "sandbox-") || v.Network.Mode() != vm.EgressNone || v.AtEnd != vm.EndSuspend ||
		v.Own.Sandbox.Metadata["userId"] != "Ü 1" || !slices.Equal(v.Own.Sandbox.Env, []string{"A", "B"}) {
		t.Errorf("the VM is %+v, %+v", v, v.Own.Sandbox)
	}
	if left := time.Until(v.ExpiresAt); left < 290*time.Second || left > 300*time.Second {
		t.Errorf("it ends in %s", left)
	}
	if len(l.inits) != 1 || l.inits[0] != `{"envVars":{"A":"1","B":"2"}}` {
		t.Errorf("its program was told %q", l.inits)
	}
	code, _, text := l.ask(t, "e2b_aa", http.MethodGet, "/sandboxes/"+made.ID, "")
	var d detail
	if err := json.Unmarshal([]byte(text), &d); err != nil || code != http.StatusOK {
		t.Fatal(code, text, err)
	}
	if d.Token != made.Token || d.State != running || d.CPU != 2 || d.Memory != 2048 || d.Disk != 10240 || *d.Internet || d.Lifecycle.OnTimeout != "pause" || d.Metadata["a"] != "b" {
		t.Errorf("it is described as %+v", d)
	}
}

func TestCreate_RefusesByName(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		name, body, says string
		code             int
	}{
		{"no template", `{}`, "templateID", 400},
		{"MCP", `{"templateID":"base","mcp":{}}`, "mcp", 400},
		{"IAM", `{"templateID":"base","iam":{"tokens":{"a":{}}}}`, "iam", 400},
		{"a private address", `{"templateID":"base","network":{"allowOut":["example.com","10.0.0.1"],"denyOut":["0.0.0.0/0"]}}`, "network.allowOut: \"10.0.0.1\" is not public", 400},
		{"IPv4 in IPv6", `{"templateID":"base","network":{"allowOut":["::ffff:8.8.8.8"],"denyOut":["0.0.0.0/0"]}}`, "is IPv4 in IPv6", 400},
		{"bits behind a length", `{"templateID":"base","network":{"allowOut":["8.8.8.8/24"],"denyOut":["0.0.0.0/0"]}}`, "the range is 8.8.8.0/24", 400},
		{"thousands", `{"templateID":"base","network":{"denyOut":["8.8.8.8"` + strings.Repeat(`,"8.8.8.8"`, 5000) + `]}}`, "has 5001 entries", 400},
		{"a list that comes apart", `{"templateID":"base","network":{"denyOut":["2600::/16"],"allowOut":["2600::1"]}}`, "more than 100 ranges", 400},
		{"a list where nothing is denied", `{"templateID":"base","network":{"allowOut":["example.com"]}}`, "not everything is denied", 400},
		{"addresses where nothing is denied", `{"templateID":"base","network":{"allowOut":["8.8.8.8"]}}`, "not everything is denied", 400},
		{"names where some is denied", `{"templateID":"base","network":{"allowOut":["example.com"],"denyOut":["8.8.8.8"]}}`, "not everything is denied", 400},
		{"all of IPv6", `{"templateID":"base","network":{"denyOut":["::/0"]}}`, "network.denyOut", 400},
		{"no range", `{"templateID":"base","network":{"denyOut":["example.com"]}}`, "neither an address", 400},
		{"rules", `{"templateID":"base","network":{"rules":{"a.example":[]}}}`, "network.rules", 400},
		{"a proxy", `{"templateID":"base","network":{"egressProxy":{"address":"a:1"}}}`, "network.egressProxy", 400},
		{"to be resumed without its memory", `{"templateID":"base","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}}`, "autoResume", 400},
		{"a negative time", `{"templateID":"base","timeout":-1}`, "timeout", 400},
		{"an endless time", `{"templateID":"base","timeout":99999999999}`, "timeout", 400},
		{"no JSON", `{"templateID":`, "JSON", 400},
		{"a huge body", `{"templateID":"` + strings.Repeat("x", maxRequest) + `"}`, "larger", 413},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes", c.body)
			var said struct {
				Code    int
				Message string
			}
			if err := json.Unmarshal([]byte(text), &said); err != nil || code != c.code || said.Code != c.code || !strings.Contains(said.Message, c.says) {
				t.Errorf("%d %s, want %d with %q", code, text, c.code, c.says)
			}
		})
	}
	if len(l.vms) != 0 {
		t.Errorf("VMs were made all the same: %+v", l.vms)
	}
}

func TestCreate_OneThatCannotBeUsedIsDestroyed(t *testing.T) {
	l := newLab(t)
	l.broken = func(_ context.Context, v *job.Verb) error {
		if v.Name == "Watch" {
			return errors.New("broken")
		}
		return nil
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes", `{"templateID":"base"}`); code != http.StatusInternalServerError {
		t.Errorf("%d %s", code, text)
	}
	if len(l.vms) != 1 || !l.vms[0].Unwanted {
		t.Errorf("it stays: %+v", l.vms)
	}
}

// What an engine says of actions is in the words of this face, also where a VM could not be made.
func TestCreate_SaysInItsWordsWhyNot(t *testing.T) {
	l := newLab(t)
	l.made = job.Outcome{Status: job.Failed, Error: "no such template; make one: " + string(job.BuildTemplate)}
	if _, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes", `{"templateID":"none"}`); !strings.Contains(text, "make one: linus template build") {
		t.Error(text)
	}
}

func TestNetwork_IsAMode(t *testing.T) {
	no := false
	for _, c := range []struct {
		name     string
		n        *network
		internet *bool
		want     vm.Network
	}{
		{"nothing said", nil, nil, vm.Network{}},
		{"no internet", nil, &no, vm.Network{Egress: vm.EgressNone}},
		{"all denied", &network{Deny: []string{everything, everything6}}, nil, vm.Network{Egress: vm.EgressNone}},
		{"all denied, all allowed", &network{Deny: []string{everything}, Allow: []string{everything}}, nil, vm.Network{}},
		{"names allowed", &network{Deny: []string{everything}, Allow: []string{"*.example.com"}}, nil, vm.Network{Egress: vm.EgressAllow, Allow: []string{"*.example.com"}}},
		{"names allowed, and no internet", &network{Allow: []string{"*.example.com"}}, &no, vm.Network{Egress: vm.EgressAllow, Allow: []string{"*.example.com"}}},
		{"addresses allowed", &network{Deny: []string{everything, "9.9.9.0/24"}, Allow: []string{"9.9.9.9", "2620:fe::/48", "a.example"}}, nil, vm.Network{Egress: vm.EgressAllow, Allow: []string{"9.9.9.9", "2620:fe::/48", "a.example"}}},
		{"private ranges denied", &network{Deny: []string{"10.0.0.0/8", "192.168.1.1", "fd00::/8"}}, nil, vm.Network{Egress: vm.EgressInternet}},
		{"public ranges denied", &network{Deny: []string{"10.0.0.0/8", "9.9.9.0/24", "8.8.8.8", "2620:fe::/48"}}, nil, vm.Network{Egress: vm.EgressInternet, Deny: []string{"9.9.9.0/24", "8.8.8.8/32", "2620:fe::/48"}}},
		{"some of them allowed", &network{Deny: []string{"9.9.9.0/29", "2620:fe::9"}, Allow: []string{"9.9.9.4", "2620:fe::/48", "8.8.8.8"}}, nil,
			vm.Network{Egress: vm.EgressInternet, Deny: []string{"9.9.9.0/30", "9.9.9.5/32", "9.9.9.6/31"}}},
		{"all of them allowed", &network{Deny: []string{"9.9.9.9"}, Allow: []string{"9.9.9.0/24"}}, nil, vm.Network{Egress: vm.EgressInternet}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.n.egress(c.internet)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		})
	}
}

// A sandbox that may connect to names has its proxy as long as it runs, and is there when that is.
func TestNetwork_NamesAreReachedByAProxy(t *testing.T) {
	l := newLab(t)
	var mu sync.Mutex
	open := map[string]int{}
	lost := make(chan struct{})
	l.Proxy = func(ctx context.Context, v vm.VM, opened func()) error {
		count := func(n int) { mu.Lock(); defer mu.Unlock(); open[v.Job] += n }
		count(1)
		defer count(-1)
		opened()
		select {
		case <-ctx.Done():
		case <-lost:
		}
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() { defer close(kept); l.keepProxies(ctx) }()
	defer func() { cancel(); <-kept }()
	is := func(id string, want int) {
		t.Helper()
		for range 1000 {
			mu.Lock()
			n := open[id]
			mu.Unlock()
			if n == want {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("not %d proxies", want)
	}
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"envVars":{"no_proxy":"mine"},"network":{"allowOut":["*.example.com"],"denyOut":["0.0.0.0/0"]}}`)
	l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	id := l.vms[0].Job
	if want := fmt.Sprintf(`"HTTPS_PROXY":"http://127.0.0.1:%d"`, job.ProxyPort(id)); !strings.Contains(l.inits[0], want) || !strings.Contains(l.inits[0], `"no_proxy":"mine"`) || strings.Contains(l.inits[1], "PROXY") {
		t.Errorf("their programs were told %q", l.inits)
	}
	is(id, 1)
	lost <- struct{}{} // it is opened again
	is(id, 1)
	l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}")
	l.proxies.look <- struct{}{}
	is(id, 0)
	l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/connect", "{}")
	l.proxies.look <- struct{}{}
	is(id, 1)
	put := func(body, want string, code int) {
		t.Helper()
		if got, _, text := l.ask(t, "e2b_aa", http.MethodPut, "/sandboxes/"+made.ID+"/network", body); got != code || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", body, got, text)
		}
	}
	put(`{"allowOut":["b.example"],"denyOut":["0.0.0.0/0"]}`, "", 204) // another one has the other names
	is(id, 1)
	put(`{"allow_internet_access":false}`, "", 204)
	l.proxies.look <- struct{}{}
	is(id, 0)
	if last := l.inits[len(l.inits)-1]; !strings.Contains(last, `"changeVars"`) || !strings.Contains(last, `"HTTPS_PROXY":""`) {
		t.Errorf("its program was told %q", last)
	}
	put(`{"allowOut":["c.example"],"denyOut":["0.0.0.0/0"]}`, "", 204)
	is(id, 1)
	if last := l.inits[len(l.inits)-1]; !strings.Contains(last, `"HTTPS_PROXY":"http`) {
		t.Errorf("its program was told %q", last)
	}
	put(`{"rules":{"a.example":[]}}`, "network.rules", 400)
	l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}")
	put(`{"allow_internet_access":false}`, "connect to it first", 409)
	l.ask(t, "e2b_aa", http.MethodDelete, "/sandboxes/"+made.ID, "")
	l.proxies.look <- struct{}{}
	is(id, 0)
}

func TestVolumes_AreOursOnDisk(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		method, path, body, want string
		code                     int
	}{
		{http.MethodGet, "/volumes", "", `[{"volumeID":"1","name":"data","token":"none"}]`, 200},
		{http.MethodPost, "/volumes", `{"name":"new"}`, `{"volumeID":"2","name":"new 10G","token":"none"}`, 201},
		{http.MethodGet, "/volumes/1", "", `{"volumeID":"1"`, 200},
		{http.MethodGet, "/volumes/3", "", "no such volume", 404},
		{http.MethodDelete, "/volumes/1", "", "", 204},
		{http.MethodDelete, "/volumes/3", "", "no such volume", 404},
		{http.MethodGet, "/volumecontent/1/dir", "", "linus help e2b", 404},
		{http.MethodPut, "/volumes/1", "", "linus help e2b", 404},
	} {
		if code, _, text := l.ask(t, "e2b_aa", c.method, c.path, c.body); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.method, c.path, code, text, c.code, c.want)
		}
	}
	l.create(t, "e2b_aa", `{"templateID":"base","volumeMounts":[{"name":"data","path":"/srv/data"}]}`)
	if want := []job.VolumeAttach{{Volume: "data", VM: l.vms[0].Job, Path: "/srv/data"}}; !slices.Equal(l.attached, want) {
		t.Errorf("attached: %+v", l.attached)
	}
	l.broken = func(_ context.Context, v *job.Verb) error {
		if v.Name == "AttachVolume" {
			return invalid("path", "is in use", "choose another")
		}
		return nil
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes", `{"templateID":"base","volumeMounts":[{"name":"data","path":"/srv/data"}]}`); code != http.StatusBadRequest || !l.vms[1].Unwanted {
		t.Errorf("without its volume: %d %s", code, text)
	}
}

func TestKeys_SeeTheirOwnOnly(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base"}`)
	for _, c := range []struct {
		name, key, method, path string
		code                    int
	}{
		{"no key", "", http.MethodGet, "/sandboxes", 401},
		{"another key", "e2b_ff", http.MethodGet, "/v2/sandboxes", 401},
		{"another's sandbox", "e2b_bb", http.MethodGet, "/sandboxes/" + made.ID, 404},
		{"another's kill", "e2b_bb", http.MethodDelete, "/sandboxes/" + made.ID, 404},
		{"another's connect", "e2b_bb", http.MethodPost, "/sandboxes/" + made.ID + "/connect", 404},
		{"another's pause", "e2b_bb", http.MethodPost, "/sandboxes/" + made.ID + "/pause", 404},
		{"an ID that is none", "e2b_aa", http.MethodGet, "/sandboxes/..%2f..%2fetc", 404},
		{"a VM's number", "e2b_aa", http.MethodGet, "/sandboxes/100", 404},
		{"what is not there", "e2b_aa", http.MethodGet, "/teams", 404},
		{"read kills", "e2b_cc", http.MethodDelete, "/sandboxes/" + made.ID, 403},
		{"read creates", "e2b_cc", http.MethodPost, "/sandboxes", 403},
		{"read connects", "e2b_cc", http.MethodPost, "/sandboxes/" + made.ID + "/connect", 403},
		{"without exec and files", "e2b_dd", http.MethodPost, "/sandboxes", 403},
		{"read looks", "e2b_cc", http.MethodGet, "/sandboxes/" + made.ID, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, text := l.ask(t, c.key, c.method, c.path, `{"templateID":"base","timeout":60}`)
			if code != c.code || strings.Contains(text, made.Token) {
				t.Errorf("%d %s, want %d", code, text, c.code)
			}
		})
	}
	if ids, _ := l.list(t, "e2b_bb", "/v2/sandboxes"); len(ids) != 0 {
		t.Errorf("bob sees %q", ids)
	}
	if l.vms[0].Unwanted || l.vms[0].Off != "" || len(l.vms) != 1 {
		t.Errorf("something was done: %+v", l.vms)
	}
}

// timedAnswer is an answer whose connection is to be read within a time.
type timedAnswer struct {
	*httptest.ResponseRecorder

	until time.Time
}

func (w *timedAnswer) SetReadDeadline(at time.Time) error {
	w.until = at
	return nil
}

// A request without a body has all of its time: the server awaits the next one already, and a connection
// that cannot be read in time ends this one and all that come by it.
func TestKeys_BoundTheTimeOfABodyAlone(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		method, body string
		bound        bool
	}{{http.MethodGet, "", false}, {http.MethodPost, "", false}, {http.MethodPost, "{}", true}} {
		w, r := &timedAnswer{ResponseRecorder: httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), c.method, "/sandboxes", strings.NewReader(c.body))
		r.Header.Set("X-API-KEY", "e2b_aa")
		if l.ServeHTTP(w, r); w.until.IsZero() == c.bound {
			t.Errorf("%s %q is read until %s", c.method, c.body, w.until)
		}
	}
}

func TestList_FiltersAndPages(t *testing.T) {
	l := newLab(t)
	var ids []string
	for n := range 5 {
		ids = append(ids, l.create(t, "e2b_aa", fmt.Sprintf(`{"templateID":"base","timeout":300,"metadata":{"group":"a b","n":"%d"}}`, n)).ID)
	}
	other := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`).ID
	l.change(t, ids[1], func(v *vm.VM) { v.Off = vm.Suspended })
	over := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"metadata":{"group":"a b"}}`).ID
	l.change(t, over, func(v *vm.VM) { v.ExpiresAt = time.Now().Add(-time.Second) })

	// As the client escapes them: each pair, and then the query.
	group := "metadata=" + url.QueryEscape(url.Values{"group": {url.QueryEscape("a b")}}.Encode())
	var all []string
	path, next := "/v2/sandboxes?limit=2&"+group, ""
	for pages := 0; ; pages++ {
		page, token := l.list(t, "e2b_aa", path+"&nextToken="+next)
		if all = append(all, page...); token == "" {
			break
		}
		if next = token; pages > 5 {
			t.Fatal("no end of pages")
		}
	}
	if want := []string{ids[4], ids[3], ids[2], ids[1], ids[0]}; !slices.Equal(all, want) {
		t.Errorf("pages have %q, want %q", all, want)
	}
	for query, want := range map[string][]string{
		"order=asc&" + group:     ids,
		"state=paused":           {ids[1]},
		"state=running&" + group: {ids[4], ids[3], ids[2], ids[0]},
		"template=other":         nil,
		"template=agent-template&" + group + "&state=paused,running": {ids[4], ids[3], ids[2], ids[1], ids[0]},
		"startedAfter=2999-01-01T00:00:00Z":                          nil,
	} {
		if got, _ := l.list(t, "e2b_aa", "/v2/sandboxes?"+query); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	if got, _ := l.list(t, "e2b_aa", "/sandboxes"); !slices.Equal(got, []string{other, ids[4], ids[3], ids[2], ids[0]}) {
		t.Errorf("without pages: %q", got)
	}
	for _, query := range []string{"limit=0", "limit=x", "state=gone", "order=up", "startedAfter=now", "metadata=%25zz"} {
		if code, _, text := l.ask(t, "e2b_aa", http.MethodGet, "/v2/sandboxes?"+query, ""); code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, code, text)
		}
	}
}

func TestLife_TimeoutsPausesAndConnects(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	at := "/sandboxes/" + made.ID
	ends := func() time.Time { l.mu.Lock(); defer l.mu.Unlock(); return l.vms[0].ExpiresAt }
	do := func(want int, path, body string) {
		t.Helper()
		if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, at+path, body); code != want {
			t.Fatalf("%s %s: %d %s, want %d", path, body, code, text, want)
		}
	}
	before := ends()
	do(200, "/connect", `{"timeout":10}`)
	if !ends().Equal(before) {
		t.Error("connect has shortened its time")
	}
	do(200, "/connect", `{"timeout":600}`)
	if !ends().After(before.Add(200 * time.Second)) {
		t.Error("connect has not extended its time")
	}
	do(204, "/timeout", `{"timeout":5}`)
	if time.Until(ends()) > 5*time.Second {
		t.Error("its time was not shortened")
	}
	do(400, "/timeout", `{}`)
	do(204, "/refreshes", `{"duration":60}`)
	do(204, "/pause", `{}`)
	do(409, "/pause", `{}`)
	if l.vms[0].Off != vm.Suspended {
		t.Errorf("it is paused, and its VM %q", l.vms[0].Off)
	}
	do(404, "/timeout", `{"timeout":5}`)
	do(201, "/connect", `{"timeout":60}`)
	do(204, "/pause", `{"memory":false}`)
	if l.vms[0].Off != vm.Stopped {
		t.Errorf("it is paused without memory, and its VM %q", l.vms[0].Off)
	}
	do(201, "/resume", `{"timeout":60}`)
	if code, _, _ := l.ask(t, "e2b_aa", http.MethodDelete, at, ""); code != http.StatusNoContent {
		t.Error("kill:", code)
	}
	do(404, "/connect", `{"timeout":60}`)
	if code, _, _ := l.ask(t, "e2b_aa", http.MethodDelete, at, ""); code != http.StatusNotFound {
		t.Error("killed twice:", code)
	}
}

// A time that is left out is that of the version of the protocol.
func TestLife_TimesThatAreLeftOut(t *testing.T) {
	l := newLab(t)
	for path, want := range map[string]time.Duration{"/sandboxes": 15 * time.Second, "/v2/sandboxes": 300 * time.Second} {
		code, _, text := l.ask(t, "e2b_aa", http.MethodPost, path, `{"templateID":"base"}`)
		var made known
		if err := json.Unmarshal([]byte(text), &made); err != nil || code != http.StatusCreated {
			t.Fatal(code, text, err)
		}
		left := func() time.Duration { return time.Until(l.vms[len(l.vms)-1].ExpiresAt).Round(5 * time.Second) }
		if got := left(); got != want {
			t.Errorf("%s: it ends in %s, want %s", path, got, want)
		}
		l.ask(t, "e2b_aa", http.MethodPost, "/v2/sandboxes/"+made.ID+"/connect", "{}")
		if got := left(); got != 300*time.Second {
			t.Errorf("%s: once connected it ends in %s", path, got)
		}
		l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}")
		if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/v2/sandboxes/"+made.ID+"/connect", `{"memory":false}`); code != http.StatusBadRequest || !strings.Contains(text, "keepMemory") {
			t.Errorf("without its memory: %d %s", code, text)
		}
	}
}

// A sandbox that is to be resumed by requests to it is, by those of who may, and for what it was asked for with.
func TestLife_RequestsResumeOneThatIsToBe(t *testing.T) {
	l := portLab(t, true, show)
	wakes := l.create(t, "e2b_aa", `{"templateID":"base","timeout":900,"autoPause":true,"autoResume":{"enabled":true}}`)
	sleeps := l.create(t, "e2b_aa", `{"templateID":"base","timeout":900,"autoPause":true,"autoPauseMemory":false}`)
	if is := l.vms[1].Sandbox(); !is.Forgets || is.Wakes != 0 || l.vms[1].AtEnd != vm.EndSuspend {
		t.Errorf("one that forgets: %+v", is)
	}
	if _, _, text := l.ask(t, "e2b_aa", http.MethodGet, "/sandboxes/"+wakes.ID, ""); !strings.Contains(text, `"autoResume":true`) {
		t.Error(text)
	}
	for _, made := range []known{wakes, sleeps} {
		if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}"); code != http.StatusNoContent {
			t.Fatal(code, text)
		}
	}
	off := func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.vms[0].Off != "" }
	list := func(made known, token string) int {
		code, _, _ := l.send(t, http.MethodPost, "/process.Process/List", "{}", "E2b-Sandbox-Id", made.ID, "X-Access-Token", token)
		return code
	}
	if code := list(sleeps, sleeps.Token); code != http.StatusBadGateway {
		t.Error("one that is not to be resumed:", code)
	}
	if code, _, _ := l.send(t, http.MethodGet, "/health", "", "E2b-Sandbox-Id", wakes.ID, "X-Access-Token", wakes.Token); code != http.StatusBadGateway || !off() {
		t.Error("whether it runs:", code)
	}
	if code := list(wakes, sleeps.Token); code != http.StatusUnauthorized || !off() {
		t.Error("with another's token:", code)
	}
	if code, _, _ := l.visit(t, "3000-"+wakes.ID+".boxes.example", "/"); code != http.StatusForbidden || !off() {
		t.Error("by a stranger:", code)
	}
	if code := list(wakes, wakes.Token); code != http.StatusOK || off() || time.Until(l.vms[0].ExpiresAt) < 890*time.Second {
		t.Error("by its client:", code, l.vms[0])
	}
	l.change(t, wakes.ID, func(v *vm.VM) { v.Off = vm.Suspended })
	if code, _, _ := l.visit(t, "3000-"+wakes.ID+".boxes.example", "/", trafficHeader, wakes.Traffic); code != http.StatusOK || off() {
		t.Error("by a visitor with its token:", code)
	}
	l.change(t, wakes.ID, func(v *vm.VM) { v.Off = vm.Suspended })
	l.mu.Lock()
	l.broken = func(_ context.Context, v *job.Verb) error {
		if v.Name == "StartVM" {
			return &job.HostError{Text: "no room"}
		}
		return nil
	}
	l.mu.Unlock()
	if code := list(wakes, wakes.Token); code != http.StatusServiceUnavailable {
		t.Error("where it cannot be:", code)
	}
}

// One whose time is over pauses, or is gone, before the engine has come to it.
func TestLife_IsOverInTime(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		pause string
		code  int
	}{{"true", http.StatusOK}, {"false", http.StatusNotFound}} {
		made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"autoPause":`+c.pause+`}`)
		l.change(t, made.ID, func(v *vm.VM) { v.ExpiresAt = time.Now().Add(-time.Second) })
		if code, _, text := l.send(t, http.MethodGet, "/health", "", "E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token); code != http.StatusBadGateway {
			t.Errorf("autoPause %s: it answers %d %s", c.pause, code, text)
		}
		code, _, text := l.ask(t, "e2b_aa", http.MethodGet, "/sandboxes/"+made.ID, "")
		if code != c.code || c.code == http.StatusOK && !strings.Contains(text, `"state":"paused"`) {
			t.Errorf("autoPause %s: %d %s", c.pause, code, text)
		}
		if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/connect", `{"timeout":60}`); c.code == http.StatusOK && code != http.StatusCreated {
			t.Errorf("autoPause %s: connect: %d %s", c.pause, code, text)
		}
	}
}

// One that cannot be paused ends when it would have, and one that is paused gets no time that would end it.
func TestLife_APauseThatFailsKeepsItsTime(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	ends := func() time.Time { l.mu.Lock(); defer l.mu.Unlock(); return l.vms[0].ExpiresAt }
	before := ends()
	l.broken = func(_ context.Context, v *job.Verb) error {
		if v.Name == "SuspendVM" {
			return &job.FieldError{Field: "vm", Problem: "jobs run in it", Fault: job.FaultState}
		}
		return nil
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}"); code != http.StatusConflict {
		t.Fatalf("pause: %d %s", code, text)
	}
	if at := ends(); at.IsZero() || at.After(before.Add(time.Second)) {
		t.Errorf("it ends at %s, and did at %s", at, before)
	}
	l.broken = nil
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}"); code != http.StatusNoContent {
		t.Fatalf("pause: %d %s", code, text)
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/refreshes", `{"duration":60}`); code != http.StatusNotFound || !ends().IsZero() {
		t.Errorf("refreshed while paused: %d %s, and ends at %s", code, text, ends())
	}
}

// Whatever ends on the way to a pause or back, the client or the engine, leaves neither a sandbox that
// runs for ever nor one that is destroyed while it is paused.
func TestLife_OnTheWayToAPauseAndBack(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	v := &l.vms[0]
	// do has a client ask that leaves when the engine is asked for this verb, of which it sees the VM before.
	do := func(path, verb string, err error) (before vm.VM) {
		t.Helper()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		l.broken = func(ctx context.Context, asked *job.Verb) error {
			if asked.Name == "SetVM" {
				leave()
			}
			if asked.Name == verb {
				before = *v
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return err
			}
			return nil
		}
		defer func() { l.broken = nil }()
		r, bad := http.NewRequestWithContext(ctx, http.MethodPost, "/sandboxes/"+made.ID+path, strings.NewReader(`{"timeout":60}`))
		if bad != nil {
			t.Fatal(bad)
		}
		r.Header.Set("X-API-KEY", "e2b_aa")
		l.ServeHTTP(httptest.NewRecorder(), r)
		return before
	}
	if on := do("/pause", "SuspendVM", nil); on.ExpiresAt.IsZero() || on.Expires() {
		t.Errorf("while it is paused it ends at %s by %q", on.ExpiresAt, on.AtEnd)
	}
	if v.Off != vm.Suspended || !v.ExpiresAt.IsZero() || pauses(*v) {
		t.Errorf("it is paused: %q, ends at %s by %q", v.Off, v.ExpiresAt, v.AtEnd)
	}
	no := &job.HostError{Text: "no room"}
	if on := do("/connect", "StartVM", no); on.ExpiresAt.IsZero() || on.Expires() {
		t.Errorf("while it is resumed it ends at %s by %q", on.ExpiresAt, on.AtEnd)
	}
	if v.Off != vm.Suspended || !v.ExpiresAt.IsZero() || pauses(*v) {
		t.Errorf("it could not be resumed: %q, ends at %s by %q", v.Off, v.ExpiresAt, v.AtEnd)
	}
	do("/connect", "StartVM", nil)
	if left := time.Until(v.ExpiresAt); v.Off != "" || !v.Expires() || left > time.Minute {
		t.Errorf("it runs: %q, ends in %s by %q", v.Off, left, v.AtEnd)
	}
	do("/pause", "SuspendVM", no)
	if left := time.Until(v.ExpiresAt); v.Off != "" || !v.Expires() || left > time.Minute {
		t.Errorf("it could not be paused: %q, ends in %s by %q", v.Off, left, v.AtEnd)
	}
}

// What an engine has left that died in the middle of a pause, or of a resume, is as it was when it has
// been paused and resumed again.
func TestLife_TheEndComesBackThoughAnEngineDies(t *testing.T) {
	for dies, at := range map[string]string{"SuspendVM": "/pause", "StartVM": "/connect"} {
		l := newLab(t)
		made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
		ask := func(path string, want int) {
			t.Helper()
			if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+path, `{"timeout":60}`); code != want {
				t.Errorf("dead in %s: %s: %d %s", dies, path, code, text)
			}
		}
		if dies == "StartVM" {
			ask("/pause", http.StatusNoContent)
		}
		dead := false
		l.broken = func(_ context.Context, asked *job.Verb) error {
			if dead = dead || asked.Name == dies; dead {
				return &job.HostError{Text: "it is dead"}
			}
			return nil
		}
		ask(at, http.StatusServiceUnavailable)
		l.broken = nil
		if v := l.vms[0]; !pauses(v) {
			t.Errorf("dead in %s: its end is %q", dies, v.AtEnd)
		}
		if dies == "SuspendVM" {
			ask("/pause", http.StatusNoContent)
		}
		if v := l.vms[0]; dies == "SuspendVM" && pauses(v) {
			t.Errorf("dead in %s, then paused: its end is %q", dies, v.AtEnd)
		}
		ask("/connect", http.StatusCreated)
		if v := l.vms[0]; pauses(v) || v.Meanwhile {
			t.Errorf("dead in %s, then resumed: its end is %q", dies, v.AtEnd)
		}
	}
}

// One that runs when its engine has died, in the middle of a resume or of a pause, needs no more than to be
// connected to, which takes none of its time.
func TestLife_ConnectingBringsTheEndBack(t *testing.T) {
	for _, path := range []string{"/pause", "/connect"} {
		l := newLab(t)
		made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":9000}`)
		ask := func(path string, seconds, want int) {
			t.Helper()
			if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+path, fmt.Sprintf(`{"timeout":%d}`, seconds)); code != want {
				t.Errorf("%s: %d %s", path, code, text)
			}
		}
		if path == "/connect" {
			ask("/pause", 0, http.StatusNoContent)
		}
		dead := false
		l.broken = func(_ context.Context, asked *job.Verb) error {
			if dead = dead || asked.Name == "SuspendVM"; dead {
				return &job.HostError{Text: "it is dead"}
			}
			dead = asked.Name == "StartVM"
			return nil
		}
		ask(path, 9000, http.StatusServiceUnavailable)
		l.broken = nil
		if v := l.vms[0]; !pauses(v) || stateOf(v) != running {
			t.Errorf("dead in %s: it is %s, and its end is %q", path, stateOf(v), v.AtEnd)
		}
		ask("/connect", 60, http.StatusOK)
		if v := l.vms[0]; pauses(v) || v.Meanwhile || time.Until(v.ExpiresAt) < time.Hour {
			t.Errorf("dead in %s, then connected to: its end is %q, in %s", path, v.AtEnd, time.Until(v.ExpiresAt))
		}
	}
}

// Of several requests that resume a sandbox, the last leaves its end as the first has found it.
func TestLife_SeveralOnTheWayBack(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	connect := func() int {
		code, _, _ := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/connect", `{"timeout":60}`)
		return code
	}
	l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}")
	begun, begin, asked, other := make(chan struct{}), make(chan struct{}), 0, make(chan int, 1)
	l.broken = func(_ context.Context, v *job.Verb) error {
		if v.Name != "StartVM" {
			return nil
		}
		if asked++; asked > 1 {
			return &job.HostError{Text: "no room"}
		}
		l.mu.Unlock()
		close(begun)
		<-begin
		l.mu.Lock()
		return nil
	}
	go func() { other <- connect() }()
	<-begun
	if code := connect(); code != http.StatusServiceUnavailable {
		t.Errorf("the second: %d", code)
	}
	if v := &l.vms[0]; v.Expires() {
		t.Errorf("it is destroyed at %s", v.ExpiresAt)
	}
	close(begin)
	if code := <-other; code != http.StatusCreated || !l.vms[0].Expires() {
		t.Errorf("the first: %d, and its end is %q", code, l.vms[0].AtEnd)
	}
}

// A time that somebody gives a sandbox while it is paused, or while that goes on, does not end it.
func TestLife_ATimeGivenDuringAPause(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	l.broken = func(_ context.Context, asked *job.Verb) error {
		if asked.Name == "SuspendVM" {
			l.vms[0].ExpiresAt = time.Now().Add(time.Second)
		}
		return nil
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes/"+made.ID+"/pause", "{}"); code != http.StatusNoContent || !l.vms[0].ExpiresAt.IsZero() {
		t.Errorf("%d %s, and it ends at %s", code, text, l.vms[0].ExpiresAt)
	}
}

func TestLook_MetricsLogsAndTemplates(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	l.worker = func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"cpu_count":2,"cpu_used_pct":1.5,"mem_total":100,"mem_used":50,"disk_used":1,"disk_total":2}`)
	}
	at := "/sandboxes/" + made.ID
	for _, c := range []struct {
		path, says string
		code       int
	}{
		{at + "/metrics", `"cpuCount":2,"cpuUsedPct":1.5,"memUsed":50,"memTotal":100`, 200},
		{at + "/metrics?start=1&end=2", "[]\n", 200},
		{at + "/metrics?start=now", "start", 400},
		{"/sandboxes/metrics?sandbox_ids=" + made.ID + "," + strings.Repeat("0", 32), `{"sandboxes":{"` + made.ID, 200},
		{at + "/logs", `"line":"{\"level\":\"info\",\"logger\":\"linus\",\"message\":\"VM 100 is there\"}"`, 200},
		{at + "/logs?start=4102444800000", `{"logEntries":[],"logs":[]}`, 200},
		{at + "/logs?start=x", "milliseconds", 400},
		{"/v2" + at + "/logs", `"message":"VM 100 is there"`, 200},
		{"/templates", `"templateID":"agent-template"`, 200},
		{"/templates/aliases/base", `{"public":false,"templateID":"agent-template"}`, 200},
		{"/templates/aliases/none", "no such template", 404},
		{"/snapshots", "not allowed", 403},
	} {
		if code, _, text := l.ask(t, "e2b_aa", http.MethodGet, c.path, ""); code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d with %s", c.path, code, text, c.code, c.says)
		}
	}
	for _, c := range []struct {
		key, name string
		code      int
	}{{"e2b_aa", "saved", 403}, {"e2b_ee", "agent-template", 404}, {"e2b_ee", "saved:default", 204}} {
		if code, _, text := l.ask(t, c.key, http.MethodDelete, "/templates/"+c.name, ""); code != c.code {
			t.Errorf("DELETE %s: %d %s, want %d", c.name, code, text, c.code)
		}
	}
	if !slices.Equal(l.removed, []string{"saved"}) {
		t.Errorf("removed were %q", l.removed)
	}
	code, _, text := l.ask(t, "e2b_aa", http.MethodPost, at+"/fork", `{"count":2,"timeout":60}`)
	var forks []forked
	if err := json.Unmarshal([]byte(text), &forks); err != nil || code != http.StatusCreated || len(forks) != 2 || forks[0].Sandbox.ID == forks[1].Sandbox.ID || forks[0].Sandbox.Token == made.Token {
		t.Errorf("fork: %d %s", code, text)
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, at+"/fork", `{"count":1000}`); code != http.StatusBadRequest {
		t.Errorf("too many forks: %d %s", code, text)
	}
}

// The default template need not be one that linus made, and so not be listed.
func TestTemplates_TheDefaultIsNotLookedFor(t *testing.T) {
	l := newLab(t)
	l.shelf = nil
	for key, want := range map[string]int{"e2b_aa": http.StatusOK, "e2b_0f": http.StatusNotFound} {
		for _, name := range []string{"base", "agent-template:v1"} {
			if code, _, text := l.ask(t, key, http.MethodGet, "/templates/aliases/"+name, ""); code != want {
				t.Errorf("%s for %s: %d %s, want %d", name, key, code, text, want)
			}
		}
	}
}

func TestProxy_PassesWhatIsForTheSandbox(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	var got *http.Request
	l.worker = func(w http.ResponseWriter, r *http.Request) {
		got = r.Clone(context.WithoutCancel(r.Context()))
		h := w.Header()
		h.Set("Set-Cookie", "a=b")
		h.Set("Strict-Transport-Security", "max-age=1")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Connect-Content-Encoding", "gzip")
		h.Set("Content-Type", "text/html")
		h.Set("Trailer", "X-Late")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "<script>")
		h.Set("X-Late", "1")
	}
	code, header, text := l.send(t, http.MethodPost, "/process.Process/List?x=1", "{}",
		"E2b-Sandbox-Id", made.ID, "E2b-Sandbox-Port", "49983", "X-Access-Token", made.Token, "X-API-KEY", "e2b_aa", "Cookie", "a=b",
		"Authorization", "Basic cm9vdDo=", "Connection", "Upgrade", "Upgrade", "websocket", "X-Metadata-A", "b")
	if code != http.StatusOK || text != "<script>" {
		t.Fatal(code, text)
	}
	if got.URL.String() != "/process.Process/List?x=1" || got.Header.Get("Authorization") != "Basic cm9vdDo=" || got.Header.Get("X-Metadata-A") != "b" {
		t.Errorf("the VM got %s %v", got.URL, got.Header)
	}
	for _, name := range []string{"X-Access-Token", "X-Api-Key", "Cookie", "Upgrade", "E2b-Sandbox-Id"} {
		if got.Header.Get(name) != "" {
			t.Errorf("the VM got %s", name)
		}
	}
	for _, name := range []string{"Set-Cookie", "Strict-Transport-Security", "Access-Control-Allow-Origin", "Trailer", "X-Late"} {
		if header.Get(name) != "" {
			t.Errorf("the client got the VM's %s", name)
		}
	}
	if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" { // whatever preceded the answer
		t.Errorf("the VM took away headers of ours: %v", header)
	}
	if header.Get("Connect-Content-Encoding") != "gzip" || !strings.HasPrefix(header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("the client got %v", header)
	}
}

func TestProxy_TellsOfItsUse(t *testing.T) {
	l := newLab(t)
	var entered []string
	l.Entered = func(v vm.VM) { entered = append(entered, v.Name) }
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	for range 3 {
		if code, _, text := l.send(t, http.MethodPost, "/process.Process/List", "{}", "E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token); code != http.StatusOK {
			t.Fatal(code, text)
		}
	}
	if want := []string{l.vms[0].Name}; !slices.Equal(entered, want) {
		t.Errorf("told of %q", entered)
	}
}

// A page is told of processes where the sandbox is in use, and asks none that is not.
func TestProcesses_AreToldWhereASandboxIsInUse(t *testing.T) {
	l := newLab(t)
	l.worker = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"processes":[{"config":{"cmd":"/bin/bash","args":["-c","true"]},"pid":7,"tag":"a"},{"pid":8}]}`)
	}
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	s := &Server{face: l.server}
	dialed := l.dialed
	if got := s.Processes(t.Context(), l.vms[0]); got != nil || l.dialed != dialed {
		t.Errorf("of one that is not in use: %q", got)
	}
	l.send(t, http.MethodPost, "/process.Process/List", "{}", "E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token)
	if got := s.Processes(t.Context(), l.vms[0]); !slices.Equal(got, []string{"7 /bin/bash -c true", "8 "}) {
		t.Errorf("%q", got)
	}
	l.worker = func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"processes":7`) }
	if got := s.Processes(t.Context(), l.vms[0]); got != nil {
		t.Errorf("of one that says rubbish: %q", got)
	}
}

func TestProxy_LetsNobodyElseIn(t *testing.T) {
	l := newLab(t)
	made, bobs := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`), l.create(t, "e2b_bb", `{"templateID":"base","timeout":300}`)
	unknown := strings.Repeat("0", 32)
	asked := false
	l.worker = func(http.ResponseWriter, *http.Request) { asked = true }
	soon, late := strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10), strconv.FormatInt(time.Now().Add(-time.Hour).Unix(), 10)
	file := func(q url.Values) string { return "/files?" + q.Encode() }
	good := sign("a.txt", "read", "", made.Token, soon)
	for _, c := range []struct {
		name, method, path string
		headers            []string
		code               int
	}{
		{"no token", http.MethodPost, "/process.Process/List", []string{"E2b-Sandbox-Id", made.ID}, 401},
		{"another's token", http.MethodPost, "/process.Process/List", []string{"E2b-Sandbox-Id", made.ID, "X-Access-Token", bobs.Token}, 401},
		{"another's ID", http.MethodPost, "/process.Process/List", []string{"E2b-Sandbox-Id", bobs.ID, "X-Access-Token", made.Token}, 401},
		{"an unknown ID says the same", http.MethodPost, "/process.Process/List", []string{"E2b-Sandbox-Id", unknown, "X-Access-Token", made.Token}, 401},
		{"an ID that is a path", http.MethodPost, "/process.Process/List", []string{"E2b-Sandbox-Id", "../" + made.ID, "X-Access-Token", made.Token}, 401},
		{"a key is no token", http.MethodPost, "/process.Process/List", []string{"E2b-Sandbox-Id", made.ID, "X-API-KEY", "e2b_aa"}, 401},
		{"ours to say", http.MethodPost, "/init", []string{"E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token}, 404},
		{"ours behind another", http.MethodPost, "/process.Process/../init", []string{"E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token}, 404},
		{"ours, escaped", http.MethodPost, "/process.Process/%2e%2e%2finit", []string{"E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token}, 404},
		{"another port", http.MethodGet, "/health", []string{"E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token, "E2b-Sandbox-Port", "22"}, 404},
		{"expired", http.MethodGet, file(url.Values{"path": {"a.txt"}, "signature": {sign("a.txt", "read", "", made.Token, late)}, "signature_expiration": {late}}), nil, 401},
		{"a later time than signed", http.MethodGet, file(url.Values{"path": {"a.txt"}, "signature": {sign("a.txt", "read", "", made.Token, late)}, "signature_expiration": {soon}}), nil, 401},
		{"no time though signed", http.MethodGet, file(url.Values{"path": {"a.txt"}, "signature": {good}}), nil, 401},
		{"another path", http.MethodGet, file(url.Values{"path": {"b.txt"}, "signature": {good}, "signature_expiration": {soon}}), nil, 401},
		{"two paths", http.MethodGet, file(url.Values{"path": {"a.txt", "b.txt"}, "signature": {good}, "signature_expiration": {soon}}), nil, 401},
		{"another user", http.MethodGet, file(url.Values{"path": {"a.txt"}, "username": {"root"}, "signature": {good}, "signature_expiration": {soon}}), nil, 401},
		{"a read that writes", http.MethodPost, file(url.Values{"path": {"a.txt"}, "signature": {good}, "signature_expiration": {soon}}), nil, 401},
		{"a read that deletes", http.MethodDelete, file(url.Values{"path": {"a.txt"}, "signature": {good}, "signature_expiration": {soon}}), nil, 401},
		{"of another sandbox", http.MethodGet, file(url.Values{"path": {"a.txt"}, "signature": {good}, "signature_expiration": {soon}}), []string{"E2b-Sandbox-Id", bobs.ID}, 401},
		{"elsewhere", http.MethodGet, "/envs?path=a.txt&signature=" + url.QueryEscape(good), []string{"E2b-Sandbox-Id", made.ID}, 401},
		{"fields that are moved", http.MethodGet, file(url.Values{"path": {"a.txt:read:"}, "signature": {sign("a.txt", "read", "read", made.Token, "")}}), nil, 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, text := l.send(t, c.method, c.path, "", c.headers...)
			if code != c.code || asked {
				t.Errorf("%d %s, want %d; the VM was asked: %t", code, text, c.code, asked)
			}
		})
	}
}

// A signed link says as whom: a header that says more does not count.
func TestProxy_SignedLinksFindTheirSandbox(t *testing.T) {
	l := newLab(t)
	l.create(t, "e2b_bb", `{"templateID":"base","timeout":300}`)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	l.worker = func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.String()+" "+r.Header.Get("Authorization"))
	}
	link := "/files?" + url.Values{"path": {"a b.txt"}, "signature": {sign("a b.txt", "write", "", made.Token, "")}}.Encode()
	if code, _, text := l.send(t, http.MethodPost, link, "x", "Authorization", "Basic cm9vdDo="); code != http.StatusOK || text != "/files?path=a+b.txt " {
		t.Errorf("%d %q", code, text)
	}
}

// Who has shown nothing yet cannot have the engine list all sandboxes for each request.
func TestProxy_WrongSignaturesCostLittle(t *testing.T) {
	l := newLab(t)
	l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	before := l.lists
	began := time.Now()
	const asked = 50
	var all sync.WaitGroup
	for range asked {
		all.Go(func() {
			resp, err := http.Get(l.url + "/files?path=a&signature=v1_x") //nolint:noctx // of a test
			if err != nil || resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%v, %v", resp, err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	all.Wait()
	// One that was made since the last list is found.
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	if code, _, text := l.send(t, http.MethodGet, "/files?path=a&signature="+url.QueryEscape(sign("a", "read", "", made.Token, "")), ""); code != http.StatusOK {
		t.Errorf("a link of a new sandbox: %d %s", code, text)
	}
	if most := 2 + int(time.Since(began)/l.bounds.links); l.lists-before > most {
		t.Errorf("%d requests listed all sandboxes %d times, want %d at most", asked, l.lists-before, most)
	}
}

// An answer may begin before the request has ended: nothing of either is lost then.
func TestProxy_PassesBothWaysAtOnce(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	l.worker = func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		part := make([]byte, 1)
		for {
			if _, err := io.ReadFull(r.Body, part); err != nil {
				return
			}
			_, _ = w.Write(part)
			_ = control.Flush()
		}
	}
	from, to := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url+"/process.Process/StreamInput", from)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("E2b-Sandbox-Id", made.ID)
	r.Header.Set("X-Access-Token", made.Token)
	go func() { _, _ = to.Write([]byte("a")) }()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, 1)
	for _, part := range []string{"a", "b", "c"} {
		if part != "a" {
			if _, err := to.Write([]byte(part)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != part {
			t.Fatalf("got %q, %v, want %q", got, err, part)
		}
	}
	_ = to.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("at its end: %q, %v", rest, err)
	}
}

// What a client sends that nobody has read when it has its answer, since the sandbox has stopped or
// did not wait for it, is not read while the next request is awaited.
func TestProxy_AnswersBeforeTheRequestIsRead(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	for name, c := range map[string]struct {
		dial func() (net.Conn, error)
		code int
	}{
		"a sandbox that stops": {func() (net.Conn, error) { return nil, job.ErrNotFound }, http.StatusBadGateway},
		"one that does not listen": {func() (net.Conn, error) {
			ours, theirs := net.Pipe() // which has no room for the body
			go func() {
				_, _ = http.ReadRequest(bufio.NewReader(theirs))
				_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
			}()
			return ours, nil
		}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			front := httptest.NewUnstartedServer(l.server)
			front.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(&log, nil), slog.LevelError)
			front.Start()
			defer front.Close()
			l.ways.drop(made.ID)
			l.dial = c.dial
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", front.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			const size = 128 << 10
			go func() {
				_, _ = fmt.Fprintf(conn, "POST /files HTTP/1.1\r\nHost: x\r\nE2b-Sandbox-Id: %s\r\nX-Access-Token: %s\r\nContent-Length: %d\r\n\r\n%s", made.ID, made.Token, size, strings.Repeat("x", size))
			}()
			from := bufio.NewReader(conn)
			resp, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(resp.Body); resp.StatusCode != c.code || err != nil {
				t.Errorf("%s: %q, %v", resp.Status, text, err)
			}
			if more, err := io.ReadAll(from); len(more) > 0 || err != nil {
				t.Errorf("after its answer: %q, %v", more, err)
			}
			if front.Close(); log.Len() > 0 {
				t.Error(log.String())
			}
		})
	}
}

func TestProxy_EndsWithTheSandbox(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	began := make(chan struct{}, 8)
	l.worker = func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		began <- struct{}{}
		<-r.Context().Done()
	}
	open := func(method string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url+"/process.Process/"+method, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("E2b-Sandbox-Id", made.ID)
		r.Header.Set("X-Access-Token", made.Token)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	var streams []*http.Response
	for range 4 { // as many as there may be
		streams = append(streams, open("Start"))
		<-began
	}
	if more := open("Start"); more.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one stream more: %s", more.Status)
	}
	if code, _, _ := l.ask(t, "e2b_aa", http.MethodGet, "/sandboxes/"+made.ID, ""); code != http.StatusOK {
		t.Error("streams keep others from asking for it:", code)
	}
	l.mu.Lock()
	l.holds["ann"] = false // her last token is gone
	l.mu.Unlock()
	for _, s := range streams {
		_, _ = io.Copy(io.Discard, s.Body) // it ends
	}
}

func TestProxy_OutlastsWhatAVMAnswers(t *testing.T) {
	l := newLab(t)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	for name, worker := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1/", http.StatusFound)
		},
		"headers without end": func(w http.ResponseWriter, _ *http.Request) {
			for n := range 100 {
				w.Header().Set("X-"+strconv.Itoa(n), strings.Repeat("x", 2000))
			}
		},
		"early hints without end": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			for n := 0; err == nil && n < 16<<10; n++ {
				_, err = io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nX-A: "+strings.Repeat("x", 2000)+"\r\n\r\n")
			}
			if err == nil {
				t.Error("all of them were read")
			}
			_ = conn.Close()
		},
		"nothing": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"another protocol": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
				_ = conn.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l.mu.Lock()
			l.worker = worker
			l.mu.Unlock()
			if code, _, text := l.send(t, http.MethodPost, "/process.Process/List", "{}", "E2b-Sandbox-Id", made.ID, "X-Access-Token", made.Token); code != http.StatusBadGateway || !strings.Contains(text, "The sandbox was not found") {
				t.Errorf("%d %s", code, text)
			}
		})
	}
}

// A host that does not answer keeps nobody longer than they wait, and what is known of it can be forgotten.
func TestTemplates_NobodyWaitsBeyondTheirTimeForWhoAsks(t *testing.T) {
	l := newLab(t)
	known := &l.server.templates
	asked, answer, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, _, _ = known.get(t.Context(), time.Second, func(context.Context) ([]vm.VM, error) {
			close(asked)
			<-answer
			return nil, nil
		})
	}()
	<-asked
	left := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		known.forget()
		_, _, err := known.get(ctx, time.Second, func(context.Context) ([]vm.VM, error) { return nil, errors.New("the host is asked twice at once") })
		left <- err
	}()
	select {
	case err := <-left:
		if !errors.Is(err, context.Canceled) {
			t.Error("whoever has left:", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("whoever has left still waits for the one who asks")
	}
	close(answer)
	<-ended
	if all, _, err := known.get(t.Context(), time.Second, func(context.Context) ([]vm.VM, error) { return []vm.VM{{Name: "new"}}, nil }); err != nil || len(all) != 1 {
		t.Errorf("what was forgotten while the host was asked is still known: %v, %v", all, err)
	}
}
