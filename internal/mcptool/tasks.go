package mcptool

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/job"
	"linus/internal/mcptask"
)

// taskTools are the tools that begin a task for a client that declares tasks. A task is a job and
// has its ID, so it outlives this process, and each engine knows it. Creating a VM is a job, too.
var taskTools = []string{"submit_job", "execute_command", "provision_vm"} //nolint:gochecknoglobals // a list

// jobTasks presents jobs as tasks.
type jobTasks struct {
	Options

	looks *job.Looks[subject, mcptask.Task]
}

// find returns the job of a task. A job that the caller may not see is not found.
func (s jobTasks) find(ctx context.Context, id string) (job.Job, error) {
	if err := refusalOfAny(ctx, append([]string{"get_job_status"}, taskTools...)); err != nil {
		return job.Job{}, err
	}
	j, err := s.Engine.Job(ctx, id)
	if p, ok := job.PrincipalFrom(ctx); errors.Is(err, job.ErrNotFound) || ok && p.Ended() { // a stream may outlive its token
		return j, mcptask.ErrNotFound
	}
	return j, err
}

// Task returns a job as a task.
func (s jobTasks) Task(ctx context.Context, id string) (mcptask.Task, error) {
	j, err := s.find(ctx, id)
	if err != nil {
		return mcptask.Task{}, err
	}
	t := s.task(j)
	if t.Status == mcptask.Completed {
		t.Result, err = s.ended(ctx, j)
	}
	return t, err
}

// Look is Task, or its answer to the same principal and token if that is not older than age.
func (s jobTasks) Look(ctx context.Context, id string, age time.Duration) (mcptask.Task, error) {
	p, ok := job.PrincipalFrom(ctx)
	if ok && p.Ended() {
		return mcptask.Task{}, mcptask.ErrNotFound
	}
	return s.looks.Do(ctx, subject{id, p.Name, p.Token}, age, func(ctx context.Context) (mcptask.Task, error) { return s.Task(ctx, id) })
}

// Update ignores answers: jobs ask no questions.
func (s jobTasks) Update(ctx context.Context, id string, _ mcp.InputResponses) error {
	_, err := s.find(ctx, id)
	return err
}

// Cancel cancels a job, unless destructive tools are disabled.
func (s jobTasks) Cancel(ctx context.Context, id string) error {
	_, err := s.find(ctx, id)
	if err == nil && s.DisableDestructive {
		err = errors.New("clients of this server cannot end anything (MCP_DISABLE_DESTRUCTIVE): wait until the task is over")
	}
	if err != nil {
		return err
	}
	err = s.Engine.Cancel(job.WithClient(ctx, clientName(ctx)), id)
	if errors.Is(err, job.ErrCompleted) {
		return nil
	}
	return err
}

// Bounds of the recommended poll interval, which is a tenth of a task's age.
const (
	leastPoll = 500 * time.Millisecond
	mostPoll  = 10 * time.Second
)

// task returns a job's task without its result.
func (o Options) task(j job.Job) mcptask.Task {
	t := mcptask.Task{
		ID: j.ID, Status: mcptask.Working, Message: statusLine(j), CreatedAt: j.CreatedAt.UTC(), UpdatedAt: slices.MaxFunc([]time.Time{j.CreatedAt, j.StartedAt, j.CompletedAt}, time.Time.Compare).UTC(),
		Poll: min(max(time.Since(j.CreatedAt)/10, leastPoll), mostPoll).Milliseconds(),
	}
	if !j.Status.Terminal() {
		return t
	}
	t.Status, t.Message = mcptask.Completed, string(j.Status)
	if text := words.In(j.ErrorText()); text != "" {
		t.Message += ": " + text
	}
	if j.Outcome.Reason == job.ReasonCancelled {
		t.Status = mcptask.Cancelled
	}
	if o.Retention > 0 {
		ttl := j.CompletedAt.Add(o.Retention).Sub(j.CreatedAt).Milliseconds()
		t.TTL = &ttl
	}
	return t
}

// ended returns what the call that began a task would have returned at its end.
func (s jobTasks) ended(ctx context.Context, j job.Job) (*mcp.CallToolResult, error) {
	var out any
	var err error
	if j.Kind == job.KindMake {
		out, err = s.provisioned(j)
	} else {
		started := startedOutput{waitedOutput: &waitedOutput{}}
		j, *started.waitedOutput, err = waitedOf(ctx, s.Engine, j)
		started.JobID, started.Status = j.ID, j.Status
		out = started
	}
	result := mcp.NewToolResultError("")
	if err == nil {
		result, err = structured(out)
	} else if j.Kind == job.KindMake { // why the VM could not be created
		result, err = mcp.NewToolResultError(errorText(err)), nil
	}
	result.ResultType = mcp.ResultTypeComplete
	return result, err
}

// begunError carries the task of a call that continues as a task.
type begunError struct{ task mcptask.Task }

func (e *begunError) Error() string { return "the call continues as task " + e.task.ID }

// asTask returns a begunError for a submitted job if the client declares tasks. With a wait of 0, a
// client gets the job's ID like any other: it wants to do something else while the job runs.
func (o Options) asTask(ctx context.Context, j job.Job, wait *int) error {
	if !mcptask.Declared(ctx) || wait != nil && *wait == 0 {
		return nil
	}
	return &begunError{o.task(j)}
}
