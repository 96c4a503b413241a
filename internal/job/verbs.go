package job

import (
	"context"
	"io"
	"reflect"
	"strings"
	"time"
)

// Verb is a row of the table of what an engine offers: one method of Engine. It decides who may call
// the method, and the API, its clients and their tests are generated from it.
type Verb struct {
	Name string // the method's name
	ID   string // for clients generated from the API's description
	Does string // what it does, in a line for people

	// Route is an HTTP method and a path. In the path, {x} is the field of the input with that JSON
	// name, {x...} is a field that may contain slashes, and {?x,y} at the end are the fields in the
	// query. The other fields are the body.
	Route string
	// Again reports whether a call may be repeated if its response was lost.
	Again func(in any) bool

	Role Role    // the lowest that may call it
	Of   Subject // what the verb is about
	// Toolsets are the toolsets that have an MCP tool which does this, or more. A narrowed token
	// must have one of them.
	Toolsets []string

	Makes Making               // what has happened when the call returns
	At    func(out any) string // where the created object is, below the API; nil: nowhere
	Key   string               // the key of a result that is not an object, in its response

	// List is what a query may ask of a result that is a list; nil: the result is not a list. Select
	// answers the query; nil: the method does so itself.
	List   func() Listing
	Select func(out any, q Query) (Rows, error)

	Heavy     bool // the result may be as large as a request
	ReadsHost bool // it runs a script on the host, and nothing else limits how often

	// In and Out are the types of the input and the result: structs that have the method's
	// parameters and results as fields, unless there is only one.
	In, Out reflect.Type

	do func(ctx context.Context, e Engine, in any) (any, error) // nil: the generated do calls the method
}

// AnyVerb is a row of any types.
type AnyVerb interface{ row() *Verb }

func (v *Verb) row() *Verb { return v }

// Making is what a call has done when it returns.
type Making int

// What a call may have done.
const (
	Done     Making = iota
	Created         // something new exists
	Accepted        // the request is decided, and its work continues
)

// Do calls the verb's method of an engine. in is an In; the result is an Out, even with an error.
func (v *Verb) Do(ctx context.Context, e Engine, in any) (any, error) {
	through, ok := e.(calls)
	switch {
	case ok:
	case v.do != nil:
		return v.do(ctx, e, in)
	default:
		return method(v.Name)(ctx, e, in)
	}
	out, err := through.call(ctx, v, in) // as its methods do, but without copying in and the result
	if out == nil {
		out = reflect.Zero(v.Out).Interface()
	}
	return out, err
}

// Ref returns the caller's reference to the job or VM that an input is about.
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

// verbs is filled by verb, in the order of the table.
var verbs []*Verb

