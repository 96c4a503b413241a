package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// checkpoints is what this engine knows about checkpoints.
type checkpoints struct {
	mu     sync.Mutex
	saved  []vm.VM          // those that VMs can be restored from, as of the last look
	looked bool             // whether there was a look
	asked  map[askedFor]int // how many VMs booted that a checkpoint would have served
}

// askedFor is the key for counting VMs that a checkpoint would have served.
type askedFor struct {
	shape vm.Shape
	node  string
}

// gaveUp is the count of a shape for which no more checkpoints are made automatically, because one
// could not be made or was of no use.
const gaveUp = -1

// Checkpoints returns the checkpoints that exist or are being made, oldest first.
func (f *Fleet) Checkpoints(ctx context.Context) ([]job.CheckpointInfo, error) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return nil, err
	}
	var infos []job.CheckpointInfo
	for _, v := range vms {
		if v.Checkpoint != nil {
			infos = append(infos, job.CheckpointOf(v))
		}
	}
	return infos, nil
}

// Checkpoint returns a checkpoint by its name, its VM ID or the ID in its marker. The last also
// finds a checkpoint that is gone or could not be made.
func (f *Fleet) Checkpoint(ctx context.Context, ref string) (job.CheckpointInfo, error) {
	v, err := f.findCheckpoint(ctx, ref)
	if err != nil {
		return job.CheckpointInfo{}, err
	}
	return job.CheckpointOf(v), nil
}

func (f *Fleet) findCheckpoint(ctx context.Context, ref string) (vm.VM, error) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return vm.VM{}, err
	}
	for _, v := range vms {
		if v.Checkpoint != nil && (v.Job == ref || hasName(v, ref)) {
			return v, nil
		}
	}
	if v, err := f.o.Store.VM(ctx, ref); !errors.Is(err, job.ErrNotFound) && (err != nil || v.Checkpoint != nil) {
		return v, err
	}
	return vm.VM{}, &job.FieldError{
		Field: "checkpoint", Problem: fmt.Sprintf("%q is none", ref), Remedy: string(job.ListCheckpoints) + " shows them", Fault: job.FaultUnknown,
	}
}

// CreateCheckpoint requests a checkpoint and returns at once.
func (f *Fleet) CreateCheckpoint(ctx context.Context, spec job.CheckpointSpec) (job.CheckpointInfo, error) {
	m, err := f.completeVM(ctx, job.Submission{Manifest: job.Manifest{VMName: "checkpoint", VMTemplate: spec.Template, Resources: spec.Resources}.ForVM()})
	if err != nil {
		return job.CheckpointInfo{}, err
	}
	if spec.Node != "" {
		if _, err := f.node(ctx, spec.Node); err != nil {
			return job.CheckpointInfo{}, err
		}
	}
	v, made, err := f.addCheckpoint(ctx, vm.Made{Template: m.VMTemplate, Resources: m.Resources}, spec.Node, func() (job.Submission, error) { return f.admitDisk(ctx, job.CheckpointMB(m.Resources)) })
	if err != nil {
		return job.CheckpointInfo{}, err
	}
	if !made {
		return job.CheckpointInfo{}, &job.FieldError{
			Field: "checkpoint", Problem: fmt.Sprintf("template %s with %s has one already: %s", m.VMTemplate, sizeText(m.Resources), v.Name),
			Remedy: "use it, or remove it first to have it made again", Fault: job.FaultState,
		}
	}
	return job.CheckpointOf(v), nil
}

// addCheckpoint stores a checkpoint that is to be made, unless a similar one exists (on the node,
// if one is given); it then returns that one. asked returns whose the checkpoint is, or an error if
// they may not have it; nil: it is nobody's.
func (f *Fleet) addCheckpoint(ctx context.Context, of vm.Made, node string, asked func() (job.Submission, error)) (_ vm.VM, added bool, err error) {
	end, err := f.Decide(ctx) // two engines take turns
	if err != nil {
		return vm.VM{}, false, err
	}
	defer end()
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return vm.VM{}, false, err
	}
	for _, v := range vms {
		if v.Checkpoint != nil && !v.Unwanted && like(v.Made, of) && (node == "" || v.Node == "" || v.Node == node) {
			return v, false, nil
		}
	}
	var s job.Submission
	if asked != nil {
		if s, err = asked(); err != nil {
			return vm.VM{}, false, err
		}
	}
	id, err := newID()
	if err != nil {
		return vm.VM{}, false, err
	}
	v := vm.VM{
		Name: "linus-checkpoint-" + id[24:], Job: id, Owner: f.o.Owner, Node: node, State: vm.Reserved, Source: vm.Cold, Kept: true,
		Made: vm.Made{Lifecycle: vm.Checkpointed, Template: of.Template, Resources: of.Resources, Principal: s.Principal.Owner(), CreatedAt: now()},
		Own:  &vm.Own{Client: s.Client}, Checkpoint: &vm.Checkpoint{Asked: asked != nil},
	}
	if _, _, err = f.o.Store.InsertVM(ctx, v, "", s.Principal.Limits); err != nil {
		return v, false, err
	}
	f.o.Log.Info("checkpoint is to be made", "job_id", v.Job, "template", v.Template, "size", sizeText(v.Resources))
	f.DestroySoon()
	return v, true, nil
}

