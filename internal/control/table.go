package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"linus/internal/job"
)

// verbs is the table of what an engine offers: a row for each method of job.Engine,
// with its name, its HTTP route, whether a call may be repeated after its response was
// lost, and the method. Server and client are built from it. Inputs and results are
// plain JSON.
func verbs() []row[job.Engine] {
	return []row[job.Engine]{
		route("Submit", "POST /v1/jobs", ifKeyed, job.Engine.Submit),
		route("Plan", "POST /v1/plan", always, job.Engine.Plan),
		route("Job", "GET /v1/jobs/{id}", always, ofJob(job.Engine.Job)),
		heavy(route("Manifest", "GET /v1/jobs/{id}/manifest", always, ofJob(job.Engine.Manifest))),
		heavy(route("Result", "GET /v1/jobs/{id}/result", always, ofJob(job.Engine.Result))),
		route("Cancel", "POST /v1/jobs/{id}/cancel", always, func(e job.Engine, ctx context.Context, in jobRef) (none, error) {
			return none{}, e.Cancel(ctx, in.ID)
		}),
		route("Kill", "POST /v1/jobs/{id}/kill{?signal}", always, func(e job.Engine, ctx context.Context, in signalled) (job.Killed, error) {
			return e.Kill(ctx, in.ID, in.Signal)
		}),
		route("List", "GET /v1/jobs{?status,reason,client,text,since,before,limit,cursor,principal}", always, job.Engine.List),
		route("Activity", "GET /v1/activity{?principal}", always, func(e job.Engine, ctx context.Context, in ofPrincipal) (job.Activity, error) {
			return e.Activity(ctx, in.Principal)
		}),
		route("Cleanup", "POST /v1/cleanup{?older_than}", always, func(e job.Engine, ctx context.Context, in aged) (int, error) {
			return e.Cleanup(ctx, time.Duration(in.OlderThan))
		}),

		route("Watch", "GET /v1/jobs/{id}/events{?after}", always, func(e job.Engine, ctx context.Context, in watching) (watched, error) {
			return poll(ctx, e, in)
		}),
		route("Output", "GET /v1/jobs/{id}/output{?stream,offset,limit}", always, func(e job.Engine, ctx context.Context, in stretch) (job.Chunk, error) {
			return e.Output(ctx, in.ID, in.Stream, in.Offset, in.Limit)
		}),
		route("Input", "POST /v1/jobs/{id}/input", never, func(e job.Engine, ctx context.Context, in input) (none, error) {
			return none{}, e.Input(ctx, in.ID, in.Data, in.Closed) // it may have been delivered
		}),
		route("Resize", "POST /v1/jobs/{id}/resize{?rows,columns}", always, func(e job.Engine, ctx context.Context, in resized) (none, error) {
			return none{}, e.Resize(ctx, in.ID, in.Rows, in.Columns)
		}),
		socket("Terminal", "GET /v1/jobs/{id}/terminal{?offset}", serveTerminal),
		route("OpenArtifact", "GET /v1/jobs/{id}/artifacts/{path...}", always, func(e job.Engine, ctx context.Context, in fileRef) (download, error) {
			file, about, err := e.OpenArtifact(ctx, in.ID, in.Path)
			return download{file, about}, err
		}),

		route("VMs", "GET /v1/vms", always, ofNothing(job.Engine.VMs)),
		route("VM", "GET /v1/vms/{vm}", always, ofVM(job.Engine.VM)),
		route("StartVM", "POST /v1/vms/{vm}/start", always, ofVM(job.Engine.StartVM)),
		route("StopVM", "POST /v1/vms/{vm}/stop", always, ofVM(job.Engine.StopVM)),
		route("DestroyVM", "POST /v1/vms/{vm}/destroy", always, ofVM(job.Engine.DestroyVM)),
		route("ForgetVM", "POST /v1/vms/{vm}/forget", never, ofVM(job.Engine.ForgetVM)), // a repeated call would be ErrNotFound
		route("SuspendVM", "POST /v1/vms/{vm}/suspend", always, ofVM(job.Engine.SuspendVM)),
		route("ResumeVM", "POST /v1/vms/{vm}/resume", always, ofVM(job.Engine.ResumeVM)),
		route("SnapshotVM", "POST /v1/vms/{vm}/snapshot{?snapshot}", never, func(e job.Engine, ctx context.Context, in newSnapshot) (job.VMInfo, error) {
			return e.SnapshotVM(ctx, in.VM, in.Snapshot, in.Memory)
		}),
		route("RevertVM", "POST /v1/vms/{vm}/revert{?snapshot}", never, func(e job.Engine, ctx context.Context, in snapshotRef) (job.VMInfo, error) {
			return e.RevertVM(ctx, in.VM, in.Snapshot)
		}),

		route("ListFiles", "GET /v1/vms/{vm}/files{?path,offset,limit}", always, job.Engine.ListFiles),
		route("ReadFile", "GET /v1/vms/{vm}/file{?path,offset,limit}", always, job.Engine.ReadFile),
		route("WriteFile", "PUT /v1/vms/{vm}/file{?path}", always, job.Engine.WriteFile),
		route("EditFile", "PATCH /v1/vms/{vm}/file{?path}", never, job.Engine.EditFile), // a repeated call would find nothing to replace
		route("ReadTree", "GET /v1/vms/{vm}/tree{?path}", always, func(e job.Engine, ctx context.Context, in job.FileRef) (treeDownload, error) {
			tree, err := e.ReadTree(ctx, in)
			return treeDownload{tree}, err
		}),
		route("WriteTree", "PUT /v1/vms/{vm}/tree{?path}", never, func(e job.Engine, ctx context.Context, in treeUpload) (none, error) {
			return none{}, e.WriteTree(ctx, job.FileRef{VM: in.VM, Path: in.Path}, in.Archive) // it can be read once
		}),

		route("Network", "POST /v1/vms/{vm}/network", always, job.Engine.Network),
		socket("DialVM", "GET /v1/vms/{vm}/ports/{port}", dialVM),

		route("Pools", "GET /v1/pools", always, ofNothing(job.Engine.Pools)),
		route("Pool", "GET /v1/pools/{pool}", always, ofPool(job.Engine.Pool)),
		route("CreatePool", "POST /v1/pools", never, job.Engine.CreatePool), // a repeated call would find it there
		route("ResizePool", "POST /v1/pools/{pool}/resize", always, func(e job.Engine, ctx context.Context, in poolSize) (job.PoolInfo, error) {
			return e.ResizePool(ctx, in.Pool, in.PoolSize)
		}),
		route("RemovePool", "POST /v1/pools/{pool}/remove", never, ofPool(job.Engine.RemovePool)), // a repeated call would be refused

		route("Engines", "GET /v1/engines", always, ofNothing(job.Engine.Engines)),

		route("Tokens", "GET /v1/tokens", always, ofNothing(job.Engine.Tokens)),
		route("CreateToken", "POST /v1/tokens", never, job.Engine.CreateToken), // its secret would be lost
		route("RevokeToken", "POST /v1/tokens/{token}/revoke", never, func(e job.Engine, ctx context.Context, in tokenRef) ([]job.Token, error) {
			return e.RevokeToken(ctx, in.Token)
		}),

		route("CheckHost", "GET /v1/host", always, ofNothing(job.Engine.CheckHost)),
		route("Nodes", "GET /v1/nodes", always, ofNothing(job.Engine.Nodes)),
		route("CordonNode", "POST /v1/nodes/{node}/cordon", always, ofNode(job.Engine.CordonNode)),
		route("UncordonNode", "POST /v1/nodes/{node}/uncordon", always, ofNode(job.Engine.UncordonNode)),
	}
}

