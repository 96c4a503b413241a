package job

import (
	"context"
	"io"
	"reflect"
	"strings"
	"sync"
	"time"
)

// Verb is a row of the table of what an engine offers: one method of Engine. Who may call it
// is decided by it, and the API, its clients and their tests are made of it.
type Verb struct {
	Name string // the method's

	// Route is an HTTP method and a path. In it {x} is the field of the input with that
	// JSON name, {x...} is one with slashes, and {?x,y} at the end are the fields in the
	// query. The other fields are the body.
	Route string
	// Again reports whether a call may be repeated after its response was lost.
	Again func(in any) bool

	Role Role    // the least that may
	Of   Subject // what the verb is about
	// Toolsets are those of which a token must have one, if it is narrowed to some: the
	// ones with an MCP tool that does this, or more.
	Toolsets []string

	Heavy     bool // the result may have as many bytes as a request
	ReadsHost bool // it runs a script on the host for as long as it takes, and does nothing else that bounds how often

	// In and Out are the types of the input and the result: structs that have the
	// method's parameters and results as fields, unless there is only one.
	In, Out reflect.Type

	do func(ctx context.Context, e Engine, in any) (any, error)
}

// Do calls the method of an engine. in is an In; the result is an Out, with an error, too.
func (v *Verb) Do(ctx context.Context, e Engine, in any) (any, error) { return v.do(ctx, e, in) }

// Ref returns the job or the VM that an input is about, as the caller has named it.
func (v *Verb) Ref(in any) string {
	switch v.Of {
	case OfJob:
		return reflect.ValueOf(in).FieldByName("ID").String()
	case OfVM, OfFile:
		return reflect.ValueOf(in).FieldByName("VM").String()
	case OfJobs, OfVMs, OfNew, OfAll:
	}
	return ""
}

// Verbs returns the table: every method of Engine, once.
func Verbs() []*Verb { return table().rows }

// VerbOf returns the row of a method; nil if there is none.
func VerbOf(name string) *Verb { return table().named[name] }

type verbTable struct {
	rows  []*Verb
	named map[string]*Verb
}

var table = sync.OnceValue(func() verbTable {
	t := verbTable{rows: makeVerbs(), named: map[string]*Verb{}}
	for _, v := range t.rows {
		t.named[v.Name] = v
	}
	return t
})