// RemoveCheckpoint has a checkpoint destroyed. VMs restored from it stay.
func (f *Fleet) RemoveCheckpoint(ctx context.Context, ref string) (job.CheckpointInfo, error) {
	v, err := f.findCheckpoint(ctx, ref)
	if err != nil {
		return job.CheckpointInfo{}, err
	}
	if err := f.discardOwn(ctx, v.Job, "destroyed by request"); err != nil {
		return job.CheckpointInfo{}, err
	}
	if v, err = f.o.Store.VM(ctx, v.Job); err != nil {
		return job.CheckpointInfo{}, err
	}
	return job.CheckpointOf(v), nil
}

// save makes a checkpoint of a VM that was just made for it.
func (f *Fleet) save(ctx context.Context, made vm.VM) error {
	f.o.Guest.Forget(asJob(made))
	recorder := vmRecorder{f, made.Job}
	c, err := f.o.Provider.SaveCheckpoint(ctx, made, func(p job.Progress) { recorder.Tell(context.WithoutCancel(ctx), p) })
	if err != nil {
		return err
	}
	saved, err := f.update(ctx, made.Job, func(v *vm.VM) ([]job.Event, error) {
		c.SavedAt, c.Asked = now(), v.Checkpoint != nil && v.Checkpoint.Asked
		v.Checkpoint = &c
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: fmt.Sprintf("checkpoint of %s saved, %d MiB of memory", v.Template, c.Bytes>>20)}}, nil
	})
	if err == nil && saved.Saved() {
		f.dropKey(ctx, made.Job) // nobody logs in there any more
		f.checkpoints.mu.Lock()
		defer f.checkpoints.mu.Unlock()
		f.checkpoints.saved = append(slices.Clone(f.checkpoints.saved), saved)
	}
	return err
}

// savedVMs returns the checkpoints that VMs can be restored from.
func (f *Fleet) savedVMs(ctx context.Context) ([]vm.VM, error) {
	c := &f.checkpoints
	c.mu.Lock()
	saved, looked := c.saved, c.looked
	c.mu.Unlock()
	if looked {
		return saved, nil
	}
	return f.lookForSaved(ctx)
}

// lookForSaved is savedVMs including those that another engine made since the last look.
func (f *Fleet) lookForSaved(ctx context.Context) ([]vm.VM, error) {
	vms, err := f.o.Store.VMs(ctx)
	if err != nil {
		return nil, err
	}
	return f.noteSaved(vms), nil
}

// noteSaved records which of the VMs are checkpoints that others can be restored from.
func (f *Fleet) noteSaved(vms []vm.VM) (saved []vm.VM) {
	for _, v := range vms {
		if v.Saved() {
			saved = append(saved, v)
		}
	}
	c := &f.checkpoints
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved, c.looked = saved, true
	return saved
}

func (f *Fleet) usedCheckpoint(ctx context.Context, id string) {
	err := f.set(ctx, id, func(v *vm.VM) {
		if v.Checkpoint != nil {
			v.Checkpoint.Uses++
			v.Checkpoint.UsedAt = now()
		}
	})
	if err != nil && ctx.Err() == nil {
		f.o.Log.Warn("count the use of a checkpoint failed", "job_id", id, "err", err)
	}
}

