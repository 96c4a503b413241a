package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// Network reports where a VM's packets may go, and tries connections from inside it.
func (f *Fleet) Network(ctx context.Context, q job.NetworkQuery) (job.NetworkReport, error) {
	if err := job.Within("targets", int64(len(q.Targets)), 0, job.MaxNetworkTargets); err != nil {
		return job.NetworkReport{}, err
	}
	for _, target := range q.Targets {
		if _, err := job.ParseNetworkTarget(target); err != nil {
			return job.NetworkReport{}, err
		}
	}
	v, err := f.fileVM(ctx, q.VM)
	if err != nil {
		return job.NetworkReport{}, err
	}
	report := job.NetworkReport{VMID: v.ID, Name: v.Name}
	jobs, err := f.jobsIn(ctx, v, q.VM)
	if err != nil {
		return report, err
	}
	report.Network = v.Network
	if len(q.Targets) > 0 {
		proxy := 0
		if at := slices.IndexFunc(jobs, func(j job.Job) bool { return j.Status == job.Running && j.Outcome == nil }); at >= 0 && report.Network.Proxied() {
			proxy = job.ProxyPort(jobs[at].ID)
		}
		err := f.enter(ctx, v, func(ctx context.Context) (err error) {
			report.Attempts, err = f.o.Guest.TryTargets(ctx, v, q.Targets, proxy)
			return err
		})
		var down *job.FieldError
		if errors.As(err, &down) && down.Field == "vm" { // the VM does not run
			err = &job.FieldError{Field: "vm", Problem: down.Problem + ", so no connection was tried", Remedy: "ask for its rules without targets, or " + down.Remedy}
		}
		if err != nil {
			return report, err
		}
	}
	var tried []netip.AddrPort
	var direct []int // the attempts that tried is from
	for i, a := range report.Attempts {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Way == job.WayDirect {
			tried = append(tried, netip.AddrPortFrom(ip, uint16(a.Port))) //nolint:gosec // 1 to 65535
			direct = append(direct, i)
		}
	}
	rules, decided, err := f.o.Provider.NetworkRules(ctx, v, tried)
	if err != nil {
		return report, err
	}
	report.NetworkRules = rules
	for i, rule := range decided {
		report.Attempts[direct[i]].Rule = rule
	}
	report.Connections, err = f.connections(ctx, jobs)
	return report, err
}

// setNetwork changes what a persistent VM reaches. Its row is changed once the host is. Jobs in it
// must have ended: what they were told about their network would no longer be true.
func (f *Fleet) setNetwork(ctx context.Context, ref string, change job.VMChange) error {
	v, err := f.findOpen(ctx, ref)
	if err != nil {
		return err
	}
	to := change.NetworkOf(v.Network, f.o.Defaults)
	if f.o.Allow != nil {
		p, _ := job.PrincipalFrom(ctx)
		there := to
		there.IP, there.Gateway = "", "" // these stay
		if err := f.o.Allow(job.Submission{Client: job.ClientFrom(ctx), Principal: p, Manifest: job.Manifest{Network: there}}); err != nil {
			return networkError(err)
		}
	}
	v, done, err := f.use(ctx, v, listener(ctx)) // a VM suspended because it was idle is resumed
	if err != nil {
		return err
	}
	defer done()
	_, err = f.exclusive(ctx, v.Job, "given another network", true, func(ctx context.Context, v vm.VM) error {
		if err := f.o.Provider.SetNetwork(ctx, v, to); err != nil {
			return err
		}
		_, err := f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
			v.Network = v.Network.Reaching(to)
			return []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("VM %d has egress %s from now on", v.ID, to.Mode())}}, nil
		})
		return err
	})
	return err
}

// networkError names the fields as in a change.
func networkError(err error) error {
	if invalid, ok := errors.AsType[*job.InvalidError](err); ok {
		for _, f := range invalid.Fields {
			f.Field = strings.TrimPrefix(f.Field, "manifest.")
		}
	}
	return err
}

// jobsIn returns the unfinished jobs in a VM that the caller may see, or only the job that ref names.
func (f *Fleet) jobsIn(ctx context.Context, v vm.VM, ref string) ([]job.Job, error) {
	begun, err := f.o.Jobs.InProgress(ctx)
	if err != nil {
		return nil, err
	}
	jobs := slices.DeleteFunc(begun, func(j job.Job) bool { return j.VM == nil || j.VM.Job != v.Job || !job.Visible(ctx, j.Principal) })
	if at := slices.IndexFunc(jobs, func(j job.Job) bool { return j.ID == ref }); at >= 0 {
		jobs = []job.Job{jobs[at]}
	}
	return jobs, nil
}

// connections returns the last connections that the proxies of jobs recorded, by time.
func (f *Fleet) connections(ctx context.Context, jobs []job.Job) ([]job.Event, error) {
	var all []job.Event
	for _, j := range jobs {
		events, err := f.o.Jobs.Events(ctx, j.ID, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(events, func(ev job.Event) bool { return ev.Kind != job.EventNetwork })...)
	}
	slices.SortStableFunc(all, func(a, b job.Event) int { return a.At.Compare(b.At) })
	return all[max(0, len(all)-job.MaxNetworkConnections):], nil
}
