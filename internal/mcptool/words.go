package mcptool

import "linus/internal/job"

// words are MCP's names for the actions in errors and remedies. The other actions are named as
// commands for the operator, since there is no tool for them.
var words = job.Words{
	job.ListVMs:     "list_vms",
	job.ShowJob:     "get_job_status",
	job.EnterVM:     "execute_command with vm_id",
	job.StartVM:     "start_vm",
	job.ResumeVM:    "resume_vm",
	job.DestroyVM:   "destroy_vm",
	job.ListVolumes: "list_volumes",
}