func makeVerbs() []*Verb {
	return []*Verb{
		verb("Submit", "POST /v1/jobs", ifKeyed, RoleRun, OfNew, "jobs exec vm", Engine.Submit),
		readsHost(verb("Plan", "POST /v1/plan", always, RoleRun, OfNew, "jobs exec vm", Engine.Plan)),
		verb("Job", "GET /v1/jobs/{id}", always, RoleRead, OfJob, "jobs exec vm", ofJob(Engine.Job)),
		heavy(verb("Manifest", "GET /v1/jobs/{id}/manifest", always, RoleRead, OfJob, "jobs exec", ofJob(Engine.Manifest))),
		heavy(verb("Result", "GET /v1/jobs/{id}/result", always, RoleRead, OfJob, "jobs exec vm", ofJob(Engine.Result))),
		verb("Cancel", "POST /v1/jobs/{id}/cancel", always, RoleRun, OfJob, "jobs", func(e Engine, ctx context.Context, in jobRef) (None, error) {
			return None{}, e.Cancel(ctx, in.ID)
		}),
		verb("Kill", "POST /v1/jobs/{id}/kill{?signal}", always, RoleRun, OfJob, "exec", func(e Engine, ctx context.Context, in ToKill) (Killed, error) {
			return e.Kill(ctx, in.ID, in.Signal)
		}),
		verb("List", "GET /v1/jobs{?status,reason,client,text,since,before,limit,cursor,principal}", always, RoleRead, OfJobs, "jobs", Engine.List),
		verb("Activity", "GET /v1/activity{?principal}", always, RoleRead, OfJobs, "jobs", func(e Engine, ctx context.Context, in OfPrincipal) (Activity, error) {
			return e.Activity(ctx, in.Principal)
		}),
		verb("Cleanup", "POST /v1/cleanup{?older_than}", always, RoleAdmin, OfAll, "admin", func(e Engine, ctx context.Context, in aged) (int, error) {
			return e.Cleanup(ctx, time.Duration(in.OlderThan))
		}),

		verb("Watch", "GET /v1/jobs/{id}/events{?after}", always, RoleRead, OfJob, "jobs exec vm", func(e Engine, ctx context.Context, in watching) (out watched, err error) {
			out.Events, out.Job, err = e.Watch(ctx, in.ID, in.After)
			return out, err
		}),
		verb("Output", "GET /v1/jobs/{id}/output{?stream,offset,limit}", always, RoleRead, OfJob, "jobs exec", func(e Engine, ctx context.Context, in stretch) (Chunk, error) {
			return e.Output(ctx, in.ID, in.Stream, in.Offset, in.Limit)
		}),
		verb("Input", "POST /v1/jobs/{id}/input", never, RoleRun, OfJob, "exec", func(e Engine, ctx context.Context, in input) (None, error) {
			return None{}, e.Input(ctx, in.ID, in.Data, in.Closed) // it may have been delivered
		}),
		verb("Resize", "POST /v1/jobs/{id}/resize{?rows,columns}", always, RoleRun, OfJob, "exec", func(e Engine, ctx context.Context, in resized) (None, error) {
			return None{}, e.Resize(ctx, in.ID, in.Rows, in.Columns)
		}),
		verb("OpenArtifact", "GET /v1/jobs/{id}/artifacts/{path...}", always, RoleRead, OfJob, "jobs", func(e Engine, ctx context.Context, in fileRef) (out Download, err error) {
			out.File, out.About, err = e.OpenArtifact(ctx, in.ID, in.Path)
			return out, err
		}),

		readsHost(verb("VMs", "GET /v1/vms", always, RoleRead, OfVMs, "vm", ofNothing(Engine.VMs))),
		readsHost(verb("VM", "GET /v1/vms/{vm}", always, RoleRead, OfVM, "vm", ofVM(Engine.VM))),
		verb("StartVM", "POST /v1/vms/{vm}/start", always, RoleRun, OfVM, "vm", ofVM(Engine.StartVM)),
		verb("StopVM", "POST /v1/vms/{vm}/stop", always, RoleRun, OfVM, "vm", ofVM(Engine.StopVM)),
		verb("DestroyVM", "POST /v1/vms/{vm}/destroy", always, RoleRun, OfVM, "vm", ofVM(Engine.DestroyVM)),
		verb("ForgetVM", "POST /v1/vms/{vm}/forget", never, RoleAdmin, OfVM, "vm", ofVM(Engine.ForgetVM)), // a repeated call would be ErrNotFound
		verb("SuspendVM", "POST /v1/vms/{vm}/suspend", always, RoleRun, OfVM, "vm", ofVM(Engine.SuspendVM)),
		verb("ResumeVM", "POST /v1/vms/{vm}/resume", always, RoleRun, OfVM, "vm", ofVM(Engine.ResumeVM)),
		verb("SnapshotVM", "POST /v1/vms/{vm}/snapshot{?snapshot}", never, RoleRun, OfVM, "vm", func(e Engine, ctx context.Context, in newSnapshot) (VMInfo, error) {
			return e.SnapshotVM(ctx, in.VM, in.Snapshot, in.Memory)
		}),
		verb("RevertVM", "POST /v1/vms/{vm}/revert{?snapshot}", never, RoleRun, OfVM, "vm", func(e Engine, ctx context.Context, in snapshotRef) (VMInfo, error) {
			return e.RevertVM(ctx, in.VM, in.Snapshot)
		}),

		verb("ListFiles", "GET /v1/vms/{vm}/files{?path,offset,limit}", always, RoleRun, OfFile, "files", Engine.ListFiles),
		verb("ReadFile", "GET /v1/vms/{vm}/file{?path,offset,limit}", always, RoleRun, OfFile, "files", Engine.ReadFile),
		verb("WriteFile", "PUT /v1/vms/{vm}/file{?path}", always, RoleRun, OfFile, "files", Engine.WriteFile),
		verb("EditFile", "PATCH /v1/vms/{vm}/file{?path}", never, RoleRun, OfFile, "files", Engine.EditFile), // a repeated call would find nothing to replace
		verb("ReadTree", "GET /v1/vms/{vm}/tree{?path}", always, RoleRun, OfFile, "files", Engine.ReadTree),
		verb("WriteTree", "PUT /v1/vms/{vm}/tree{?path}", never, RoleRun, OfFile, "files", func(e Engine, ctx context.Context, in treeUpload) (None, error) {
			return None{}, e.WriteTree(ctx, FileRef{VM: in.VM, Path: in.Path}, in.Archive) // it can be read once
		}),

		readsHost(verb("Network", "POST /v1/vms/{vm}/network", always, RoleRun, OfFile, "vm", Engine.Network)),
		verb("DialVM", "GET /v1/vms/{vm}/ports/{port}", always, RoleRun, OfFile, "exec vm", func(e Engine, ctx context.Context, in portRef) (Tunnel, error) {
			return e.DialVM(ctx, in.VM, in.Port)
		}),

		verb("Pools", "GET /v1/pools", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Pools)),
		verb("Pool", "GET /v1/pools/{pool}", always, RoleAdmin, OfAll, "admin", ofPool(Engine.Pool)),
		verb("CreatePool", "POST /v1/pools", never, RoleAdmin, OfAll, "admin", Engine.CreatePool), // a repeated call would find it there
		verb("ResizePool", "POST /v1/pools/{pool}/resize", always, RoleAdmin, OfAll, "admin", func(e Engine, ctx context.Context, in poolSize) (PoolInfo, error) {
			return e.ResizePool(ctx, in.Pool, in.PoolSize)
		}),
		verb("RemovePool", "POST /v1/pools/{pool}/remove", never, RoleAdmin, OfAll, "admin", ofPool(Engine.RemovePool)), // a repeated call would be refused

		verb("Engines", "GET /v1/engines", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Engines)),

		verb("Tokens", "GET /v1/tokens", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Tokens)),
		verb("CreateToken", "POST /v1/tokens", never, RoleAdmin, OfAll, "admin", Engine.CreateToken), // its secret would be lost
		verb("RevokeToken", "POST /v1/tokens/{token}/revoke", never, RoleAdmin, OfAll, "admin", func(e Engine, ctx context.Context, in tokenRef) ([]Token, error) {
			return e.RevokeToken(ctx, in.Token)
		}),

		readsHost(verb("CheckHost", "GET /v1/host", always, RoleRead, OfAll, "admin", ofNothing(Engine.CheckHost))),
		verb("Nodes", "GET /v1/nodes", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Nodes)),
		verb("CordonNode", "POST /v1/nodes/{node}/cordon", always, RoleAdmin, OfAll, "admin", ofNode(Engine.CordonNode)),
		verb("UncordonNode", "POST /v1/nodes/{node}/uncordon", always, RoleAdmin, OfAll, "admin", ofNode(Engine.UncordonNode)),
	}
}

