package job

import (
	"context"
	"io"
	"reflect"
	"strings"
	"time"
)

// Verb is a row of the table of what an engine offers: one method of Engine. Who may call it
// is decided by it, and the API, its clients and their tests are made of it.
type Verb struct {
	Name string // the method's
	ID   string // to clients that are generated from the API's description
	Does string // what it does, in a line for people

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

	Makes Making               // what has become of it when the call returns
	At    func(out any) string // where what it makes is, below the API; nil: nowhere
	Key   string               // the name of a result that is no object, in one

	// List is what may be asked of a result that is a list; nil: it is none. Select does it;
	// nil: the method does it by itself.
	List   func() Listing
	Select func(out any, q Query) (Rows, error)

	Heavy     bool // the result may have as many bytes as a request
	ReadsHost bool // it runs a script on the host for as long as it takes, and does nothing else that bounds how often

	// In and Out are the types of the input and the result: structs that have the
	// method's parameters and results as fields, unless there is only one.
	In, Out reflect.Type

	do func(ctx context.Context, e Engine, in any) (any, error)
}

// AnyVerb is a row, whatever its types.
type AnyVerb interface{ row() *Verb }

func (v *Verb) row() *Verb { return v }

// Making is what a call has done when it returns.
type Making int

// What a call may have done.
const (
	Done     Making = iota
	Created         // there is something new
	Accepted        // what was asked for is decided, and goes on
)

// Do calls the method of an engine. in is an In; the result is an Out, with an error, too.
func (v *Verb) Do(ctx context.Context, e Engine, in any) (any, error) {
	through, ok := e.(calls)
	if !ok {
		return v.do(ctx, e, in)
	}
	out, err := through.call(ctx, v, in) // as its methods do, without copies of in and of the result
	if out == nil {
		out = reflect.Zero(v.Out).Interface()
	}
	return out, err
}

// Ref returns the job or the VM that an input is about, as the caller has named it.
func (v *Verb) Ref(in any) string {
	switch v.Of {
	case OfJob:
		return reflect.ValueOf(in).FieldByName("ID").String()
	case OfVM, OfFile:
		return reflect.ValueOf(in).FieldByName("VM").String()
	case OfJobs, OfVMs, OfVolume, OfQueues, OfSchedule, OfNew, OfAll:
	}
	return ""
}

// Verbs returns the table: every method of Engine, once.
func Verbs() []*Verb { return verbs }

// verbs is what verb adds to, in the order of the table.
var verbs []*Verb

