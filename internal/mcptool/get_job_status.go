package mcptool

import (
	"context"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/vm"
)

type statusInput struct {
	JobID string `json:"job_id" jsonschema_description:"The job's ID."`
	Wait  *int   `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Seconds to wait for the job to finish, 0 to 45. Default 0."`
}

type statusOutput struct {
	JobID         string     `json:"job_id"`
	Status        job.Status `json:"status" jsonschema:"enum=@statuses"`
	Reason        job.Reason `json:"reason,omitempty" jsonschema_description:"Why the job ends or ended: exit_status, cancelled, killed, timeout, provision_failed, start_failed, lost or internal."`
	Phase         string     `json:"phase,omitempty" jsonschema_description:"provision, push, start, run, collect or destroy."`
	Progress      string     `json:"progress,omitempty" jsonschema_description:"What is happening now."`
	Error         string     `json:"error,omitempty"`
	CreatedAt     time.Time  `json:"created_at"`
	StartedAt     *time.Time `json:"started_at,omitempty"`
	CompletedAt   *time.Time `json:"completed_at,omitempty"`
	LastHeartbeat *time.Time `json:"last_heartbeat,omitempty"`
	VM            *jobVM     `json:"vm,omitempty"`
	RetriedAs     string     `json:"retried_as,omitempty"`
	Webhooks      []webhook  `json:"webhooks,omitempty"`

	ArtifactsSkipped      []job.SkippedArtifact `json:"artifacts_skipped,omitempty" jsonschema_description:"As in get_job_result."`
	ArtifactsSkippedCount int                   `json:"artifacts_skipped_count,omitempty"`
}

// webhook is a job.Delivery: the receiver's host, and how the last attempt went.
type webhook struct {
	To       string            `json:"to,omitempty"`
	State    job.DeliveryState `json:"state" jsonschema:"enum=pending,enum=delivered,enum=given_up"`
	Attempts int               `json:"attempts"`
	Error    string            `json:"error,omitempty"`
	At       time.Time         `json:"at"`
}

type jobVM struct {
	ID     int       `json:"id,omitempty" jsonschema_description:"Proxmox VM ID."`
	Name   string    `json:"name,omitempty"`
	Node   string    `json:"node,omitempty"`
	IP     string    `json:"ip,omitempty"`
	Source vm.Source `json:"source,omitempty" jsonschema:"enum=cold,enum=pool,enum=hibernated" jsonschema_description:"cold: created for the job. pool or hibernated: a pool's, which was ready."`
	Egress vm.Egress `json:"egress,omitempty"`
	State  vm.State  `json:"state" jsonschema:"enum=intended,enum=created,enum=destroyed,enum=released,enum=left_alone,enum=forgotten"`
}

func getJobStatus(e job.Engine) server.ServerTool {
	return defineCall("get_job_status", "Job status",
		"A job's status, phase and progress, its VM, and why it ended. Contains no output. "+
			"success, failed and timeout are final, then use get_job_result. With wait_seconds it returns when the job finishes or the time is up.",
		hints{readOnly: true, idempotent: true},
		func(ctx context.Context, in statusInput, c call) (statusOutput, error) {
			wait, err := waitFor(in.JobID, in.Wait)
			if err != nil {
				return statusOutput{}, err
			}
			j, err := follow(ctx, e, c, in.JobID, wait)
			if err != nil {
				return statusOutput{}, err
			}
			return statusOf(j), nil
		})
}

func statusOf(j job.Job) statusOutput {
	out := statusOutput{
		JobID: j.ID, Status: j.Status, Phase: j.Phase, Progress: j.Progress, CreatedAt: j.CreatedAt,
		StartedAt: known(j.StartedAt), CompletedAt: known(j.CompletedAt), LastHeartbeat: known(j.LastHeartbeat),
		ArtifactsSkipped: j.ArtifactsSkipped, ArtifactsSkippedCount: j.ArtifactsSkippedCount,
		RetriedAs: j.RetriedAs,
	}
	if j.Outcome != nil {
		out.Reason, out.Error = j.Outcome.Reason, j.Outcome.Error
	}
	for _, d := range j.Webhooks {
		out.Webhooks = append(out.Webhooks, webhook{d.To, d.State, d.Attempts, d.Error, d.At})
	}
	if j.VM != nil {
		out.VM = &jobVM{ID: j.VM.ID, Name: j.VM.Name, Node: j.VM.Node, IP: j.VM.IP, Source: j.VM.Source, State: j.VM.State}
		if j.Manifest.Network.Limited() {
			out.VM.Egress = j.Manifest.Network.Egress
		}
	}
	return out
}

// waitFor checks the arguments of a tool that waits for a job.
func waitFor(id string, seconds *int) (time.Duration, error) {
	if err := (jobArg{id}).check(); err != nil {
		return 0, err
	}
	return waitTime(seconds)
}

// waitTime checks the argument wait_seconds of a tool that by default does not wait.
func waitTime(seconds *int) (time.Duration, error) {
	var bad faults
	n := bad.number("wait_seconds", seconds, 0, 0, mostWait)
	return time.Duration(n) * time.Second, bad.err()
}

// known returns nil for a time that is not set.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
