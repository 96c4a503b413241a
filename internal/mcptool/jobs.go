package mcptool

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/junit"
	"linus/internal/vm"
)

type submitInput struct {
	Manifest       job.Manifest `json:"manifest" jsonschema_description:"What to run and in which VM. More of each field: resource linus://manifest."`
	IdempotencyKey string       `json:"idempotency_key,omitempty" jsonschema_description:"Any text: submitting again with it returns the first job."`
	Wait           *int         `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Wait this long for the end."`
}

// whole returns the arguments with a manifest, even if its fields are beside the other arguments.
func (submitInput) whole(raw []byte) []byte {
	var given, manifest map[string]json.RawMessage
	if json.Unmarshal(raw, &given) != nil || given["manifest"] != nil || given["task"] == nil {
		return raw
	}
	manifest = maps.Clone(given)
	for _, own := range []string{"idempotency_key", "wait_seconds"} {
		delete(manifest, own)
	}
	maps.DeleteFunc(given, func(name string, _ json.RawMessage) bool { return manifest[name] != nil })
	inner, err := json.Marshal(manifest)
	if err != nil {
		return raw
	}
	given["manifest"] = inner
	if all, err := json.Marshal(given); err == nil {
		return all
	}
	return raw
}

func (o Options) submitJob() server.ServerTool {
	return defineCall("submit_job", "Submit a job",
		"Run a script, a command or a Claude agent in a VM of its own, destroyed afterwards (or in an existing one: manifest.vm). "+
			"With wait_seconds the result is in the same call if it ends in time; else get_job_result. "+
			"Cancelling the call does not cancel the job.",
		hints{openWorld: true},
		func(ctx context.Context, in submitInput, c call) (startedOutput, error) {
			given, _ := c.tree.(map[string]any)
			if given["manifest"] == nil {
				return startedOutput{}, &job.FieldError{
					Field: "manifest", Problem: "is required",
					Remedy: `give an object such as {"task": "uname -a"}`,
				}
			}
			in.Manifest.AgentType = cmp.Or(in.Manifest.AgentType, job.AgentScript)
			if err := cmp.Or(in.Manifest.Check(given["manifest"]), job.CheckKey(in.IdempotencyKey)); err != nil {
				return startedOutput{}, err
			}
			return o.submit(ctx, c, job.Submission{Manifest: in.Manifest, IdempotencyKey: in.IdempotencyKey}, in.Wait)
		})
}

type statusInput struct {
	jobArg

	Wait *int `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Wait this long for the end."`
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
	Children      []string   `json:"children,omitempty"` // of a matrix or shards

	ArtifactsSkipped      []job.SkippedArtifact `json:"artifacts_skipped,omitempty" jsonschema_description:"As in get_job_result."`
	ArtifactsSkippedCount int                   `json:"artifacts_skipped_count,omitempty"`
}

// webhook is a job.Delivery: the receiver's host, and the result of the last attempt.
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
	Source vm.Source `json:"source,omitempty" jsonschema_description:"cold: created for the job. pool or hibernated: a pool's, which was ready. Or restored, or forked."`
	Egress vm.Egress `json:"egress,omitempty"`
	State  vm.State  `json:"state" jsonschema:"enum=intended,enum=created,enum=destroyed,enum=released,enum=left_alone,enum=forgotten"`
}

func (o Options) getJobStatus() server.ServerTool {
	return defineCall("get_job_status", "Job status",
		"A job's status, phase, progress, VM, and why it ended; no output. "+
			"success, failed and timeout are final: then get_job_result.",
		hints{readOnly: true, idempotent: true},
		func(ctx context.Context, in statusInput, c call) (statusOutput, error) {
			j, err := follow(ctx, o.Engine, c, in.JobID, waitTime(in.Wait))
			return statusOf(j), err
		})
}

