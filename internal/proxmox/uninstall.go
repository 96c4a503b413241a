package proxmox

import (
	"cmp"
	"context"
	"strconv"

	"linus/internal/job"
)

// Uninstall removes what linus keeps on the node apart from VMs and templates. It refuses while VMs of
// any installation of linus exist, unless spec says to leave them.
func (p *Provider) Uninstall(ctx context.Context, spec job.UninstallSpec) (job.Uninstalled, error) {
	env := map[string]string{"LEAVE_VMS": strconv.FormatBool(spec.LeaveVMs), "LINUS_SCRIPT_DIR": p.o.ScriptDir}
	setText(env, "IMAGE_DIR", p.o.ImageDir)
	c := call{op: "uninstall", script: "uninstall", env: env, patience: p.o.Patience / 10}
	key := "LINUS_REMOVED"
	if spec.Plan {
		c.args, key = []string{"--dry-run"}, "LINUS_PLAN"
	}
	res, err := p.run(ctx, c)
	return job.Uninstalled{
		Node: cmp.Or(p.o.Node, res.Get("LINUS_VM_NODE")), Removed: res.All(key), Stays: res.All("LINUS_STAYS"),
	}, err
}
