package policy

import (
	"fmt"

	"linus/internal/job"
)

// Limits bound what the jobs of one client may take at the same time. Zero is
// no limit. Every client has the same ones, and all of them for itself.
type Limits struct {
	Jobs     int // jobs that have not ended
	CPU      int // cores of their VMs together
	MemoryMB int // memory of their VMs together, MiB
	Seconds  int // the longest timeout a job may have
}

// Check says whether a client whose jobs (those that have not ended, and those
// whose VM is kept) have the manifests running may have one more; nil, or a
// *job.FieldError that names the rule. Defaults are filled in. A job in a VM
// that exists takes no resources: they count for the job that made the VM.
func (l Limits) Check(running []job.Manifest, next job.Manifest) error {
	cpu, memory := 0, int64(0)
	for _, m := range running {
		c, mb := takes(m)
		cpu, memory = cpu+c, memory+mb
	}
	cores, asked := takes(next)
	switch {
	case l.Jobs > 0 && len(running) >= l.Jobs:
		return &job.FieldError{
			Field:   "manifest",
			Problem: fmt.Sprintf("LIMIT_JOBS allows a client %d jobs at the same time, and %d have not ended", l.Jobs, len(running)),
			Remedy:  "wait for one to end, or cancel one",
		}
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
