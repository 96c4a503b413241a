package job

import (
	"context"
	"io"
	"time"
)

// Call calls a verb: what all of an engine's methods are to whoever treats them alike. in and
// the result are as of Verb.Do; the result may be nil with an error.
type Call func(ctx context.Context, v *Verb, in any) (any, error)

// Through returns an engine whose every method is a call.
func Through(call Call) Engine { return calls{call} }

type calls struct{ call Call }

// ask makes the call of one method.
func ask[Out any](ctx context.Context, c calls, verb string, in any) (out Out, err error) {
	result, err := c.call(ctx, VerbOf(verb), in)
	if result != nil {
		out = result.(Out)
	}
	return out, err
}

func tell(ctx context.Context, c calls, verb string, in any) error {
	_, err := ask[None](ctx, c, verb, in)
	return err
}

func (c calls) Submit(ctx context.Context, s Submission) (Job, error) {
	return ask[Job](ctx, c, "Submit", s)
}

func (c calls) Plan(ctx context.Context, s Submission) ([]string, error) {
	return ask[[]string](ctx, c, "Plan", s)
}

func (c calls) Job(ctx context.Context, id string) (Job, error) {
	return ask[Job](ctx, c, "Job", jobRef{id})
}

func (c calls) Manifest(ctx context.Context, id string) (Manifest, error) {
	return ask[Manifest](ctx, c, "Manifest", jobRef{id})
}

func (c calls) Result(ctx context.Context, id string) (Result, error) {
	return ask[Result](ctx, c, "Result", jobRef{id})
}

func (c calls) Cancel(ctx context.Context, id string) error {
	return tell(ctx, c, "Cancel", jobRef{id})
}

func (c calls) Kill(ctx context.Context, id, signal string) (Killed, error) {
	return ask[Killed](ctx, c, "Kill", ToKill{id, signal})
}

func (c calls) List(ctx context.Context, f Filter) (Page, error) {
	return ask[Page](ctx, c, "List", f)
}

func (c calls) DeleteJob(ctx context.Context, id string) error {
	return tell(ctx, c, "DeleteJob", jobRef{id})
}

func (c calls) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	return ask[int](ctx, c, "Cleanup", aged{int64(olderThan / time.Second)})
}

func (c calls) Watch(ctx context.Context, id string, after int64) ([]Event, Job, error) {
	w, err := ask[WatchedJob](ctx, c, "Watch", Watching{id, after})
	return w.Events, w.Job, err
}

func (c calls) Output(ctx context.Context, id, stream string, offset, limit int64) (Chunk, error) {
	return ask[Chunk](ctx, c, "Output", Stretch{id, stream, offset, limit})
}

func (c calls) Input(ctx context.Context, id string, data []byte, closed bool) error {
	return tell(ctx, c, "Input", input{id, data, closed})
}

func (c calls) Resize(ctx context.Context, id string, rows, columns int) error {
	return tell(ctx, c, "Resize", resized{id, rows, columns})
}

func (c calls) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, Artifact, error) {
	d, err := ask[Download](ctx, c, "OpenArtifact", fileRef{id, path})
	return d.File, d.About, err
}

func (c calls) CreateVM(ctx context.Context, s Submission) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "CreateVM", s)
}

func (c calls) VMs(ctx context.Context) ([]VMInfo, error) {
	return ask[[]VMInfo](ctx, c, "VMs", None{})
}

func (c calls) VM(ctx context.Context, ref string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "VM", vmRef{ref})
}

func (c calls) StartVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "StartVM", vmRef{ref})
}

func (c calls) StopVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "StopVM", vmRef{ref})
}

func (c calls) DestroyVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "DestroyVM", vmRef{ref})
}

func (c calls) ForgetVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "ForgetVM", vmRef{ref})
}

func (c calls) SuspendVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "SuspendVM", vmRef{ref})
}

func (c calls) ResumeVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "ResumeVM", vmRef{ref})
}

func (c calls) SetVM(ctx context.Context, ref string, change VMChange) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "SetVM", VMEdit{ref, change})
}