// The table: a row for each method of Engine, with the types of its input and its result.
var (
	VerbSubmit   = verb("Submit", "submitJob", "Submit a job", "POST /v1/jobs{?wait_seconds}", ifKeyed, RoleRun, OfNew, "jobs exec", Engine.Submit).makes(Created, func(j Job) string { return "jobs/" + j.ID })
	VerbPlan     = verb("Plan", "planJob", "Say what creating a job's VM would do, one host command per item", "POST /v1/plan", always, RoleRun, OfNew, "jobs exec vm", Engine.Plan).readsHost()
	VerbJob      = verb("Job", "getJob", "Get a job", "GET /v1/jobs/{id}", always, RoleRead, OfJob, "jobs exec vm", of[jobRef](Engine.Job))
	VerbManifest = verb("Manifest", "getJobManifest", "Get a job's manifest, with the contents of its files", "GET /v1/jobs/{id}/manifest", always, RoleRead, OfJob, "jobs exec", of[jobRef](Engine.Manifest)).heavy()
	VerbResult   = verb("Result", "getJobResult", "Get the outcome and output of a job that has ended", "GET /v1/jobs/{id}/result", always, RoleRead, OfJob, "jobs exec vm", of[jobRef](Engine.Result)).heavy()
	VerbCancel   = verb("Cancel", "cancelJob", "Cancel a job", "POST /v1/jobs/{id}/cancel", always, RoleRun, OfJob, "jobs", func(e Engine, ctx context.Context, in jobRef) (None, error) {
		return None{}, e.Cancel(ctx, in.ID)
	}).makes(Accepted, nil)
	VerbKill    = verb("Kill", "killTask", "Send a job's task a signal that ends it", "POST /v1/jobs/{id}/kill", always, RoleRun, OfJob, "exec", of2(Engine.Kill, func(in ToKill) (string, string) { return in.ID, in.Signal })).key("result")
	VerbList    = verb("List", "listJobs", "List jobs, newest first unless sorted otherwise", "GET /v1/jobs{?status,reason,client,text,label,queue,dispatcher,since,before,sort,limit,cursor,counts,principal,parent}", always, RoleRead, OfJobs, "jobs", Engine.List).paged(ListingOfJobs)
	VerbCleanup = verb("Cleanup", "deleteJobs", "Delete all jobs that ended longer ago than an age", "DELETE /v1/jobs{?older_than_seconds}", always, RoleAdmin, OfAll, "admin", func(e Engine, ctx context.Context, in aged) (int, error) {
		return e.Cleanup(ctx, time.Duration(in.OlderThan)*time.Second)
	}).key("removed")
	VerbDeleteJob = verb("DeleteJob", "deleteJob", "Delete one job that has ended, with its output and artifacts", "DELETE /v1/jobs/{id}", never, RoleAdmin, OfJob, "admin", func(e Engine, ctx context.Context, in jobRef) (None, error) {
		return None{}, e.DeleteJob(ctx, in.ID) // a repeated call would be ErrNotFound
	})

	VerbWatch = verb("Watch", "watchJob", "Get a job's events as they happen", "GET /v1/jobs/{id}/events{?after}", always, RoleRead, OfJob, "jobs exec vm", func(e Engine, ctx context.Context, in Watching) (out WatchedJob, err error) {
		out.Events, out.Job, err = e.Watch(ctx, in.ID, in.After)
		return out, err
	})
	VerbOutput = verb("Output", "getOutput", "Get a job's output as it was written", "GET /v1/jobs/{id}/output{?stream,offset,limit}", always, RoleRead, OfJob, "jobs exec", func(e Engine, ctx context.Context, in Stretch) (Chunk, error) {
		return e.Output(ctx, in.ID, in.Stream, in.Offset, in.Limit)
	})
	VerbInput = verb("Input", "sendInput", "Send input to a task whose stdin is open", "POST /v1/jobs/{id}/input{?close}", never, RoleRun, OfJob, "exec", func(e Engine, ctx context.Context, in input) (None, error) {
		return None{}, e.Input(ctx, in.ID, in.Data, in.Close) // it may have been delivered
	})
	VerbResize = verb("Resize", "resizeTerminal", "Give a task's terminal another size", "POST /v1/jobs/{id}/resize", always, RoleRun, OfJob, "exec", func(e Engine, ctx context.Context, in resized) (None, error) {
		return None{}, e.Resize(ctx, in.ID, in.Rows, in.Columns)
	})
	VerbOpenArtifact = verb("OpenArtifact", "getArtifact", "Get a file that a job has left", "GET /v1/jobs/{id}/artifacts/{path...}", always, RoleRead, OfJob, "jobs", func(e Engine, ctx context.Context, in fileRef) (out Download, err error) {
		out.File, out.About, err = e.OpenArtifact(ctx, in.ID, in.Path)
		return out, err
	})

	VerbCreateVM   = verb("CreateVM", "createVM", "Create a VM that stays until it is destroyed", "POST /v1/vms", ifKeyed, RoleRun, OfNew, "vm", Engine.CreateVM).makes(Accepted, func(v VMInfo) string { return "vms/" + v.Job })
	VerbVMs        = listed(verb("VMs", "listVMs", "List VMs: those that stay, those of jobs that have not ended, and those left alone", "GET /v1/vms", always, RoleRead, OfVMs, "vm", ofNothing(Engine.VMs)).readsHost())
	VerbVM         = verb("VM", "getVM", "Get a VM, with its status on the host", "GET /v1/vms/{vm}", always, RoleRead, OfVM, "vm", of[vmRef](Engine.VM)).readsHost()
	VerbStartVM    = verb("StartVM", "startVM", "Start a VM that is stopped or suspended, and wait until it accepts logins", "POST /v1/vms/{vm}/start", always, RoleRun, OfVM, "vm", of[vmRef](Engine.StartVM))
	VerbStopVM     = verb("StopVM", "stopVM", "Shut a VM down, and power it off if it does not", "POST /v1/vms/{vm}/stop", always, RoleRun, OfVM, "vm", of[vmRef](Engine.StopVM))
	VerbDestroyVM  = verb("DestroyVM", "destroyVM", "Destroy a VM and its disk", "DELETE /v1/vms/{vm}", always, RoleRun, OfVM, "vm", of[vmRef](Engine.DestroyVM)).makes(Accepted, nil)
	VerbForgetVM   = verb("ForgetVM", "forgetVM", "Stop tracking a VM that is left alone, without touching it", "POST /v1/vms/{vm}/forget", never, RoleAdmin, OfVM, "vm", of[vmRef](Engine.ForgetVM)) // a repeated call would be ErrNotFound
	VerbSuspendVM  = verb("SuspendVM", "suspendVM", "Write a VM's memory to its disk and turn it off", "POST /v1/vms/{vm}/suspend", always, RoleRun, OfVM, "vm", of[vmRef](Engine.SuspendVM))
	VerbResumeVM   = verb("ResumeVM", "resumeVM", "Continue a suspended VM where it was, and wait until it accepts logins", "POST /v1/vms/{vm}/resume", always, RoleRun, OfVM, "vm", of[vmRef](Engine.ResumeVM))
	VerbSetVM      = verb("SetVM", "updateVM", "Change what a VM that stays reaches, and when it is suspended or destroyed", "PATCH /v1/vms/{vm}", always, RoleRun, OfVM, "vm", of2(Engine.SetVM, func(in VMEdit) (string, VMChange) { return in.VM, in.VMChange }))
	VerbForkVM     = verb("ForkVM", "forkVM", "Make copies of a running VM, which continue from its memory where its storage allows that", "POST /v1/vms/{vm}/fork", never, RoleRun, OfVM, "vm", Engine.ForkVM).makes(Created, nil)
	VerbSnapshotVM = verb("SnapshotVM", "createSnapshot", "Save a VM's disk under a name, and with memory what runs in it", "POST /v1/vms/{vm}/snapshots", never, RoleRun, OfVM, "vm", func(e Engine, ctx context.Context, in newSnapshot) (VMInfo, error) {
		return e.SnapshotVM(ctx, in.VM, in.Snapshot, in.Memory)
	}).makes(Created, nil)
	VerbRevertVM       = verb("RevertVM", "revertVM", "Revert a VM to a snapshot; what has changed since is lost", "POST /v1/vms/{vm}/snapshots/{snapshot}/revert", never, RoleRun, OfVM, "vm", of2(Engine.RevertVM, func(in snapshotRef) (string, string) { return in.VM, in.Snapshot }))
	VerbListSnapshots  = verb("ListSnapshots", "listSnapshots", "List a VM's snapshots, oldest first", "GET /v1/vms/{vm}/snapshots", always, RoleRead, OfVM, "vm", of[vmRef](Engine.ListSnapshots)).readsHost()
	VerbDeleteSnapshot = verb("DeleteSnapshot", "deleteSnapshot", "Remove a snapshot of a VM; the VM stays as it is", "DELETE /v1/vms/{vm}/snapshots/{snapshot}", never, RoleRun, OfVM, "vm", of2(Engine.DeleteSnapshot, func(in snapshotRef) (string, string) { return in.VM, in.Snapshot })) // a repeated call would find none
	VerbSaveVM         = verb("SaveVM", "saveVM", "Make a template of a VM, of a copy or of the VM itself", "POST /v1/vms/{vm}/save", never, RoleAdmin, OfVM, "vm", func(e Engine, ctx context.Context, in toSave) (SavedTemplate, error) {
		return e.SaveVM(ctx, in.VM, in.Name, in.InPlace) // a repeated call would find the name taken
	}).makes(Created, nil)

	VerbListFiles = verb("ListFiles", "listFiles", "List a directory of a VM, by name", "GET /v1/vms/{vm}/files{?path,cursor,limit}", always, RoleRun, OfFile, "files", Engine.ListFiles)
	VerbReadFile  = verb("ReadFile", "readFile", "Read a regular file of a VM, or a part of it", "GET /v1/vms/{vm}/file{?path,offset,limit}", always, RoleRun, OfFile, "files", Engine.ReadFile)
	VerbWriteFile = verb("WriteFile", "writeFile", "Write a whole regular file of a VM, or leave it as it was", "PUT /v1/vms/{vm}/file{?path,mode,parents,new}", always, RoleRun, OfFile, "files", Engine.WriteFile)
	VerbEditFile  = verb("EditFile", "editFile", "Replace text in a regular file of a VM, or leave it as it was", "PATCH /v1/vms/{vm}/file{?path}", never, RoleRun, OfFile, "files", Engine.EditFile) // a repeated call would find nothing to replace
	VerbReadTree  = verb("ReadTree", "readTree", "Get a directory of a VM, or a regular file, as a tar archive", "GET /v1/vms/{vm}/tree{?path}", always, RoleRun, OfFile, "files", Engine.ReadTree)
	VerbWriteTree = verb("WriteTree", "writeTree", "Unpack a tar archive in a directory of a VM", "PUT /v1/vms/{vm}/tree{?path}", never, RoleRun, OfFile, "files", func(e Engine, ctx context.Context, in treeUpload) (None, error) {
		return None{}, e.WriteTree(ctx, in.FileRef, in.Archive) // it can be read once
	})

	VerbNetwork      = verb("Network", "checkNetwork", "Say where a VM's packets may go, and try connections from inside it", "POST /v1/vms/{vm}/network", always, RoleRun, OfFile, "vm", Engine.Network).readsHost()
	VerbDialVM       = verb("DialVM", "dialVM", "Connect to a TCP port of a VM's own loopback, as a WebSocket", "GET /v1/vms/{vm}/ports/{port}", always, RoleRun, OfFile, "exec vm", of2(Engine.DialVM, func(in portRef) (string, int) { return in.VM, in.Port }))
	VerbLoginVM      = verb("LoginVM", "loginVM", "Connect to a VM's SSH server, which lets a public key in for two minutes, as a WebSocket", "GET /v1/vms/{vm}/ssh{?key}", always, RoleRun, OfFile, "exec vm", of2(Engine.LoginVM, func(in loginRef) (string, string) { return in.VM, in.Key }))
	VerbExposePort   = verb("ExposePort", "exposePort", "Give a port of a VM a URL of this server, which asks for a login", "POST /v1/vms/{vm}/ports", always, RoleRun, OfFile, "vm", Engine.ExposePort).makes(Created, nil)
	VerbListPorts    = verb("ListPorts", "listPorts", "List the ports of a VM that have a URL, oldest first", "GET /v1/vms/{vm}/ports", always, RoleRead, OfFile, "vm", of[vmRef](Engine.ListPorts))
	VerbUnexposePort = verb("UnexposePort", "unexposePort", "Take a port's URL away, and end what is open there", "DELETE /v1/vms/{vm}/ports/{port}", never, RoleRun, OfFile, "vm", of2(Engine.UnexposePort, func(in namedPort) (string, string) { return in.VM, in.Port })) // a repeated call would find none

	VerbPools      = listed(verb("Pools", "listPools", "List pools, by name", "GET /v1/pools", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Pools)))
	VerbPool       = verb("Pool", "getPool", "Get a pool, with its members", "GET /v1/pools/{pool}", always, RoleAdmin, OfAll, "admin", of[poolRef](Engine.Pool))
	VerbCreatePool = verb("CreatePool", "createPool", "Add a pool", "POST /v1/pools", never, RoleAdmin, OfAll, "admin", Engine.CreatePool).makes(Created, func(p PoolInfo) string { return "pools/" + p.Name }) // a repeated call would find it there
	VerbResizePool = verb("ResizePool", "resizePool", "Change how many members a pool keeps, and for how long", "PATCH /v1/pools/{pool}", always, RoleAdmin, OfAll, "admin", of2(Engine.ResizePool, func(in PoolEdit) (string, PoolChange) { return in.Pool, in.PoolChange }))
	VerbRemovePool = verb("RemovePool", "removePool", "Remove a pool; jobs that have one of its VMs keep it to their end", "DELETE /v1/pools/{pool}", never, RoleAdmin, OfAll, "admin", of[poolRef](Engine.RemovePool)).makes(Accepted, nil) // a repeated call would be refused

	VerbVolumes      = listed(verb("Volumes", "listVolumes", "List volumes, by name", "GET /v1/volumes", always, RoleRead, OfVMs, "vm", ofNothing(Engine.Volumes)).readsHost())
	VerbVolume       = verb("Volume", "getVolume", "Get a volume, and which VMs have it", "GET /v1/volumes/{volume}", always, RoleRead, OfVolume, "vm", of[volumeRef](Engine.Volume)).readsHost()
	VerbCreateVolume = verb("CreateVolume", "createVolume", "Create a disk that outlives the VMs it is attached to", "POST /v1/volumes", never, RoleRun, OfVolume, "vm", Engine.CreateVolume).makes(Created, func(v VolumeInfo) string { return "volumes/" + v.Name }) // a repeated call would find it there
	VerbRemoveVolume = verb("RemoveVolume", "deleteVolume", "Remove a volume that no VM has, with all that is on it", "DELETE /v1/volumes/{volume}", never, RoleRun, OfVolume, "vm", of[volumeRef](Engine.RemoveVolume))                                               // a repeated call would find none
	VerbAttachVolume = verb("AttachVolume", "attachVolume", "Mount a volume in a VM that stays", "POST /v1/volumes/{volume}/attach", always, RoleRun, OfVolume, "vm", Engine.AttachVolume)
	VerbDetachVolume = verb("DetachVolume", "detachVolume", "Unmount a volume in a VM and detach it", "POST /v1/volumes/{volume}/detach", always, RoleRun, OfVolume, "vm", of2(Engine.DetachVolume, func(in attachedRef) (string, string) { return in.Volume, in.VM }))

	VerbCheckpoints      = listed(verb("Checkpoints", "listCheckpoints", "List checkpoints, oldest first", "GET /v1/checkpoints", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Checkpoints)))
	VerbCheckpoint       = verb("Checkpoint", "getCheckpoint", "Get a checkpoint", "GET /v1/checkpoints/{checkpoint}", always, RoleAdmin, OfAll, "admin", of[checkpointRef](Engine.Checkpoint))
	VerbCreateCheckpoint = verb("CreateCheckpoint", "createCheckpoint", "Save the memory of a VM that has booted from a template, for others to continue from", "POST /v1/checkpoints", never, RoleAdmin, OfAll, "admin", Engine.CreateCheckpoint).makes(Accepted, func(c CheckpointInfo) string { return "checkpoints/" + c.ID }) // a repeated call would find it there
	VerbRemoveCheckpoint = verb("RemoveCheckpoint", "deleteCheckpoint", "Destroy a checkpoint; VMs restored from it stay", "DELETE /v1/checkpoints/{checkpoint}", always, RoleAdmin, OfAll, "admin", of[checkpointRef](Engine.RemoveCheckpoint)).makes(Accepted, nil)

	VerbEngines = listed(verb("Engines", "listEngines", "List the engines that share the database, oldest first", "GET /v1/engines", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Engines)))

	VerbDispatchers      = listed(verb("Dispatchers", "listDispatchers", "List those who serve queues, by queue and name", "GET /v1/dispatchers", always, RoleRead, OfQueues, "jobs", ofNothing(Engine.Dispatchers)))
	VerbReportDispatcher = verb("ReportDispatcher", "reportDispatcher", "Say how a dispatcher is, and learn whether it is to take no more work", "PUT /v1/dispatchers/{name}", always, RoleRun, OfQueues, DispatchToolset, Engine.ReportDispatcher)
	VerbDrainDispatcher  = verb("DrainDispatcher", "drainDispatcher", "Have the dispatchers of a name take no more work", "POST /v1/dispatchers/{name}/drain", always, RoleRun, OfQueues, "jobs", func(e Engine, ctx context.Context, in dispatcherRef) (None, error) {
		return None{}, e.DrainDispatcher(ctx, in.Name)
	}).makes(Accepted, nil)
	VerbUndrainDispatcher = verb("UndrainDispatcher", "undrainDispatcher", "Let the dispatchers of a name take work again", "POST /v1/dispatchers/{name}/undrain", always, RoleRun, OfQueues, "jobs", func(e Engine, ctx context.Context, in dispatcherRef) (None, error) {
		return None{}, e.UndrainDispatcher(ctx, in.Name)
	}).makes(Accepted, nil)

	VerbTokens      = listed(verb("Tokens", "listTokens", "List tokens that were not revoked, by name", "GET /v1/tokens", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Tokens)))
	VerbCreateToken = verb("CreateToken", "createToken", "Create a token; its text is in this response, and nowhere else afterwards", "POST /v1/tokens", never, RoleAdmin, OfAll, "admin", Engine.CreateToken).makes(Created, nil) // its secret would be lost
	VerbRevokeToken = verb("RevokeToken", "revokeToken", "Revoke the token with an ID, or all tokens of a name", "DELETE /v1/tokens/{token}", never, RoleAdmin, OfAll, "admin", of[tokenRef](Engine.RevokeToken))

	VerbCredentials      = listed(verb("Credentials", "listCredentials", "List credentials, by name, without their values", "GET /v1/credentials", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Credentials)))
	VerbCreateCredential = verb("CreateCredential", "createCredential", "Add a credential; its value is in no response", "POST /v1/credentials", never, RoleAdmin, OfAll, "admin", Engine.CreateCredential).makes(Created, nil)                        // a repeated call would find it there
	VerbRemoveCredential = verb("RemoveCredential", "deleteCredential", "Remove a credential; what was begun with it is cut off", "DELETE /v1/credentials/{credential}", never, RoleAdmin, OfAll, "admin", of[credentialRef](Engine.RemoveCredential)) // a repeated call would find none

	VerbSchedules      = listed(verb("Schedules", "listSchedules", "List schedules, by name", "GET /v1/schedules", always, RoleRead, OfSchedule, "jobs", ofNothing(Engine.Schedules)))
	VerbSchedule       = verb("Schedule", "getSchedule", "Get a schedule, with its last runs", "GET /v1/schedules/{schedule}", always, RoleRead, OfSchedule, "jobs", of[scheduleRef](Engine.Schedule))
	VerbCreateSchedule = verb("CreateSchedule", "createSchedule", "Add a schedule, which submits a job at given times", "POST /v1/schedules", never, RoleRun, OfSchedule, "jobs", Engine.CreateSchedule).makes(Created, func(s Schedule) string { return "schedules/" + s.Name }) // a repeated call would find it there
	VerbPauseSchedule  = verb("PauseSchedule", "pauseSchedule", "Pause a schedule, or resume it", "POST /v1/schedules/{schedule}/pause", always, RoleRun, OfSchedule, "jobs", Engine.PauseSchedule)
	VerbRunSchedule    = verb("RunSchedule", "runSchedule", "Submit the job of a schedule now", "POST /v1/schedules/{schedule}/run", never, RoleRun, OfSchedule, "jobs", of[scheduleRef](Engine.RunSchedule)).makes(Created, func(j Job) string { return "jobs/" + j.ID }) // it would run twice
	VerbRemoveSchedule = verb("RemoveSchedule", "deleteSchedule", "Remove a schedule; its jobs stay", "DELETE /v1/schedules/{schedule}", never, RoleRun, OfSchedule, "jobs", of[scheduleRef](Engine.RemoveSchedule))                                                       // a repeated call would find none

	VerbUsage = verb("Usage", "getUsage", "Say what jobs and VMs have used", "GET /v1/usage{?by,since,principal}", always, RoleRead, OfJobs, "jobs", Engine.Usage)

	VerbCheckHost      = verb("CheckHost", "checkHost", "Check whether the host can run jobs", "GET /v1/host", always, RoleRead, OfAll, "admin", ofNothing(Engine.CheckHost)).readsHost()
	VerbTestHost       = verb("TestHost", "testHost", "Test on the host all that VMs can do, in VMs that are gone afterwards", "POST /v1/host/tests", never, RoleAdmin, OfAll, "admin", Engine.TestHost).makes(Accepted, nil) // a repeated call would find it running
	VerbHostTests      = listed(verb("HostTests", "listHostTests", "List the tests of the host that run, and the last of each node", "GET /v1/host/tests", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.HostTests)))
	VerbCancelHostTest = verb("CancelHostTest", "cancelHostTest", "End a test of the host; everything it made is removed", "POST /v1/host/tests/{test}/cancel", always, RoleAdmin, OfAll, "admin", of[hostTestRef](Engine.CancelHostTest)).makes(Accepted, nil)
	VerbNodes          = listed(verb("Nodes", "listNodes", "List the nodes that VMs are created on, by name", "GET /v1/nodes", always, RoleAdmin, OfAll, "admin", ofNothing(Engine.Nodes)))
	VerbCordonNode     = verb("CordonNode", "cordonNode", "Keep new VMs off a node; existing ones stay", "POST /v1/nodes/{node}/cordon", always, RoleAdmin, OfAll, "admin", of[nodeRef](Engine.CordonNode))
	VerbUncordonNode   = verb("UncordonNode", "uncordonNode", "Let new VMs on a node again", "POST /v1/nodes/{node}/uncordon", always, RoleAdmin, OfAll, "admin", of[nodeRef](Engine.UncordonNode))
)

