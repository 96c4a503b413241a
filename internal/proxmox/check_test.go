package proxmox_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/sshtest"
)

// checkOf returns a report's check by name.
func checkOf(t *testing.T, p *proxmox.Provider, name string) (job.HostReport, job.Check) {
	t.Helper()
	r, err := p.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Checks {
		if c.Name == name {
			return r, c
		}
	}
	t.Fatalf("no check %s in %+v", name, r.Checks)
	return r, job.Check{}
}

func TestCheck_CallbackURLIsLookedAtFromTheHost(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	asked := make(chan string, 1)
	callbacks := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.URL.Path }))
	defer callbacks.Close()
	url := callbacks.URL
	p := h.provider(t, func(o *proxmox.Options) {
		o.CallbackURL = func(context.Context) (string, error) { return url, nil }
	})
	r, c := checkOf(t, p, "callback")
	if !r.OK || c.Level != "ok" || !strings.Contains(c.Text, url) {
		t.Errorf("answered: OK %v, %+v", r.OK, c)
	}
	if path := <-asked; path != "/health" {
		t.Errorf("asked for %s", path)
	}

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url = "http://" + l.Addr().String()
	_ = l.Close()
	r, c = checkOf(t, p, "callback")
	if !r.OK || c.Level != "warn" || !strings.Contains(c.Remedy, "jobs run all the same") {
		t.Errorf("nobody there: OK %v, %+v; want a warning only", r.OK, c)
	}
}

func TestCheck_TellsWhetherTheHostForwards(t *testing.T) {
	t.Parallel()
	for _, forbidden := range []bool{false, true} {
		s := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{NoForwarding: forbidden}})
		pool := remote.NewPool(remote.Options{Host: s.Host, Port: s.Port, User: "root", KeyPath: s.ClientKeyPath, KnownHosts: s.KnownHosts})
		defer pool.Close()
		r, c := checkOf(t, proxmox.New(proxmox.Options{Host: pool, ScriptDir: t.TempDir()}), "forwarding")
		if r.OK {
			t.Error("a host without Proxmox is in order")
		}
		want := map[bool]string{false: "ok", true: "warn"}[forbidden]
		if c.Level != want || forbidden && !strings.Contains(c.Remedy, "AllowTcpForwarding yes") {
			t.Errorf("forbidden %v: %+v", forbidden, c)
		}
	}
}

// By hand a script's own names are right; who asks linus has its settings.
func TestTexts_NameTheSettings(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, func(o *proxmox.Options) { o.Template, o.Bridge = "nothing", "vmbr9" })
	if _, c := checkOf(t, p, "template"); c.Level != "fail" || !strings.Contains(c.Remedy, "set DEFAULT_VM_TEMPLATE to") {
		t.Errorf("%+v", c)
	}
	if _, c := checkOf(t, p, "bridge"); c.Level != "fail" || !strings.Contains(c.Remedy, "set PROXMOX_BRIDGE to") {
		t.Errorf("%+v", c)
	}
	p = h.provider(t, func(o *proxmox.Options) { o.VMIDRange = "9000-9000" }) // the template has it
	_, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
	var host *job.HostError
	if !errors.As(err, &host) || !strings.Contains(host.Text+host.Remedy, "PROXMOX_VMID_RANGE") || strings.Contains(host.Text+host.Remedy, "VM_ID_RANGE") {
		t.Errorf("%v", err)
	}
}
