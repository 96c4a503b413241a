package mcptool

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"linus/internal/job"
)

// startedOutput is the result of the tools that submit a job: its ID and, for a caller that waits,
// its state after the wait.
type startedOutput struct {
	JobID  string     `json:"job_id"`
	Status job.Status `json:"status"`
	*waitedOutput
}

// waitedOutput is the state of a job after the wait, finished or not.
type waitedOutput struct {
	Phase    string     `json:"phase,omitempty" jsonschema_description:"From here on only with wait_seconds: as in get_job_status, get_job_result and get_job_output."`
	Progress string     `json:"progress,omitempty"`
	Reason   job.Reason `json:"reason,omitempty"`
	ExitCode *int       `json:"exit_code,omitempty"`
	Error    string     `json:"error,omitempty"`
	outputPart
	OutputIncomplete bool    `json:"output_incomplete,omitempty"`
	IncompleteReason string  `json:"output_incomplete_reason,omitempty"`
	Duration         float64 `json:"duration_seconds,omitempty"`
	ArtifactsCount   int     `json:"artifacts_count,omitempty" jsonschema_description:"get_job_result lists them."`
	ArtifactsSkipped int     `json:"artifacts_skipped_count,omitempty"`

	Repository string `json:"repository,omitempty"`
	Note       string `json:"note,omitempty" jsonschema_description:"What to do next."`
}

// submit submits a job, and returns it after waiting at most so many seconds for its end.
func (o Options) submit(ctx context.Context, c call, s job.Submission, seconds *int) (startedOutput, error) {
	s.Client = clientName(ctx)
	j, err := o.Engine.Submit(ctx, s)
	if err == nil {
		err = o.asTask(ctx, j, seconds)
	}
	if err != nil {
		return startedOutput{}, err
	}
	return started(ctx, o.Engine, c, j, seconds), nil
}

// started returns a submitted job after waiting at most so many seconds for its end. It returns no
// errors: the caller must learn the job's ID.
func started(ctx context.Context, e job.Engine, c call, j job.Job, seconds *int) startedOutput {
	out := startedOutput{JobID: j.ID, Status: j.Status}
	limit := waitTime(seconds)
	if limit == 0 {
		return out
	}
	var waited waitedOutput
	now, err := followOn(ctx, e, c, j.ID, limit)
	if err == nil {
		now, waited, err = waitedOf(ctx, e, now)
	}
	if err == nil {
		out.Status = now.Status
	} else {
		waited.Note = "The job is submitted and continues; get_job_result with wait_seconds waits for it. This call could not: " + errorText(err)
	}
	out.waitedOutput = &waited
	return out
}

// waitedOf reads the output before it decides whether the job has ended, so that a job without an
// outcome is never shown with all of its output.
func waitedOf(ctx context.Context, e job.Engine, j job.Job) (job.Job, waitedOutput, error) {
	var out waitedOutput
	var err error
	if out.outputPart, err = readPart(ctx, e, j.ID, "", position{}, defaultBytes, false); err != nil {
		return j, out, err
	}
	if !j.Status.Terminal() && out.Complete { // it has finished since
		if j, err = e.Job(ctx, j.ID); err != nil {
			return j, out, err
		}
	}
	out.Phase, out.Progress = j.Phase, j.Progress
	if !j.Status.Terminal() {
		return j, out, nil
	}
	if !out.Complete {
		if out.outputPart, err = bothEnds(ctx, e, j.ID); err != nil {
			return j, out, err
		}
	}
	out.Reason, out.ExitCode, out.Error, out.Duration = j.Outcome.Reason, j.Outcome.ExitCode, words.In(j.ErrorText()), j.Ran().Seconds()
	out.OutputIncomplete, out.IncompleteReason = incomplete(j.Stdout, j.Stderr)
	out.ArtifactsCount, out.ArtifactsSkipped = len(j.Artifacts), j.ArtifactsSkippedCount
	if c := j.Repository; c != nil {
		out.Repository = strings.TrimSuffix(c.Text()+": "+c.Problem, ": ")
	}
	if _, agent := j.Manifest.AgentType.Agent(); agent { // an agent's answer, not the stream of its steps
		r, err := e.Result(ctx, j.ID)
		if err != nil {
			return j, out, err
		}
		var cut bool
		out.Stdout, cut = headAndTail(r.Stdout, defaultBytes)
		out.StdoutNext, out.StdoutDropped, out.Complete = j.Stdout.Total, 0, !cut && out.StderrNext >= j.Stderr.Total
	}
	return j, out, nil
}

// bothEnds is readPart for a finished job. Of longer output it returns the beginning and the end,
// where a failed build says why. The next offsets are those of what is left out.
func bothEnds(ctx context.Context, e job.Engine, id string) (outputPart, error) {
	out, err := readPart(ctx, e, id, "", position{}, defaultBytes, false)
	if err != nil {
		return out, err
	}
	for i, stream := range []struct {
		text   *string
		next   *int64
		offset string
	}{{&out.Stdout, &out.StdoutNext, "offset"}, {&out.Stderr, &out.StderrNext, "stderr_offset"}} {
		last, err := e.Output(ctx, id, streams[i], -defaultBytes/2, defaultBytes/2)
		if err != nil {
			return out, err
		}
		if last.Next == *stream.next { // it is complete
			continue
		}
		head, err := read(ctx, e, id, streams[i], 0, defaultBytes/2, false)
		if err != nil {
			return out, err
		}
		tail, at := last.Data, last.Offset
		for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
			tail, at = tail[1:], at+1
		}
		out.InvalidUTF8 = out.InvalidUTF8 || head.invalid || !utf8.Valid(tail)
		*stream.next = head.next
		*stream.text = fmt.Sprintf("%s\n[linus: %d bytes left out here; get_job_output with %s %d returns them]\n%s",
			head.text, at-head.next, stream.offset, head.next, strings.ToValidUTF8(string(tail), "\uFFFD"))
	}
	return out, nil
}
