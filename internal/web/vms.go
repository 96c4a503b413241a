package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

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
	Ref string // name or ID that identifies the VM
	SSH string // the command that logs in; empty if nobody can
}

// CanGo reports whether the VM can be destroyed from here. Others are destroyed with their job.
func (v vmRow) CanGo() bool {
	return v.Lifecycle == vm.Persistent && v.Status != vm.Destroying && v.State != vm.LeftAlone
}

// Idle reports whether no job runs in the VM.
func (v vmRow) Idle() bool { return len(v.Jobs) == 0 }

// CanStop reports whether the VM can be shut down from here.
func (v vmRow) CanStop() bool { return v.CanSuspend() }

// CanExpose reports whether the VM's ports can be given URLs, whatever runs in it.
func (v vmRow) CanExpose() bool { return v.Status == vm.Running && v.State == vm.Created }

// CanStart reports whether the VM is off and can be started from here.
func (v vmRow) CanStart() bool { return v.CanGo() && v.Status.Down() && v.Status != vm.Gone }

// FilesJob returns the job through which the VM's files are reached, or "" if they cannot be.
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

// CanForget reports whether linus leaves the VM alone, so that an operator can say that it is
// theirs.
func (v vmRow) CanForget() bool { return v.State == vm.LeftAlone || v.Status == vm.Unproven }

// CanSuspend reports whether the VM can be suspended from here.
func (v vmRow) CanSuspend() bool {
	return v.CanGo() && v.Status == vm.Running && v.Idle()
}

// CanResume reports whether the VM is suspended and can be resumed from here.
func (v vmRow) CanResume() bool { return v.CanGo() && v.Status == vm.Suspended }

// ExpiresIn returns the remaining time as text, or "" if the VM never expires.
func (v vmRow) ExpiresIn() string {
	if v.ExpiresAt.IsZero() {
		return ""
	}
	if left := time.Until(v.ExpiresAt); left > 0 {
		return "in " + age(left)
	}
	return "when no job runs in it"
}

func loginCommand(name string) string { return "linus vm ssh " + name }

func vmRowOf(info job.VMInfo) vmRow {
	row := vmRow{VMInfo: info, Ref: info.Name}
	if info.ID != 0 {
		row.Ref = strconv.Itoa(info.ID)
	}
	if info.Status == vm.Running && info.IP != "" {
		row.SSH = loginCommand(info.Name)
	}
	return row
}

func (p *pages) vmsView(r *http.Request) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
	defer cancel()
	infos, err := p.Engine.VMs(ctx)
	v := vmsView{viewer: p.viewer(r)}
	for _, info := range infos {
		v.VMs = append(v.VMs, vmRowOf(info))
	}
	return v, err
}

type hostView struct {
	viewer
	job.HostReport
	Error string
}

// testsPause is the time between two reads of host tests.
const testsPause = time.Second

type testsView struct {
	viewer

	Tests []job.HostTest
}

func (p *pages) testsView(r *http.Request) (any, error) {
	ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
	defer cancel()
	tests, err := p.Engine.HostTests(ctx)
	slices.Reverse(tests)
	return testsView{p.viewer(r), tests}, err
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
	v := hostView{viewer: p.viewer(r)}
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

// vmVerbs are what a form can do to a VM. Those in vmAsks need a confirmation first.
var (
	vmVerbs = map[string]func(job.Engine, context.Context, string, url.Values) (job.VMInfo, error){
		"start":   plain(job.Engine.StartVM),
		"stop":    plain(job.Engine.StopVM),
		"suspend": plain(job.Engine.SuspendVM),
		"resume":  plain(job.Engine.ResumeVM),
		"destroy": plain(job.Engine.DestroyVM),
		"forget":  plain(job.Engine.ForgetVM),
		"fork": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			count, err := strconv.Atoi(form.Get("count"))
			if err != nil {
				count = -1 // the engine refuses it, after checking the caller's permission
			}
			_, err = e.ForkVM(ctx, job.ForkSpec{VM: ref, Count: count, Name: form.Get("name")})
			return job.VMInfo{}, err
		},
		"snapshot": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			return e.SnapshotVM(ctx, ref, form.Get("snapshot"), form.Get("memory") == "on")
		},
		"save": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			_, err := e.SaveVM(ctx, ref, form.Get("template"), false)
			return job.VMInfo{}, err
		},
		"expose": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			port, err := strconv.Atoi(form.Get("port"))
			if err != nil {
				port = -1 // the engine refuses it, after checking the caller's permission
			}
			made, err := e.ExposePort(ctx, job.PortSpec{VM: ref, Port: port, Name: form.Get("name")})
			return job.VMInfo{Ports: []job.ExposedPort{made}}, err
		},
		"unexpose": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			_, err := e.UnexposePort(ctx, ref, form.Get("name"))
			return job.VMInfo{}, err
		},
		"revert": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			return e.RevertVM(ctx, ref, form.Get("snapshot"))
		},
		"remove-snapshot": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			return e.DeleteSnapshot(ctx, ref, form.Get("snapshot"))
		},
	}
	vmAsks = map[string]string{"destroy": "Destroy", "forget": "Forget", "revert": "Revert", "remove-snapshot": "Remove"}
	// vmAskers are the engine's verbs that need a confirmation.
	vmAskers = map[string]job.AnyVerb{"destroy": job.VerbDestroyVM, "forget": job.VerbForgetVM, "revert": job.VerbRevertVM, "remove-snapshot": job.VerbDeleteSnapshot}
)

