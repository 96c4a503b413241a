package web

import "linus/internal/job"

// words are this face's names for the actions in errors and remedies: pages,
// and commands for the operator where there is no page.
var words = job.Words{
	job.ListVMs:         "the page of VMs",
	job.ListPools:       "the page of pools",
	job.ShowJob:         "the job's page",
	job.EnterVM:         "linus vm ssh",
	job.StartVM:         "linus vm start",
	job.ResumeVM:        "linus vm resume",
	job.DestroyVM:       "linus vm destroy",
	job.ForgetVM:        "linus vm forget",
	job.BuildTemplate:   "linus template build",
	job.ListTemplates:   "linus template list",
	job.TrustHost:       "linus host trust",
	job.ProveHost:       "linus host test",
	job.ListVolumes:     "linus volume list",
	job.BuildCheckpoint: "linus template checkpoint build",
	job.ListCheckpoints: "linus template checkpoint list",
	job.TemplateName:    "--name",
	job.TemplateOS:      "--os",
	job.TemplateImage:   "--image",
	job.TemplateSHA256:  "--sha256",
	job.TemplateParts:   "--bootstrap",
}
