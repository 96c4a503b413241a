package mcptool

import (
	"cmp"
	"context"
	"fmt"
	"mime"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Bounds of max_bytes and limit, and of the artifacts one result lists.
const (
	defaultBytes = 16 << 10
	mostBytes    = 1 << 20
	mostListed   = 200
)

type resultInput struct {
	JobID    string `json:"job_id" jsonschema_description:"The job's ID."`
	Wait     *int   `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Seconds to wait for the job to finish, 0 to 45. Default 0."`
	MaxBytes *int   `json:"max_bytes,omitempty" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"Bytes of each of output and stderr, default 16384. Of longer output the head and tail are returned, with a marker between them."`
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
	ArtifactsCount    int        `json:"artifacts_count,omitempty" jsonschema_description:"Number of all artifacts, including those beyond the 200 listed."`

	ArtifactsSkipped      []job.SkippedArtifact `json:"artifacts_skipped,omitempty" jsonschema_description:"Files and patterns of the manifest of which nothing was collected; the first 50."`
	ArtifactsSkippedCount int                   `json:"artifacts_skipped_count,omitempty"`
}

type artifact struct {
	Path   string `json:"path"`
	Size   int64  `json:"size" jsonschema_description:"Bytes."`
	SHA256 string `json:"sha256"`
	Mode   string `json:"mode" jsonschema_description:"Octal permissions."`
	URI    string `json:"uri" jsonschema_description:"URI of the resource with its content."`
}

func getJobResult(e job.Engine) server.ServerTool {
	return defineCall("get_job_result", "Job result",
		"A finished job's outcome: exit code, stdout (output), stderr, error, artifacts (with links to read them) and what was left out of them. "+
			"An error that names the status while the job is unfinished; wait_seconds waits for it to finish.",
		hints{readOnly: true, idempotent: true, long: true},
		func(ctx context.Context, in resultInput, c call) (resultOutput, error) {
			wait, err := waitFor(in.JobID, in.Wait)
			if err != nil {
				return resultOutput{}, err
			}
			var bad faults
			limit := bad.number("max_bytes", in.MaxBytes, defaultBytes, 1, mostBytes)
			if err := bad.err(); err != nil {
				return resultOutput{}, err
			}
			j, err := follow(ctx, e, c, in.JobID, wait)
			if err != nil {
				return resultOutput{}, err
			}
			return resultOf(ctx, e, j, limit)
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
		ArtifactsSkipped: j.ArtifactsSkipped, ArtifactsSkippedCount: j.ArtifactsSkippedCount,
	}
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

// links returns links to the artifacts, for clients that can fetch resources.
func (r resultOutput) links() []mcp.ResourceLink {
	var links []mcp.ResourceLink
	for _, a := range r.Artifacts {
		links = append(links, mcp.NewResourceLink(a.URI, a.Path, fmt.Sprintf("%d bytes", a.Size), mediaType(a.Path)))
	}
	return links
}

// mediaType is guessed from a file's name.
func mediaType(name string) string {
	if t := mime.TypeByExtension(path.Ext(name)); t != "" {
		return t
	}
	return "application/octet-stream"
}

// headAndTail returns data as text; if it is more than limit bytes, the first
// and the last half of limit with a marker between, and true.
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
