package proxmox

import (
	"context"
	"fmt"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// ForgetVM removes the lease of a VM that is left alone, and frees its address.
func (p *Provider) ForgetVM(ctx context.Context, v vm.VM) error {
	return p.destroy(ctx, fmt.Sprintf("forget VM %d (%s)", v.ID, v.Name), v, "ACTION", "forget")
}

// readLeftAlone parses the host's line about an expired VM that it leaves alone, because its proof is
// incomplete or somebody has protected it: "<id> <job> <name> <why>".
func readLeftAlone(line string) (id, jobID, name, why string) {
	id, rest, _ := strings.Cut(line, " ")
	jobID, rest, _ = strings.Cut(rest, " ")
	name, why, _ = strings.Cut(rest, " ")
	return id, jobID, name, why
}

// leftAloneChecks returns a check for every such VM, for a report on the host.
func (p *Provider) leftAloneChecks() []job.Check {
	var checks []job.Check
	for _, line := range p.leftAlone.get() {
		id, jobID, name, why := readLeftAlone(line)
		remedy := "destroy it by hand, or restore its proof (name " + name + ", tag linus, linus-job=" + jobID + ", linus-owner and linus-vm=" + id + " in its notes)"
		if strings.HasPrefix(why, "it is protected") {
			remedy = "take the protection off (qm set " + id + " --protection 0): then it is destroyed"
		}
		checks = append(checks, job.Check{
			Name: "left_alone", Level: "warn",
			Text:   "VM " + id + " (" + name + ", of job " + jobID + ") has expired but is left alone: " + why,
			Remedy: remedy + "; or keep it: " + string(job.ForgetVM) + " " + name,
		})
	}
	return checks
}

// noteLeftAlone logs each change once.
func (p *Provider) noteLeftAlone(ctx context.Context, lines []string) {
	log := p.o.Log.With("host", p.o.Host.Login())
	came, went := p.leftAlone.set(lines)
	for _, line := range came {
		id, jobID, _, why := readLeftAlone(line)
		log.WarnContext(ctx, "expired VM is left alone", "vm_id", id, "job_id", jobID, "why", why)
	}
	for _, line := range went {
		id, jobID, _, _ := readLeftAlone(line)
		log.InfoContext(ctx, "expired VM is no longer left alone", "vm_id", id, "job_id", jobID)
	}
}
