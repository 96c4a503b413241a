package providertest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"linus/internal/job"
	"linus/internal/vm"
)

// NetworkRules returns one rule, which decides everything, for a VM that is not on the LAN.
func (f *Fake) NetworkRules(ctx context.Context, v vm.VM, to []netip.AddrPort) (job.NetworkRules, []string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := f.proven(ctx, "read the network rules of", v)
	if err != nil {
		return job.NetworkRules{}, nil, err
	}
	decided := make([]string, len(to))
	if there.mode == vm.EgressLAN {
		return job.NetworkRules{Mode: there.mode}, decided, nil
	}
	for i := range decided {
		decided[i] = "drop"
	}
	return job.NetworkRules{Mode: there.mode, Rules: []string{fmt.Sprintf("chain from_%d: drop", v.ID)}}, decided, nil
}

// SetNetwork changes a VM's mode.
func (f *Fake) SetNetwork(ctx context.Context, v vm.VM, n vm.Network) error {
	return f.awake(ctx, "change the network of", v, func(there *fakeVM) error {
		there.mode = n.Mode()
		return nil
	})
}

// InUse returns Behaviour.LoggedIn.
func (f *Fake) InUse(ctx context.Context, v vm.VM) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.filesOf(ctx, "look who is logged in to", v)
	return f.behaviour.LoggedIn, err
}

// DialSandbox connects to a program that accepts one request, and answers no other.
func (f *Fake) DialSandbox(ctx context.Context, v vm.VM) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.filesOf(ctx, "reach the sandbox in", v); err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go func() { // until the connection is closed
		defer func() { _ = far.Close() }()
		r, err := http.ReadRequest(bufio.NewReader(far))
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
		if err == nil {
			_, _ = io.WriteString(far, "HTTP/1.1 204 No Content\r\n\r\n")
		}
	}()
	return near, nil
}

// Leave does nothing: there is nothing to close.
func (f *Fake) Leave(vm.VM) {}

// TryTargets makes no connections: names do not resolve, and no address answers.
func (f *Fake) TryTargets(ctx context.Context, v vm.VM, targets []string, proxy int) ([]job.NetworkAttempt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.filesOf(ctx, "try connections from", v); err != nil {
		return nil, err
	}
	var all []job.NetworkAttempt
	for _, target := range targets {
		at, err := job.ParseNetworkTarget(target)
		if err != nil {
			return nil, err
		}
		a := job.NetworkAttempt{Target: target, Way: job.WayDirect, Port: at.Port, Result: job.ResultUnresolved}
		if ip, err := netip.ParseAddr(at.Host); err == nil {
			a.Address, a.Result = ip.String(), job.ResultNoAnswer
		}
		all = append(all, a)
		if proxy != 0 {
			all = append(all, job.NetworkAttempt{Target: target, Way: job.WayProxy, Port: at.Port, Result: job.ResultConnected})
		}
	}
	return all, nil
}
