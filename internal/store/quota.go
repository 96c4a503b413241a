package store

import (
	"context"
	"fmt"
	"time"

	"linus/internal/job"
)

// within returns a *job.FieldError if a job, of size bytes, that is about to be inserted in
// the transaction would exceed what its principal may have. Principals are counted in turn,
// on all engines, so that two jobs at once do not both take the last place. A job that has
// ended does not count, but its VM does until it is gone or forgotten.
func (s *Store) within(ctx context.Context, tx *tx, j job.Job, size int64, l job.Limits) error {
	if l == (job.Limits{}) || j.Principal == "" {
		return nil
	}
	if err := setMeta(ctx, tx, "counted/"+j.Principal, ""); err != nil { // locks the row until the transaction's end
		return err
	}
	const of = `principal <> '' AND principal = ?`
	if l.Jobs > 0 {
		n, err := first[int](ctx, tx, `SELECT count(*) FROM jobs WHERE `+of+` AND `+stillOpen+` AND done = 0 AND status IN ('pending', 'provisioning', 'running')`, j.Principal)
		if err != nil {
			return err
		}
		if n >= l.Jobs {
			return overQuota("jobs", l.Jobs, n, 1, "unfinished jobs", "wait for one to end, or cancel one")
		}
	}
	if l.PerHour > 0 {
		n, err := first[int](ctx, tx, `SELECT count(*) FROM jobs WHERE `+of+` AND id > ?`, j.Principal, idAt(j.CreatedAt.Add(-time.Hour)))
		if err != nil {
			return err
		}
		if n >= l.PerHour {
			return overQuota("jobs_per_hour", l.PerHour, n, 1, "jobs within an hour", "submit it later")
		}
	}
	if l.StoredMB > 0 {
		n, err := first[int64](ctx, tx, `SELECT CAST(coalesce(sum(stored), 0) AS bigint) FROM jobs WHERE `+of, j.Principal)
		if err != nil {
			return err
		}
		if has, asks := mebibytes(n), mebibytes(size); has+asks > l.StoredMB {
			return overQuota("stored_mb", l.StoredMB, has, asks, "MiB stored of its jobs", "send less, wait until older jobs are removed (RETENTION_DAYS), or ask an admin to remove them")
		}
	}
	if l.VMs == 0 && l.MemoryMB == 0 && l.DiskMB == 0 || j.Shares() {
		return nil
	}
	has, err := s.jobs(ctx, tx, `jobs.principal <> '' AND `+stillOpen+` AND jobs.principal = ?`, j.Principal)
	if err != nil {
		return err
	}
	vms, memory, disk := 0, 0, 0
	for _, o := range has {
		if !o.Shares() {
			vms++
			memory += job.SizeMB(o.Manifest.Resources.Memory)
			disk += job.SizeMB(o.Manifest.Resources.Disk)
		}
	}
	const remedy = "wait for a job to end, cancel one, or destroy a VM"
	asks, asksDisk := job.SizeMB(j.Manifest.Resources.Memory), job.SizeMB(j.Manifest.Resources.Disk)
	switch {
	case l.VMs > 0 && vms >= l.VMs:
		return overQuota("vms", l.VMs, vms, 1, "VMs", remedy)
	case l.MemoryMB > 0 && memory+asks > l.MemoryMB:
		return overQuota("memory_mb", l.MemoryMB, memory, asks, "MiB of memory of VMs", remedy+"; or ask for less")
	case l.DiskMB > 0 && disk+asksDisk > l.DiskMB:
		return overQuota("disk_mb", l.DiskMB, disk, asksDisk, "MiB of disks of VMs", remedy+"; or ask for less")
	}
	return nil
}

func overQuota(limit string, most, has, asks int, of, remedy string) error {
	return &job.FieldError{
		Field:   "manifest",
		Problem: fmt.Sprintf("limit %s of this token is %d %s; %d are in use, and this job asks for %d", limit, most, of, has, asks),
		Remedy:  remedy,
	}
}

// mebibytes rounds up.
func mebibytes(n int64) int { return int((n + 1<<20 - 1) >> 20) }
