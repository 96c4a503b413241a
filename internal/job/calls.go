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
func ask[In, Out any](ctx context.Context, c calls, v Typed[In, Out], in In) (out Out, err error) {
	result, err := c.call(ctx, v.Verb, in)
	if result != nil {
		out = result.(Out)
	}
	return out, err
}

func tell[In any](ctx context.Context, c calls, v Typed[In, None], in In) error {
	_, err := ask(ctx, c, v, in)
	return err
}

func (c calls) Submit(ctx context.Context, s Submission) (Job, error) {
	return ask(ctx, c, VerbSubmit, s)
}

func (c calls) Plan(ctx context.Context, s Submission) ([]string, error) {
	return ask(ctx, c, VerbPlan, s)
}

func (c calls) Job(ctx context.Context, id string) (Job, error) {
	return ask(ctx, c, VerbJob, jobRef{id})
}

func (c calls) Manifest(ctx context.Context, id string) (Manifest, error) {
	return ask(ctx, c, VerbManifest, jobRef{id})
}

func (c calls) Result(ctx context.Context, id string) (Result, error) {
	return ask(ctx, c, VerbResult, jobRef{id})
}

func (c calls) Cancel(ctx context.Context, id string) error {
	return tell(ctx, c, VerbCancel, jobRef{id})
}

func (c calls) Kill(ctx context.Context, id, signal string) (Killed, error) {
	return ask(ctx, c, VerbKill, ToKill{id, signal})
}

func (c calls) List(ctx context.Context, f Filter) (Page, error) {
	return ask(ctx, c, VerbList, f)
}

func (c calls) DeleteJob(ctx context.Context, id string) error {
	return tell(ctx, c, VerbDeleteJob, jobRef{id})
}

func (c calls) Cleanup(ctx context.Context, olderThan time.Duration) (int, error) {
	return ask(ctx, c, VerbCleanup, aged{int64(olderThan / time.Second)})
}

func (c calls) Watch(ctx context.Context, id string, after int64) ([]Event, Job, error) {
	w, err := ask(ctx, c, VerbWatch, Watching{id, after})
	return w.Events, w.Job, err
}

func (c calls) Output(ctx context.Context, id, stream string, offset, limit int64) (Chunk, error) {
	return ask(ctx, c, VerbOutput, Stretch{id, stream, offset, limit})
}

func (c calls) Input(ctx context.Context, id string, data []byte, closed bool) error {
	return tell(ctx, c, VerbInput, input{id, data, closed})
}

func (c calls) Resize(ctx context.Context, id string, rows, columns int) error {
	return tell(ctx, c, VerbResize, resized{id, rows, columns})
}

func (c calls) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, Artifact, error) {
	d, err := ask(ctx, c, VerbOpenArtifact, fileRef{id, path})
	return d.File, d.About, err
}

func (c calls) CreateVM(ctx context.Context, s Submission) (VMInfo, error) {
	return ask(ctx, c, VerbCreateVM, s)
}

func (c calls) VMs(ctx context.Context) ([]VMInfo, error) {
	return ask(ctx, c, VerbVMs, None{})
}

func (c calls) VM(ctx context.Context, ref string) (VMInfo, error) {
	return ask(ctx, c, VerbVM, vmRef{ref})
}

func (c calls) StartVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask(ctx, c, VerbStartVM, vmRef{ref})
}

func (c calls) StopVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask(ctx, c, VerbStopVM, vmRef{ref})
}

func (c calls) DestroyVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask(ctx, c, VerbDestroyVM, vmRef{ref})
}

func (c calls) ForgetVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask(ctx, c, VerbForgetVM, vmRef{ref})
}

func (c calls) SuspendVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask(ctx, c, VerbSuspendVM, vmRef{ref})
}

func (c calls) ResumeVM(ctx context.Context, ref string) (VMInfo, error) {
	return ask(ctx, c, VerbResumeVM, vmRef{ref})
}

func (c calls) SetVM(ctx context.Context, ref string, change VMChange) (VMInfo, error) {
	return ask(ctx, c, VerbSetVM, VMEdit{ref, change})
}

func (c calls) SaveVM(ctx context.Context, ref, name string, inPlace bool) (SavedTemplate, error) {
	return ask(ctx, c, VerbSaveVM, toSave{ref, name, inPlace})
}

func (c calls) ForkVM(ctx context.Context, spec ForkSpec) (Forked, error) {
	return ask(ctx, c, VerbForkVM, spec)
}

func (c calls) SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (VMInfo, error) {
	return ask(ctx, c, VerbSnapshotVM, newSnapshot{ref, snapshot, memory})
}

