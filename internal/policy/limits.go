package policy

import (
	"fmt"

	"linus/internal/job"
)

// Limits bound what the jobs of one client may use at the same time; zero means no limit. Every
// client has the same limits, counted separately.
type Limits struct {
	Jobs     int // unfinished jobs and persistent VMs
	CPU      int // cores of their VMs together
	MemoryMB int // memory of their VMs together, MiB
	DiskMB   int // their VMs' disks, as they may grow, and other disks, MiB
	Seconds  int // the longest timeout of a job
}

// Check checks whether a client that has these jobs (unfinished ones, and those whose VM is not
// gone) may have one more. It returns nil, or a *job.FieldError that names the rule. Defaults must
// be filled in. A job in an existing VM uses no resources: they count for the job that created the
// VM, until the VM is gone. Neither does a parent, whose children have the VMs. A job that has
// ended no longer counts as a job, since its result is available.
func (l Limits) Check(has []job.Job, next job.Manifest) error {
	open, kept, in, disks := 0, 0, needs{}, job.Disks{}
	for _, j := range has {
		switch {
		case !j.Status.Terminal():
			open++
		case j.Keeps():
			kept++
		}
		n := takes(j.Manifest)
		in.cpu, in.memory = in.cpu+n.cpu, in.memory+n.memory
		disks.Add(j)
	}
	asks := takes(next)
	switch {
	case l.Jobs > 0 && open+kept >= l.Jobs && next.AgentType != "": // else it is a separate disk
		e := &job.FieldError{
			Field:   "manifest",
			Problem: fmt.Sprintf("LIMIT_JOBS allows a client %d jobs at the same time, and %s unfinished", l.Jobs, count(open, "is", "are")),
			Remedy:  "wait for one to finish, or cancel one",
			Fault:   job.FaultLimit,
		}
		if kept > 0 {
			e.Problem += fmt.Sprintf(", %s", count(kept, "VM is persistent", "VMs are persistent"))
			e.Remedy += ", or destroy a VM"
		}
		return e
	case l.CPU > 0 && asks.cpu > 0 && in.cpu+asks.cpu > l.CPU:
		return over("cpu", "LIMIT_CPU", l.CPU, in.cpu, asks.cpu, "cores", "")
	case l.MemoryMB > 0 && asks.memory > 0 && in.memory+asks.memory > l.MemoryMB:
		return over("memory", "LIMIT_MEMORY", l.MemoryMB, in.memory, asks.memory, "MiB", "")
	case l.DiskMB > 0 && asks.disk > 0 && disks.Sum()+asks.disk > l.DiskMB:
		err := over("disk", "LIMIT_DISK", l.DiskMB, disks.Sum(), asks.disk, "MiB", disks.String())
		err.Remedy += disks.Removes()
		return err
	case l.Seconds > 0 && next.Timeout > l.Seconds:
		return &job.FieldError{
			Field:   "manifest.timeout",
			Problem: fmt.Sprintf("LIMIT_SECONDS allows a job %d seconds, this one asks for %d", l.Seconds, next.Timeout),
			Remedy:  "give a smaller timeout",
		}
	}
	return nil
}

// count returns n and its noun.
func count(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// over returns the error for a sum that would be too large; parts describes its parts.
func over(resource, rule string, limit, taken, asked int, unit, parts string) *job.FieldError {
	if parts != "" {
		parts = " (" + parts + ")"
	}
	remedy := fmt.Sprintf("ask for at most %d, or wait for a job to finish", limit-taken)
	if taken >= limit {
		remedy = "wait for a job to finish, or cancel one"
	}
	e := &job.FieldError{
		Field:   "manifest.resources." + resource,
		Problem: fmt.Sprintf("%s allows a client %d %s at the same time; %d are in use%s, this asks for %d", rule, limit, unit, taken, parts, asked),
		Remedy:  remedy,
		Fault:   job.FaultLimit,
	}
	if asked > limit { // there is never room
		e.Fault, e.Remedy = "", fmt.Sprintf("ask for at most %d", limit)
	}
	return e
}

// needs are what a VM takes: cores, and MiB of memory and disk.
type needs struct{ cpu, memory, disk int }

func takes(m job.Manifest) needs {
	if m.VM != "" || m.FansOut() {
		return needs{}
	}
	return needs{m.Resources.CPU, job.SizeMB(m.Resources.Memory), job.SizeMB(m.Resources.Disk)}
}