func statusOf(j job.Job) statusOutput {
	out := statusOutput{
		JobID: j.ID, Status: j.Status, Phase: j.Phase, Progress: j.Progress, CreatedAt: j.CreatedAt,
		StartedAt: known(j.StartedAt), CompletedAt: known(j.CompletedAt), LastHeartbeat: known(j.LastHeartbeat),
		ArtifactsSkipped: j.ArtifactsSkipped, ArtifactsSkippedCount: j.ArtifactsSkippedCount,
		RetriedAs: j.RetriedAs,
	}
	for _, c := range j.Children {
		out.Children = append(out.Children, c.Name+": "+c.How()+", job "+c.ID)
	}
	if j.Outcome != nil {
		out.Reason, out.Error = j.Outcome.Reason, words.In(j.ErrorText())
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

// waitTime returns the argument wait_seconds of a tool that by default does not wait.
func waitTime(seconds *int) time.Duration { return time.Duration(given(seconds, 0)) * time.Second }

// known returns nil for a time that is not set.
func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// defaultBytes is the default of max_bytes. mostListed is how many artifacts one result lists.
const (
	defaultBytes = 16 << 10
	mostListed   = 200
)

type resultInput struct {
	jobArg

	Wait     *int `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Wait this long for the end."`
	MaxBytes *int `json:"max_bytes,omitempty" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"Of each of output and stderr; default 16384. Of longer ones head and tail."`
}

type resultOutput struct {
	JobID             string     `json:"job_id"`
	Status            job.Status `json:"status" jsonschema:"enum=success,enum=failed,enum=timeout"`
	Reason            job.Reason `json:"reason" jsonschema_description:"exit_status: the task ended by itself, see exit_code. Else cancelled, killed, timeout, provision_failed, start_failed, lost or internal."`
	ExitCode          *int       `json:"exit_code,omitempty" jsonschema_description:"Absent if the task never ran to completion."`
	Output            string     `json:"output" jsonschema_description:"The task's stdout."`
	Stderr            string     `json:"stderr"`
	OutputBytes       int64      `json:"output_bytes" jsonschema_description:"Bytes the task wrote to stdout."`
	StderrBytes       int64      `json:"stderr_bytes"`
	Truncated         bool       `json:"truncated" jsonschema_description:"output or stderr is incomplete here."`
	OutputIncomplete  bool       `json:"output_incomplete,omitempty" jsonschema_description:"The task wrote more than is here, or may have."`
	IncompleteReason  string     `json:"output_incomplete_reason,omitempty"`
	OutputInvalidUTF8 bool       `json:"output_invalid_utf8,omitempty" jsonschema_description:"Bytes that are not UTF-8 were replaced."`
	StderrInvalidUTF8 bool       `json:"stderr_invalid_utf8,omitempty"`
	Error             string     `json:"error,omitempty" jsonschema_description:"What went wrong and what to do."`
	Duration          float64    `json:"duration_seconds" jsonschema_description:"How long the task ran."`
	Artifacts         []artifact `json:"artifacts,omitempty" jsonschema_description:"The job's artifacts."`
	ArtifactsCount    int        `json:"artifacts_count,omitempty" jsonschema_description:"Of all artifacts, of which 200 are listed."`

	Repository *job.Checkout `json:"repository,omitempty" jsonschema_description:"What it has committed and pushed; repository.patch is its diff."`
	Tests      *testReport   `json:"tests,omitempty" jsonschema_description:"Of the JUnit reports (.xml) among the artifacts: of a matrix or shards those of all its jobs."`

	ArtifactsSkipped      []job.SkippedArtifact `json:"artifacts_skipped,omitempty" jsonschema_description:"Files and patterns of which nothing was collected; the first 50."`
	ArtifactsSkippedCount int                   `json:"artifacts_skipped_count,omitempty"`
}

type artifact struct {
	Path   string `json:"path"`
	Size   int64  `json:"size" jsonschema_description:"Bytes."`
	SHA256 string `json:"sha256"`
	Mode   string `json:"mode" jsonschema_description:"Octal permissions."`
	URI    string `json:"uri" jsonschema_description:"URI of the resource with its content."`
}

func (o Options) getJobResult() server.ServerTool {
	return defineCall("get_job_result", "Job result",
		"A finished job's exit code, stdout (output), stderr, error and artifacts, with links to read them. "+
			"An error with the status while it is unfinished; wait_seconds waits for the end.",
		hints{readOnly: true, idempotent: true, long: true},
		func(ctx context.Context, in resultInput, c call) (resultOutput, error) {
			j, err := follow(ctx, o.Engine, c, in.JobID, waitTime(in.Wait))
			if err != nil {
				return resultOutput{}, err
			}
			return resultOf(ctx, o.Engine, j, given(in.MaxBytes, defaultBytes))
		})
}

func resultOf(ctx context.Context, e job.Engine, j job.Job, limit int) (resultOutput, error) {
	r, err := e.Result(ctx, j.ID)
	if err != nil {
		return resultOutput{}, err
	}
	out := resultOutput{
		JobID: r.JobID, Status: r.Status, Reason: r.Reason, ExitCode: r.ExitCode, Error: r.Error,
		OutputBytes: r.StdoutInfo.Total, StderrBytes: r.StderrInfo.Total, Duration: r.Duration.Seconds(),
		OutputInvalidUTF8: !utf8.Valid(r.Stdout), StderrInvalidUTF8: !utf8.Valid(r.Stderr),
		ArtifactsCount:   len(j.Artifacts),
		ArtifactsSkipped: j.ArtifactsSkipped, ArtifactsSkippedCount: j.ArtifactsSkippedCount, Repository: j.Repository,
	}
	out.Tests = testsOf(ctx, e, j)
	out.OutputIncomplete, out.IncompleteReason = incomplete(r.StdoutInfo, r.StderrInfo)
	var cutOut, cutErr bool
	out.Output, cutOut = headAndTail(r.Stdout, limit)
	out.Stderr, cutErr = headAndTail(r.Stderr, limit)
	out.Truncated = cutOut || cutErr || r.StdoutInfo.Dropped > 0 || r.StderrInfo.Dropped > 0
	for _, a := range j.Artifacts[:min(len(j.Artifacts), mostListed)] {
		out.Artifacts = append(out.Artifacts, artifact{Path: a.Path, Size: a.Size, SHA256: a.SHA256, Mode: a.Mode, URI: artifactURI(j.ID, a.Path)})
	}
	return out, nil
}

// incomplete reports whether a task wrote more than was kept, or may have, and why.
func incomplete(stdout, stderr job.OutputInfo) (bool, string) {
	return stdout.Incomplete || stderr.Incomplete, cmp.Or(stdout.Why, stderr.Why)
}

// testReport is what the tests of a job report, or those of all jobs of a parent.
type testReport struct {
	junit.Totals
	Failed []failedTest `json:"failed,omitempty" jsonschema_description:"The first 50."`
	Unread []string     `json:"unread,omitempty" jsonschema_description:"Reports that could not be read, and why; the first 50."`
}

type failedTest struct {
	Suite string `json:"suite,omitempty" jsonschema_description:"Of a matrix or shards it begins with the job's name."`
	Name  string `json:"name"`
	Says  string `json:"says,omitempty"`
}

// Bounds of a testReport.
const (
	mostTests      = 50
	mostSaysOfTest = 300 // characters of a failed test's message
)

// testsOf reads the test reports among a job's artifacts; nil: there are none.
func testsOf(ctx context.Context, e job.Engine, j job.Job) *testReport {
	report, left := junit.Collect(j.ArtifactPaths(), len(j.Children) > 0, func(path string) (io.ReadCloser, error) {
		file, _, err := e.OpenArtifact(ctx, j.ID, path)
		return file, err
	})
	if report.Tests == 0 && len(left) == 0 {
		return nil
	}
	out := &testReport{Totals: report.Totals, Unread: left[:min(len(left), mostTests)]}
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			said := c.Wrong()
			if said == nil || len(out.Failed) == mostTests {
				continue
			}
			says := []rune(strings.TrimSpace(cmp.Or(said.Message, said.Text)))
			out.Failed = append(out.Failed, failedTest{s.Name, strings.TrimSpace(c.Class + " " + c.Name), string(says[:min(len(says), mostSaysOfTest)])})
		}
	}
	return out
}

