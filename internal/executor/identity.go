package executor

import (
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// pinned returns an error if a VM is identified only by its address. It gets no secrets
// then: whatever answers there would receive them.
func pinned(v vm.VM) error {
	if v.HostKey != "" {
		return nil
	}
	return &job.FieldError{
		Field:   "manifest.secrets",
		Problem: fmt.Sprintf("VM %d (%s) gets none: its SSH host key was not read through the hypervisor, and whatever answers at %s would have them", v.ID, v.Name, v.IP),
		Remedy:  "use a template whose guest agent responds (" + string(job.BuildTemplate) + " makes one), or run the job without secrets",
	}
}
