package mcptool

import (
	"context"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type statusOutput struct {
	JobID         string     `json:"job_id"`
	Status        job.Status `json:"status" jsonschema:"enum=pending,enum=provisioning,enum=running,enum=success,enum=failed,enum=timeout"`
	Reason        job.Reason `json:"reason,omitempty" jsonschema_description:"Why the job ends or ended: exit_status, cancelled, killed, timeout, provision_failed, start_failed, lost or internal."`
	Phase         string     `json:"phase,omitempty" jsonschema_description:"provision, push, start, run, collect or destroy."`
	Progress      string     `json:"progress,omitempty" jsonschema_description:"What is happening now."`
	Error         string     `json:"error,omitempty"`
	CreatedAt     time.Time  `json:"created_at"`
	StartedAt     *time.Time `json:"started_at,omitempty"`
	CompletedAt   *time.Time `json:"completed_at,omitempty"`
	LastHeartbeat *time.Time `json:"last_heartbeat,omitempty"`
	VM            *vmOutput  `json:"vm,omitempty"`
}

type vmOutput struct {
	ID    int         `json:"id,omitempty" jsonschema_description:"Proxmox VM ID."`
	Node  string      `json:"node,omitempty"`
	IP    string      `json:"ip,omitempty"`
	State job.VMState `json:"state" jsonschema:"enum=intended,enum=created,enum=destroyed"`
}

func getJobStatus(e Engine) server.ServerTool {
	return define("get_job_status", "Job status",
		"Where a job stands: status, phase and what is happening, its VM, and why it ended. "+
			"Ask every few seconds; success, failed and timeout are final, then use get_job_result. Carries no output.",
		hints{readOnly: true, idempotent: true},
		func(ctx context.Context, in jobArg) (statusOutput, error) {
			if err := in.check(); err != nil {
				return statusOutput{}, err
			}
			j, err := e.Job(ctx, in.JobID)
			if err != nil {
				return statusOutput{}, err
			}
			out := statusOutput{
				JobID: j.ID, Status: j.Status, Phase: j.Phase, Progress: j.Progress, CreatedAt: j.CreatedAt,
				StartedAt: known(j.StartedAt), CompletedAt: known(j.CompletedAt), LastHeartbeat: known(j.LastHeartbeat),
			}
			if j.Outcome != nil {
				out.Reason, out.Error = j.Outcome.Reason, j.Outcome.Error
			}
			if j.VM != nil {
				out.VM = &vmOutput{ID: j.VM.ID, Node: j.VM.Node, IP: j.VM.IP, State: j.VM.State}
			}
			return out, nil
		})
}

// known is nil for a time that has not come.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
