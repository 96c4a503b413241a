// Package job is the domain: jobs, their manifests and results, the allowed transitions between
// statuses, and the errors callers can meet. It knows nothing of SSH, Proxmox, MCP or storage.
package job

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode"

	"linus/internal/vm"
)

// Job is everything known about one job. Times are UTC; a zero time means "not yet".
type Job struct {
	ID       string   `json:"job_id" api:"id"` // UUID, version 7: sorts by creation
	Kind     Kind     `json:"kind"`
	Client   string   `json:"client,omitempty"` // who submitted it, e.g. "cli" or "mcp:claude-code"
	Manifest Manifest `json:"manifest"`

	// Task and Labels are set in list items. Offered sets both.

	Task   string            `json:"-" api:"task"`   // its first 100 characters
	Labels map[string]string `json:"-" api:"labels"` // as in the manifest

	// Principal is the name of the job's owner; empty: the operator.
	Principal string `json:"principal,omitempty"`
	TokenID   string `json:"token_id,omitempty"` // of the token it was submitted with; empty: none

	// Session is the piece of work of a queue that the job serves; nil: no dispatcher submitted the job.
	Session *Session `json:"session,omitempty"`

	Status   Status `json:"status"`
	Phase    string `json:"phase,omitempty"`    // the phase under way, or the last one
	Progress string `json:"progress,omitempty"` // one line for people: what is happening now

	// Outcome is decided once, by whatever ends the job first, and becomes visible as Status when
	// the output is complete. Nil until decided.
	Outcome *Outcome `json:"outcome,omitempty"`

	StopSignal  string `json:"stop_signal,omitempty" api:"-"` // the signal a caller asked for; empty: TERM
	EndedBy     string `json:"ended_by,omitempty"`            // the client that cancelled or killed the job, or requested its VM's destruction; empty: none
	EndedFor    string `json:"ended_for,omitempty"`           // the name of the principal for whom that client acted
	EndedToken  string `json:"ended_token,omitempty" api:"-"` // the ID of the token that client presented; empty: none
	SkipCollect bool   `json:"collect_cut,omitempty" api:"-"` // a caller asked to skip collecting the rest of its output and artifacts

	// SharedVM is the ID, from its marker, of the VM in which the job runs beside others, even if
	// another VM has taken that VM's name.
	SharedVM string `json:"shared_vm,omitempty"`

	VM *vm.VM `json:"vm,omitempty"` // set before the VM can exist (intent), kept after it is gone

	// Engine is the engine that works on the job, of several that share a database.
	Engine string `json:"engine,omitempty"`

	Attempt   int    `json:"attempt,omitempty"`    // counts the earlier runs of a job that was lost
	RetryOf   string `json:"retry_of,omitempty"`   // the lost job of which this job is a retry
	RetriedAs string `json:"retried_as,omitempty"` // the job that runs this one again

	Schedule string `json:"schedule,omitempty"` // the name of the schedule that submitted the job; empty: none

	Parent   string  `json:"parent,omitempty" api:"parent_id"` // the job of which this job is a child
	Variant  string  `json:"variant,omitempty"`                // its name among the children, as in os=debian,shard=2
	Children []Child `json:"children,omitempty"`               // of a parent, in the order of its matrix

	// Submission is a digest of what was submitted with an idempotency key: the key returns the job
	// only for the same submission.
	Submission    string    `json:"submission,omitempty" api:"-"`
	CreatedAt     time.Time `json:"created_at"`
	StartedAt     time.Time `json:"started_at,omitzero"`     // the task started
	CompletedAt   time.Time `json:"completed_at,omitzero"`   // the status became terminal
	LastHeartbeat time.Time `json:"last_heartbeat,omitzero"` // the runner's last sign of life

	// Reported is how a callback said the task ended, for people: SSH decides. Contradicted says
	// that SSH has since shown the task running.
	Reported     string `json:"reported,omitempty" api:"-"`
	Contradicted bool   `json:"contradicted,omitempty" api:"-"`

	BootID  string  `json:"boot_id,omitempty" api:"-"` // the boot of its VM under which the task runs; empty: unknown
	Silence Silence `json:"silence,omitzero" api:"-"`

	Webhooks []Delivery `json:"webhooks,omitempty" api:"notifications"` // the messages about its end and their delivery

	Stdin     InputInfo  `json:"stdin,omitzero"`
	Stdout    OutputInfo `json:"stdout"`
	Stderr    OutputInfo `json:"stderr"`
	Artifacts []Artifact `json:"artifacts,omitempty"` // kept files; known when the status is terminal
	SkippedArtifacts

	Repository *Checkout `json:"repository,omitempty"` // of the manifest's repository; nil: not fetched
}

