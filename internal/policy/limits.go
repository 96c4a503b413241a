package policy

import (
	"fmt"

	"linus/internal/job"
)

// Limits bound what the jobs of one client may take at the same time. Zero is
// no limit. Every client has the same ones, and all of them for itself.
type Limits struct {
	Jobs     int // jobs that have not ended, and VMs that are kept
	CPU      int // cores of their VMs together
	MemoryMB int // memory of their VMs together, MiB
	Seconds  int // the longest timeout a job may have
}

// Check says whether a client that has these jobs (those that have not ended, and
// those whose VM is not gone) may have one more; nil, or a *job.FieldError that
// names the rule. Defaults are filled in. A job in a VM that exists takes no
// resources: they count for the job that made the VM, until that is gone. A job
// that has ended is none any more: its result is out.
func (l Limits) Check(has []job.Job, next job.Manifest) error {
	open, kept, cpu, memory := 0, 0, 0, int64(0)
	for _, j := range has {
		switch {
		case !j.Status.Terminal():
			open++
		case j.KeepsVM():
			kept++
		}
		c, mb := takes(j.Manifest)
		cpu, memory = cpu+c, memory+mb
	}
	cores, asked := takes(next)
	switch {
	case l.Jobs > 0 && open+kept >= l.Jobs:
		e := &job.FieldError{
			Field:   "manifest",
			Problem: fmt.Sprintf("LIMIT_JOBS allows a client %d jobs at the same time, and %s not ended", l.Jobs, count(open, "has", "have")),
			Remedy:  "wait for one to end, or cancel one",
		}
		if kept > 0 {
			e.Problem += fmt.Sprintf(", %s kept", count(kept, "VM is", "VMs are"))
			e.Remedy += ", or destroy a VM"
		}
		return e
	case l.CPU > 0 && cores > 0 && cpu+cores > l.CPU:
		return over("cpu", "LIMIT_CPU", int64(l.CPU), int64(cpu), int64(cores), "cores")
	case l.MemoryMB > 0 && asked > 0 && memory+asked > int64(l.MemoryMB):
		return over("memory", "LIMIT_MEMORY", int64(l.MemoryMB), memory, asked, "MiB")
	case l.Seconds > 0 && next.Timeout > l.Seconds:
		return &job.FieldError{
			Field:   "manifest.timeout",
			Problem: fmt.Sprintf("LIMIT_SECONDS allows a job %d seconds, this one asks for %d", l.Seconds, next.Timeout),
			Remedy:  "give a smaller timeout",
		}
	}
	return nil
}

// count says how many there are of what is called one or many.
func count(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// over is the refusal of a sum that would be too large.
func over(resource, rule string, limit, taken, asked int64, unit string) error {
	remedy := fmt.Sprintf("ask for at most %d, or wait for a job to end", limit-taken)
	if taken >= limit {
		remedy = "wait for a job to end, or cancel one"
	}
	return &job.FieldError{
		Field:   "manifest.resources." + resource,
		Problem: fmt.Sprintf("%s allows a client %d %s at the same time; %d are taken, this job asks for %d", rule, limit, unit, taken, asked),
		Remedy:  remedy,
	}
}

// takes is what a job's own VM needs: cores, and MiB of memory.
func takes(m job.Manifest) (cpu int, memory int64) {
	if m.VM != "" {
		return 0, 0
	}
	return m.Resources.CPU, megabytes(m.Resources.Memory)
}

// megabytes reads a manifest's size, rounded up; 0 for none. Manifests are
// validated before they get here.
func megabytes(size string) int64 {
	n, err := job.ParseSize(size)
	if err != nil {
		return 0
	}
	return (n + 1<<20 - 1) >> 20
}