// The table: a row for each method of Engine, with the types of its input and its result.
var (
	VerbSubmit   = verb[Submission, Job]("Submit", "submitJob", "Submit a job", "POST /v1/jobs{?wait_seconds}", ifKeyed, RoleRun, OfNew, "jobs exec").makes(Created, func(j Job) string { return "jobs/" + j.ID })
	VerbPlan     = verb[Submission, []string]("Plan", "planJob", "Show what creating a job's VM would do, one host command per item", "POST /v1/plan", always, RoleRun, OfNew, "jobs exec vm").readsHost()
	VerbJob      = verb[jobRef, Job]("Job", "getJob", "Get a job", "GET /v1/jobs/{id}", always, RoleRead, OfJob, "jobs exec vm")
	VerbManifest = verb[jobRef, Manifest]("Manifest", "getJobManifest", "Get a job's manifest, with the contents of its files", "GET /v1/jobs/{id}/manifest", always, RoleRead, OfJob, "jobs exec").heavy()
	VerbResult   = verb[jobRef, Result]("Result", "getJobResult", "Get the outcome and output of a job that has ended", "GET /v1/jobs/{id}/result", always, RoleRead, OfJob, "jobs exec vm").heavy()
	VerbCancel   = verb[jobRef, None]("Cancel", "cancelJob", "Cancel a job", "POST /v1/jobs/{id}/cancel", always, RoleRun, OfJob, "jobs").makes(Accepted, nil)
	VerbKill     = verb[ToKill, Killed]("Kill", "killTask", "Send a job's task a signal that ends it", "POST /v1/jobs/{id}/kill", always, RoleRun, OfJob, "exec").key("result")
	VerbList     = verb[Filter, Page]("List", "listJobs", "List jobs, newest first unless sorted otherwise", "GET /v1/jobs{?status,reason,client,text,label,queue,dispatcher,since,before,sort,limit,cursor,counts,principal,parent}", always, RoleRead, OfJobs, "jobs").paged(ListingOfJobs)
	VerbCleanup  = verb[aged, int]("Cleanup", "deleteJobs", "Delete all jobs that ended longer ago than a given time", "DELETE /v1/jobs{?older_than_seconds}", always, RoleAdmin, OfAll, "admin").by(func(ctx context.Context, e Engine, in aged) (int, error) {
		return e.Cleanup(ctx, time.Duration(in.OlderThan)*time.Second)
	}).key("removed")
	VerbDeleteJob = verb[jobRef, None]("DeleteJob", "deleteJob", "Delete one job that has ended, with its output and artifacts", "DELETE /v1/jobs/{id}", never, RoleAdmin, OfJob, "admin") // a repeated call would be ErrNotFound

	VerbWatch        = verb[Watching, WatchedJob]("Watch", "watchJob", "Get a job's events as they happen", "GET /v1/jobs/{id}/events{?after}", always, RoleRead, OfJob, "jobs exec vm")
	VerbOutput       = verb[Stretch, Chunk]("Output", "getOutput", "Get a job's output as it was written", "GET /v1/jobs/{id}/output{?stream,offset,limit}", always, RoleRead, OfJob, "jobs exec")
	VerbInput        = verb[input, None]("Input", "sendInput", "Send input to a task whose stdin is open", "POST /v1/jobs/{id}/input{?close}", never, RoleRun, OfJob, "exec") // it may have been delivered
	VerbResize       = verb[resized, None]("Resize", "resizeTerminal", "Resize a task's terminal", "POST /v1/jobs/{id}/resize", always, RoleRun, OfJob, "exec")
	VerbOpenArtifact = verb[fileRef, Download]("OpenArtifact", "getArtifact", "Get a file that was collected from a job", "GET /v1/jobs/{id}/artifacts/{path...}", always, RoleRead, OfJob, "jobs")

	VerbCreateVM       = verb[Submission, VMInfo]("CreateVM", "createVM", "Create a VM that stays until it is destroyed", "POST /v1/vms", ifKeyed, RoleRun, OfNew, "vm").makes(Accepted, func(v VMInfo) string { return "vms/" + v.Job })
	VerbVMs            = listed(verb[None, []VMInfo]("VMs", "listVMs", "List VMs: those that stay, those of jobs that have not ended, and those left alone", "GET /v1/vms", always, RoleRead, OfVMs, "vm").readsHost())
	VerbVM             = verb[vmRef, VMInfo]("VM", "getVM", "Get a VM, with its status on the host", "GET /v1/vms/{vm}", always, RoleRead, OfVM, "vm").readsHost()
	VerbStartVM        = verb[vmRef, VMInfo]("StartVM", "startVM", "Start a VM that is stopped or suspended, and wait until it accepts logins", "POST /v1/vms/{vm}/start", always, RoleRun, OfVM, "vm")
	VerbStopVM         = verb[vmRef, VMInfo]("StopVM", "stopVM", "Shut a VM down, and power it off if it does not", "POST /v1/vms/{vm}/stop", always, RoleRun, OfVM, "vm")
	VerbDestroyVM      = verb[vmRef, VMInfo]("DestroyVM", "destroyVM", "Destroy a VM and its disk", "DELETE /v1/vms/{vm}", always, RoleRun, OfVM, "vm").makes(Accepted, nil)
	VerbForgetVM       = verb[vmRef, VMInfo]("ForgetVM", "forgetVM", "Stop tracking a VM that is left alone, without touching it", "POST /v1/vms/{vm}/forget", never, RoleAdmin, OfVM, "vm") // a repeated call would be ErrNotFound
	VerbSuspendVM      = verb[vmRef, VMInfo]("SuspendVM", "suspendVM", "Write a VM's memory to its disk and turn it off", "POST /v1/vms/{vm}/suspend", always, RoleRun, OfVM, "vm")
	VerbResumeVM       = verb[vmRef, VMInfo]("ResumeVM", "resumeVM", "Continue a suspended VM where it was, and wait until it accepts logins", "POST /v1/vms/{vm}/resume", always, RoleRun, OfVM, "vm")
	VerbSetVM          = verb[VMEdit, VMInfo]("SetVM", "updateVM", "Change what a VM that stays reaches, and when it is suspended or destroyed", "PATCH /v1/vms/{vm}", always, RoleRun, OfVM, "vm")
	VerbForkVM         = verb[ForkSpec, Forked]("ForkVM", "forkVM", "Make copies of a running VM, which continue from its memory where its storage allows that", "POST /v1/vms/{vm}/fork", never, RoleRun, OfVM, "vm").makes(Created, nil)
	VerbSnapshotVM     = verb[newSnapshot, VMInfo]("SnapshotVM", "createSnapshot", "Save a VM's disk under a name, and with memory what runs in it", "POST /v1/vms/{vm}/snapshots", never, RoleRun, OfVM, "vm").makes(Created, nil)
	VerbRevertVM       = verb[snapshotRef, VMInfo]("RevertVM", "revertVM", "Revert a VM to a snapshot; what has changed since is lost", "POST /v1/vms/{vm}/snapshots/{snapshot}/revert", never, RoleRun, OfVM, "vm")
	VerbListSnapshots  = verb[vmRef, []Snapshot]("ListSnapshots", "listSnapshots", "List a VM's snapshots, oldest first", "GET /v1/vms/{vm}/snapshots", always, RoleRead, OfVM, "vm").readsHost()
	VerbDeleteSnapshot = verb[snapshotRef, VMInfo]("DeleteSnapshot", "deleteSnapshot", "Remove a snapshot of a VM; the VM stays as it is", "DELETE /v1/vms/{vm}/snapshots/{snapshot}", never, RoleRun, OfVM, "vm")    // a repeated call would find none
	VerbSaveVM         = verb[toSave, SavedTemplate]("SaveVM", "saveVM", "Make a template from a VM: from a copy, or from the VM itself", "POST /v1/vms/{vm}/save", never, RoleAdmin, OfVM, "vm").makes(Created, nil) // a repeated call would find the name taken

	VerbListFiles = verb[FileList, FilePage]("ListFiles", "listFiles", "List a directory of a VM, by name", "GET /v1/vms/{vm}/files{?path,cursor,limit}", always, RoleRun, OfFile, "files")
	VerbReadFile  = verb[FileRange, FileChunk]("ReadFile", "readFile", "Read a regular file of a VM, or a part of it", "GET /v1/vms/{vm}/file{?path,offset,limit}", always, RoleRun, OfFile, "files")
	VerbWriteFile = verb[FileWrite, FileWritten]("WriteFile", "writeFile", "Write a whole regular file in a VM; if that fails, the old file stays as it was", "PUT /v1/vms/{vm}/file{?path,mode,parents,new}", always, RoleRun, OfFile, "files")
	VerbEditFile  = verb[FileEdit, FileEdited]("EditFile", "editFile", "Replace text in a regular file of a VM; if that fails, the file stays as it was", "PATCH /v1/vms/{vm}/file{?path}", never, RoleRun, OfFile, "files") // a repeated call would find nothing to replace
	VerbReadTree  = verb[FileRef, io.ReadCloser]("ReadTree", "readTree", "Get a directory of a VM, or a regular file, as a tar archive", "GET /v1/vms/{vm}/tree{?path}", always, RoleRun, OfFile, "files")
	VerbWriteTree = verb[treeUpload, None]("WriteTree", "writeTree", "Unpack a tar archive in a directory of a VM", "PUT /v1/vms/{vm}/tree{?path}", never, RoleRun, OfFile, "files") // the archive can be read only once

	VerbNetwork      = verb[NetworkQuery, NetworkReport]("Network", "checkNetwork", "Show where a VM's packets may go, and try connections from inside it", "POST /v1/vms/{vm}/network", always, RoleRun, OfFile, "vm").readsHost()
	VerbDialVM       = verb[portRef, Tunnel]("DialVM", "dialVM", "Connect to a TCP port of a VM's own loopback over a WebSocket", "GET /v1/vms/{vm}/ports/{port}", always, RoleRun, OfFile, "exec vm")
	VerbLoginVM      = verb[loginRef, Tunnel]("LoginVM", "loginVM", "Connect to a VM's SSH server over a WebSocket; a public key is let in for two minutes", "GET /v1/vms/{vm}/ssh{?key}", always, RoleRun, OfFile, "exec vm")
	VerbExposePort   = verb[PortSpec, ExposedPort]("ExposePort", "exposePort", "Give a port of a VM a URL of this server, which asks for a login", "POST /v1/vms/{vm}/ports", always, RoleRun, OfFile, "vm").makes(Created, nil)
	VerbListPorts    = verb[vmRef, []ExposedPort]("ListPorts", "listPorts", "List the ports of a VM that have a URL, oldest first", "GET /v1/vms/{vm}/ports", always, RoleRead, OfFile, "vm")
	VerbUnexposePort = verb[namedPort, ExposedPort]("UnexposePort", "unexposePort", "Remove a port's URL, and close the connections open there", "DELETE /v1/vms/{vm}/ports/{port}", never, RoleRun, OfFile, "vm") // a repeated call would find none

	VerbPools      = listed(verb[None, []PoolInfo]("Pools", "listPools", "List pools, by name", "GET /v1/pools", always, RoleAdmin, OfAll, "admin"))
	VerbPool       = verb[poolRef, PoolInfo]("Pool", "getPool", "Get a pool, with its members", "GET /v1/pools/{pool}", always, RoleAdmin, OfAll, "admin")
	VerbCreatePool = verb[Pool, PoolInfo]("CreatePool", "createPool", "Add a pool", "POST /v1/pools", never, RoleAdmin, OfAll, "admin").makes(Created, func(p PoolInfo) string { return "pools/" + p.Name }) // a repeated call would find it there
	VerbResizePool = verb[PoolEdit, PoolInfo]("ResizePool", "resizePool", "Change how many members a pool keeps, and for how long", "PATCH /v1/pools/{pool}", always, RoleAdmin, OfAll, "admin")
	VerbRemovePool = verb[poolRef, PoolInfo]("RemovePool", "removePool", "Remove a pool; jobs that have one of its VMs keep it until they end", "DELETE /v1/pools/{pool}", never, RoleAdmin, OfAll, "admin").makes(Accepted, nil) // a repeated call would be refused

	VerbVolumes      = listed(verb[None, []VolumeInfo]("Volumes", "listVolumes", "List volumes, by name", "GET /v1/volumes", always, RoleRead, OfVMs, "vm").readsHost())
	VerbVolume       = verb[volumeRef, VolumeInfo]("Volume", "getVolume", "Get a volume, and which VMs have it", "GET /v1/volumes/{volume}", always, RoleRead, OfVolume, "vm").readsHost()
	VerbCreateVolume = verb[VolumeSpec, VolumeInfo]("CreateVolume", "createVolume", "Create a disk that outlives the VMs it is attached to", "POST /v1/volumes", never, RoleRun, OfVolume, "vm").makes(Created, func(v VolumeInfo) string { return "volumes/" + v.Name }) // a repeated call would find it there
	VerbRemoveVolume = verb[volumeRef, VolumeInfo]("RemoveVolume", "deleteVolume", "Remove a volume that is attached to no VM, with everything on it", "DELETE /v1/volumes/{volume}", never, RoleRun, OfVolume, "vm")                                                     // a repeated call would find none
	VerbAttachVolume = verb[VolumeAttach, VolumeInfo]("AttachVolume", "attachVolume", "Mount a volume in a VM that stays", "POST /v1/volumes/{volume}/attach", always, RoleRun, OfVolume, "vm")
	VerbDetachVolume = verb[attachedRef, VolumeInfo]("DetachVolume", "detachVolume", "Unmount a volume in a VM and detach it", "POST /v1/volumes/{volume}/detach", always, RoleRun, OfVolume, "vm")

	VerbCheckpoints      = listed(verb[None, []CheckpointInfo]("Checkpoints", "listCheckpoints", "List checkpoints, oldest first", "GET /v1/checkpoints", always, RoleAdmin, OfAll, "admin"))
	VerbCheckpoint       = verb[checkpointRef, CheckpointInfo]("Checkpoint", "getCheckpoint", "Get a checkpoint", "GET /v1/checkpoints/{checkpoint}", always, RoleAdmin, OfAll, "admin")
	VerbCreateCheckpoint = verb[CheckpointSpec, CheckpointInfo]("CreateCheckpoint", "createCheckpoint", "Save the memory of a VM that has booted from a template, for others to continue from", "POST /v1/checkpoints", never, RoleAdmin, OfAll, "admin").makes(Accepted, func(c CheckpointInfo) string { return "checkpoints/" + c.ID }) // a repeated call would find it there
	VerbRemoveCheckpoint = verb[checkpointRef, CheckpointInfo]("RemoveCheckpoint", "deleteCheckpoint", "Destroy a checkpoint; VMs restored from it stay", "DELETE /v1/checkpoints/{checkpoint}", always, RoleAdmin, OfAll, "admin").makes(Accepted, nil)

	VerbEngines = listed(verb[None, []EngineInfo]("Engines", "listEngines", "List the engines that share the database, oldest first", "GET /v1/engines", always, RoleAdmin, OfAll, "admin"))

	VerbDispatchers       = listed(verb[None, []Dispatcher]("Dispatchers", "listDispatchers", "List dispatchers, by queue and name", "GET /v1/dispatchers", always, RoleRead, OfQueues, "jobs"))
	VerbReportDispatcher  = verb[Dispatcher, Dispatcher]("ReportDispatcher", "reportDispatcher", "Report a dispatcher's state; the answer says whether it must stop taking work", "PUT /v1/dispatchers/{name}", always, RoleRun, OfQueues, DispatchToolset)
	VerbDrainDispatcher   = verb[dispatcherRef, None]("DrainDispatcher", "drainDispatcher", "Tell the dispatchers of a name to take no more work", "POST /v1/dispatchers/{name}/drain", always, RoleRun, OfQueues, "jobs").makes(Accepted, nil)
	VerbUndrainDispatcher = verb[dispatcherRef, None]("UndrainDispatcher", "undrainDispatcher", "Let the dispatchers of a name take work again", "POST /v1/dispatchers/{name}/undrain", always, RoleRun, OfQueues, "jobs").makes(Accepted, nil)

	VerbTokens      = listed(verb[None, []Token]("Tokens", "listTokens", "List tokens that were not revoked, by name", "GET /v1/tokens", always, RoleAdmin, OfAll, "admin"))
	VerbCreateToken = verb[TokenSpec, NewToken]("CreateToken", "createToken", "Create a token; its text is only ever in this response", "POST /v1/tokens", never, RoleAdmin, OfAll, "admin").makes(Created, nil) // its secret would be lost
	VerbRevokeToken = verb[tokenRef, []Token]("RevokeToken", "revokeToken", "Revoke the token with an ID, or all tokens of a name", "DELETE /v1/tokens/{token}", never, RoleAdmin, OfAll, "admin")

	VerbCredentials      = listed(verb[None, []Credential]("Credentials", "listCredentials", "List credentials, by name, without their values", "GET /v1/credentials", always, RoleAdmin, OfAll, "admin"))
	VerbCreateCredential = verb[NewCredential, Credential]("CreateCredential", "createCredential", "Add a credential; its value is in no response", "POST /v1/credentials", never, RoleAdmin, OfAll, "admin").makes(Created, nil)      // a repeated call would find it there
	VerbRemoveCredential = verb[credentialRef, Credential]("RemoveCredential", "deleteCredential", "Remove a credential; requests begun with it are cut off", "DELETE /v1/credentials/{credential}", never, RoleAdmin, OfAll, "admin") // a repeated call would find none

	VerbSchedules      = listed(verb[None, []Schedule]("Schedules", "listSchedules", "List schedules, by name", "GET /v1/schedules", always, RoleRead, OfSchedule, "jobs"))
	VerbSchedule       = verb[scheduleRef, Schedule]("Schedule", "getSchedule", "Get a schedule, with its last runs", "GET /v1/schedules/{schedule}", always, RoleRead, OfSchedule, "jobs")
	VerbCreateSchedule = verb[ScheduleSpec, Schedule]("CreateSchedule", "createSchedule", "Add a schedule, which submits a job at given times", "POST /v1/schedules", never, RoleRun, OfSchedule, "jobs").makes(Created, func(s Schedule) string { return "schedules/" + s.Name }) // a repeated call would find it there
	VerbPauseSchedule  = verb[ScheduleEdit, Schedule]("PauseSchedule", "pauseSchedule", "Pause a schedule, or resume it", "POST /v1/schedules/{schedule}/pause", always, RoleRun, OfSchedule, "jobs")
	VerbRunSchedule    = verb[scheduleRef, Job]("RunSchedule", "runSchedule", "Submit the job of a schedule now", "POST /v1/schedules/{schedule}/run", never, RoleRun, OfSchedule, "jobs").makes(Created, func(j Job) string { return "jobs/" + j.ID }) // it would run twice
	VerbRemoveSchedule = verb[scheduleRef, Schedule]("RemoveSchedule", "deleteSchedule", "Remove a schedule; its jobs stay", "DELETE /v1/schedules/{schedule}", never, RoleRun, OfSchedule, "jobs")                                                     // a repeated call would find none

	VerbUsage = verb[UsageQuery, []Usage]("Usage", "getUsage", "Show what jobs and VMs have used", "GET /v1/usage{?by,since,principal}", always, RoleRead, OfJobs, "jobs")

	VerbCheckHost      = verb[None, HostReport]("CheckHost", "checkHost", "Check whether the host can run jobs", "GET /v1/host", always, RoleRead, OfAll, "admin").readsHost()
	VerbTestHost       = verb[HostTestSpec, HostTest]("TestHost", "testHost", "Test everything VMs can do on the host, in VMs that are removed afterwards", "POST /v1/host/tests", never, RoleAdmin, OfAll, "admin").makes(Accepted, nil) // a repeated call would find it running
	VerbHostTests      = listed(verb[None, []HostTest]("HostTests", "listHostTests", "List the running tests of the host, and the last one of each node", "GET /v1/host/tests", always, RoleAdmin, OfAll, "admin"))
	VerbCancelHostTest = verb[hostTestRef, HostTest]("CancelHostTest", "cancelHostTest", "End a test of the host; everything it made is removed", "POST /v1/host/tests/{test}/cancel", always, RoleAdmin, OfAll, "admin").makes(Accepted, nil)
	VerbNodes          = listed(verb[None, []NodeInfo]("Nodes", "listNodes", "List the nodes that VMs are created on, by name", "GET /v1/nodes", always, RoleAdmin, OfAll, "admin"))
	VerbCordonNode     = verb[nodeRef, NodeInfo]("CordonNode", "cordonNode", "Keep new VMs off a node; existing ones stay", "POST /v1/nodes/{node}/cordon", always, RoleAdmin, OfAll, "admin")
	VerbUncordonNode   = verb[nodeRef, NodeInfo]("UncordonNode", "uncordonNode", "Allow new VMs on a node again", "POST /v1/nodes/{node}/uncordon", always, RoleAdmin, OfAll, "admin")
)