func (c calls) RevertVM(ctx context.Context, ref, snapshot string) (VMInfo, error) {
	return ask(ctx, c, VerbRevertVM, snapshotRef{ref, snapshot})
}

func (c calls) ListSnapshots(ctx context.Context, ref string) ([]Snapshot, error) {
	return ask(ctx, c, VerbListSnapshots, vmRef{ref})
}

func (c calls) DeleteSnapshot(ctx context.Context, ref, snapshot string) (VMInfo, error) {
	return ask(ctx, c, VerbDeleteSnapshot, snapshotRef{ref, snapshot})
}

func (c calls) ListFiles(ctx context.Context, q FileList) (FilePage, error) {
	return ask(ctx, c, VerbListFiles, q)
}

func (c calls) ReadFile(ctx context.Context, r FileRange) (FileChunk, error) {
	return ask(ctx, c, VerbReadFile, r)
}

func (c calls) WriteFile(ctx context.Context, w FileWrite) (FileWritten, error) {
	return ask(ctx, c, VerbWriteFile, w)
}

func (c calls) EditFile(ctx context.Context, e FileEdit) (FileEdited, error) {
	return ask(ctx, c, VerbEditFile, e)
}

func (c calls) ReadTree(ctx context.Context, f FileRef) (io.ReadCloser, error) {
	return ask(ctx, c, VerbReadTree, f)
}

func (c calls) WriteTree(ctx context.Context, f FileRef, archive io.Reader) error {
	return tell(ctx, c, VerbWriteTree, treeUpload{f.VM, f.Path, archive})
}

func (c calls) Network(ctx context.Context, q NetworkQuery) (NetworkReport, error) {
	return ask(ctx, c, VerbNetwork, q)
}

func (c calls) DialVM(ctx context.Context, ref string, port int) (Tunnel, error) {
	return ask(ctx, c, VerbDialVM, portRef{ref, port})
}

func (c calls) LoginVM(ctx context.Context, ref, key string) (Tunnel, error) {
	return ask(ctx, c, VerbLoginVM, loginRef{ref, key})
}

func (c calls) ExposePort(ctx context.Context, spec PortSpec) (ExposedPort, error) {
	return ask(ctx, c, VerbExposePort, spec)
}

func (c calls) ListPorts(ctx context.Context, ref string) ([]ExposedPort, error) {
	return ask(ctx, c, VerbListPorts, vmRef{ref})
}

func (c calls) UnexposePort(ctx context.Context, ref, name string) (ExposedPort, error) {
	return ask(ctx, c, VerbUnexposePort, namedPort{ref, name})
}

func (c calls) Volumes(ctx context.Context) ([]VolumeInfo, error) {
	return ask(ctx, c, VerbVolumes, None{})
}

func (c calls) Volume(ctx context.Context, ref string) (VolumeInfo, error) {
	return ask(ctx, c, VerbVolume, volumeRef{ref})
}

func (c calls) CreateVolume(ctx context.Context, spec VolumeSpec) (VolumeInfo, error) {
	return ask(ctx, c, VerbCreateVolume, spec)
}

func (c calls) RemoveVolume(ctx context.Context, ref string) (VolumeInfo, error) {
	return ask(ctx, c, VerbRemoveVolume, volumeRef{ref})
}

func (c calls) AttachVolume(ctx context.Context, a VolumeAttach) (VolumeInfo, error) {
	return ask(ctx, c, VerbAttachVolume, a)
}

func (c calls) DetachVolume(ctx context.Context, ref, of string) (VolumeInfo, error) {
	return ask(ctx, c, VerbDetachVolume, attachedRef{ref, of})
}

func (c calls) Pools(ctx context.Context) ([]PoolInfo, error) {
	return ask(ctx, c, VerbPools, None{})
}

func (c calls) Pool(ctx context.Context, name string) (PoolInfo, error) {
	return ask(ctx, c, VerbPool, poolRef{name})
}

func (c calls) CreatePool(ctx context.Context, p Pool) (PoolInfo, error) {
	return ask(ctx, c, VerbCreatePool, p)
}

func (c calls) ResizePool(ctx context.Context, name string, change PoolChange) (PoolInfo, error) {
	return ask(ctx, c, VerbResizePool, PoolEdit{name, change})
}

func (c calls) RemovePool(ctx context.Context, name string) (PoolInfo, error) {
	return ask(ctx, c, VerbRemovePool, poolRef{name})
}

func (c calls) Engines(ctx context.Context) ([]EngineInfo, error) {
	return ask(ctx, c, VerbEngines, None{})
}

