package proxmox

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// snapshotForm matches the snapshot names that Proxmox accepts.
var snapshotForm = lazyregexp.New(`^[A-Za-z][A-Za-z0-9_-]{1,39}$`)

// Snapshots returns the VM's snapshots, oldest first.
func (p *Provider) Snapshots(ctx context.Context, v vm.VM) ([]job.Snapshot, error) {
	op := fmt.Sprintf("list the snapshots of VM %d (%s)", v.ID, v.Name)
	env := proof(v)
	env["SHOW_SNAPSHOTS"] = "true"
	res, err := p.show(ctx, op, env)
	if err != nil {
		return nil, err
	}
	switch readStatus(res.Get("LINUS_VM_STATUS")) {
	case vm.Gone:
		return nil, p.failure(op, job.HostVM, "there is no such VM on the host", "list the VMs")
	case vm.Unproven:
		return nil, p.failure(op, job.HostVM, strings.Join(res.All("LINUS_WARNING"), "; "), "look at its description, name and tag")
	}
	all := []job.Snapshot{}
	for _, line := range res.All("LINUS_SNAPSHOT") {
		s, err := readSnapshot(line)
		if err != nil {
			return nil, p.failure(op, job.HostVM, err.Error(), "")
		}
		all = append(all, s)
	}
	return all, nil
}

// readSnapshot parses a line of scripts/lib/snapshots.sh.
func readSnapshot(line string) (s job.Snapshot, err error) {
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		var n int64
		switch key {
		case "time", "memory_bytes", "disk_bytes":
			if n, err = strconv.ParseInt(value, 10, 64); err != nil || n < 0 {
				return s, fmt.Errorf("show-vm returned a snapshot with %s %q", key, value)
			}
		}
		switch key {
		case "name":
			s.Name = value
		case "time":
			s.CreatedAt = time.Unix(n, 0).UTC()
		case "parent":
			s.Parent = value
		case "memory":
			s.Memory = value == "yes"
		case "memory_bytes":
			s.MemoryBytes = n
		case "disk_bytes":
			s.DiskBytes = n
		case "current":
			s.Current = value == "yes"
		case "whole":
			s.Incomplete = value == "no"
		}
	}
	if !snapshotForm.MatchString(s.Name) || s.Parent != "" && !snapshotForm.MatchString(s.Parent) {
		return s, fmt.Errorf("show-vm returned an impossible snapshot: %q", line)
	}
	return s, nil
}