// None is no input, or no result.
type None struct{}

// ToKill is the input of Kill.
type ToKill struct {
	ID     string `json:"id"`
	Signal string `json:"signal"`
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
		OlderThan int64 `json:"older_than_seconds" api:",required"` // seconds since they ended
	}
	input struct {
		ID    string `json:"id"`
		Data  []byte `json:"data,omitempty" api:"data,body"`
		Close bool   `json:"close,omitempty"` // the end of the input comes after it
	}
	resized struct {
		ID      string `json:"id"`
		Rows    int    `json:"rows" api:",required"`
		Columns int    `json:"columns" api:",required"`
	}
	portRef struct {
		VM   string `json:"vm"`
		Port int    `json:"port"`
	}
	loginRef struct {
		VM  string `json:"vm"`
		Key string `json:"key"` // public
	}
	namedPort struct {
		VM   string `json:"vm"`
		Port string `json:"port"` // its name
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
		Snapshot string `json:"snapshot" api:"name,required"`
		Memory   bool   `json:"memory,omitempty"` // with what runs in it
	}
	toSave struct {
		VM      string `json:"vm"`
		Name    string `json:"name" api:",required"` // the template's, which no VM may have
		InPlace bool   `json:"in_place,omitempty"`   // the VM itself becomes the template
	}
	treeUpload struct {
		FileRef
		Archive io.Reader `json:"archive"`
	}
	poolRef struct {
		Pool string `json:"pool"`
	}
	checkpointRef struct {
		Checkpoint string `json:"checkpoint"`
	}
	volumeRef struct {
		Volume string `json:"volume"`
	}
	attachedRef struct {
		Volume string `json:"volume"`
		VM     string `json:"vm" api:",required"`
	}
	scheduleRef struct {
		Schedule string `json:"schedule"`
	}
	tokenRef struct {
		Token string `json:"token"`
	}
	credentialRef struct {
		Credential string `json:"credential"`
	}
	hostTestRef struct {
		Test string `json:"test"`
	}
	dispatcherRef struct {
		Name string `json:"name"` // the dispatcher's
	}
	nodeRef struct {
		Node string `json:"node"`
	}
)

