package main

import "linus/internal/job"

// words are the command line's names for the actions that errors and remedies
// mention.
var words = job.Words{
	job.ListVMs:         "linus vm list",
	job.ListPools:       "linus pool list",
	job.ShowJob:         "linus job status",
	job.EnterVM:         "linus vm ssh",
	job.StartVM:         "linus vm start",
	job.ResumeVM:        "linus vm resume",
	job.DestroyVM:       "linus vm destroy",
	job.ForgetVM:        "linus vm forget",
	job.BuildTemplate:   "linus template build",
	job.ListTemplates:   "linus template list",
	job.ListVolumes:     "linus volume list",
	job.BuildCheckpoint: "linus template checkpoint build",
	job.ListCheckpoints: "linus template checkpoint list",
	job.TrustHost:       "linus host trust",
	job.ProveHost:       "linus host test",
	job.TemplateName:    "--name",
	job.TemplateOS:      "--os",
	job.TemplateImage:   "--image",
	job.TemplateSHA256:  "--sha256",
	job.TemplateParts:   "--bootstrap",
}
