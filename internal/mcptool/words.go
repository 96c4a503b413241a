package mcptool

import "linus/internal/job"

// words are this face's names for the actions in errors and remedies. The others
// are commands for the operator, for which there is no tool.
var words = job.Words{
	job.ListVMs:     "list_vms",
	job.ShowJob:     "get_job_status",
	job.EnterVM:     "execute_command with vm_id",
	job.StartVM:     "start_vm",
	job.ResumeVM:    "resume_vm",
	job.DestroyVM:   "destroy_vm",
	job.ListVolumes: "list_volumes",
}
