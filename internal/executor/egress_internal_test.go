package executor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestTraffic_IsToldInFewEvents(t *testing.T) {
	var told []string
	seen := &traffic{all: map[destination]*tally{}, tell: func(events ...job.Event) {
		for _, e := range events {
			if e.Kind != job.EventNetwork {
				t.Errorf("an event of kind %s", e.Kind)
			}
			told = append(told, e.Text)
		}
	}}
	ok := job.Connection{Name: "ok.example", Port: "443", Allowed: true}
	for range 9 {
		seen.note(ok)
		done := ok
		done.Ended, done.Out, done.In = true, 10, 20
		seen.note(done)
	}
	seen.note(job.Connection{Name: "lan\n.example", Port: "443", Why: "its address is not public"})
	seen.end()
	want := []string{
		"ok.example:443 allowed", "ok.example:443 allowed, 2 times, 10 bytes sent, 20 received", "ok.example:443 allowed, 4 times, 30 bytes sent, 60 received",
		"ok.example:443 allowed, 8 times, 70 bytes sent, 140 received", "lan .example:443 refused: its address is not public",
		"ok.example:443 allowed, 9 times, 90 bytes sent, 180 received",
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error(diff)
	}
	told = nil
	for range 3 {
		seen.used(job.CredentialUse{Name: "api", Method: "GET", Host: "ok.example", Path: "/a\nb", Status: 200})
	}
	seen.end()
	use := "credential api: GET ok.example/a b 200"
	if diff := cmp.Diff([]string{use, use + ", 2 times", use + ", 3 times"}, told); diff != "" {
		t.Error(diff)
	}
	told = nil
	for i := range 5000 {
		seen.used(job.CredentialUse{Name: "api", Method: "GET", Host: "ok.example", Path: fmt.Sprint("/", i), Status: 200})
	}
	seen.end()
	if last := told[len(told)-1]; len(told) > mostDestinations+20 || last != "other requests with credentials, 4900 times" {
		t.Errorf("%d events, the last is %q", len(told), last)
	}
	told = nil
	for i := range 5000 {
		seen.note(job.Connection{Name: fmt.Sprintf("n%d.example", i), Port: strings.Repeat("4", 1000), Why: "no"})
	}
	seen.end()
	if len(told) > mostDestinations+20 || len(seen.all) > mostDestinations+1 {
		t.Errorf("%d events of %d destinations", len(told), len(seen.all))
	}
	if last := told[len(told)-1]; !strings.Contains(last, "other names refused, 4900 times") {
		t.Errorf("the last event is %q", last)
	}
}

func TestProxied_LeavesWhatTheManifestSets(t *testing.T) {
	m := proxied(job.Manifest{Env: map[string]string{"HTTP_PROXY": "mine"}, Secrets: []string{"https_proxy"}}, "id", vm.Network{}, true)
	if m.Env["HTTP_PROXY"] != "mine" || m.Env["http_proxy"] != fmt.Sprintf("http://127.0.0.1:%d", job.ProxyPort("id")) || m.Env["NO_PROXY"] == "" {
		t.Errorf("env %v", m.Env)
	}
	if only := proxied(job.Manifest{}, "id", vm.Network{}, false); only.Env["HTTPS_PROXY"] == "" || only.Env["HTTP_PROXY"]+only.Env["http_proxy"] != "" {
		t.Errorf("env %v", only.Env)
	}
	listed := vm.Network{Egress: vm.EgressAllow, Allow: []string{"9.9.9.0/24", "a.example"}}
	if env := proxied(job.Manifest{}, "id", listed, true).Env; env["NO_PROXY"] != "localhost,127.0.0.1,::1,9.9.9.0/24" || env["no_proxy"] != env["NO_PROXY"] {
		t.Errorf("addresses are looked for behind the proxy: %v", env)
	}
	for _, c := range []struct {
		allow []string
		want  bool
	}{{listed.Allow, true}, {nil, true}, {listed.Allow[:1], false}} {
		j := job.Job{Manifest: job.Manifest{Network: vm.Network{Egress: vm.EgressAllow, Allow: c.allow}}}
		if needs, only := needsProxy(j); needs != c.want || only != c.want {
			t.Errorf("with %q a job needs a proxy: %t", c.allow, needs)
		}
	}
	if _, there := m.Env["https_proxy"]; there {
		t.Error("a secret's name is set")
	}
	if p := job.ProxyPort("id"); p != job.ProxyPort("id") || p < 20000 || p >= 30000 {
		t.Errorf("port %d", p)
	}
}
