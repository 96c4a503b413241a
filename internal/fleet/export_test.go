package fleet

import (
	"context"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// Create stores a VM that somebody asks for, as CreateVM does with what it was asked for.
func (f *Fleet) Create(ctx context.Context, v vm.VM, key string, within job.Limits) (_ vm.VM, created bool, err error) {
	v.State, v.Source, v.Owner, v.Kept = vm.Reserved, vm.Cold, f.o.Owner, true
	v, created, err = f.o.Store.InsertVM(ctx, v, key, within)
	f.DestroySoon()
	return v, created, err
}

// Discard is DestroyVM for a VM by the ID in its marker, whoever is in it.
func (f *Fleet) Discard(ctx context.Context, id, why string) error {
	return f.discardOwn(ctx, id, why)
}

// Start is StartVM for a VM as it was read.
func (f *Fleet) Start(ctx context.Context, v vm.VM) error { return f.up(f.o.Provider.StartVM)(ctx, v) }

// Doom and Offering are what pools do, and offer.
func (f *Fleet) Doom(ctx context.Context, id string, state vm.MemberState, why string) error {
	return f.doom(ctx, id, state, why)
}

func (f *Fleet) Offering(m job.Manifest) []job.Pool { return f.offering(m) }

// TendSaved is what is done of saved templates now and then.
func (f *Fleet) TendSaved(ctx context.Context) { f.tendSaved(ctx) }

// TendMemory is what is done of VMs' memory on the hosts' disks now and then.
func (f *Fleet) TendMemory(ctx context.Context) { f.tendMemory(ctx) }

// CheckPools is what CheckHost reports of pools.
func (f *Fleet) CheckPools(ctx context.Context) []job.Check { return f.checkPools(ctx) }

// DisksOf and AskedBy are the disks alone and the VMs that count for a client.
func (f *Fleet) DisksOf(ctx context.Context, owner, client string) ([]job.Job, error) {
	has, err := f.has(ctx, owner, client)
	return slices.DeleteFunc(has, func(j job.Job) bool { return j.Kind == job.KindMake }), err
}

func (f *Fleet) AskedBy(ctx context.Context, owner, client string) ([]job.Job, error) {
	has, err := f.has(ctx, owner, client)
	return slices.DeleteFunc(has, func(j job.Job) bool { return j.Kind != job.KindMake }), err
}

// KnownNaps counts what is known of VMs that nap: of those that are suspended, cannot be, or are
// left for a time.
func (f *Fleet) KnownNaps() int {
	f.idleSuspender.mu.Lock()
	defer f.idleSuspender.mu.Unlock()
	return len(f.idleSuspender.down) + len(f.idleSuspender.failed) + len(f.idleSuspender.again) + len(f.idleSuspender.trying)
}
