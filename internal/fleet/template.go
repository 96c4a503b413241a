package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/lock"
)

// Times of the look at templates before a job is accepted, which is only for agents' jobs: other
// jobs wait for no host.
const (
	templatesFor  = time.Minute     // how long a reading is believed, unless a job is refused for it
	templatesLook = 2 * time.Second // the longest that a job waits
)

// templates is what is known of the nodes' templates.
type templates struct {
	reading lock.FairMutex // orders reads of the nodes

	mu    sync.Mutex
	inv   job.Inventory
	tried time.Time
}

// known returns the last reading, and whether it was tried within the given time.
func (t *templates) known(within time.Duration) (job.Inventory, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inv, within > 0 && !t.tried.IsZero() && time.Since(t.tried) < within
}

// note records that a read was tried, and what it found.
func (t *templates) note(inv job.Inventory, err error) job.Inventory {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.inv = inv
	}
	t.tried = time.Now()
	return t.inv
}

// hasAgent returns a *job.FieldError if a manifest's template is known to lack its agent. A
// template that does not report what it has is taken to have everything.
func (f *Fleet) hasAgent(ctx context.Context, m job.Manifest) error {
	if !m.NeedsAgent() {
		return nil
	}
	wrong := lacksAgent(f.inventory(ctx, templatesFor), m)
	if wrong == nil {
		return nil
	}
	if again := lacksAgent(f.inventory(ctx, 0), m); again != nil { // a template may just have been built
		return again
	}
	return nil
}

// inventory returns what is known of the nodes, no older than within if they answer.
func (f *Fleet) inventory(ctx context.Context, within time.Duration) job.Inventory {
	timed, end := context.WithTimeout(ctx, templatesLook)
	defer end()
	t := &f.templates
	leave, err := t.reading.Enter(timed) // of those that ask at once, one reads
	if err == nil {
		defer leave()
	}
	inv, fresh := t.known(within)
	if err != nil || fresh {
		return inv
	}
	inv, err = f.o.Provider.Nodes(timed)
	return t.note(inv, err)
}

// lacksAgent returns an error if no node has the manifest's template with its agent.
func lacksAgent(inv job.Inventory, m job.Manifest) *job.FieldError {
	agent := string(m.AgentType)
	var has []string
	for _, n := range inv.Nodes {
		at, several := n.Template(m.VMTemplate)
		if at < 0 {
			continue
		}
		if has = n.Templates[at].Has; has == nil || several || slices.Contains(has, agent) {
			return nil
		}
	}
	if has == nil {
		return nil
	}
	return &job.FieldError{
		Field:   "manifest.agentType",
		Problem: fmt.Sprintf("template %s has no %s; installed in it: %s", m.VMTemplate, agent, strings.Join(has, ", ")),
		Remedy: fmt.Sprintf("build one that has it (%s %s another-name %s %q) and name it as vmTemplate; or give the command that starts it as agent.command",
			job.BuildTemplate, job.TemplateName, job.TemplateParts, strings.Join(append(slices.DeleteFunc(slices.Clone(has), func(p string) bool { return p == "none" }), agent), " ")),
	}
}
