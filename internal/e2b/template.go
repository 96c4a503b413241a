package e2b

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/vm"
)

// templatesTime is how long the host's templates are known: to ask for them costs it much.
const templatesTime = 10 * time.Second

// templates are those of the host, as it was asked last: by one at a time, for whom others wait.
type templates struct {
	asking chan struct{} // has room for one

	mu        sync.Mutex
	all       []vm.VM
	read      time.Time // when the host was asked for them
	forgotten time.Time // what it was asked before that is not true any more
}

func (t *templates) list(ctx context.Context, ask func(context.Context) ([]vm.VM, error)) ([]vm.VM, error) {
	select {
	case t.asking <- struct{}{}:
		defer func() { <-t.asking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	t.mu.Lock()
	all, fresh := t.all, time.Since(t.read) < templatesTime && t.read.After(t.forgotten)
	t.mu.Unlock()
	if fresh {
		return all, nil
	}
	began := time.Now()
	all, err := ask(ctx)
	if err == nil {
		t.mu.Lock()
		t.all, t.read = all, began
		t.mu.Unlock()
	}
	return all, err
}

func (t *templates) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgotten = time.Now()
}

// template is one as clients list it. There is one build of each.
type template struct {
	ID      string   `json:"templateID"`
	Build   string   `json:"buildID"`
	CPU     int      `json:"cpuCount"`
	Memory  int      `json:"memoryMB"`
	Disk    int      `json:"diskSizeMB"`
	Public  bool     `json:"public"`
	Aliases []string `json:"aliases"`
	Names   []string `json:"names"`
	Created string   `json:"createdAt"`
	Updated string   `json:"updatedAt"`
	By      any      `json:"createdBy"`
	Spawned any      `json:"lastSpawnedAt"`
	Spawns  int      `json:"spawnCount"`
	Builds  int      `json:"buildCount"`
	Envd    string   `json:"envdVersion"`
	Status  string   `json:"buildStatus"`
}

func (s *server) templateOf(t vm.VM) template {
	at := t.CreatedAt
	if t.Provenance != nil {
		at = t.Provenance.At
	}
	names := []string{t.Name}
	if t.Name == s.Defaults.VMTemplate {
		names = append(names, base)
	}
	return template{
		ID: t.Name, Build: t.Name, CPU: s.Defaults.CPU, Memory: job.SizeMB(s.Defaults.Memory), Disk: job.SizeMB(s.Defaults.Disk), Aliases: names, Names: names,
		Created: timeText(at), Updated: timeText(at), Builds: 1, Envd: envd.Version, Status: "ready",
	}
}

// listTemplates answers with the templates that sandboxes may be made from.
func (s *server) listTemplates(w http.ResponseWriter, r *http.Request) error {
	all, err := s.mine(r.Context())
	if err != nil {
		return err
	}
	list := []template{}
	for _, t := range all {
		list = append(list, s.templateOf(t))
	}
	respond(w, http.StatusOK, list)
	return nil
}

// mine returns the templates that the caller may use.
func (s *server) mine(ctx context.Context) ([]vm.VM, error) {
	p, _ := job.PrincipalFrom(ctx)
	all, err := s.templates.list(ctx, s.Templates)
	return slices.DeleteFunc(slices.Clone(all), func(t vm.VM) bool { return len(p.Templates) > 0 && !job.Among(p.Templates, t.Name) }), err
}

// alias answers whether there is a template of a name.
func (s *server) alias(w http.ResponseWriter, r *http.Request, name string) error {
	name, _, _ = strings.Cut(name, ":")
	if name == base {
		name = s.Defaults.VMTemplate
	}
	all, err := s.mine(r.Context())
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(t vm.VM) bool { return t.Name == name }) {
		return &refusal{http.StatusNotFound, "there is no such template: linus template list shows those there are"}
	}
	respond(w, http.StatusOK, map[string]any{"templateID": name, "public": false})
	return nil
}
