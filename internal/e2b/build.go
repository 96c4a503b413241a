package e2b

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/term"
	"linus/internal/vm"
)

// A build makes a VM of an existing template, runs the steps in it and saves a copy of it as a
// template. The VM has a short TTL that is extended while the build runs, so an engine that dies
// does not leave it behind. The store keeps notes for the other engines: the build's state
// (waiting, building, ready or error), and its output in pieces of at most maxTold lines.

const (
	maxBuilds   = 64            // builds that this engine remembers
	maxBuilding = 4             // builds of one principal at once
	maxSteps    = 512           // steps of a build
	maxLog      = 1 << 20       // bytes of output of a build
	maxTold     = 100           // lines in one answer, and in one noted piece
	buildTime   = 2 * time.Hour // limit for a build
	buildLease  = 5 * 60        // TTL of the VM in seconds, counted from the last beat
	buildBeat   = time.Minute
	noteTime    = 24 * time.Hour   // until the notes of a build are deleted
	maxSaid     = 2*maxRequest + 1 // bytes of one line of a step's answer

	buildVM = "build" // prefix of the names of builds' VMs
	next    = "-next" // suffix of a new template until it replaces the old one

	placeTime = time.Minute // limit for the replacement
)

type builds struct {
	stop    chan struct{} // closed: builds end
	running sync.WaitGroup

	mu sync.Mutex
	of []*build // oldest first
}

// build is a build of a template. builds.mu guards state, logs, size and reason.
type build struct {
	id, name, owner string

	cpu, memory int // cores and MB requested; 0: the defaults

	state  string    // waiting, building, ready or error
	logs   []logLine // append-only
	before int       // logs[0] is line number before; 0 for builds of this engine
	size   int
	reason *reason

	noting sync.Mutex // held while the build is noted, so that an older note never overwrites a newer one
	noted  int        // lines noted so far
}

// buildNote is what other engines know of a build.
type buildNote struct {
	Name   string    `json:"name"`
	CPU    int       `json:"cpu,omitempty"`
	Memory int       `json:"memory,omitempty"`
	Owner  string    `json:"owner"`
	State  string    `json:"state"`
	Reason *reason   `json:"reason,omitempty"`
	At     time.Time `json:"at"`
}

type logLine struct {
	Time    string `json:"timestamp"`
	Level   string `json:"level"`
	Message string `json:"message"`
	Step    string `json:"step,omitempty"`
}

type reason struct {
	Message string    `json:"message"`
	Step    string    `json:"step,omitempty"`
	Logs    []logLine `json:"logEntries"`
}

// recipe describes how to make a template.
type recipe struct {
	Image    string `json:"fromImage"`
	Template string `json:"fromTemplate"`
	Steps    []struct {
		Type  string   `json:"type"`
		Args  []string `json:"args"`
		Files string   `json:"filesHash"`
	} `json:"steps"`
	Start string `json:"startCmd"`
	Ready string `json:"readyCmd"`
}

// buildRoute serves requests about builds and the files that they copy.
func (s *server) buildRoute(w http.ResponseWriter, r *http.Request, at string, parts []string) error {
	p, _ := job.PrincipalFrom(r.Context())
	if !p.May(job.VerbSaveVM) || !MayUse(p) {
		return &refusal{http.StatusForbidden, "not allowed: templates are built by keys with the role admin"}
	}
	if at == "POST templates" || at == "POST v3/{id}" {
		return s.requestBuild(w, r, p)
	}
	if at == "GET templates/{id}/files/"+last(parts) {
		return s.uploadLink(w, r, p.Owner(), last(parts))
	}
	offset := r.URL.Query().Get("logsOffset")
	from, err := strconv.ParseUint(cmp.Or(offset, "0"), 10, 30)
	if err != nil {
		return invalid("logsOffset", fmt.Sprintf("%.40q is not a number of lines", offset), "leave it out, or give the number of lines you have")
	}
	b, err := s.findBuild(r.Context(), parts[1], parts[3], p.Owner(), int(from))
	if err != nil {
		return err
	}
	switch at {
	case "POST templates/{id}/builds/" + parts[3]:
		return s.startBuild(w, r, p, b)
	case "GET templates/{id}/builds/" + parts[3] + "/status", "GET templates/{id}/builds/" + parts[3] + "/logs":
		respond(w, http.StatusOK, s.builds.tell(b, int(from)))
		return nil
	}
	return errUnknown(r)
}