// None is the type of no input, or no result.
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

// Other inputs.
type (
	jobRef struct {
		ID string `json:"id"`
	}
	fileRef struct {
		ID   string `json:"id"`
		Path string `json:"path"`
	}
	aged struct {
		OlderThan int64 `json:"older_than_seconds" api:",required"` // seconds since the jobs ended
	}
	input struct {
		ID    string `json:"id"`
		Data  []byte `json:"data,omitempty" api:"data,body"`
		Close bool   `json:"close,omitempty"` // close the input after this data
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
		Memory   bool   `json:"memory,omitempty"` // with the state of what runs in it
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
	After int64  `json:"after"` // the number of the last known event; 0: none
}

// PoolEdit is a change of a pool.
type PoolEdit struct {
	Pool string `json:"pool"`
	PoolChange
}

// VMEdit is a change of a VM.
type VMEdit struct {
	VM string `json:"vm"`
	VMChange
}

// WatchedJob is the result of Watch: the events, and the job's current state.
type WatchedJob struct {
	Events []Event `json:"events" api:"items"`
	Job    Job     `json:"job"`
}

// Stretch is the input of Output.
type Stretch struct {
	ID     string `json:"id"`
	Stream string `json:"stream"` // stdout or stderr; empty: both, in the order of arrival
	Offset int64  `json:"offset"` // of the first byte; negative: from the end
	Limit  int64  `json:"limit"`  // bytes
}

// Typed is a row with the types of its input and its result.
type Typed[In, Out any] struct{ *Verb }

func verb[In, Out any](name, id, does, route string, again func(any) bool, least Role, of Subject, toolsets string) Typed[In, Out] {
	return Typed[In, Out]{newVerb(name, id, does, route, again, least, of, toolsets, reflect.TypeFor[In](), reflect.TypeFor[Out]())}
}

// newVerb is the part of verb that needs no type parameters, so that it is compiled only once.
func newVerb(name, id, does, route string, again func(any) bool, least Role, of Subject, toolsets string, in, out reflect.Type) *Verb {
	v := &Verb{Name: name, ID: id, Does: does, Route: route, Again: again, Role: least, Of: of, Toolsets: strings.Fields(toolsets), In: in, Out: out}
	if v.Out.Kind() == reflect.Slice {
		v.Key = "items"
	}
	verbs = append(verbs, v)
	return v
}

// by sets how to call a method whose parameters are not the fields of In.
func (v Typed[In, Out]) by(call func(context.Context, Engine, In) (Out, error)) Typed[In, Out] {
	v.do = func(ctx context.Context, e Engine, in any) (any, error) { return call(ctx, e, in.(In)) }
	return v
}

func (v Typed[In, Out]) heavy() Typed[In, Out]                 { v.Heavy = true; return v }
func (v Typed[In, Out]) readsHost() Typed[In, Out]             { v.ReadsHost = true; return v }
func (v Typed[In, Out]) key(key string) Typed[In, Out]         { v.Key = key; return v }
func (v Typed[In, Out]) paged(l func() Listing) Typed[In, Out] { v.List = l; return v }

// makes sets what a call has done when it returns, and where the created object is, below the API;
// nil: it has no place of its own.
func (v Typed[In, Out]) makes(what Making, at func(Out) string) Typed[In, Out] {
	v.Makes = what
	if at != nil {
		v.At = func(out any) string { return at(out.(Out)) }
	}
	return v
}

// listed makes the verb's list of rows answer queries.
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

// Functions for Verb.Again.
func always(any) bool { return true }
func never(any) bool  { return false }

// ifKeyed allows a repeat with an idempotency key: the same key returns the same job.
func ifKeyed(in any) bool { return in.(Submission).IdempotencyKey != "" }
