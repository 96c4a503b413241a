package web

import "linus/internal/job"

// words are the pages' names for the actions in errors and remedies. All other actions are commands
// for the operator, for which there is no page.
var words = job.Words{
	job.ListVMs:   "the page of VMs",
	job.ListPools: "the page of pools",
	job.ShowJob:   "the job's page",
}