func (c calls) SaveVM(ctx context.Context, ref, name string, inPlace bool) (SavedTemplate, error) {
	return ask[SavedTemplate](ctx, c, "SaveVM", toSave{ref, name, inPlace})
}

func (c calls) ForkVM(ctx context.Context, spec ForkSpec) (Forked, error) {
	return ask[Forked](ctx, c, "ForkVM", spec)
}

func (c calls) SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "SnapshotVM", newSnapshot{ref, snapshot, memory})
}

func (c calls) RevertVM(ctx context.Context, ref, snapshot string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "RevertVM", snapshotRef{ref, snapshot})
}

func (c calls) ListSnapshots(ctx context.Context, ref string) ([]Snapshot, error) {
	return ask[[]Snapshot](ctx, c, "ListSnapshots", vmRef{ref})
}

func (c calls) DeleteSnapshot(ctx context.Context, ref, snapshot string) (VMInfo, error) {
	return ask[VMInfo](ctx, c, "DeleteSnapshot", snapshotRef{ref, snapshot})
}

func (c calls) ListFiles(ctx context.Context, q FileList) (FilePage, error) {
	return ask[FilePage](ctx, c, "ListFiles", q)
}

func (c calls) ReadFile(ctx context.Context, r FileRange) (FileChunk, error) {
	return ask[FileChunk](ctx, c, "ReadFile", r)
}

func (c calls) WriteFile(ctx context.Context, w FileWrite) (FileWritten, error) {
	return ask[FileWritten](ctx, c, "WriteFile", w)
}

func (c calls) EditFile(ctx context.Context, e FileEdit) (FileEdited, error) {
	return ask[FileEdited](ctx, c, "EditFile", e)
}

func (c calls) ReadTree(ctx context.Context, f FileRef) (io.ReadCloser, error) {
	return ask[io.ReadCloser](ctx, c, "ReadTree", f)
}

func (c calls) WriteTree(ctx context.Context, f FileRef, archive io.Reader) error {
	return tell(ctx, c, "WriteTree", treeUpload{f.VM, f.Path, archive})
}

func (c calls) Network(ctx context.Context, q NetworkQuery) (NetworkReport, error) {
	return ask[NetworkReport](ctx, c, "Network", q)
}

func (c calls) DialVM(ctx context.Context, ref string, port int) (Tunnel, error) {
	return ask[Tunnel](ctx, c, "DialVM", portRef{ref, port})
}

func (c calls) ExposePort(ctx context.Context, spec PortSpec) (ExposedPort, error) {
	return ask[ExposedPort](ctx, c, "ExposePort", spec)
}

func (c calls) ListPorts(ctx context.Context, ref string) ([]ExposedPort, error) {
	return ask[[]ExposedPort](ctx, c, "ListPorts", vmRef{ref})
}

func (c calls) UnexposePort(ctx context.Context, ref, name string) (ExposedPort, error) {
	return ask[ExposedPort](ctx, c, "UnexposePort", namedPort{ref, name})
}

func (c calls) Volumes(ctx context.Context) ([]VolumeInfo, error) {
	return ask[[]VolumeInfo](ctx, c, "Volumes", None{})
}

func (c calls) Volume(ctx context.Context, ref string) (VolumeInfo, error) {
	return ask[VolumeInfo](ctx, c, "Volume", volumeRef{ref})
}

func (c calls) CreateVolume(ctx context.Context, spec VolumeSpec) (VolumeInfo, error) {
	return ask[VolumeInfo](ctx, c, "CreateVolume", spec)
}

func (c calls) RemoveVolume(ctx context.Context, ref string) (VolumeInfo, error) {
	return ask[VolumeInfo](ctx, c, "RemoveVolume", volumeRef{ref})
}

func (c calls) AttachVolume(ctx context.Context, a VolumeAttach) (VolumeInfo, error) {
	return ask[VolumeInfo](ctx, c, "AttachVolume", a)
}

func (c calls) DetachVolume(ctx context.Context, ref, of string) (VolumeInfo, error) {
	return ask[VolumeInfo](ctx, c, "DetachVolume", attachedRef{ref, of})
}

