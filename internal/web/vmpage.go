package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"linus/internal/job"
)

// vmVerbs are what a form can do to a VM. Those in vmAsks are asked about first.
var (
	vmVerbs = map[string]func(job.Engine, context.Context, string, url.Values) (job.VMInfo, error){
		"start":   plain(job.Engine.StartVM),
		"stop":    plain(job.Engine.StopVM),
		"suspend": plain(job.Engine.SuspendVM),
		"resume":  plain(job.Engine.ResumeVM),
		"destroy": plain(job.Engine.DestroyVM),
		"forget":  plain(job.Engine.ForgetVM),
		"snapshot": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			return e.SnapshotVM(ctx, ref, form.Get("snapshot"), form.Get("memory") == "on")
		},
		"revert": func(e job.Engine, ctx context.Context, ref string, form url.Values) (job.VMInfo, error) {
			return e.RevertVM(ctx, ref, form.Get("snapshot"))
		},
	}
	vmAsks = map[string]string{"destroy": "Destroy", "forget": "Forget", "revert": "Revert"}
)

// plain is a verb that needs to know nothing but the VM.
func plain(verb func(job.Engine, context.Context, string) (job.VMInfo, error)) func(job.Engine, context.Context, string, url.Values) (job.VMInfo, error) {
	return func(e job.Engine, ctx context.Context, ref string, _ url.Values) (job.VMInfo, error) {
		return verb(e, ctx, ref)
	}
}

func vmPath(ref string) string { return "/vms/" + url.PathEscape(ref) }

// vmView is a VM as its page shows it, or the question whether something may be done
// to it.
type vmView struct {
	vmRow
	viewer

	Verb     string // of a question
	Snapshot string // to revert to
	Key      string // makes one terminal of a form that is sent twice
}

func (v vmView) title() string {
	if v.Verb != "" {
		return vmAsks[v.Verb] + " VM " + v.Name
	}
	return "VM " + v.Name
}

// Question begins with the verb.
func (v vmView) Question() string { return vmAsks[v.Verb] }

// vmView reads the VM that the request's address names.
func (p *pages) vmView(ctx context.Context, r *http.Request) (vmView, error) {
	ctx, cancel := context.WithTimeout(ctx, vmsTime)
	defer cancel()
	info, err := p.Engine.VM(ctx, mux.Vars(r)["ref"])
	return vmView{vmRow: p.vmRow(info), viewer: p.viewer(r)}, err
}

func (p *pages) vm(w http.ResponseWriter, r *http.Request) {
	v, err := p.vmView(r.Context(), r)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v.Key = uuid.NewString()
	p.render(w, r, http.StatusOK, "vm", v)
}

func (p *pages) vmLive(w http.ResponseWriter, r *http.Request) {
	p.follow(w, r, vmsPause, func(ctx context.Context, s *stream) (bool, error) {
		v, err := p.vmView(ctx, r)
		if err != nil {
			return false, err
		}
		html, err := p.fragment("vm", "state", v)
		if err != nil {
			return false, err
		}
		return true, s.part("state", html)
	})
}

// confirm asks those who may do it whether something that cannot be undone is meant.
func (p *pages) confirm(w http.ResponseWriter, r *http.Request) {
	p.forThoseWhoMay(vmAsks[mux.Vars(r)["verb"]]+"VM", p.ask)(w, r)
}

func (p *pages) ask(w http.ResponseWriter, r *http.Request) {
	v, err := p.vmView(r.Context(), r)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v.Verb, v.Snapshot = mux.Vars(r)["verb"], r.URL.Query().Get("snapshot")
	p.render(w, r, http.StatusOK, "confirm", v)
}

// vmOf returns the VM that a form is about, not another that has its ID or name by
// now.
func (p *pages) vmOf(r *http.Request) (job.VMInfo, error) {
	ref := mux.Vars(r)["ref"]
	info, err := p.Engine.VM(r.Context(), ref)
	if err == nil && info.Job != r.PostForm.Get("job") {
		err = &job.FieldError{Field: "vm", Problem: fmt.Sprintf("%q is now another VM", ref), Remedy: "look at the list of VMs again"}
	}
	return info, err
}

// changeVM does something to the VM that the form is about. What takes long goes on;
// the page shows when it is done.
func (p *pages) changeVM(verb string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ref := mux.Vars(r)["ref"]
		info, err := p.vmOf(r)
		if err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), vmsTime)
			defer cancel()
			if _, err = vmVerbs[verb](p.Engine, ctx, info.Job, r.PostForm); errors.Is(ctx.Err(), context.DeadlineExceeded) {
				err = nil
			}
		}
		switch {
		case err != nil:
			p.failed(w, r, err)
		case verb == "destroy" || verb == "forget": // it is about to have no page
			http.Redirect(w, r, "/vms", http.StatusSeeOther)
		default:
			http.Redirect(w, r, vmPath(ref), http.StatusSeeOther)
		}
	}
}
