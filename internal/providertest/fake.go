package providertest

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Fake is a hypervisor with its guests in memory. It is a Provider and a Guest.
type Fake struct {
	mu        sync.Mutex
	behaviour Behaviour
	vms       map[int]*fakeVM
	volumes   map[string]*fakeVolume // by the ID in their holder's marker
	nextID    int
	opened    map[string]bool // jobs that have used their guest without Forget
	stats     Stats
}

// Stats counts what a Fake was asked to do.
type Stats struct {
	Creates, Destroys, Lists, Looks, Pushes, Starts, Probes, Stops, Callbacks, Rooms, Pings int
	MostVMs                                                                                 int // at the same time

	Forgotten []string // names of VMs
}

type fakeVM struct {
	vm.VM
	foreign bool // has no marker
	doubted bool // its marker was removed
	stopped bool
	saved   bool   // it is a checkpoint or a template
	madeOf  string // the ID in the marker of the VM that it was, or is a copy of
	forked  bool   // it can be copied with its memory
	boots   int    // after the first
	lease   time.Duration

	hostName string // set by Rename
	mode     vm.Egress

	suspended bool                // off, with what runs in it kept
	jobs      map[string]*fakeJob // by job ID
	snapshots map[string]int      // the boot in each snapshot's memory; -1: the snapshot is of the disk only
	current   string              // the snapshot that the disk is based on
	files     map[string]string   // content by path
}

// is reports whether this VM is proven to be v.
func (there *fakeVM) is(v vm.VM) bool {
	return !there.foreign && !there.doubted && there.Name == v.OnHost() && there.Job == v.Job && there.Owner == v.Owner
}

// another reports whether this VM is proven to be a different VM from v.
func (there *fakeVM) another(v vm.VM) bool {
	return there.Name != v.OnHost() && (there.foreign || there.doubted || there.Job != v.Job)
}

func (there *fakeVM) bootID() string {
	return fmt.Sprintf("%08d-0000-4000-8000-000000000000", there.boots)
}

var (
	_ job.Provider = (*Fake)(nil)
)

// NewFake returns an empty hypervisor.
func NewFake() *Fake {
	return &Fake{vms: map[int]*fakeVM{}, volumes: map[string]*fakeVolume{}, nextID: 100, opened: map[string]bool{}}
}

// CountFrom sets the ID of the next VM, so that fakes that share a database use different IDs.
func (f *Fake) CountFrom(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextID = id
}

// Stats returns the counts so far.
func (f *Fake) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Doubt removes a VM's marker, as an operator who rewrites its notes does, or restores it.
func (f *Fake) Doubt(id int, doubted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vms[id].doubted = doubted
}

// VMs returns the existing VMs except foreign ones, by ID.
func (f *Fake) VMs() []vm.VM {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []vm.VM
	for _, v := range f.vms {
		if !v.foreign {
			list = append(list, v.VM)
		}
	}
	slices.SortFunc(list, func(a, b vm.VM) int { return a.ID - b.ID })
	return list
}

// Leaks returns what should be gone when every job is done: VMs, and guests without Forget.
func (f *Fake) Leaks() []string {
	var leaks []string
	for _, vm := range f.VMs() {
		leaks = append(leaks, fmt.Sprintf("VM %d (%s)", vm.ID, vm.Name))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.opened {
		leaks = append(leaks, "connections to the VM of job "+id)
	}
	slices.Sort(leaks)
	return leaks
}

// Plant adds a foreign VM.
func (f *Fake) Plant(name string) (id int) {
	f.mu.Lock()
	id = f.nextID
	f.nextID++
	f.mu.Unlock()
	f.PlantAt(id, name)
	return id
}

// PlantAt adds a foreign VM with an unused ID.
func (f *Fake) PlantAt(id int, name string) { f.put(id, fakeVM{VM: vm.VM{Name: name}, foreign: true}) }

// PlantCheckpoint adds a checkpoint with this ID.
func (f *Fake) PlantCheckpoint(id int) { f.put(id, fakeVM{saved: true}) }

// Return restores a destroyed VM, as from a backup.
func (f *Fake) Return(v vm.VM) { f.put(v.ID, fakeVM{VM: v}) }

func (f *Fake) put(id int, v fakeVM) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v.ID = id
	f.vms[id] = &v
}

// Has reports whether a VM with this ID exists.
func (f *Fake) Has(id int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.vms[id] != nil
}

// Move silently gives a VM another address, as a DHCP server can. With reboot it also restarts the
// VM, which ends what ran in it.
func (f *Fake) Move(id int, ip string, reboot bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	vm := f.vms[id]
	vm.IP = ip
	if reboot {
		vm.reboot()
	}
}

// Vanish silently removes a VM, as an operator would.
func (f *Fake) Vanish(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.vms, id)
}