func (r resultOutput) links() []mcp.ResourceLink {
	var links []mcp.ResourceLink
	for _, a := range r.Artifacts {
		links = append(links, mcp.NewResourceLink(a.URI, a.Path, fmt.Sprintf("%d bytes", a.Size), mediaType(a.Path)))
	}
	return links
}

// mediaType guesses a media type from a file's name.
func mediaType(name string) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

// headAndTail returns data as text. If it is longer than limit bytes, it returns the first and the
// last half of limit with a marker between them, and true.
func headAndTail(data []byte, limit int) (string, bool) {
	text := strings.ToValidUTF8(string(data), "\uFFFD")
	if len(text) <= limit {
		return text, false
	}
	head, tail := limit/2, len(text)-limit/2
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[linus: %d bytes left out here; max_bytes asks for more]\n%s", text[:head], tail-head, text[tail:]), true
}

type cancelOutput struct {
	JobID     string `json:"job_id"`
	Cancelled bool   `json:"cancelled"`
}

func (o Options) cancelJob() server.ServerTool {
	return define("cancel_job", "Cancel a job",
		"End an unfinished job: its task is killed, its VM destroyed, its output so far kept; it becomes failed, reason cancelled. "+
			"A task that has exited keeps its outcome.",
		hints{destructive: true, idempotent: true},
		func(ctx context.Context, in jobArg) (cancelOutput, error) {
			return cancelOutput{JobID: in.JobID, Cancelled: true}, o.Engine.Cancel(ctx, in.JobID)
		})
}

// The default and the maximum of limit.
const (
	defaultPage = 50
	mostPage    = 200
)

// labelled has the filter that both lists share.
type labelled struct {
	Label string `json:"label,omitempty" jsonschema_description:"E.g. team=web."`
}

func (l labelled) query() job.Query {
	if l.Label == "" {
		return job.Query{}
	}
	return job.Query{Label: []string{l.Label}}
}

type listInput struct {
	labelled

	Status job.Status `json:"status,omitempty" jsonschema:"enum=@statuses"`
	Limit  *int       `json:"limit,omitempty" jsonschema:"minimum=1,maximum=200"`
	Cursor string     `json:"cursor,omitempty" jsonschema_description:"next_cursor of the last page."`
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

func (o Options) listJobs() server.ServerTool {
	return define("list_jobs", "List jobs",
		"Jobs, newest first, in pages.",
		hints{readOnly: true, idempotent: true},
		func(ctx context.Context, in listInput) (listOutput, error) {
			page, err := o.Engine.List(ctx, job.Filter{Status: in.Status, Label: in.query().Label, Limit: given(in.Limit, defaultPage), Cursor: in.Cursor})
			return listOutput{Next: page.Next, Jobs: each(page.Jobs, func(j job.Summary) listedJob {
				row := listedJob{JobID: j.ID, Status: j.Status, Phase: j.Phase, Task: j.Task, Client: j.Client, CreatedAt: j.CreatedAt}
				if j.VM != nil {
					row.VM = &jobVM{ID: j.VM.ID, Name: j.VM.Name, Node: j.VM.Node, State: j.VM.State}
				}
				return row
			})}, err
		})
}