// Watching is the input of Watch.
type Watching struct {
	ID    string `json:"id"`
	After int64  `json:"after"` // the number of the last event that is known; 0: none
}

// PoolEdit is what is to change of a pool.
type PoolEdit struct {
	Pool string `json:"pool"`
	PoolChange
}

// VMEdit is what is to change of a VM.
type VMEdit struct {
	VM string `json:"vm"`
	VMChange
}

// WatchedJob is what Watch returns: the events, and the job's current state.
type WatchedJob struct {
	Events []Event `json:"events" api:"items"`
	Job    Job     `json:"job"`
}

// Stretch is the input of Output.
type Stretch struct {
	ID     string `json:"id"`
	Stream string `json:"stream"` // stdout or stderr; empty: both, in the order in which they came
	Offset int64  `json:"offset"` // of its first byte; negative: from the end
	Limit  int64  `json:"limit"`  // bytes
}

// method is a method of Engine, with its parameters as one.
type method[In, Out any] = func(Engine, context.Context, In) (Out, error)

// Typed is a row with the types of its input and its result.
type Typed[In, Out any] struct{ *Verb }

func verb[In, Out any](name, id, does, route string, again func(any) bool, least Role, of Subject, toolsets string, call method[In, Out]) Typed[In, Out] {
	return Typed[In, Out]{newVerb(name, id, does, route, again, least, of, toolsets, reflect.TypeFor[In](), reflect.TypeFor[Out](),
		func(ctx context.Context, e Engine, in any) (any, error) { return call(e, ctx, in.(In)) })}
}

