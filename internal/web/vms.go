package web

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

const (
	vmsPause = 5 * time.Second  // between queries of the host
	hostTime = 60 * time.Second // limit for a check of the host
	vmsTime  = 20 * time.Second // limit for a list of its VMs
)

type vmsView struct {
	viewer

	VMs []vmRow
}

func (vmsView) title() string { return "VMs" }
func (vmsView) goesOn() bool  { return true }

type vmRow struct {
	job.VMInfo
	Ref string // name or ID that identifies it
	SSH string // the command that logs in; empty if nobody can
}

// CanGo reports whether it can be destroyed from here: others are destroyed
// with their job.
func (v vmRow) CanGo() bool {
	return v.Lifecycle == vm.Persistent && v.Status != vm.Destroying && v.State != vm.LeftAlone
}

// Idle reports whether no job runs in it.
func (v vmRow) Idle() bool { return len(v.Jobs) == 0 }

// CanStop reports whether it can be shut down from here.
func (v vmRow) CanStop() bool { return v.CanSuspend() }

// CanStart reports whether it is off.
func (v vmRow) CanStart() bool { return v.CanGo() && v.Status.Down() && v.Status != vm.Gone }

// CanSnapshot reports whether it has a disk that a snapshot can be taken of.
func (v vmRow) CanSnapshot() bool { return v.CanGo() && (v.Status == vm.Running || v.CanStart()) }

// FilesJob is the job by which the VM's files are reached; empty: they are not.
func (v vmRow) FilesJob() string {
	switch {
	case v.Status != vm.Running || v.State != vm.Created:
	case v.Lifecycle == vm.Persistent:
		return v.Job
	case len(v.Jobs) > 0:
		return v.Jobs[0]
	}
	return ""
}

// CanForget reports whether it is left alone, and an operator can say that it is
// theirs.
func (v vmRow) CanForget() bool { return v.State == vm.LeftAlone || v.Status == vm.Unproven }

// CanSuspend reports whether it can be suspended from here.
func (v vmRow) CanSuspend() bool {
	return v.CanGo() && v.Status == vm.Running && v.Idle()
}

// CanResume reports whether it is suspended.
func (v vmRow) CanResume() bool { return v.CanGo() && v.Status == vm.Suspended }

// ExpiresIn is the remaining time, as text; empty if it never expires.
func (v vmRow) ExpiresIn() string {
	if v.ExpiresAt.IsZero() {
		return ""
	}
	if left := time.Until(v.ExpiresAt); left > 0 {
		return "in " + age(left)
	}
	return "when no job runs in it"
}

func (p *pages) vmRow(info job.VMInfo) vmRow {
	row := vmRow{VMInfo: info, Ref: info.Name}
	if info.ID != 0 {
		row.Ref = strconv.Itoa(info.ID)
	}
	if info.Status == vm.Running && info.IP != "" {
		row.SSH = p.SSHCommand(info.VM)
	}
	return row
}

func (p *pages) vmsView(ctx context.Context, r *http.Request) (vmsView, error) {
	ctx, cancel := context.WithTimeout(ctx, vmsTime)
	defer cancel()
	infos, err := p.Engine.VMs(ctx)
	v := vmsView{viewer: p.viewer(r)}
	for _, info := range infos {
		v.VMs = append(v.VMs, p.vmRow(info))
	}
	return v, err
}

func (p *pages) vms(w http.ResponseWriter, r *http.Request) {
	v, err := p.vmsView(r.Context(), r)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	p.render(w, r, http.StatusOK, "vms", v)
}

func (p *pages) vmsLive(w http.ResponseWriter, r *http.Request) {
	p.follow(w, r, vmsPause, func(ctx context.Context, s *stream) (bool, error) {
		v, err := p.vmsView(ctx, r)
		if err != nil {
			return false, err
		}
		html, err := p.fragment("vms", "list", v)
		if err != nil {
			return false, err
		}
		return true, s.part("list", html)
	})
}

type hostView struct {
	job.HostReport
	Error string
}

// host checks the host while the browser already shows the top of the page.
func (p *pages) host(w http.ResponseWriter, r *http.Request) {
	frame := p.frame(r, "host", nil)
	frame.Title = "Host"
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	err := p.views["host"].ExecuteTemplate(w, "top", frame)
	if err == nil {
		err = p.views["host"].ExecuteTemplate(w, "content", nil)
	}
	if err != nil || r.Method == http.MethodHead {
		return // the browser is gone
	}
	_ = http.NewResponseController(w).Flush()
	ctx, cancel := context.WithTimeout(r.Context(), hostTime)
	defer cancel()
	var v hostView
	if v.HostReport, err = p.Engine.CheckHost(ctx); err != nil {
		v.Error = words.In(err.Error())
	}
	for _, part := range []struct {
		name string
		view any
	}{{"report", v}, {"bottom", frame}} {
		if err := p.views["host"].ExecuteTemplate(w, part.name, part.view); err != nil {
			p.Log.Debug("page was cut off", "page", "host", "err", err)
			return
		}
	}
}
