package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// asks is a request for a job, a VM or a disk.
type asks struct {
	vm        bool   // else a job
	disk      string // a volume, checkpoint or saved template, of which only the disk counts; empty: a job or a VM
	shares    bool   // the job asks for no VM of its own
	principal string
	at        time.Time
	size      int64 // bytes taken until it is done, besides what it writes
	resources vm.Resources
}

// within returns a *job.FieldError if a job or VM that is about to be inserted in the transaction
// would exceed its principal's limits. Each principal's requests are counted one at a time, on all
// engines, so that two at once do not both take the last place. A job that has ended does not
// count, but its VM does until it is gone or forgotten.
func (s *Store) within(ctx context.Context, tx *tx, a asks, l job.Limits) error {
	if l == (job.Limits{}) || a.principal == "" {
		return nil
	}
	if err := setMeta(ctx, tx, "counted/"+a.principal, ""); err != nil { // locks the row until the transaction ends
		return err
	}
	const of = `principal <> '' AND principal = ?`
	if a.disk != "" { // it takes nothing else
		l = job.Limits{DiskMB: l.DiskMB}
	}
	if l.Jobs > 0 && !a.vm {
		n, err := first[int](ctx, tx, `SELECT count(*) FROM jobs WHERE `+of+` AND `+stillOpen+` AND done = 0 AND status IN ('pending', 'provisioning', 'running')`, a.principal)
		if err != nil {
			return err
		}
		if n >= l.Jobs {
			return a.over("jobs", l.Jobs, n, 1, "unfinished jobs", "wait for one to end, or cancel one")
		}
	}
	if l.PerHour > 0 {
		hour := idAt(a.at.Add(-time.Hour))
		n, err := first[int](ctx, tx, `SELECT count(*) FROM jobs WHERE `+of+` AND id > ?`, a.principal, hour)
		if err != nil {
			return err
		}
		vms, err := first[int](ctx, tx, `SELECT count(*) FROM vms WHERE `+of+` AND id > ?`, a.principal, hour)
		if err != nil {
			return err
		}
		given, err := first[int](ctx, tx, `SELECT count(*) FROM vms WHERE `+of+` AND id <= ? AND EXISTS (SELECT 1 FROM vm_events WHERE vm_id = vms.id AND kind = ? AND text = ? AND at > ?)`,
			a.principal, hour, job.EventStatus, string(job.Pending), timeText(a.at.Add(-time.Hour))) // older VMs of pools, given away within the hour
		if err != nil {
			return err
		}
		if n += vms + given; n >= l.PerHour {
			over := a.over("jobs_per_hour", l.PerHour, n, 1, "jobs and VMs within an hour", "ask for it later")
			over.Limit.Window = time.Hour
			if over.Limit.Room, err = s.roomIn(ctx, tx, a, hour, n-l.PerHour); err != nil {
				return err
			}
			return over
		}
	}
	if l.StoredMB > 0 && !a.vm {
		n, err := first[int64](ctx, tx, `SELECT CAST(coalesce(sum(stored), 0) AS bigint) FROM jobs WHERE `+of, a.principal)
		if err != nil {
			return err
		}
		if has, next := mebibytes(n), mebibytes(a.size); has+next > l.StoredMB {
			return a.over("stored_mb", l.StoredMB, has, next, "MiB stored of its jobs", "send less, wait until older jobs are removed (RETENTION_DAYS), or ask an admin to remove them")
		}
	}
	if l.VMs == 0 && l.MemoryMB == 0 && l.DiskMB == 0 || a.shares {
		return nil
	}
	jobs, err := s.jobs(ctx, tx, `jobs.principal <> '' AND `+stillOpen+` AND jobs.principal = ?`, a.principal)
	if err != nil {
		return err
	}
	asked, err := vms(ctx, tx, of+` AND `+there, a.principal)
	if err != nil {
		return err
	}
	n, memory, disks := 0, 0, job.Disks{}
	for _, v := range asked {
		if v.Checkpoint == nil {
			jobs = append(jobs, job.StandInJob(v))
		} else if v.Checkpoint.Asked {
			disks.Add(job.Disk(job.KindCheckpoint, job.CheckpointMB(v.Resources)))
		}
	}
	for _, j := range jobs {
		disks.Add(j)
		if j.WantsVM() {
			n++
			memory += job.SizeMB(j.Manifest.Resources.Memory)
		}
	}
	volumes, err := query(ctx, tx, scanDoc[vm.Volume], `SELECT doc FROM volumes WHERE `+of, a.principal)
	if err != nil {
		return err
	}
	for _, v := range volumes {
		disks.Add(job.Disk(job.KindVolume, v.SizeGB<<10))
	}
	saved, err := query(ctx, tx, scanDoc[vm.SavedTemplate], savedTemplates)
	if err != nil {
		return err
	}
	for _, t := range saved {
		if t.Principal == a.principal {
			disks.Add(job.Disk(job.KindSaved, t.DiskMB))
		}
	}
	const remedy = "wait for a job to end, cancel one, or destroy a VM"
	asksMemory, asksDisk := job.SizeMB(a.resources.Memory), job.SizeMB(a.resources.Disk)
	switch {
	case l.VMs > 0 && n >= l.VMs:
		return a.over("vms", l.VMs, n, 1, "VMs", remedy)
	case l.MemoryMB > 0 && memory+asksMemory > l.MemoryMB:
		return a.over("memory_mb", l.MemoryMB, memory, asksMemory, "MiB of memory of VMs", remedy+"; or ask for less")
	case l.DiskMB > 0 && disks.Sum()+asksDisk > l.DiskMB:
		e := a.over("disk_mb", l.DiskMB, disks.Sum(), asksDisk, "MiB of disk", remedy+disks.Removes()+"; or ask for less")
		if has := disks.String(); has != "" {
			e.Problem = strings.Replace(e.Problem, " are in use", " are in use ("+has+")", 1)
		}
		return e
	}
	return nil
}