// newVerb is all of verb that needs no types: it is compiled once.
func newVerb(name, id, does, route string, again func(any) bool, least Role, of Subject, toolsets string, in, out reflect.Type, do func(context.Context, Engine, any) (any, error)) *Verb {
	v := &Verb{Name: name, ID: id, Does: does, Route: route, Again: again, Role: least, Of: of, Toolsets: strings.Fields(toolsets), In: in, Out: out, do: do}
	if v.Out.Kind() == reflect.Slice {
		v.Key = "items"
	}
	verbs = append(verbs, v)
	return v
}

func (v Typed[In, Out]) heavy() Typed[In, Out]                 { v.Heavy = true; return v }
func (v Typed[In, Out]) readsHost() Typed[In, Out]             { v.ReadsHost = true; return v }
func (v Typed[In, Out]) key(key string) Typed[In, Out]         { v.Key = key; return v }
func (v Typed[In, Out]) paged(l func() Listing) Typed[In, Out] { v.List = l; return v }

// makes says what a call has done when it returns, and where what it makes is, below the API;
// nil: it has no place of its own.
func (v Typed[In, Out]) makes(what Making, at func(Out) string) Typed[In, Out] {
	v.Makes = what
	if at != nil {
		v.At = func(out any) string { return at(out.(Out)) }
	}
	return v
}

