package e2b

import (
	"crypto/rand"
	"net/http"
	"slices"
	"strings"
	"sync"

	"linus/internal/job"
	"linus/internal/vm"
)

// forked is the result of one copy of a sandbox.
type forked struct {
	Sandbox *known         `json:"sandbox,omitempty"`
	Error   map[string]any `json:"error,omitempty"`
}

// fork makes copies of a sandbox. Each copy succeeds or fails on its own.
func (s *server) fork(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	in := struct {
		Timeout int `json:"timeout"`
		Count   int `json:"count"`
	}{defaultTime, 1}
	if err := decode(r, &in); err != nil {
		return err
	}
	if err := job.Within("count", int64(in.Count), 1, job.MostForks); err != nil {
		return err
	}
	if err := checkTime("timeout", in.Timeout); err != nil {
		return err
	}
	if !s.mayUse(r.Context()) {
		return errNoUse
	}
	out, err := s.Engine.ForkVM(r.Context(), job.ForkSpec{VM: v.Job, Count: in.Count, Name: newName("sandbox") + "-%d", TTL: max(in.Timeout, 1), Partial: true})
	if err != nil {
		return err
	}
	all := make([]forked, len(out.VMs))
	var starting sync.WaitGroup
	for i, made := range out.VMs {
		starting.Go(func() {
			conn, err := s.Sandboxes.DialSandbox(r.Context(), made.Job)
			if err == nil {
				err = conn.Close()
			}
			if err != nil {
				s.end(r.Context(), made.Job)
				code, text := fault(err)
				all[i].Error = map[string]any{"code": code, "message": text}
				return
			}
			is := s.known(made.VM)
			is.Template = templateOf(v)
			all[i].Sandbox = &is
		})
	}
	starting.Wait()
	for _, f := range out.Failed {
		all = append(all, forked{Error: map[string]any{"code": http.StatusServiceUnavailable, "message": f.Error}})
	}
	respond(w, http.StatusCreated, all)
	return nil
}

// newName returns a random name for the VM of a sandbox, or for another kind of object.
func newName(kind string) string { return kind + "-" + strings.ToLower(rand.Text()[:12]) }

// snapshot is a template that was made of a sandbox.
type snapshot struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// save makes a template of a copy of a sandbox's disk.
func (s *server) save(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	var in struct {
		Name string `json:"name"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	name, _, _ := strings.Cut(in.Name, ":")
	if name == "" {
		name = newName("snapshot")
	}
	if _, err := s.Engine.SaveVM(r.Context(), v.Job, name, false); err != nil {
		return err
	}
	s.templates.forget()
	respond(w, http.StatusCreated, snapshot{name, []string{name}})
	return nil
}

// snapshots lists the templates that were made of sandboxes. Only admins may see them.
func (s *server) snapshots(w http.ResponseWriter, r *http.Request) error {
	all, err := s.saved(r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	of := ""
	if id := q.Get("sandboxID"); id != "" {
		v, err := s.Sandboxes.Sandbox(r.Context(), vmOf(id))
		if err != nil {
			return err
		}
		of = v.Name
	}
	name, _, _ := strings.Cut(q.Get("name"), ":")
	found := []snapshot{}
	for _, t := range all {
		if (of == "" || t.Provenance.VM == of) && (name == "" || t.Name == name) {
			found = append(found, snapshot{t.Name, []string{t.Name}})
		}
	}
	respond(w, http.StatusOK, found)
	return nil
}

// unsave removes a template that was made of a VM.
func (s *server) unsave(w http.ResponseWriter, r *http.Request, name string) error {
	s.templates.forget()
	all, err := s.saved(r)
	if err != nil {
		return err
	}
	name, _, _ = strings.Cut(name, ":")
	if !slices.ContainsFunc(all, func(t vm.VM) bool { return t.Name == name }) {
		return &refusal{http.StatusNotFound, "there is no such snapshot"}
	}
	if err := s.RemoveTemplate(r.Context(), name); err != nil {
		return err
	}
	s.templates.forget()
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// saved returns the templates that were made of VMs.
func (s *server) saved(r *http.Request) ([]vm.VM, error) {
	if p, _ := job.PrincipalFrom(r.Context()); !p.May(job.VerbSaveVM) {
		return nil, &refusal{http.StatusForbidden, "not allowed: snapshots are templates, for keys with the role admin"}
	}
	all, err := s.allTemplates(r.Context())
	return slices.DeleteFunc(slices.Clone(all), func(t vm.VM) bool { return t.Provenance == nil }), err
}
