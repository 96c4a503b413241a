package fleet_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// reaches checks a VM's mode by its row, and on the host.
func (r *rig) reaches(id string, row, host vm.Egress) {
	r.t.Helper()
	v, err := r.store.VM(context.Background(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	rules, _, err := r.host.NetworkRules(context.Background(), v, []netip.AddrPort{})
	if err != nil || v.Network.Mode() != row || rules.Mode != host {
		r.t.Errorf("egress %s by its row, %s on the host, %v; want %s and %s", v.Network.Mode(), rules.Mode, err, row, host)
	}
}

func TestSetVM_ChangesWhatItReaches(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		set := func(c vm.Network) error {
			_, err := r.SetVM(context.Background(), "dev", job.VMChange{Network: &c})
			return err
		}
		if err := set(vm.Network{Allow: []string{"GitHub.com", "9.9.9.9"}}); err != nil {
			t.Fatal(err)
		}
		r.reaches(id, vm.EgressAllow, vm.EgressAllow)
		if v, err := r.store.VM(context.Background(), id); err != nil || !slices.Equal(v.Network.Allow, []string{"9.9.9.9", "github.com"}) {
			t.Errorf("%v, %v", v.Network, err)
		}
		for _, c := range []struct {
			change vm.Network
			want   string
		}{
			{vm.Network{Egress: "moon"}, `network.egress: "moon" is unknown`},
			{vm.Network{Egress: vm.EgressNone, Allow: []string{"a.example"}}, "network.allow: has no meaning with egress none; remove it, or set network.egress=allow"},
			{vm.Network{Allow: []string{"10.0.0.1"}}, `network.allow: "10.0.0.1" is not public`},
			{vm.Network{Egress: vm.EgressNone, IP: "dhcp"}, "network: cannot have its bridge"},
			{vm.Network{Allow: []string{"a.example"}, Deny: []string{"9.9.9.9"}}, "network.deny: "},
		} {
			if err := set(c.change); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v: %v, want %q", c.change, err, c.want)
			}
		}
		// What the host does not do is not said of it.
		full := errors.New("nft: no")
		r.host.Set(providertest.Behaviour{Powers: []error{full}})
		if err := set(vm.Network{Egress: vm.EgressNone}); !errors.Is(err, full) {
			t.Errorf("%v", err)
		}
		r.reaches(id, vm.EgressAllow, vm.EgressAllow)
		r.engine.set(func(e *engine) { e.inside = []job.Job{{ID: "j", SharedVM: id, Status: job.Running}} })
		if err := set(vm.Network{Egress: vm.EgressNone}); err == nil || !strings.Contains(err.Error(), "jobs run in it: j") {
			t.Errorf("%v", err)
		}
		r.engine.set(func(e *engine) { e.inside = nil })
		r.pass(time.Hour)
		r.sleeps(id, true)
		if err := set(vm.Network{Egress: vm.EgressNone}); err != nil {
			t.Fatal(err)
		}
		r.sleeps(id, false) // it was resumed for that
		r.reaches(id, vm.EgressNone, vm.EgressNone)
		if err := set(vm.Network{}); err != nil { // as the server's settings have it
			t.Fatal(err)
		}
		r.reaches(id, vm.EgressLAN, vm.EgressLAN)
	})
}

// Who may not make a VM that reaches so much may not make one of another, either.
func TestSetVM_AsksWhetherItsNetworkIsAllowed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.Allow = func(s job.Submission) error {
			if s.Client == "mcp:claude" && s.Principal.Name == job.OperatorName && s.Manifest.Network.Mode() == vm.EgressLAN {
				return &job.InvalidError{Fields: []*job.FieldError{{Field: "manifest.network.egress", Problem: "is not allowed"}}}
			}
			return nil
		}
		r.start()
		id := r.napping("dev")
		ctx := job.WithClient(job.WithPrincipal(context.Background(), job.Operator()), "mcp:claude")
		if _, err := r.SetVM(ctx, "dev", job.VMChange{Network: &vm.Network{Egress: vm.EgressNone}}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.SetVM(ctx, "dev", job.VMChange{Network: &vm.Network{Egress: vm.EgressLAN}}); err == nil || !strings.Contains(err.Error(), "network.egress is not allowed") && !strings.HasPrefix(err.Error(), "network.egress") {
			t.Errorf("%v", err)
		}
		r.reaches(id, vm.EgressNone, vm.EgressNone)
	})
}
