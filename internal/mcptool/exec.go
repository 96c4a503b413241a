package mcptool

import (
	"context"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

type executeInput struct {
	Command    string            `json:"command" is:"task" jsonschema_description:"Run by bash."`
	VMID       string            `json:"vm_id,omitempty" is:"vm" jsonschema_description:"Persistent VM to run in (name or ID). Default: a new VM."`
	Cwd        string            `json:"cwd,omitempty" jsonschema_description:"Default: the home."`
	Env        map[string]string `json:"env,omitempty" jsonschema_description:"Not for secrets."`
	Timeout    int               `json:"timeout,omitempty" is:"timeout" jsonschema_description:"Seconds; default 3600."`
	Sudo       bool              `json:"sudo,omitempty"`
	TTY        bool              `json:"tty,omitempty" jsonschema_description:"Run on a 24x80 terminal."`
	Template   string            `json:"template,omitempty" is:"vmTemplate" jsonschema_description:"New VM: default agent-template."`
	OS         string            `json:"os,omitempty" is:"os" bare:"true" jsonschema_description:"New VM: e.g. debian-13, not a template."`
	Resources  vm.Resources      `json:"resources,omitzero" bare:"true" jsonschema_description:"New VM: e.g. 2G."`
	Network    executeNetwork    `json:"network,omitzero" jsonschema_description:"New VM: what it reaches."`
	Persistent bool              `json:"persistent,omitempty" is:"lifecycle" jsonschema_description:"New VM: stays until destroy_vm."`
	Wait       *int              `json:"wait_seconds,omitempty" jsonschema:"minimum=0,maximum=45" jsonschema_description:"Wait this long for the end."`
}

// executeNetwork is the part of a job's network that can be chosen for a command's VM.
type executeNetwork struct {
	Egress vm.Egress `json:"egress,omitempty" is:"network.egress"`
	Allow  []string  `json:"allow,omitempty"`
}

func (o Options) executeCommand() server.ServerTool {
	return defineCall("execute_command", "Execute a command",
		"Run a shell command in a persistent VM (vm_id; up to 16 at once) or a new one. "+
			"If it ends within wait_seconds its exit code and output are in the same call; else it continues: "+
			"get_job_output, get_job_result, kill_job. "+
			"Its stdin is open: interact_with_job types; what reads it all waits for close. "+
			"Background processes end with it; `sudo systemd-run --unit NAME CMD` keeps one as long as the VM runs.",
		hints{openWorld: true},
		func(ctx context.Context, in executeInput, c call) (startedOutput, error) {
			m := job.Manifest{
				Task: in.Command, AgentType: job.AgentScript, Stdin: job.StdinOpen, StatusMode: job.StatusStreaming,
				VM: in.VMID, Cwd: in.Cwd, Env: in.Env, Timeout: in.Timeout, Sudo: in.Sudo, TTY: in.TTY,
				VMTemplate: in.Template, OS: in.OS, Resources: in.Resources, Network: vm.Network{Egress: in.Network.Egress, Allow: in.Network.Allow},
			}
			if in.Persistent {
				m.Lifecycle = vm.Persistent
			}
			return o.submit(ctx, c, job.Submission{Manifest: m}, in.Wait)
		})
}

type outputInput struct {
	jobArg

	Stream       string `json:"stream,omitempty" jsonschema:"enum=stdout,enum=stderr" jsonschema_description:"Default: both."`
	Offset       int64  `json:"offset,omitempty" jsonschema_description:"stdout_next of the last call (of stderr, if that is stream); negative: from the end."`
	StderrOffset int64  `json:"stderr_offset,omitempty" jsonschema_description:"stderr_next, for both."`
	Limit        *int   `json:"limit,omitempty" jsonschema:"minimum=1,maximum=1048576" jsonschema_description:"Bytes per stream."`
	StripANSI    bool   `json:"strip_ansi,omitempty" jsonschema_description:"Strip escape sequences and progress bars."`
}

func (in outputInput) check(bad *faults) {
	in.jobArg.check(bad)
	if in.Stream != "" && in.StderrOffset != 0 {
		bad.add("stderr_offset", "is for both streams", "give offset, or omit stream")
	}
}

type outputOutput struct {
	JobID  string     `json:"job_id"`
	Status job.Status `json:"status"`
	outputPart
}

type outputPart struct {
	Stdout        string `json:"stdout"`
	StdoutNext    int64  `json:"stdout_next" jsonschema_description:"The offset for the next call."`
	StdoutDropped int64  `json:"stdout_dropped,omitempty" jsonschema_description:"Bytes missing before this: the output was larger than what is kept."`
	Stderr        string `json:"stderr"`
	StderrNext    int64  `json:"stderr_next"`
	StderrDropped int64  `json:"stderr_dropped,omitempty"`
	Complete      bool   `json:"complete" jsonschema_description:"The job has finished and there is no more output."`
	InvalidUTF8   bool   `json:"invalid_utf8,omitempty" jsonschema_description:"Bytes that are not UTF-8 were replaced."`
}

func (o Options) getJobOutput() server.ServerTool {
	return define("get_job_output", "Job output",
		"A job's output from a byte offset on, while it runs and after. Call again with the next offsets until complete. "+
			"Last lines: tail_job_output; a finished job: get_job_result.",
		hints{readOnly: true, idempotent: true, long: true},
		func(ctx context.Context, in outputInput) (outputOutput, error) {
			at := position{in.Offset, in.StderrOffset}
			if in.Stream == job.Stderr {
				at[1] = in.Offset
			}
			return output(ctx, o.Engine, in.JobID, in.Stream, at, given(in.Limit, defaultBytes), in.StripANSI)
		})
}

// position is an offset in each stream: stdout, stderr.
type position [2]int64

// output reads both streams, or only the named one, from a position.
func output(ctx context.Context, e job.Engine, id, only string, at position, limit int, plain bool) (outputOutput, error) {
	part, err := readPart(ctx, e, id, only, at, limit, plain)
	if err != nil {
		return outputOutput{}, err
	}
	j, err := e.Job(ctx, id)
	return outputOutput{JobID: id, Status: j.Status, outputPart: part}, err
}

// readPart is output without the job's status.
func readPart(ctx context.Context, e job.Engine, id, only string, at position, limit int, plain bool) (outputPart, error) {
	out := outputPart{Complete: true}
	var pieces [2]piece
	for i, stream := range streams {
		if only != "" && only != stream {
			continue
		}
		p, err := read(ctx, e, id, stream, at[i], limit, plain)
		if err != nil {
			return outputPart{}, err
		}
		pieces[i] = p
		out.Complete = out.Complete && p.whole
		out.InvalidUTF8 = out.InvalidUTF8 || p.invalid
	}
	out.Stdout, out.StdoutNext, out.StdoutDropped = pieces[0].text, pieces[0].next, pieces[0].dropped
	out.Stderr, out.StderrNext, out.StderrDropped = pieces[1].text, pieces[1].next, pieces[1].dropped
	return out, nil
}

// end returns the current end of both streams.
func end(ctx context.Context, e job.Engine, id string) (position, error) {
	var at position
	for i, stream := range streams {
		chunk, err := e.Output(ctx, id, stream, -1, 1)
		if err != nil {
			return at, err
		}
		at[i] = chunk.Next
	}
	return at, nil
}

// The default of lines, and the bytes read of each stream per line; at least 16 KiB are read.
const (
	defaultLines = 50
	bytesPerLine = 256
)

type tailInput struct {
	jobArg

	Lines     *int `json:"lines,omitempty" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Per stream; default 50."`
	StripANSI bool `json:"strip_ansi,omitempty"`
}

type tailOutput struct {
	JobID       string     `json:"job_id"`
	Status      job.Status `json:"status"`
	Stdout      string     `json:"stdout"`
	Stderr      string     `json:"stderr"`
	StdoutNext  int64      `json:"stdout_next" jsonschema_description:"Offset from which get_job_output continues."`
	StderrNext  int64      `json:"stderr_next"`
	Truncated   bool       `json:"truncated" jsonschema_description:"There is earlier output."`
	InvalidUTF8 bool       `json:"invalid_utf8,omitempty" jsonschema_description:"Bytes that are not UTF-8 were replaced."`
}

func (o Options) tailJobOutput() server.ServerTool {
	return define("tail_job_output", "Last lines of a job's output",
		"The last lines of a job's output, while it runs and after, with a prompt that has no newline.",
		hints{readOnly: true, idempotent: true, long: true},
		func(ctx context.Context, in tailInput) (tailOutput, error) {
			lines := given(in.Lines, defaultLines)
			limit := max(lines*bytesPerLine, defaultBytes)
			out := tailOutput{JobID: in.JobID}
			var texts [2]string
			var at position
			for i, stream := range streams {
				p, err := read(ctx, o.Engine, in.JobID, stream, -int64(limit), limit, in.StripANSI)
				if err != nil {
					return tailOutput{}, err
				}
				var cut bool
				texts[i], cut = lastLines(p.text, lines, p.offset > 0)
				at[i] = p.next
				out.Truncated = out.Truncated || cut || p.offset > 0
				out.InvalidUTF8 = out.InvalidUTF8 || p.invalid
			}
			j, err := o.Engine.Job(ctx, in.JobID)
			out.Status, out.Stdout, out.Stderr, out.StdoutNext, out.StderrNext = j.Status, texts[0], texts[1], at[0], at[1]
			return out, err
		})
}

// lastLines returns the last n lines of text, and whether anything is left out. If text starts
// within a line, that line is dropped, unless it is the only one.
func lastLines(text string, n int, amid bool) (string, bool) {
	if amid {
		if _, rest, ok := strings.Cut(text, "\n"); ok && rest != "" {
			text = rest
		}
	}
	at := len(strings.TrimSuffix(text, "\n"))
	for range n {
		if at = strings.LastIndexByte(text[:at], '\n'); at < 0 {
			return text, false
		}
	}
	return text[at+1:], true
}

// Output within quietTime of the previous output belongs to the same answer.
const (
	defaultAnswer = 500 // milliseconds
	quietTime     = 80 * time.Millisecond
	lookTime      = 20 * time.Millisecond
)

type interactInput struct {
	jobArg

	Input     string `json:"input,omitempty" jsonschema_description:"Exactly as given: end a line with \\n. On a tty \\u0003 is Ctrl-C."`
	Close     bool   `json:"close,omitempty" jsonschema_description:"Close stdin after it."`
	Wait      *int   `json:"wait_ms,omitempty" jsonschema:"minimum=0,maximum=10000" jsonschema_description:"For an answer, at most; default 500."`
	StripANSI bool   `json:"strip_ansi,omitempty"`
}

func (in interactInput) check(bad *faults) {
	in.jobArg.check(bad)
	if in.Input == "" && !in.Close {
		bad.add("input", "is required", "give text, or close: true; get_job_output only reads")
	}
}

func (o Options) interactWithJob() server.ServerTool {
	return define("interact_with_job", "Type into a job",
		"Type into a running task whose stdin is open (execute_command, or manifest.stdin open) and return what it writes next: "+
			"shells, REPLs, password prompts, questions. Later output: get_job_output with the next offsets.",
		hints{openWorld: true},
		func(ctx context.Context, in interactInput) (outputOutput, error) {
			before, err := end(ctx, o.Engine, in.JobID)
			if err == nil {
				err = o.Engine.Input(ctx, in.JobID, []byte(in.Input), in.Close)
			}
			if err == nil {
				err = awaitAnswer(ctx, o.Engine, in.JobID, before, time.Duration(given(in.Wait, defaultAnswer))*time.Millisecond)
			}
			if err != nil {
				return outputOutput{}, err
			}
			return output(ctx, o.Engine, in.JobID, "", before, defaultBytes, in.StripANSI)
		})
}

// awaitAnswer waits until output after a position has come and paused, the job's end, or limit.
func awaitAnswer(ctx context.Context, e job.Engine, id string, before position, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	at, changed := before, time.Time{}
	for time.Now().Before(deadline) {
		over := true
		for i, stream := range streams {
			chunk, err := e.Output(ctx, id, stream, at[i], defaultBytes)
			if err != nil {
				return err
			}
			if len(chunk.Data) > 0 {
				at[i], changed = chunk.Next, time.Now()
			}
			over = over && chunk.Complete
		}
		if over || at != before && time.Since(changed) >= quietTime {
			return nil
		}
		if err := sleep.For(ctx, lookTime); err != nil {
			return err
		}
	}
	return nil
}

type killInput struct {
	jobArg

	Signal string `json:"signal,omitempty" jsonschema:"enum=@signals" jsonschema_description:"Default TERM; KILL follows after 5 seconds."`
}

type killOutput struct {
	JobID  string     `json:"job_id"`
	Result job.Killed `json:"result" jsonschema:"enum=killed,enum=already_terminated,enum=not_found"`
}

func (o Options) killJob() server.ServerTool {
	return define("kill_job", "Kill a job",
		"End a job's task and all its processes with a signal; it becomes failed, reason killed. "+
			"Its own VM is destroyed, a persistent one stays. Ctrl-C that does not end the job: interact_with_job on a tty.",
		hints{destructive: true, idempotent: true},
		func(ctx context.Context, in killInput) (killOutput, error) {
			killed, err := o.Engine.Kill(ctx, in.JobID, in.Signal)
			return killOutput{JobID: in.JobID, Result: killed}, err
		})
}