// None is no input, or no result.
type None struct{}

// ToKill is the input of Kill.
type ToKill struct {
	ID     string `json:"id"`
	Signal string `json:"signal"`
}

// OfPrincipal is the input of Activity.
type OfPrincipal struct {
	Principal string `json:"principal"`
}

// Download is the result of OpenArtifact.
type Download struct {
	File  io.ReadCloser
	About Artifact
}

// Other inputs that are not types of their own.
type (
	jobRef struct {
		ID string `json:"id"`
	}
	fileRef struct {
		ID   string `json:"id"`
		Path string `json:"path"`
	}
	aged struct {
		OlderThan DurationText `json:"older_than"`
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
	portRef struct {
		VM   string `json:"vm"`
		Port int    `json:"port"`
	}
	vmRef struct {
		VM string `json:"vm"`
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
	treeUpload struct {
		VM      string    `json:"vm"`
		Path    string    `json:"path"`
		Archive io.Reader `json:"archive"`
	}
	poolRef struct {
		Pool string `json:"pool"`
	}
	poolSize struct {
		Pool string `json:"pool"`
		PoolSize
	}
	tokenRef struct {
		Token string `json:"token"`
	}
	nodeRef struct {
		Node string `json:"node"`
	}
)

// watched is what Watch returns: the events, and the job's current state.
type watched struct {
	Events []Event `json:"events"`
	Job    Job     `json:"job"`
}

// DurationText is a duration that is text in JSON, such as 24h.
type DurationText time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d DurationText) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *DurationText) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = DurationText(parsed)
	return err
}

// method is a method of Engine, with its parameters as one.
type method[In, Out any] = func(Engine, context.Context, In) (Out, error)

func verb[In, Out any](name, route string, again func(any) bool, least Role, of Subject, toolsets string, call method[In, Out]) *Verb {
	return &Verb{
		Name: name, Route: route, Again: again, Role: least, Of: of, Toolsets: strings.Fields(toolsets),
		In: reflect.TypeFor[In](), Out: reflect.TypeFor[Out](),
		do: func(ctx context.Context, e Engine, in any) (any, error) { return call(e, ctx, in.(In)) },
	}
}

func heavy(v *Verb) *Verb     { v.Heavy = true; return v }
func readsHost(v *Verb) *Verb { v.ReadsHost = true; return v }

// Whether a call may be repeated after its response was lost.
func always(any) bool { return true }
func never(any) bool  { return false }

// ifKeyed: the same key returns the same job.
func ifKeyed(in any) bool { return in.(Submission).IdempotencyKey != "" }

func ofNothing[Out any](call func(Engine, context.Context) (Out, error)) method[None, Out] {
	return func(e Engine, ctx context.Context, _ None) (Out, error) { return call(e, ctx) }
}

func ofJob[Out any](call method[string, Out]) method[jobRef, Out] {
	return func(e Engine, ctx context.Context, in jobRef) (Out, error) { return call(e, ctx, in.ID) }
}

func ofVM[Out any](call method[string, Out]) method[vmRef, Out] {
	return func(e Engine, ctx context.Context, in vmRef) (Out, error) { return call(e, ctx, in.VM) }
}

func ofPool[Out any](call method[string, Out]) method[poolRef, Out] {
	return func(e Engine, ctx context.Context, in poolRef) (Out, error) { return call(e, ctx, in.Pool) }
}

func ofNode[Out any](call method[string, Out]) method[nodeRef, Out] {
	return func(e Engine, ctx context.Context, in nodeRef) (Out, error) { return call(e, ctx, in.Node) }
}
