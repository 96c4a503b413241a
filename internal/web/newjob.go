package web

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"

	"github.com/google/uuid"

	"linus/internal/job"
)

const (
	maxKept   = 8 << 20 // bytes of files that a form gives back to the browser
	spareRows = 3       // empty rows for variables
	planTime  = hostTime
)

// making is a form that makes a job: one with a task, or one that creates a VM.
type making struct {
	form
	make func(context.Context, job.Engine, job.Submission) (id string, err error) // of the job, or of the one that creates the VM
}

var (
	newJob = making{form{jobGroups, "New job", "Jobs", "/jobs", "Start the job", true}, submit}
	newVM  = making{form{vmGroups, "New VM", "VMs", "/vms", "Create the VM", true}, createVM}
)

func submit(ctx context.Context, e job.Engine, s job.Submission) (string, error) {
	j, err := e.Submit(ctx, s)
	return j.ID, err
}

func createVM(ctx context.Context, e job.Engine, s job.Submission) (string, error) {
	v, err := e.CreateVM(ctx, s)
	return v.Job, err
}

// blank shows the form: empty, with the manifest of the job ?from=, or asking for a VM of the pool
// ?pool=.
func (m making) blank(p *pages) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := m.view(p, r)
		d := job.Manifest{AgentType: job.AgentScript, StatusMode: job.StatusStreaming, VM: r.URL.Query().Get("vm")}
		if from := r.URL.Query().Get("from"); from != "" {
			var err error
			if d, err = p.again(r.Context(), &v, from); err != nil {
				p.failed(w, r, err)
				return
			}
		}
		o := p.offers(r)
		if at := slices.IndexFunc(o.pools, func(i job.PoolInfo) bool { return i.Name == r.URL.Query().Get("pool") }); at >= 0 {
			asked := asking(o.pools[at].Pool)
			asked.AgentType, asked.StatusMode = d.AgentType, d.StatusMode
			d = asked
		}
		v.Dir, v.Key = "/tmp", uuid.NewString()
		v.show(d, nil)
		v.offer(o)
		v.defaults(job.Manifest{}.WithDefaults(p.Defaults))
		for _, name := range slices.Sorted(maps.Keys(d.Env)) {
			v.Env = append(v.Env, pair{name, d.Env[name]})
		}
		v.keep(d.Files)
		v.spare()
		p.render(w, r, http.StatusOK, "form", v)
	}
}

// again returns the manifest of a job. If the contents of its files are gone, the manifest has no
// files and the form names them.
func (p *pages) again(ctx context.Context, v *formView, id string) (job.Manifest, error) {
	m, err := p.Engine.Manifest(ctx, id)
	var dropped *job.FieldError
	if !errors.As(err, &dropped) {
		return m, err
	}
	j, err := p.Engine.Job(ctx, id)
	for _, f := range j.Manifest.Files {
		v.Errors["files"] = append(v.Errors["files"], f.Path+" is not kept once its job is done: choose it again")
	}
	j.Manifest.Files = nil
	return j.Manifest, err
}

func (v *formView) spare() { v.Env = append(v.Env, make([]pair, spareRows)...) }

// keep gives files back to the browser, up to maxKept bytes in total.
func (v *formView) keep(files []job.File) {
	left := int64(maxKept)
	for _, f := range files {
		v.paths = append(v.paths, f.Path)
		size := int64(base64.StdEncoding.DecodedLen(len(f.Content)))
		if size > left {
			v.Errors["files"] = append(v.Errors["files"], fmt.Sprintf("%s is too large to stay in the form: choose it again", f.Path))
			continue
		}
		left -= size
		v.Files = append(v.Files, formFile{f, size})
	}
}

// send makes the job, or shows what creating its VM would do.
func (m making) send(p *pages) func(http.ResponseWriter, *http.Request, []upload) {
	return func(w http.ResponseWriter, r *http.Request, uploads []upload) {
		var d job.Manifest
		bad := typed(&d, m.groups(), r.PostForm.Get)
		env, faults := typedEnv(r.PostForm)
		if len(env) > 0 {
			d.Env = map[string]string{}
		}
		for _, e := range env {
			d.Env[e.Name] = e.Value
		}
		d.Files = typedFiles(r.PostForm, uploads)
		bad = append(bad, faults...)
		s := job.Submission{Manifest: d, IdempotencyKey: r.PostForm.Get("key"), Client: "web"}
		var made string
		var plan []string
		planning, err := r.PostForm.Get("do") == "plan", faulty(bad)
		switch {
		case err != nil:
		case planning:
			ctx, cancel := context.WithTimeout(r.Context(), planTime)
			defer cancel()
			plan, err = p.Engine.Plan(ctx, s)
		default:
			made, err = m.make(r.Context(), p.Engine, s)
		}
		if err == nil && !planning {
			http.Redirect(w, r, jobPath(made), http.StatusSeeOther)
			return
		}
		v := m.view(p, r)
		v.Dir, v.Planned, v.Plan = r.PostForm.Get("dir"), err == nil, plan
		v.show(d, r.PostForm.Get)
		v.offer(p.offers(r))
		v.defaults(job.Manifest{}.WithDefaults(p.Defaults))
		v.Env = env
		v.keep(d.Files)
		v.spare()
		v.Key = s.IdempotencyKey
		if wrong, ok := errors.AsType[*job.FieldError](err); ok && wrong.Field == "idempotency_key" { // sent before with different contents
			v.Key = uuid.NewString()
		}
		if err != nil {
			p.refused(w, r, v, err)
			return
		}
		p.render(w, r, http.StatusOK, "form", v)
	}
}

// typedEnv returns the variables that were typed, and the errors that a manifest cannot express,
// such as duplicates.
func typedEnv(form url.Values) (env []pair, bad []*job.FieldError) {
	names, texts := form["env_name"], form["env_value"]
	seen := map[string]bool{}
	for i, name := range names {
		if i >= len(texts) {
			break
		}
		e := pair{name, newlines(texts[i])}
		switch {
		case e == pair{}:
			continue
		case seen[name]:
			bad = append(bad, &job.FieldError{Field: "env", Problem: fmt.Sprintf("%q is given twice", name)})
		}
		seen[name] = true
		env = append(env, e)
	}
	return env, bad
}

// typedFiles returns the files that the form kept, with their current paths and modes, followed by
// the newly chosen files, placed in the form's directory. Kept files without a path are left out.
func typedFiles(form url.Values, uploads []upload) []job.File {
	var files []job.File
	paths, modes, contents := form["kept_path"], form["kept_mode"], form["kept"]
	for i, at := range paths {
		if at != "" && i < min(len(modes), len(contents)) {
			files = append(files, job.File{Path: at, Mode: modes[i], Content: contents[i]})
		}
	}
	for _, u := range uploads {
		files = append(files, job.File{Path: path.Join(form.Get("dir"), u.name), Content: base64.StdEncoding.EncodeToString(u.data)})
	}
	return files
}