func (c calls) Tokens(ctx context.Context) ([]Token, error) {
	return ask(ctx, c, VerbTokens, None{})
}

func (c calls) CreateToken(ctx context.Context, s TokenSpec) (NewToken, error) {
	return ask(ctx, c, VerbCreateToken, s)
}

func (c calls) RevokeToken(ctx context.Context, ref string) ([]Token, error) {
	return ask(ctx, c, VerbRevokeToken, tokenRef{ref})
}

func (c calls) CreateCredential(ctx context.Context, n NewCredential) (Credential, error) {
	return ask(ctx, c, VerbCreateCredential, n)
}

func (c calls) Credentials(ctx context.Context) ([]Credential, error) {
	return ask(ctx, c, VerbCredentials, None{})
}

func (c calls) RemoveCredential(ctx context.Context, name string) (Credential, error) {
	return ask(ctx, c, VerbRemoveCredential, credentialRef{name})
}

func (c calls) Schedules(ctx context.Context) ([]Schedule, error) {
	return ask(ctx, c, VerbSchedules, None{})
}

func (c calls) Schedule(ctx context.Context, name string) (Schedule, error) {
	return ask(ctx, c, VerbSchedule, scheduleRef{name})
}

func (c calls) CreateSchedule(ctx context.Context, s ScheduleSpec) (Schedule, error) {
	return ask(ctx, c, VerbCreateSchedule, s)
}

func (c calls) PauseSchedule(ctx context.Context, edit ScheduleEdit) (Schedule, error) {
	return ask(ctx, c, VerbPauseSchedule, edit)
}

func (c calls) RunSchedule(ctx context.Context, name string) (Job, error) {
	return ask(ctx, c, VerbRunSchedule, scheduleRef{name})
}

func (c calls) RemoveSchedule(ctx context.Context, name string) (Schedule, error) {
	return ask(ctx, c, VerbRemoveSchedule, scheduleRef{name})
}

func (c calls) Usage(ctx context.Context, q UsageQuery) ([]Usage, error) {
	return ask(ctx, c, VerbUsage, q)
}

func (c calls) CheckHost(ctx context.Context) (HostReport, error) {
	return ask(ctx, c, VerbCheckHost, None{})
}

func (c calls) TestHost(ctx context.Context, spec HostTestSpec) (HostTest, error) {
	return ask(ctx, c, VerbTestHost, spec)
}

func (c calls) HostTests(ctx context.Context) ([]HostTest, error) {
	return ask(ctx, c, VerbHostTests, None{})
}

func (c calls) CancelHostTest(ctx context.Context, id string) (HostTest, error) {
	return ask(ctx, c, VerbCancelHostTest, hostTestRef{id})
}

func (c calls) Nodes(ctx context.Context) ([]NodeInfo, error) {
	return ask(ctx, c, VerbNodes, None{})
}

func (c calls) Checkpoints(ctx context.Context) ([]CheckpointInfo, error) {
	return ask(ctx, c, VerbCheckpoints, None{})
}

func (c calls) Checkpoint(ctx context.Context, ref string) (CheckpointInfo, error) {
	return ask(ctx, c, VerbCheckpoint, checkpointRef{ref})
}

func (c calls) CreateCheckpoint(ctx context.Context, spec CheckpointSpec) (CheckpointInfo, error) {
	return ask(ctx, c, VerbCreateCheckpoint, spec)
}

func (c calls) RemoveCheckpoint(ctx context.Context, ref string) (CheckpointInfo, error) {
	return ask(ctx, c, VerbRemoveCheckpoint, checkpointRef{ref})
}

func (c calls) CordonNode(ctx context.Context, name string) (NodeInfo, error) {
	return ask(ctx, c, VerbCordonNode, nodeRef{name})
}

func (c calls) UncordonNode(ctx context.Context, name string) (NodeInfo, error) {
	return ask(ctx, c, VerbUncordonNode, nodeRef{name})
}

func (c calls) Dispatchers(ctx context.Context) ([]Dispatcher, error) {
	return ask(ctx, c, VerbDispatchers, None{})
}

func (c calls) ReportDispatcher(ctx context.Context, d Dispatcher) (Dispatcher, error) {
	return ask(ctx, c, VerbReportDispatcher, d)
}

func (c calls) DrainDispatcher(ctx context.Context, name string) error {
	_, err := ask(ctx, c, VerbDrainDispatcher, dispatcherRef{name})
	return err
}

func (c calls) UndrainDispatcher(ctx context.Context, name string) error {
	_, err := ask(ctx, c, VerbUndrainDispatcher, dispatcherRef{name})
	return err
}