func (c calls) Pools(ctx context.Context) ([]PoolInfo, error) {
	return ask[[]PoolInfo](ctx, c, "Pools", None{})
}

func (c calls) Pool(ctx context.Context, name string) (PoolInfo, error) {
	return ask[PoolInfo](ctx, c, "Pool", poolRef{name})
}

func (c calls) CreatePool(ctx context.Context, p Pool) (PoolInfo, error) {
	return ask[PoolInfo](ctx, c, "CreatePool", p)
}

func (c calls) ResizePool(ctx context.Context, name string, change PoolChange) (PoolInfo, error) {
	return ask[PoolInfo](ctx, c, "ResizePool", PoolEdit{name, change})
}

func (c calls) RemovePool(ctx context.Context, name string) (PoolInfo, error) {
	return ask[PoolInfo](ctx, c, "RemovePool", poolRef{name})
}

func (c calls) Engines(ctx context.Context) ([]EngineInfo, error) {
	return ask[[]EngineInfo](ctx, c, "Engines", None{})
}

func (c calls) Tokens(ctx context.Context) ([]Token, error) {
	return ask[[]Token](ctx, c, "Tokens", None{})
}

func (c calls) CreateToken(ctx context.Context, s TokenSpec) (NewToken, error) {
	return ask[NewToken](ctx, c, "CreateToken", s)
}

func (c calls) RevokeToken(ctx context.Context, ref string) ([]Token, error) {
	return ask[[]Token](ctx, c, "RevokeToken", tokenRef{ref})
}

func (c calls) CreateCredential(ctx context.Context, n NewCredential) (Credential, error) {
	return ask[Credential](ctx, c, "CreateCredential", n)
}

func (c calls) Credentials(ctx context.Context) ([]Credential, error) {
	return ask[[]Credential](ctx, c, "Credentials", None{})
}

func (c calls) RemoveCredential(ctx context.Context, name string) (Credential, error) {
	return ask[Credential](ctx, c, "RemoveCredential", credentialRef{name})
}

func (c calls) CheckHost(ctx context.Context) (HostReport, error) {
	return ask[HostReport](ctx, c, "CheckHost", None{})
}

func (c calls) TestHost(ctx context.Context, spec HostTestSpec) (HostTest, error) {
	return ask[HostTest](ctx, c, "TestHost", spec)
}

func (c calls) HostTests(ctx context.Context) ([]HostTest, error) {
	return ask[[]HostTest](ctx, c, "HostTests", None{})
}

func (c calls) CancelHostTest(ctx context.Context, id string) (HostTest, error) {
	return ask[HostTest](ctx, c, "CancelHostTest", hostTestRef{id})
}

func (c calls) Nodes(ctx context.Context) ([]NodeInfo, error) {
	return ask[[]NodeInfo](ctx, c, "Nodes", None{})
}

func (c calls) Checkpoints(ctx context.Context) ([]CheckpointInfo, error) {
	return ask[[]CheckpointInfo](ctx, c, "Checkpoints", None{})
}

func (c calls) Checkpoint(ctx context.Context, ref string) (CheckpointInfo, error) {
	return ask[CheckpointInfo](ctx, c, "Checkpoint", checkpointRef{ref})
}

func (c calls) CreateCheckpoint(ctx context.Context, spec CheckpointSpec) (CheckpointInfo, error) {
	return ask[CheckpointInfo](ctx, c, "CreateCheckpoint", spec)
}

func (c calls) RemoveCheckpoint(ctx context.Context, ref string) (CheckpointInfo, error) {
	return ask[CheckpointInfo](ctx, c, "RemoveCheckpoint", checkpointRef{ref})
}

func (c calls) CordonNode(ctx context.Context, name string) (NodeInfo, error) {
	return ask[NodeInfo](ctx, c, "CordonNode", nodeRef{name})
}

func (c calls) UncordonNode(ctx context.Context, name string) (NodeInfo, error) {
	return ask[NodeInfo](ctx, c, "UncordonNode", nodeRef{name})
}
