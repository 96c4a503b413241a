package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/vm"
)

// templatesTime is how long the list of templates is cached: listing is expensive for the host.
const templatesTime = 10 * time.Second

// lookup caches an answer. One caller asks at a time, and the others wait for it.
type lookup[T any] struct {
	asking chan struct{} // capacity 1

	mu        sync.Mutex
	is        T
	at        time.Time // when it was requested
	forgotten time.Time // answers requested before that are outdated
}

func newLookup[T any]() lookup[T] { return lookup[T]{asking: make(chan struct{}, 1)} }

// last returns the cached answer, however old it is.
func (l *lookup[T]) last() T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.is
}

// get returns an answer not older than age, and when it was requested.
func (l *lookup[T]) get(ctx context.Context, age time.Duration, ask func(context.Context) (T, error)) (is T, at time.Time, err error) {
	select {
	case l.asking <- struct{}{}:
		defer func() { <-l.asking }()
	case <-ctx.Done():
		return is, at, context.Cause(ctx)
	}
	l.mu.Lock()
	is, at = l.is, l.at
	fresh := time.Since(at) < age && at.After(l.forgotten)
	l.mu.Unlock()
	if fresh {
		return is, at, nil
	}
	at = time.Now()
	if is, err = ask(ctx); err == nil {
		l.mu.Lock()
		l.is, l.at = is, at
		l.mu.Unlock()
	}
	return is, at, err
}

func (l *lookup[T]) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgotten = time.Now()
}

// allTemplates returns the templates of the host.
func (s *server) allTemplates(ctx context.Context) ([]vm.VM, error) {
	all, _, err := s.templates.get(ctx, templatesTime, s.Templates)
	return all, err
}

// template is a template as clients list it. Each has one build.
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

// sizes returns the resources of built templates' VMs, where they exceed the defaults.
func (s *server) sizes(ctx context.Context) (map[string]vm.Resources, error) {
	rows, err := s.Saved(ctx)
	sizes := map[string]vm.Resources{}
	for _, row := range rows {
		if row.Build != "" {
			sizes[row.Name] = s.more(row.CPU, row.MemoryMB)
		}
	}
	return sizes, err
}

// more returns cores and memory where they exceed the defaults, which are those of pools' VMs.
func (s *server) more(cpu, memory int) (r vm.Resources) {
	if cpu > s.Defaults.CPU {
		r.CPU = cpu
	}
	if memory > job.SizeMB(s.Defaults.Memory) {
		r.Memory = fmt.Sprintf("%dM", memory)
	}
	return r
}

func (s *server) templateOf(t vm.VM, size vm.Resources) template {
	at := t.CreatedAt
	if t.Provenance != nil {
		at = t.Provenance.At
	}
	names := []string{t.Name}
	if t.Name == s.Defaults.VMTemplate {
		names = append(names, base)
	}
	return template{
		ID: t.Name, Build: t.Name, CPU: cmp.Or(size.CPU, s.Defaults.CPU), Memory: job.SizeMB(cmp.Or(size.Memory, s.Defaults.Memory)), Disk: job.SizeMB(s.Defaults.Disk), Aliases: names, Names: names,
		Created: timeText(at), Updated: timeText(at), Builds: 1, Envd: envd.Version, Status: "ready",
	}
}

func (s *server) listTemplates(w http.ResponseWriter, r *http.Request) error {
	all, err := s.mine(r.Context(), templatesTime)
	sizes, savedErr := s.sizes(r.Context())
	if err = errors.Join(err, savedErr); err != nil {
		return err
	}
	list := []template{}
	for _, t := range all {
		list = append(list, s.templateOf(t, sizes[t.Name]))
	}
	respond(w, http.StatusOK, list)
	return nil
}

// mine returns the templates that the caller may use, from a list not older than age.
func (s *server) mine(ctx context.Context, age time.Duration) ([]vm.VM, error) {
	all, _, err := s.templates.get(ctx, age, s.Templates)
	return slices.DeleteFunc(slices.Clone(all), func(t vm.VM) bool { return !isFor(ctx, t.Name) }), err
}

func isFor(ctx context.Context, name string) bool {
	p, _ := job.PrincipalFrom(ctx)
	return len(p.Templates) == 0 || job.Among(p.Templates, name)
}

// alias answers whether a template exists. It does not look up the default template, which linus
// need not have made: the list has only templates that linus made.
func (s *server) alias(w http.ResponseWriter, r *http.Request, name string) error {
	name, _, _ = strings.Cut(name, ":")
	if name == base {
		name = s.Defaults.VMTemplate
	}
	known := name == s.Defaults.VMTemplate && isFor(r.Context(), name)
	for _, age := range []time.Duration{templatesTime, s.bounds.links} { // another engine may have built it just now
		if known {
			break
		}
		all, err := s.mine(r.Context(), age)
		if err != nil {
			return err
		}
		known = named(all, name) != nil
	}
	if !known {
		return &refusal{http.StatusNotFound, "there is no such template: linus template list shows those there are"}
	}
	respond(w, http.StatusOK, map[string]any{"templateID": name, "public": false})
	return nil
}