// requestBuild notes a build that the client is about to start.
func (s *server) requestBuild(w http.ResponseWriter, r *http.Request, p job.Principal) error {
	var in struct {
		Name       string   `json:"name"`
		Alias      string   `json:"alias"`
		Tags       []string `json:"tags"`
		Dockerfile string   `json:"dockerfile"`
		CPU        int      `json:"cpuCount"`
		Memory     int      `json:"memoryMB"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	if in.Dockerfile != "" {
		return &refusal{http.StatusBadRequest, "templates are not built by this version of the API: use the Template of E2B's SDKs, or e2b template create"}
	}
	name, _, _ := strings.Cut(cmp.Or(in.Name, in.Alias), ":")
	if err := cmp.Or(job.CheckTemplateName(name), job.Within("cpuCount", int64(in.CPU), 0, 32), job.Within("memoryMB", int64(in.Memory), 0, 512<<10)); err != nil {
		return err
	}
	if err := job.CheckTemplateName(name + next); err != nil || strings.HasSuffix(name, next) {
		return invalid("name", fmt.Sprintf("%q is too long, or ends in %s, like templates that are about to replace another", name, next), fmt.Sprintf("give at most %d characters, and another ending", 63-len(next)))
	}
	if _, err := s.replaced(r.Context(), name); err != nil {
		return err
	}
	b := &build{id: newName(timeID(time.Now())), name: name, owner: p.Owner(), state: "waiting", cpu: in.CPU, memory: in.Memory}
	if err := s.note(r.Context(), b); err != nil {
		return err
	}
	tags := append([]string{}, in.Tags...)
	respond(w, http.StatusAccepted, map[string]any{"templateID": name, "buildID": b.id, "public": false, "aliases": []string{name}, "names": []string{name}, "tags": tags})
	return nil
}

// replaced reports whether a build would replace a template of this name. It returns a refusal if
// that template was not made of a VM, and so must stay.
func (s *server) replaced(ctx context.Context, name string) (bool, error) {
	all, err := s.allTemplates(ctx)
	t := named(all, name)
	if err != nil || t == nil {
		return false, err
	}
	if name == base || name == s.Defaults.VMTemplate || t.Provenance == nil {
		return false, &refusal{http.StatusConflict, fmt.Sprintf("the template %s was not made of a VM, and stays: choose another name", name)}
	}
	_, heirs, err := s.heirs(ctx)
	if err == nil && named(all, name+next) != nil && !heirs[name+next] {
		err = &refusal{http.StatusConflict, fmt.Sprintf("the template %s was not made by a build, and would be in the way of this one: remove it, or choose another name", name+next)}
	}
	return err == nil, err
}

// of returns the name of the template that the recipe starts from.
func (c recipe) of() (string, error) {
	image, _, _ := strings.Cut(c.Image, ":")
	name, _, _ := strings.Cut(cmp.Or(c.Template, base), ":")
	if c.Template == "" && image != "" && image != "e2bdev/base" {
		return "", invalid("fromImage", fmt.Sprintf("sandboxes are VMs, which are not made from registry images such as %.100q", c.Image),
			"begin with Template().fromTemplate('NAME') of linus template list, or fromBaseImage() for the default one; linus template build --image makes one from a system's cloud image")
	}
	return name, nil
}

// startBuild starts a build after it has checked that the files of its COPY steps are uploaded.
func (s *server) startBuild(w http.ResponseWriter, r *http.Request, p job.Principal, b *build) error {
	var c recipe
	if err := decode(r, &c); err != nil {
		return err
	}
	from, err := c.of()
	if err != nil {
		return err
	}
	if len(c.Steps) > maxSteps {
		return invalid("steps", fmt.Sprintf("are %d", len(c.Steps)), fmt.Sprintf("give at most %d: several commands can be joined into one", maxSteps))
	}
	for n, step := range c.Steps {
		if step.Type != "COPY" {
			continue
		}
		there := isHash(step.Files)
		if there {
			if there, err = s.Uploads.HasUpload(r.Context(), shelfOf(p.Owner()), step.Files); err != nil {
				return err
			}
		}
		if !there {
			return invalid("steps", fmt.Sprintf("the files of step %d are not there", n+1), "upload them again: Template.build does, with forceUpload")
		}
	}
	if err := s.builds.start(b); err != nil {
		return err
	}
	s.noted(r.Context(), b)
	s.builds.running.Go(func() {
		ctx, over := context.WithTimeoutCause(context.WithoutCancel(r.Context()), buildTime, fmt.Errorf("a build may take %s", buildTime))
		defer over()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		s.builds.running.Go(func() {
			select {
			case <-ctx.Done():
			case <-s.builds.stop:
				cancel(errors.New("the engine stops: build it again"))
			}
		})
		s.builds.running.Go(func() {
			for sleep.For(ctx, s.bounds.notes) == nil {
				s.noted(ctx, b)
			}
		})
		step, err := s.build(ctx, cancel, p, b, c, from)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		s.builds.end(b, step, err)
		s.noted(ctx, b)
	})
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// build makes a template, and returns the step that failed. It always destroys the VM.
func (s *server) build(ctx context.Context, cancel context.CancelCauseFunc, p job.Principal, b *build, c recipe, from string) (at string, err error) {
	at = "base"
	release, err := s.Sandboxes.BuildAlone(ctx, b.name)
	if err != nil {
		return at, fmt.Errorf("no two engines build one template at once: %w", err)
	}
	defer release()
	s.builds.say(b, at, "info", "making a VM of template "+from)
	m := job.Manifest{VMName: newName(buildVM), Resources: s.more(b.cpu, b.memory)}
	if from != base {
		m.VMTemplate = from
	}
	v, err := s.make(ctx, m, vm.Sandbox{Build: true}, nil, buildLease)
	if err != nil {
		return at, err
	}
	defer s.end(ctx, v.Job)
	beats, over := context.WithCancel(ctx)
	defer over()
	s.builds.running.Go(func() { s.beat(beats, p, v, cancel) })
	t, err := s.step(ctx, v, envd.Step{}, nil, nil)
	for n, step := range c.Steps {
		if err != nil {
			return at, err
		}
		at = strconv.Itoa(n + 1)
		s.builds.say(b, at, "info", fmt.Sprintf("[%s/%d] %s %s", at, len(c.Steps), step.Type, strings.Join(step.Args, " ")))
		var files io.ReadCloser
		if step.Type == "COPY" {
			if files, err = s.Uploads.OpenUpload(ctx, shelfOf(p.Owner()), step.Files); err != nil {
				return at, fmt.Errorf("the files of the step are not there any more: build it again: %w", err)
			}
		}
		t, err = s.step(ctx, v, envd.Step{Type: step.Type, Args: step.Args, Template: t}, files, func(said envd.Said) {
			level := "info"
			if said.Stderr {
				level = "warn"
			}
			s.builds.say(b, at, level, said.Text)
		})
	}
	if err != nil {
		return at, err
	}
	at = "finalize"
	t.Start, t.Ready = cmp.Or(c.Start, t.Start), cmp.Or(c.Ready, t.Ready)
	if t.Start != "" {
		s.builds.say(b, at, "info", "starting "+t.Start)
	}
	if err := s.initialize(ctx, v, envd.Init{Template: t}); err != nil {
		return at, err
	}
	s.builds.say(b, at, "info", "saving a copy of the VM as template "+b.name)
	return at, s.keepAs(ctx, v, b.name)
}

// keepAs makes a template of a build's VM. An existing one stays until the new one is complete.
func (s *server) keepAs(ctx context.Context, v vm.VM, name string) error {
	defer s.templates.forget()
	s.templates.forget()
	all, heirs, err := s.heirs(ctx)
	if heirs[name+next] { // left by an interrupted build
		err = s.takePlace(ctx, all, name)
		s.templates.forget()
	}
	if err != nil {
		return err
	}
	old, err := s.replaced(ctx, name)
	if err != nil {
		return err
	} else if !old {
		_, err = s.Engine.SaveVM(ctx, v.Job, name, false)
		return err
	}
	if _, err := s.Engine.SaveVM(ctx, v.Job, name+next, false); err != nil {
		return err
	}
	s.templates.forget()
	if all, err = s.allTemplates(ctx); err != nil {
		return err
	}
	return s.takePlace(ctx, all, name)
}

// takePlace replaces the old template of a name by the new one. If it is interrupted, the new
// template exists under its temporary name, and the next build or the next start of an engine
// finishes the replacement.
func (s *server) takePlace(ctx context.Context, all []vm.VM, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), placeTime)
	defer cancel()
	var err error
	if named(all, name) != nil {
		if _, err = s.replaced(ctx, name); err == nil {
			err = s.RemoveTemplate(ctx, name)
		}
	}
	if err == nil {
		err = s.RenameTemplate(ctx, name+next, name)
	}
	if err != nil {
		return fmt.Errorf("the new template is %s until another build of it takes its place: %w", name+next, err)
	}
	return nil
}

// finishBuilds renames new templates whose builds were interrupted after removing the old one.
func (s *server) finishBuilds(ctx context.Context) {
	all, heirs, err := s.heirs(ctx)
	for heir := range heirs {
		name := strings.TrimSuffix(heir, next)
		if named(all, name) != nil {
			continue
		}
		release, held := s.Sandboxes.BuildAlone(ctx, name)
		if held == nil {
			held = s.takePlace(ctx, all, name)
			s.templates.forget()
			release()
		}
		err = errors.Join(err, held)
	}
	if err != nil && ctx.Err() == nil {
		s.Log.Warn("the search for templates of interrupted builds failed", "err", err)
	}
}

// heirs returns all templates, and the names of those that builds have saved to replace others,
// according to what was stored when they were saved.
func (s *server) heirs(ctx context.Context) (all []vm.VM, heirs map[string]bool, err error) {
	all, err = s.allTemplates(ctx)
	saved, savedErr := s.Saved(ctx)
	heirs = map[string]bool{}
	for _, row := range saved {
		t := named(all, row.Name)
		if strings.HasSuffix(row.Name, next) && row.Build != "" && row.Client == client && t != nil && t.Provenance != nil && t.Provenance.VM == row.Build {
			heirs[row.Name] = true
		}
	}
	return all, heirs, errors.Join(err, savedErr)
}

// named returns the template of a name, or nil.
func named(all []vm.VM, name string) *vm.VM {
	at := slices.IndexFunc(all, func(t vm.VM) bool { return t.Name == name })
	if at < 0 {
		return nil
	}
	return &all[at]
}

// beat extends the TTL of a build's VM while the build runs, and ends the build when the principal
// may no longer run it.
func (s *server) beat(ctx context.Context, p job.Principal, v vm.VM, end context.CancelCauseFunc) {
	for sleep.For(ctx, buildBeat) == nil {
		if p.Ended() || !s.Holds(ctx, p.Owner()) {
			end(job.ErrUnauthorized)
			return
		}
		if _, err := s.endAt(ctx, v, buildLease); err != nil && ctx.Err() == nil {
			s.Log.Warn("the VM of a build was not kept", "vm", v.Job, "err", err)
		}
	}
}

// step has the program in a VM run a step of a build, and returns the template with that step. The
// answer comes from the VM and is not trusted.
func (s *server) step(ctx context.Context, v vm.VM, step envd.Step, files io.ReadCloser, say func(envd.Said)) (*envd.Template, error) {
	line, err := json.Marshal(step)
	body := io.Reader(strings.NewReader(string(line) + "\n"))
	if files != nil {
		defer files.Close() //nolint:errcheck // only read
		body = io.MultiReader(body, files)
	}
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/build", body)
	if err != nil {
		return nil, err
	}
	way, _ := s.ways.to(s, vm.SandboxID(v.Job))
	resp, err := way.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxSaid)
	for lines.Scan() {
		var said envd.Said
		switch err := json.Unmarshal(lines.Bytes(), &said); {
		case err != nil:
			return nil, fmt.Errorf("the program in the VM answered %.100q", lines.Text())
		case said.Error != "":
			return nil, &refusal{http.StatusBadRequest, term.Text(said.Error)}
		case said.Template != nil:
			return said.Template, nil
		case say != nil:
			say(said)
		}
	}
	return nil, cmp.Or(lines.Err(), errors.New("the program in the VM ended before the step did"))
}

// timeID returns the prefix of the IDs of builds that were requested at a time.
func timeID(at time.Time) string { return fmt.Sprintf("%012x", at.UnixMilli()) }

// note stores the state and the new output of a build for other engines.
func (s *server) note(ctx context.Context, b *build) error {
	b.noting.Lock()
	defer b.noting.Unlock()
	s.builds.mu.Lock()
	is := buildNote{Name: b.name, CPU: b.cpu, Memory: b.memory, Owner: b.owner, State: b.state, Reason: b.reason, At: time.Now()}
	logs := b.logs
	s.builds.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	write := func(id string, what any) error {
		text, err := json.Marshal(what)
		if err != nil {
			return err
		}
		return s.Builds.NoteBuild(ctx, id, string(text), timeID(time.Now().Add(-noteTime)))
	}
	for b.noted < len(logs) {
		first := b.noted - b.noted%maxTold
		next := min(first+maxTold, len(logs))
		if err := write(pieceOf(b.id, first), logs[first:next]); err != nil {
			return err
		}
		b.noted = next
	}
	return write(b.id, is)
}

// pieceOf returns the ID of the noted piece that starts at line first.
func pieceOf(id string, first int) string { return fmt.Sprintf("%s/%d", id, first) }

// noted calls note, and only logs an error: the build continues, or has ended, regardless.
func (s *server) noted(ctx context.Context, b *build) {
	if err := s.note(ctx, b); err != nil {
		s.Log.Warn("a build's state was not recorded: other engines do not know it", "template", b.name, "err", err)
	}
}

// findBuild returns a build of an owner: one of this engine, or one that another engine has noted,
// with its lines from number from on.
func (s *server) findBuild(ctx context.Context, name, id, owner string, from int) (*build, error) {
	none := &refusal{http.StatusNotFound, "there is no such build: it was never there, is another's, or was asked for more than a day ago"}
	b := s.builds.find(id)
	if b == nil {
		read := func(id string, what any) error {
			text, err := s.Builds.Build(ctx, id)
			if err == nil {
				err = json.Unmarshal([]byte(text), what)
			}
			if errors.Is(err, job.ErrNotFound) {
				return nil
			}
			return err
		}
		var is buildNote
		err := read(id, &is)
		b = &build{id: id, name: is.Name, owner: is.Owner, state: is.State, reason: is.Reason, cpu: is.CPU, memory: is.Memory}
		if b.state != "waiting" { // a waiting build has no output
			b.before = from - from%maxTold
		}
		for first := b.before; first < from+maxTold && err == nil && b.state != "waiting"; first += maxTold {
			var lines []logLine
			err = read(pieceOf(id, first), &lines)
			b.logs = append(b.logs, lines...)
			if len(lines) < maxTold { // later pieces follow lines that this piece did not have yet
				break
			}
		}
		if err != nil {
			return nil, err
		}
		if b.state == "" {
			return nil, none
		}
		if b.state == "building" && time.Since(is.At) > buildLease*time.Second {
			b.state, b.reason = "error", &reason{"the engine that built it has ended: build it again", "", []logLine{}}
		}
	}
	if b.name != name || b.owner != owner {
		return nil, none
	}
	return b, nil
}

// find returns a build that this engine has started, or nil.
func (a *builds) find(id string) *build {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.IndexFunc(a.of, func(b *build) bool { return b.id == id })
	if at < 0 {
		return nil
	}
	return a.of[at]
}

func (a *builds) start(b *build) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	building := 0
	for _, other := range a.of {
		if other.state == "building" && other.name == b.name {
			return &refusal{http.StatusConflict, fmt.Sprintf("template %s is being built already: wait until that has ended", b.name)}
		}
		if other.state == "building" && other.owner == b.owner {
			building++
		}
	}
	old := slices.IndexFunc(a.of, func(other *build) bool { return other.state != "building" })
	select {
	case <-a.stop:
		return &refusal{http.StatusServiceUnavailable, "the engine stops: build it again"}
	default:
	}
	switch {
	case b.state != "waiting":
		return &refusal{http.StatusConflict, "this build was started already"}
	case building >= maxBuilding:
		return &refusal{http.StatusTooManyRequests, fmt.Sprintf("%d templates of yours are being built: try again when one is done", maxBuilding)}
	case len(a.of) >= maxBuilds && old < 0:
		return &refusal{http.StatusTooManyRequests, fmt.Sprintf("%d templates are being built: try again when one is done", maxBuilds)}
	case len(a.of) >= maxBuilds:
		a.of = slices.Delete(a.of, old, old+1)
	}
	b.state = "building"
	a.of = append(a.of, b)
	return nil
}

func (a *builds) say(b *build, step, level, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if text = job.Bounded(term.Text(text)); b.size > maxLog {
		return
	}
	if b.size += len(text) + 64; b.size > maxLog {
		level, text = "warn", "the rest of its output is left out"
	}
	b.logs = append(b.logs, logLine{timeText(time.Now()), level, text, step})
}

func (a *builds) end(b *build, step string, err error) {
	if err == nil {
		a.say(b, step, "info", "template "+b.name+" is ready")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.state = "ready"; err != nil {
		_, text := fault(err)
		b.state, b.reason = "error", &reason{text, step, []logLine{}}
	}
}

// tell returns the state of a build, with its output from a line on.
func (a *builds) tell(b *build, from int) map[string]any {
	a.mu.Lock()
	defer a.mu.Unlock()
	from -= b.before
	logs := append([]logLine{}, b.logs[min(from, len(b.logs)):min(from+maxTold, len(b.logs))]...)
	texts := []string{}
	for _, l := range logs {
		texts = append(texts, l.Message)
	}
	is := map[string]any{"templateID": b.name, "buildID": b.id, "status": b.state, "logEntries": logs, "logs": texts}
	if b.reason != nil {
		is["reason"] = b.reason
	}
	return is
}

func (a *builds) close() {
	close(a.stop)
	a.running.Wait()
}