// process is the table of calls to the process an engine runs in.
func process() []row[*Server] {
	return []row[*Server]{
		route("Info", "GET /v1/info", always, ofNothing((*Server).tell)),
		route("Stop", "POST /v1/stop", always, ofNothing((*Server).end)),
		route("Drain", "POST /v1/drain", always, ofNothing((*Server).drain)),
		route("Yield", "POST /v1/yield", never, ofNothing((*Server).yield)),
	}
}

// Inputs of rows that are not types of package job.
type (
	none   struct{}
	jobRef struct {
		ID string `json:"id"`
	}
	fileRef struct {
		ID   string `json:"id"`
		Path string `json:"path"`
	}
	signalled struct {
		ID     string `json:"id"`
		Signal string `json:"signal"`
	}
	ofPrincipal struct {
		Principal string `json:"principal"`
	}
	aged struct {
		OlderThan duration `json:"older_than"`
	}
	watching struct {
		ID    string `json:"id"`
		After int64  `json:"after"`
	}
	stretch struct {
		ID     string `json:"id"`
		Stream string `json:"stream"`
		Offset int64  `json:"offset"`
		Limit  int64  `json:"limit"`
	}
	input struct {
		ID     string `json:"id"`
		Data   []byte `json:"data,omitempty"`
		Closed bool   `json:"closed,omitempty"`
	}
	resized struct {
		ID      string `json:"id"`
		Rows    int    `json:"rows"`
		Columns int    `json:"columns"`
	}
	terminalRef struct {
		ID     string `json:"id"`
		Offset int64  `json:"offset"`
	}
	portRef struct {
		VM   string `json:"vm"`
		Port int    `json:"port"`
	}
	vmRef struct {
		VM string `json:"vm"`
	}
	poolRef struct {
		Pool string `json:"pool"`
	}
	tokenRef struct {
		Token string `json:"token"`
	}
	nodeRef struct {
		Node string `json:"node"`
	}
	poolSize struct {
		Pool string `json:"pool"`
		job.PoolSize
	}
	snapshotRef struct {
		VM       string `json:"vm"`
		Snapshot string `json:"snapshot"`
	}
	newSnapshot struct {
		VM       string `json:"vm"`
		Snapshot string `json:"snapshot"`
		Memory   bool   `json:"memory"`
	}
)

