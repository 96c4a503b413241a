package mcptool

import (
	"context"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Bounds of limit.
const (
	defaultPage = 50
	mostPage    = 200
)

type listInput struct {
	Status job.Status `json:"status,omitempty" jsonschema:"enum=@statuses" jsonschema_description:"Only jobs of this status. Default: all."`
	Limit  *int       `json:"limit,omitempty" jsonschema:"minimum=1,maximum=200" jsonschema_description:"Jobs per page, 1 to 200. Default 50."`
	Cursor string     `json:"cursor,omitempty" jsonschema_description:"next_cursor of the previous page. Default: the first page."`
}

type listOutput struct {
	Jobs []listedJob `json:"jobs"`
	Next string      `json:"next_cursor,omitempty" jsonschema_description:"Pass it as cursor to get the next page; absent on the last one."`
}

type listedJob struct {
	JobID     string     `json:"job_id"`
	Status    job.Status `json:"status"`
	Phase     string     `json:"phase,omitempty" jsonschema_description:"Current phase: provision, push, start, run, collect or destroy."`
	Task      string     `json:"task" jsonschema_description:"The task's first 100 characters."`
	Client    string     `json:"client,omitempty" jsonschema_description:"Who submitted it: cli, web or mcp:NAME."`
	VM        *jobVM     `json:"vm,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
}

func listJobs(e job.Engine) server.ServerTool {
	return define("list_jobs", "List jobs",
		"Jobs, newest first, in pages. get_job_status follows one.",
		hints{readOnly: true, idempotent: true},
		func(ctx context.Context, in listInput) (listOutput, error) {
			var bad faults
			bad.word("status", string(in.Status), "pending", "provisioning", "running", "success", "failed", "timeout")
			limit := bad.number("limit", in.Limit, defaultPage, 1, mostPage)
			if err := bad.err(); err != nil {
				return listOutput{}, err
			}
			page, err := e.List(ctx, job.Filter{Status: in.Status, Limit: limit, Cursor: in.Cursor})
			if err != nil {
				return listOutput{}, err
			}
			out := listOutput{Jobs: make([]listedJob, len(page.Jobs)), Next: page.Next}
			for i, j := range page.Jobs {
				out.Jobs[i] = listedJob{JobID: j.ID, Status: j.Status, Phase: j.Phase, Task: j.Task, Client: j.Client, CreatedAt: j.CreatedAt}
				if j.VM != nil {
					out.Jobs[i].VM = &jobVM{ID: j.VM.ID, Name: j.VM.Name, Node: j.VM.Node, State: j.VM.State}
				}
			}
			return out, nil
		})
}
