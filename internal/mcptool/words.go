package mcptool

import "linus/internal/job"

// words are this face's names for the actions in errors and remedies: tools,
// and commands for the operator where there is no tool.
var words = job.Words{
	job.ListVMs:         "list_vms",
	job.ListPools:       "linus pool list",
	job.ShowJob:         "get_job_status",
	job.EnterVM:         "execute_command with vm_id",
	job.StartVM:         "start_vm",
	job.ResumeVM:        "resume_vm",
	job.DestroyVM:       "destroy_vm",
	job.ForgetVM:        "linus vm forget",
	job.BuildTemplate:   "linus template build",
	job.ListTemplates:   "linus template list",
	job.TrustHost:       "linus host trust",
	job.ProveHost:       "linus host test",
	job.ListVolumes:     "list_volumes",
	job.BuildCheckpoint: "linus template checkpoint build",
	job.ListCheckpoints: "linus template checkpoint list",
	job.TemplateName:    "--name",
	job.TemplateOS:      "--os",
	job.TemplateImage:   "--image",
	job.TemplateSHA256:  "--sha256",
	job.TemplateParts:   "--bootstrap",
}