// Record is what is recorded together with a change of a job.
type Record struct {
	Events    []Event
	Outbox    []Webhook // messages to be delivered
	Dropped   []string  // the IDs of messages that need not be delivered anymore
	Postponed []Webhook // messages whose NextAt has changed
	TokenHash string    // the hex sha256 of the job's new callback token; empty: it keeps its own
	Quiet     bool      // the change is not news and is not added to Changes
}

// EventsOnly returns a change that records only events.
func EventsOnly(change func(*Job) ([]Event, error)) func(*Job) (Record, error) {
	return func(j *Job) (Record, error) {
		events, err := change(j)
		return Record{Events: events}, err
	}
}

// Kind says what a job is for.
type Kind string

// The kinds.
const (
	KindTask Kind = "task" // to run a task, in a VM of its own or in an existing one
	KindMake Kind = "vm"   // stands for a VM that was requested, or a pool's VM: see StandInJob
)

// Done reports whether nothing more will happen: the status is terminal and the VM, if it was to be
// destroyed, is gone or left alone.
func (j Job) Done() bool { return j.Finished() && (j.VM == nil || !j.VM.Doomed()) }

// Finished reports whether nothing is left to do for the job itself. A kept VM that the job created
// may outlive it until somebody destroys the VM.
func (j Job) Finished() bool {
	return j.Status.Terminal() && (j.VM == nil || j.VM.State.Settled() || j.VM.Kept && j.VM.Job == j.ID)
}

// MayRunAgain reports whether the job was lost and may still be retried as a new job, which is so
// until its VM is known to be gone.
func (j Job) MayRunAgain() bool {
	return j.Outcome != nil && j.Outcome.Reason == ReasonLost && j.RetriedAs == "" && j.Attempt < j.Manifest.Retries && !j.Done()
}

// EndBy records who ends the job.
func (j *Job) EndBy(c Caller) {
	j.EndedBy, j.EndedFor, j.EndedToken = c.Client, c.Principal, c.Token
}

// Submitter returns who submitted the job.
func (j Job) Submitter() Caller {
	return Caller{Client: j.Client, Principal: cmp.Or(j.Principal, OperatorName), Token: j.TokenID}
}

// Ender returns who ended the job or, if nobody did, on whose behalf the engine ends it.
func (j Job) Ender() Caller {
	if by := (Caller{j.EndedBy, j.EndedFor, j.EndedToken}); by != (Caller{}) {
		return by
	}
	by := j.Submitter()
	by.Client = ""
	return by
}

// Begun reports whether the job's task has started, or never will.
func (j Job) Begun() bool { return j.Status == Running || j.Status.Terminal() || j.Outcome != nil }

// Keeps reports whether the job created its VM and the VM is to outlive the job.
func (j Job) Keeps() bool { return j.VM != nil && j.VM.Job == j.ID && j.VM.Stays() }

// LastPhase is the phase in which the job releases or destroys its VM.
func (j Job) LastPhase() string {
	if !j.WantsVM() || j.Keeps() {
		return PhaseRelease
	}
	return PhaseDestroy
}

// KeepVM turns the VM of a job that is about to end into a persistent VM for some time, so that it
// can be examined. It does so if the manifest asks for it, the task has failed (or, with KeepAlways,
// ended at all), and the VM responds.
func (j *Job) KeepVM(at time.Time) []Event {
	o := j.Outcome
	ended := o.Reason == ReasonExitStatus || o.Reason == ReasonTimeout
	if !j.Manifest.Keep.Keeps() || !ended || j.Manifest.Keep == KeepOnFailure && o.Status == Success || j.VM == nil || j.VM.Job != j.ID || j.VM.State != vm.Created || j.VM.Unwanted {
		return nil
	}
	j.VM.Lifecycle = vm.Persistent
	j.VM.ExpiresAt = at.Add(time.Duration(j.Manifest.KeepFor) * time.Second)
	j.VM.UsedAt = at
	j.VM.KeptFor = fmt.Sprintf("job %s, which failed (%s)", j.ID, o.Reason)
	if o.Status == Success {
		j.VM.KeptFor = fmt.Sprintf("job %s, which succeeded", j.ID)
	}
	if s := j.Session; s != nil {
		j.VM.KeptOf, j.VM.KeptMost = QueueID(s.Kind, s.Queue), cmp.Or(s.Keep, DefaultKeep)
	}
	return []Event{{Kind: EventProgress, Phase: PhaseCollect, Text: j.KeptText()}}
}

