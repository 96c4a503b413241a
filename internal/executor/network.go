package executor

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// Network reports where a VM's packets may go, and tries connections from inside it.
func (e *Executor) Network(ctx context.Context, q job.NetworkQuery) (job.NetworkReport, error) {
	if err := within("targets", int64(len(q.Targets)), 0, job.MaxNetworkTargets); err != nil {
		return job.NetworkReport{}, err
	}
	for _, target := range q.Targets {
		if _, err := job.ParseNetworkTarget(target); err != nil {
			return job.NetworkReport{}, err
		}
	}
	v, err := e.fileVM(ctx, q.VM)
	if err != nil {
		return job.NetworkReport{}, err
	}
	report := job.NetworkReport{VMID: v.ID, Name: v.Name}
	jobs, err := e.jobsIn(ctx, v, q.VM)
	if err != nil {
		return report, err
	}
	report.Network = v.Network
	if len(q.Targets) > 0 {
		proxy := 0
		if at := slices.IndexFunc(jobs, func(j job.Job) bool { return j.Status == job.Running && j.Outcome == nil }); at >= 0 && report.Network.Mode() == vm.EgressAllow {
			proxy = proxyPort(jobs[at].ID)
		}
		err := e.inside(ctx, v, func(ctx context.Context) (err error) {
			report.Attempts, err = e.o.Guest.TryTargets(ctx, v, q.Targets, proxy)
			return err
		})
		var down *job.FieldError
		if errors.As(err, &down) && down.Field == "vm" { // it does not run
			err = &job.FieldError{Field: "vm", Problem: down.Problem + ", so no connection was tried", Remedy: down.Remedy + ", or ask for its rules without targets"}
		}
		if err != nil {
			return report, err
		}
	}
	var tried []netip.AddrPort
	var direct []int // the attempts that these are of
	for i, a := range report.Attempts {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Way == job.WayDirect {
			tried = append(tried, netip.AddrPortFrom(ip, uint16(a.Port))) //nolint:gosec // 1 to 65535
			direct = append(direct, i)
		}
	}
	rules, decided, err := e.o.Provider.NetworkRules(ctx, v, tried)
	if err != nil {
		return report, err
	}
	report.NetworkRules = rules
	for i, rule := range decided {
		report.Attempts[direct[i]].Rule = rule
	}
	report.Connections, err = e.connections(ctx, jobs)
	return report, err
}

// jobsIn returns the unfinished jobs in a VM, the one that was asked for first, if it was
// one.
func (e *Executor) jobsIn(ctx context.Context, v vm.VM, ref string) ([]job.Job, error) {
	begun, err := e.o.Jobs.InProgress(ctx)
	if err != nil {
		return nil, err
	}
	jobs := slices.DeleteFunc(begun, func(j job.Job) bool { return j.VM == nil || j.VM.Job != v.Job || !visible(ctx, j.Principal) })
	if at := slices.IndexFunc(jobs, func(j job.Job) bool { return j.ID == ref }); at >= 0 {
		jobs = []job.Job{jobs[at]}
	}
	return jobs, nil
}

// connections returns the last that the proxies of jobs have recorded, in the order of
// their time.
func (e *Executor) connections(ctx context.Context, jobs []job.Job) ([]job.Event, error) {
	var all []job.Event
	for _, j := range jobs {
		events, err := e.o.Jobs.Events(ctx, j.ID, 0)
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(events, func(ev job.Event) bool { return ev.Kind != job.EventNetwork })...)
	}
	slices.SortStableFunc(all, func(a, b job.Event) int { return a.At.Compare(b.At) })
	return all[max(0, len(all)-job.MaxNetworkConnections):], nil
}