// roomIn returns how long it takes until the next request is allowed: of the jobs and VMs since
// hour, excess are too many already.
func (s *Store) roomIn(ctx context.Context, tx *tx, a asks, hour string, excess int) (time.Duration, error) {
	const since = `principal <> '' AND principal = ? AND id > ?`
	id, err := first[string](ctx, tx, `SELECT id FROM (SELECT id FROM jobs WHERE `+since+` UNION ALL SELECT id FROM vms WHERE `+since+`) AS asked ORDER BY id LIMIT 1 OFFSET ?`,
		a.principal, hour, a.principal, hour, excess)
	if errors.Is(err, job.ErrNotFound) { // the next one was a pool's, and its ID does not say
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	of, err := uuid.Parse(id)
	if err != nil || of.Version() != 7 {
		return 0, nil //nolint:nilerr // it does not say when it was asked for
	}
	at := time.Unix(of.Time().UnixTime())
	return max(0, at.Add(time.Hour).Sub(a.at)), nil
}

func (a asks) over(limit string, most, has, next int, of, remedy string) *job.FieldError {
	what, field := "job", "manifest"
	if a.vm {
		what = "VM"
	}
	if a.disk != "" {
		what, field = a.disk, "size"
	}
	e := &job.FieldError{
		Field:   field,
		Problem: fmt.Sprintf("limit %s of this token is %d %s; %d are in use, and this %s asks for %d", limit, most, of, has, what, next),
		Remedy:  remedy,
		Fault:   job.FaultLimit,
		Limit:   &job.Limit{Name: limit, Most: most},
	}
	if next > most { // there is never room
		e.Fault, e.Remedy = "", "ask for less"
	}
	return e
}

// mebibytes converts bytes to MiB, rounding up.
func mebibytes(n int64) int { return int((n + 1<<20 - 1) >> 20) }