// KeptText says until when the VM of an ended job is kept, and how to enter it; empty if the VM is
// not kept, or is gone.
func (j Job) KeptText() string {
	v := j.VM
	if v == nil || v.KeptFor == "" || v.State != vm.Created || v.Unwanted {
		return ""
	}
	return fmt.Sprintf("VM %s (%d) is kept until %s: %s %s", v.Name, v.ID, v.ExpiresAt.UTC().Format("2006-01-02 15:04:05 UTC"), EnterVM, v.Name)
}

// ErrorText returns the error of a decided job, and what happened to its VM if that is kept.
func (j Job) ErrorText() string {
	text, kept := j.Outcome.Error, j.KeptText()
	if text != "" && kept != "" {
		text += "; "
	}
	return text + kept
}

// Ran returns how long the task of a decided job ran: by the VM's clock or, where that is unknown,
// by the engine's. 0 if it never started.
func (j Job) Ran() time.Duration {
	if j.Outcome.Duration > 0 || j.StartedAt.IsZero() {
		return j.Outcome.Duration
	}
	return max(0, j.Outcome.At.Sub(j.StartedAt))
}

// Claims reports whether the job has a pool's VM to itself.
func (j Job) Claims() bool { return !j.Shares() && j.VM != nil && j.VM.Job != j.ID }

// Shares reports whether the job runs in a VM that another job created.
func (j Job) Shares() bool { return j.Manifest.VM != "" }

// Output returns the counts of one of the job's streams, Stdout or Stderr.
func (j Job) Output(stream string) OutputInfo {
	if stream == Stderr {
		return j.Stderr
	}
	return j.Stdout
}

// Silence is how long nothing was heard of a running task, counting only time in which an engine was
// listening. It is zero while every check over SSH sees the task.
type Silence struct {
	Unseen time.Duration `json:"unseen,omitempty"` // since SSH last showed the task
	Heard  time.Duration `json:"heard,omitempty"`  // the part of Unseen until the last callback
}

// InputInfo counts what was sent to a task's open stdin.
type InputInfo struct {
	Bytes  int64 `json:"bytes"`
	Closed bool  `json:"closed,omitempty"`
}

// Artifact is a file that a job left, stored by the engine.
type Artifact struct {
	Path   string `json:"path"`                  // relative: to the task's working directory, or to / for an absolute pattern
	Size   int64  `json:"size" api:"size_bytes"` // bytes
	Mode   string `json:"mode"`                  // octal permissions
	SHA256 string `json:"sha256"`
}

// ArtifactPaths returns the paths of all artifacts of the job.
func (j Job) ArtifactPaths() []string {
	paths := make([]string, len(j.Artifacts))
	for i, a := range j.Artifacts {
		paths[i] = a.Path
	}
	return paths
}

// EscapePath escapes an artifact's path for a URL, except its slashes.
func EscapePath(name string) string {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

// SkippedArtifact is a file, or a pattern, that was not collected.
type SkippedArtifact struct {
	Path   string `json:"path"` // or one of the manifest's patterns
	Reason string `json:"reason"`
}

// SkippedArtifacts are the artifacts of a job that were not kept.
type SkippedArtifacts struct {
	ArtifactsSkipped      []SkippedArtifact `json:"artifacts_skipped,omitempty"`       // the first MaxSkipped
	ArtifactsSkippedCount int               `json:"artifacts_skipped_count,omitempty"` // of all
}

// MaxSkipped bounds how many skipped artifacts are listed one by one.
const MaxSkipped = 50

// Skip records a skipped file or pattern. Both texts, which may come from a VM, are truncated.
func (s *SkippedArtifacts) Skip(path, reason string) {
	s.ArtifactsSkippedCount++
	if len(s.ArtifactsSkipped) < MaxSkipped {
		s.ArtifactsSkipped = append(s.ArtifactsSkipped, SkippedArtifact{Path: cut(path, 500), Reason: cut(reason, 300)})
	}
}

// cut truncates a text to most characters, on one line.
func cut(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "..."
	}
	return text
}

// Chunk is a piece of a stream's output. Offsets count the bytes that the task wrote, stored or not.
type Chunk struct {
	Data     []byte `json:"data" api:"data,body"`
	Offset   int64  `json:"offset"`                      // of Data's first byte
	Next     int64  `json:"next" api:"next_offset"`      // the offset to ask for next
	Dropped  int64  `json:"dropped" api:"dropped_bytes"` // bytes before Data, from the offset asked for, that are not stored
	Complete bool   `json:"complete"`                    // the stream ends at Next
}