// yielded is what Yield returns.
type yielded struct {
	Ends bool `json:"ends"`
}

// watched is what Watch returns: the events, and the job's current state.
type watched struct {
	Events []job.Event `json:"events"`
	Job    job.Job     `json:"job"`
}

// duration is text such as 24h.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = duration(parsed)
	return err
}

// Whether a call may be repeated after its response was lost.
func always[In any](In) bool { return true }
func never[In any](In) bool  { return false }

// ifKeyed: the same key returns the same job.
func ifKeyed(s job.Submission) bool { return s.IdempotencyKey != "" }

// verb is a method of E, in the form rows use.
type verb[E, In, Out any] = func(E, context.Context, In) (Out, error)

func ofNothing[E, Out any](call func(E, context.Context) (Out, error)) verb[E, none, Out] {
	return func(e E, ctx context.Context, _ none) (Out, error) { return call(e, ctx) }
}

func ofJob[Out any](call verb[job.Engine, string, Out]) verb[job.Engine, jobRef, Out] {
	return func(e job.Engine, ctx context.Context, in jobRef) (Out, error) { return call(e, ctx, in.ID) }
}

func ofVM(call verb[job.Engine, string, job.VMInfo]) verb[job.Engine, vmRef, job.VMInfo] {
	return func(e job.Engine, ctx context.Context, in vmRef) (job.VMInfo, error) { return call(e, ctx, in.VM) }
}

func ofPool(call verb[job.Engine, string, job.PoolInfo]) verb[job.Engine, poolRef, job.PoolInfo] {
	return func(e job.Engine, ctx context.Context, in poolRef) (job.PoolInfo, error) {
		return call(e, ctx, in.Pool)
	}
}

func ofNode(call verb[job.Engine, string, job.NodeInfo]) verb[job.Engine, nodeRef, job.NodeInfo] {
	return func(e job.Engine, ctx context.Context, in nodeRef) (job.NodeInfo, error) {
		return call(e, ctx, in.Node)
	}
}

// longestPoll bounds one request of Watch; the client repeats it.
const longestPoll = 50 * time.Second

// poll serves one request of Watch.
func poll(ctx context.Context, e job.Engine, in watching) (watched, error) {
	ctx, cancel := context.WithTimeout(ctx, longestPoll)
	defer cancel()
	events, j, err := e.Watch(ctx, in.ID, in.After)
	if err == nil && len(events) == 0 && errors.Is(context.Cause(ctx), ErrStopped) {
		err = ErrStopped // so that the client does not repeat it and start another engine for it
	}
	return watched{Events: events, Job: j}, err
}

// artifactHeader is the header with an artifact's description.
const artifactHeader = "Linus-Artifact"

// download is an artifact, the only result that is not JSON.
type download struct {
	file  io.ReadCloser
	about job.Artifact
}

// send writes the file's bytes. If reading it fails, the response is cut off.
func (d *download) send(w http.ResponseWriter) {
	defer func() { _ = d.file.Close() }()
	description, err := json.Marshal(d.about)
	if err != nil {
		panic(http.ErrAbortHandler) // cannot happen: strings and numbers
	}
	w.Header().Set(artifactHeader, url.QueryEscape(string(description)))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(d.about.Size, 10))
	if _, err := io.Copy(w, d.file); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// receive takes the file from its response; the reader closes it.
func (d *download) receive(resp *http.Response) error {
	description, err := url.QueryUnescape(resp.Header.Get(artifactHeader))
	if err == nil {
		err = json.Unmarshal([]byte(description), &d.about)
	}
	d.file = resp.Body
	return err
}
