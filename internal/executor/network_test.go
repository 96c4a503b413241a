package executor_test

import (
	"context"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// The network of a VM, and of the VM that a job runs in: its mode and rules as the host
// has them, and what was tried from inside with the rule that decides about it.
func TestNetwork_IsWhatTheHostAndTheVMSay(t *testing.T) {
	r := newRig(t, 1)
	operator := job.WithPrincipal(t.Context(), job.Operator())
	r.makeVM("dev", func(m *job.Manifest) { m.Network.Egress = vm.EgressNone })
	got, err := r.Network(operator, job.NetworkQuery{VM: "dev"})
	if err != nil || got.Name != "dev" || got.Mode != vm.EgressNone || len(got.Rules) != 1 || len(got.Attempts) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = r.Network(operator, job.NetworkQuery{VM: "dev", Targets: []string{"github.com", "10.0.0.1:22"}})
	if err != nil || len(got.Attempts) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := []job.NetworkAttempt{
		{Target: "github.com", Way: job.WayDirect, Port: 443, Result: job.ResultUnresolved},
		{Target: "10.0.0.1:22", Way: job.WayDirect, Address: "10.0.0.1", Port: 22, Result: job.ResultNoAnswer, Rule: "drop"},
	}
	for i, a := range got.Attempts {
		if a != want[i] {
			t.Errorf("attempt %d: %+v, want %+v", i, a, want[i])
		}
	}
	for _, bad := range [][]string{{""}, {"a b"}, {"-x"}, {"h:0"}, {"h:70000"}, {"h:http"}, {"fe80::1%eth0"}, {"10.0.0.999"}, {"$(id)"}, make([]string, job.MaxNetworkTargets+1)} {
		if _, err := r.Network(operator, job.NetworkQuery{VM: "dev", Targets: bad}); err == nil || !strings.Contains(err.Error(), "targets: ") {
			t.Errorf("targets %q: %v", bad, err)
		}
	}
	stranger := job.WithPrincipal(context.Background(), job.Principal{Name: "bob", Role: job.RoleRun})
	_, err = r.Network(stranger, job.NetworkQuery{VM: "dev"})
	refusal(t, err, `"dev" is not a VM of ours`)
	// One that does not run has rules, and nothing is tried in it.
	if _, err := r.StopVM(operator, "dev"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Network(operator, job.NetworkQuery{VM: "dev"}); err != nil || got.Mode != vm.EgressNone {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = r.Network(operator, job.NetworkQuery{VM: "dev", Targets: []string{"github.com"}})
	refusal(t, err, `"dev" (VM 100) is stopped, so no connection was tried; ask for its rules without targets, or start it first: {vm start} dev`)
	if _, err := r.StartVM(operator, "dev"); err != nil {
		t.Fatal(err)
	}
	if got, err := r.Network(operator, job.NetworkQuery{VM: "dev", Targets: []string{"github.com"}}); err != nil || len(got.Attempts) != 1 {
		t.Errorf("started again: %+v, %v", got, err)
	}
}

// The task of a job that reaches names only finds its proxy; that of another has none.
func TestPush_TheTaskFindsItsProxy(t *testing.T) {
	r := newRig(t, 1)
	for egress, want := range map[vm.Egress]bool{vm.EgressAllow: true, vm.EgressInternet: false} {
		var env map[string]string
		r.fake.Set(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
			env = p.Manifest.Env
			return providertest.Task{}
		}})
		j := r.wait(r.submit(func(m *job.Manifest) {
			m.Network.Egress = egress
			if egress == vm.EgressAllow {
				m.Network.Allow = []string{"github.com"}
			}
		}))
		if j.Status != job.Success || strings.HasPrefix(env["HTTPS_PROXY"], "http://127.0.0.1:") != want || env["HTTPS_PROXY"] != env["http_proxy"] {
			t.Errorf("%s: %v, %+v", egress, env, j.Outcome)
		}
	}
}