func plain(verb func(job.Engine, context.Context, string) (job.VMInfo, error)) func(job.Engine, context.Context, string, url.Values) (job.VMInfo, error) {
	return func(e job.Engine, ctx context.Context, ref string, _ url.Values) (job.VMInfo, error) {
		return verb(e, ctx, ref)
	}
}

func vmPath(ref string) string { return "/vms/" + url.PathEscape(ref) }

// vmView is a VM as its page shows it, or the confirmation of an action on it.
type vmView struct {
	vmRow
	viewer

	Verb     string // of a confirmation
	Snapshot string // to revert to, or to remove
	Note     string // remark about the action that was just done
	Key      string // makes one terminal of a form that is sent twice

	Processes []metadataText // of a sandbox

	Snapshots []job.Snapshot // on its page only
	Unlisted  string         // why the snapshots are not known
}

// Why returns the reason for the VM's status, or "".
func (v vmRow) Why() string {
	if v.Reason == "" || v.Status == vm.Unknown {
		return v.Reason
	}
	return "Left alone: " + v.Reason
}

func (v vmView) title() string {
	if v.Verb == "remove-snapshot" {
		return "Remove snapshot " + v.Snapshot + " of VM " + v.Name
	} else if v.Verb != "" {
		return vmAsks[v.Verb] + " VM " + v.Name
	}
	return "VM " + v.Name
}

// Question returns the verb that the question begins with.
func (v vmView) Question() string { return vmAsks[v.Verb] }

func (p *pages) vmView(r *http.Request) (vmView, error) {
	ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
	defer cancel()
	info, err := p.Engine.VM(ctx, mux.Vars(r)["ref"])
	v := vmView{vmRow: vmRowOf(info), viewer: p.viewer(r), Key: uuid.NewString()}
	if err == nil && info.Sandbox != nil && p.Processes != nil && v.Who.May(job.VerbSubmit) { // who may run commands there
		for _, text := range p.Processes(ctx, info.VM) {
			v.Processes = append(v.Processes, metadataTextOf(text))
		}
	}
	return v, err
}

// vmPage is vmView with the VM's snapshots, which takes one more request to the host.
func (p *pages) vmPage(r *http.Request) (any, error) {
	v, err := p.vmView(r)
	if err == nil && v.Who.May(job.VerbListSnapshots) && v.CanGo() {
		ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
		defer cancel()
		var failed error
		if v.Snapshots, failed = p.Engine.ListSnapshots(ctx, v.Job); failed != nil {
			v.Unlisted = words.In(failed.Error())
		}
	}
	return v, err
}

// confirm asks users to confirm an action that cannot be undone, if they may perform it.
func (p *pages) confirm(w http.ResponseWriter, r *http.Request) {
	p.forThoseWhoMay(vmAskers[mux.Vars(r)["verb"]], p.ask)(w, r)
}

func (p *pages) ask(w http.ResponseWriter, r *http.Request) {
	v, err := p.vmView(r)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v.Verb, v.Snapshot = mux.Vars(r)["verb"], r.URL.Query().Get("snapshot")
	p.render(w, r, http.StatusOK, "confirm", v)
}

// vmOf returns the VM of a form. It fails if the VM's ID or name now belongs to another VM.
func (p *pages) vmOf(r *http.Request) (job.VMInfo, error) {
	ref := mux.Vars(r)["ref"]
	info, err := p.Engine.VM(r.Context(), ref)
	if err == nil && info.Job != r.PostForm.Get("job") {
		err = &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q is now another VM", ref), Remedy: "look at the list of VMs again"}
	}
	return info, err
}

// changeVM performs a verb on the VM of the form. A verb that takes longer than vmsTime continues;
// the page shows when it is done.
func (p *pages) changeVM(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ref := mux.Vars(r)["ref"]
		info, err := p.vmOf(r)
		if err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
			defer cancel()
			if info, err = vmVerbs[verb](p.Engine, ctx, info.Job, r.PostForm); errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = nil
			}
		}
		if verb == "expose" && err == nil && len(info.Ports) > 0 && info.Ports[0].Note != "" {
			if v, unread := p.vmPage(r); unread == nil {
				page := v.(vmView)
				page.Note = info.Ports[0].Note
				p.render(w, r, http.StatusOK, "vm", page)
				return
			}
		}
		to := vmPath(ref)
		if verb == "destroy" || verb == "forget" { // its page is about to disappear
			to = "/vms"
		}
		p.acted(w, r, to, err)
	}
}
