package proxmox

import (
	"context"
	"slices"
	"strings"
	"sync"

	"linus/internal/job"
)

// said is the host's last report on one subject, as lines.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (q *said) get() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lines
}

// set stores the new lines, and returns the added and the removed ones.
func (q *said) set(lines []string) (came, went []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := q.lines
	q.lines = lines
	came = slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return slices.Contains(before, l) })
	went = slices.DeleteFunc(slices.Clone(before), func(l string) bool { return slices.Contains(lines, l) })
	return came, went
}

// quarantined returns a check for every ID that is not used because volumes of a destroyed VM of this
// installation remain ("<id> <volume> ..."), for a report on the host.
func (p *Provider) quarantined() []job.Check {
	var checks []job.Check
	for _, line := range p.quarantine.get() {
		id, volumes, _ := strings.Cut(line, " ")
		checks = append(checks, job.Check{
			Name: "quarantine", Level: "warn",
			Text:   "VM ID " + id + " is not used: volumes of a destroyed VM are left: " + volumes,
			Remedy: "find out why Proxmox could not remove them, then: pvesm free " + volumes,
		})
	}
	return checks
}

// noteQuarantine logs each change once.
func (p *Provider) noteQuarantine(ctx context.Context, lines []string) {
	log := p.o.Log.With("host", p.o.Host.Login())
	came, went := p.quarantine.set(lines)
	for _, line := range came {
		id, volumes, _ := strings.Cut(line, " ")
		log.WarnContext(ctx, "VM ID is not used: volumes of a destroyed VM are left", "vm_id", id, "volumes", volumes)
	}
	for _, line := range went {
		id, volumes, _ := strings.Cut(line, " ")
		log.InfoContext(ctx, "volumes left of a destroyed VM have changed", "vm_id", id, "volumes", volumes)
	}
}
