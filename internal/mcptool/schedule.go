package mcptool

import (
	"cmp"
	"context"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type scheduleInput struct {
	Action   string       `json:"action" jsonschema:"enum=list,enum=add,enum=remove"`
	Name     string       `json:"name,omitempty"`
	Cron     string       `json:"cron,omitempty" jsonschema_description:"Such as 0 3 * * 1-5, or @daily."`
	Timezone string       `json:"timezone,omitempty" jsonschema_description:"Such as Europe/Berlin; default UTC."`
	Overlap  job.Overlap  `json:"overlap,omitempty" jsonschema:"enum=skip,enum=queue,enum=replace" jsonschema_description:"While the last job runs. Default skip."`
	Missed   job.Missed   `json:"missed,omitempty" jsonschema:"enum=run-once,enum=skip"`
	Manifest job.Manifest `json:"manifest,omitzero" elsewhere:"true" jsonschema_description:"As in submit_job."`
}

func (in scheduleInput) check(bad *faults) {
	bad.required("action", in.Action, "give list, add or remove")
	if in.Action == "add" || in.Action == "remove" {
		bad.required("name", in.Name, "give the schedule's name")
	}
}

type scheduleOutput struct {
	Schedules []scheduled `json:"schedules" jsonschema_description:"All, or the one that was added or removed."`
}

type scheduled struct {
	Name     string      `json:"name"`
	Cron     string      `json:"cron"`
	Timezone string      `json:"timezone"`
	Status   string      `json:"status" jsonschema:"enum=active,enum=paused,enum=stopped"`
	Problem  string      `json:"problem,omitempty" jsonschema_description:"Why it is stopped."`
	Next     *time.Time  `json:"next_at,omitempty"`
	Overlap  job.Overlap `json:"overlap"`
	Missed   job.Missed  `json:"missed"`
	Owner    string      `json:"owner"`
	Task     string      `json:"task"`
	Runs     []job.Run   `json:"last_runs,omitempty" jsonschema_description:"The last 5, newest first: a job, or why not."`
}

// mostRuns bounds the listed runs of a schedule.
const mostRuns = 5

func (o Options) schedule() server.ServerTool {
	return defineCall("schedule", "Schedules",
		"List, add or remove schedules. Each submits a job at given times, as its creator. A removed one's jobs stay.",
		hints{destructive: true, openWorld: true},
		func(ctx context.Context, in scheduleInput, c call) (scheduleOutput, error) {
			var all []job.Schedule
			var one job.Schedule
			var err error
			switch in.Action {
			case "list":
				all, err = o.Engine.Schedules(ctx)
			case "add":
				given, _ := c.tree.(map[string]any)
				in.Manifest.AgentType = cmp.Or(in.Manifest.AgentType, job.AgentScript)
				if err = in.Manifest.Check(given["manifest"]); err == nil {
					one, err = o.Engine.CreateSchedule(ctx, job.ScheduleSpec{Name: in.Name, Cron: in.Cron, Timezone: in.Timezone, Overlap: in.Overlap, Missed: in.Missed, Manifest: in.Manifest})
				}
			default:
				one, err = o.Engine.RemoveSchedule(ctx, in.Name)
			}
			if in.Action != "list" {
				all = []job.Schedule{one}
			}
			return scheduleOutput{each(all, scheduledAs)}, err
		})
}

func scheduledAs(s job.Schedule) scheduled {
	return scheduled{
		Name: s.Name, Cron: s.Cron, Timezone: s.Timezone, Status: s.State(), Problem: s.Problem, Next: known(s.NextAt), Overlap: s.Overlap, Missed: s.Missed,
		Owner: cmp.Or(s.Principal, job.OperatorName), Task: job.Title(s.Manifest.Task), Runs: s.Runs[:min(len(s.Runs), mostRuns)],
	}
}
