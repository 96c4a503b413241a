package proxmox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
)

// Room returns what the host has left for VMs, the current generations of templates and the VMs that are
// no longer proven. It also renews leases.
func (p *Provider) Room(ctx context.Context, origins []job.Origin, vms []job.Watched) (job.HostRoom, error) {
	const op = "read what the host has left"
	var templates, watched, renewals []string
	for _, o := range origins {
		if o.Template != "" {
			templates = append(templates, o.Template)
		}
	}
	for _, w := range vms {
		watched = append(watched, fmt.Sprintf("%d:%s:%s", w.VM.ID, w.VM.Job, w.VM.OnHost()))
		if w.Renew > 0 || w.Never {
			renewals = append(renewals, fmt.Sprintf("%d:%s:%d", w.VM.ID, w.VM.Job, int(w.Renew/time.Second)))
		}
	}
	env := map[string]string{}
	setText(env, "ROOM_TEMPLATES", strings.Join(templates, " "))
	setText(env, "ROOM_VMS", strings.Join(watched, " "))
	setText(env, "ROOM_LEASES", strings.Join(renewals, " "))
	setText(env, "LINUS_OWNER", p.o.Owner)
	res, err := p.run(ctx, call{op: op, script: "host-room", env: env})
	if err != nil {
		return job.HostRoom{}, err
	}
	room := job.HostRoom{Generations: map[job.Origin]string{}, Doubts: map[string]string{}, Leases: map[string]job.LeaseState{}}
	if _, err := fmt.Sscanf(res.Get("LINUS_MEMORY"), "%d %d %f", &room.FreeMB, &room.TotalMB, &room.Pressure); err != nil {
		return job.HostRoom{}, p.failure(op, job.HostVM, fmt.Sprintf("host-room returned LINUS_MEMORY:%.100q", res.Get("LINUS_MEMORY")), "")
	}
	made := map[string]string{}
	for _, line := range res.All("LINUS_TEMPLATE") {
		name, what, _ := strings.Cut(line, " ")
		made[name] = what
	}
	for _, o := range origins {
		if made[o.Template] != "" || o.Template == "" {
			room.Generations[o] = p.Generation(o, made[o.Template])
		}
	}
	for _, line := range res.All("LINUS_DOUBT") {
		id, why, _ := strings.Cut(line, " ")
		room.Doubts[id] = why
	}
	for _, line := range res.All("LINUS_LEASE") {
		id, state, _ := strings.Cut(line, " ")
		room.Leases[id] = job.LeaseState(state)
	}
	return room, nil
}

// Generation identifies what VMs are made from: a template's ID and config, or an operating system, and
// the settings that shape VMs.
func (p *Provider) Generation(o job.Origin, template string) string {
	env := p.machineEnvironment()
	env["template"], env["os"] = template, o.OS
	env["image"] = p.o.ImageURL + " " + p.o.ImageSHA256
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all.WriteString(name + "=" + strconv.Quote(env[name]) + "\n")
	}
	sum := sha256.Sum256([]byte(all.String()))
	return hex.EncodeToString(sum[:8])
}