// Outcome is how a job ended.
type Outcome struct {
	Status   Status    `json:"status"` // success, failed or timeout
	Reason   Reason    `json:"reason"`
	ExitCode *int      `json:"exit_code,omitempty"` // nil when the task did not run to completion
	Error    string    `json:"error,omitempty"`     // for people: what went wrong and what to do
	At       time.Time `json:"at"`

	Duration time.Duration `json:"duration,omitempty" api:"duration_seconds"` // how long the task ran, by the VM's own clock; 0: unknown
}

// OutputInfo counts one output stream in bytes.
type OutputInfo struct {
	Held    int64 `json:"held" api:"held_bytes"`       // bytes stored on disk, marker included
	Total   int64 `json:"total" api:"total_bytes"`     // bytes the task wrote
	Dropped int64 `json:"dropped" api:"dropped_bytes"` // bytes left out between head and tail
	// Incomplete says that the task wrote more, or may have; Why gives the cause, in a line for people.
	Incomplete bool   `json:"incomplete,omitempty"`
	Why        string `json:"why,omitempty"`
}

// StreamEnd is how an output stream ended: with Total bytes, of which Tail holds the last ones that
// are not stored yet.
type StreamEnd struct {
	Stream string
	Total  int64
	Tail   []byte
}

// Streams are the names of a task's two outputs.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Killed is the result of a request to kill a job.
type Killed string

// The results of kill_job.
const (
	KilledNow         Killed = "killed"
	AlreadyTerminated Killed = "already_terminated"
	KillNotFound      Killed = "not_found"
)

// Event is one thing that happened to a job, in order of Seq.
type Event struct {
	Seq   int64     `json:"seq"`
	JobID string    `json:"job_id"`
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`            // see Event kinds
	Phase string    `json:"phase,omitempty"` // for phase_started and phase_ended
	Text  string    `json:"text,omitempty"`  // one line for people
}

// Event kinds.
const (
	EventStatus       = "status"        // Text is the new status
	EventPhaseStarted = "phase_started" // Phase began
	EventPhaseEnded   = "phase_ended"   // Phase ended; Text is empty or the error
	EventProgress     = "progress"      // Text says what is happening
	EventWarning      = "warning"       // something an operator should know
	EventIgnored      = "ignored"       // a late or contradictory report: recorded, without effect
	EventDecided      = "decided"       // the outcome; Text is its reason
	EventNetwork      = "network"       // a name that a job with vm.EgressAllow connected to or was refused, or a request with a credential
)

// Result is a job's outcome and output, available for every terminal status.
type Result struct {
	JobID      string        `json:"job_id"`
	Status     Status        `json:"status"`
	Reason     Reason        `json:"reason"`
	ExitCode   *int          `json:"exit_code,omitempty"`
	Error      string        `json:"error,omitempty"`
	Stdout     []byte        `json:"stdout" api:"stdout,text"` // bytes stored, exact
	Stderr     []byte        `json:"stderr" api:"stderr,text"`
	StdoutInfo OutputInfo    `json:"stdout_info"`
	StderrInfo OutputInfo    `json:"stderr_info"`
	Duration   time.Duration `json:"duration" api:"duration_seconds"` // how long the task ran; 0 if it never started
	Repository *Checkout     `json:"repository,omitempty"`            // what the job left of its repository
	SkippedArtifacts
}

// OutputPart is a stored part of a stream.
type OutputPart struct {
	Stream   string
	From, To int64
}

// Report is what the job runner reports through a callback.
type Report struct {
	Kind     ReportKind
	ExitCode int           // complete
	Reason   string        // complete: why the task ended: exit (or empty), timeout, stopped, lost
	Error    string        // complete
	Output   string        // complete, status: text a runner chose to send along
	Progress string        // status
	Duration time.Duration // complete
}

// ReportKind is the kind of a callback.
type ReportKind string

// The callbacks a runner sends.
const (
	ReportComplete  ReportKind = "complete"
	ReportStatus    ReportKind = "status"
	ReportHeartbeat ReportKind = "heartbeat"
)

// HostReport is the result of check_host.
type HostReport struct {
	Host   string  `json:"host"`   // address linus dials
	Node   string  `json:"node"`   // Proxmox node name
	OK     bool    `json:"ok"`     // no check failed
	Checks []Check `json:"checks"` // in the order they ran
	// Facts are, for each node that was examined, the conditions under which a test there holds.
	Facts []HostFacts `json:"facts,omitempty"`
}

// Check is one finding about the host.
type Check struct {
	Node   string `json:"node,omitempty"`   // of a cluster, if the check is about one node
	Name   string `json:"name"`             // e.g. "storage"
	Level  string `json:"level"`            // ok, warn or fail
	Text   string `json:"text"`             // what was found
	Remedy string `json:"remedy,omitempty"` // what to do, unless ok
}