// listed is a verb whose result are rows, of which some may be asked for, in an order.
func listed[In any, T Row](v Typed[In, []T]) Typed[In, []T] {
	v.Select = func(out any, q Query) (Rows, error) {
		all, err := Select(out.([]T), q)
		if err != nil {
			return Rows{}, err
		}
		return page(all, q)
	}
	return v.paged(ListingOf[T])
}

// Whether a call may be repeated after its response was lost.
func always(any) bool { return true }
func never(any) bool  { return false }

// ifKeyed: the same key returns the same job.
func ifKeyed(in any) bool { return in.(Submission).IdempotencyKey != "" }

func ofNothing[Out any](call func(Engine, context.Context) (Out, error)) method[None, Out] {
	return func(e Engine, ctx context.Context, _ None) (Out, error) { return call(e, ctx) }
}

// of2 is a method of two parameters.
func of2[In, A, B, Out any](call func(Engine, context.Context, A, B) (Out, error), split func(In) (A, B)) method[In, Out] {
	return func(e Engine, ctx context.Context, in In) (Out, error) {
		a, b := split(in)
		return call(e, ctx, a, b)
	}
}

// of is a method of one parameter, which names what it is about.
func of[In ref, Out any](call method[string, Out]) method[In, Out] {
	return func(e Engine, ctx context.Context, in In) (Out, error) { return call(e, ctx, in.ref()) }
}

type ref interface{ ref() string }

func (r jobRef) ref() string        { return r.ID }
func (r vmRef) ref() string         { return r.VM }
func (r poolRef) ref() string       { return r.Pool }
func (r checkpointRef) ref() string { return r.Checkpoint }
func (r volumeRef) ref() string     { return r.Volume }
func (r scheduleRef) ref() string   { return r.Schedule }
func (r tokenRef) ref() string      { return r.Token }
func (r credentialRef) ref() string { return r.Credential }
func (r hostTestRef) ref() string   { return r.Test }
func (r nodeRef) ref() string       { return r.Node }