// unfit has a checkpoint destroyed that VMs can no longer be restored from, because its template or
// its node's QEMU has changed. A checkpoint that was used is made again.
func (f *Fleet) unfit(ctx context.Context, c vm.VM, why error) {
	c, err := f.o.Store.VM(ctx, c.Job)
	if err != nil || !c.Saved() {
		return // that is known already
	}
	if err := f.discardOwn(ctx, c.Job, "destroyed, because no VM can be restored from it any more: "+why.Error()); err != nil {
		f.o.Log.Warn("giving up a checkpoint failed", "job_id", c.Job, "err", err)
		return
	}
	f.checkpoints.mu.Lock()
	f.checkpoints.saved = slices.DeleteFunc(slices.Clone(f.checkpoints.saved), func(v vm.VM) bool { return v.Job == c.Job })
	f.checkpoints.mu.Unlock()
	if c.Checkpoint.Uses == 0 {
		f.giveShapeUp(c)
	} else if err := f.renewCheckpoint(ctx, c); err != nil {
		f.o.Log.Warn("remake a checkpoint failed", "template", c.Template, "err", err)
	}
}

// renewCheckpoint has a checkpoint made in place of a destroyed one, for the same client.
func (f *Fleet) renewCheckpoint(ctx context.Context, c vm.VM) error {
	var asked func() (job.Submission, error)
	if c.Checkpoint.Asked && c.Own != nil {
		asked = func() (job.Submission, error) {
			return job.Submission{Client: c.Own.Client, Principal: job.Principal{Name: c.Principal}}, nil
		}
	}
	_, _, err := f.addCheckpoint(ctx, c.Made, c.Node, asked)
	return err
}

// giveShapeUp records that no more checkpoints of this shape are made unless somebody asks for one.
func (f *Fleet) giveShapeUp(c vm.VM) {
	f.checkpoints.mu.Lock()
	defer f.checkpoints.mu.Unlock()
	f.checkpoints.count(askedFor{c.Shape(), c.Node}, gaveUp)
}

// count sets how often a shape was asked for; checkpoints.mu must be held. When there are too many
// entries, all of them are forgotten.
func (c *checkpoints) count(of askedFor, n int) {
	if c.asked == nil || len(c.asked) >= 1000 {
		c.asked = map[askedFor]int{}
	}
	c.asked[of] = n
}

// booted records that a VM has booted, and has a checkpoint made in the background if its shape is
// needed often enough.
func (f *Fleet) booted(v vm.VM) {
	need := map[job.CheckpointMode]int{job.CheckpointsTested: 2, job.CheckpointsAuto: 2, job.CheckpointsAlways: 1}[f.o.Checkpoints]
	if need == 0 || v.Template == "" || v.Checkpoint != nil || v.Labels[job.HostTestLabel] != "" {
		return
	}
	of := askedFor{v.Shape(), v.Node}
	f.checkpoints.mu.Lock()
	n := f.checkpoints.asked[of]
	if n != gaveUp {
		n++
		f.checkpoints.count(of, n)
	}
	f.checkpoints.mu.Unlock()
	if n < need {
		return
	}
	err := f.Spawn(func(running context.Context) {
		if f.o.Checkpoints == job.CheckpointsTested && (f.o.Tests == nil || !f.o.Tests.Restores(running, v.Node, v.Template)) {
			return
		}
		if _, _, err := f.addCheckpoint(running, v.Made, v.Node, nil); err != nil && running.Err() == nil {
			f.o.Log.Warn("requesting a checkpoint failed", "template", v.Template, "err", err)
		}
	})
	if err != nil {
		f.o.Log.Debug("no checkpoint is made", "err", err)
	}
}

// lastUse returns when a checkpoint was last used or, if it never was, saved.
func lastUse(v vm.VM) time.Time {
	if v.Checkpoint.Uses == 0 {
		return v.Checkpoint.SavedAt
	}
	return v.Checkpoint.UsedAt
}

// trim has the least recently used checkpoints destroyed while all of them take more disk than allowed.
func (f *Fleet) trim(ctx context.Context, saved []vm.VM) error {
	var bytes int64
	for _, v := range saved {
		bytes += v.Checkpoint.Bytes
	}
	saved = slices.SortedFunc(slices.Values(saved), func(a, b vm.VM) int { return lastUse(a).Compare(lastUse(b)) })
	for _, v := range saved {
		if bytes <= f.o.CheckpointBytes {
			return nil
		}
		bytes -= v.Checkpoint.Bytes
		f.giveShapeUp(v)
		if err := f.discardOwn(ctx, v.Job, "destroyed: checkpoints take more disk than they may, and it was used least recently"); err != nil {
			return err
		}
	}
	return nil
}
