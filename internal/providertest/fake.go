package providertest

import (
	"fmt"
	"slices"
	"sync"

	"linus/internal/job"
)

// Fake is a hypervisor and its guests in memory: a Provider and a Guest.
type Fake struct {
	mu        sync.Mutex
	behaviour Behaviour
	vms       map[int]*fakeVM
	nextID    int
	opened    map[string]bool // jobs that have used their guest and not forgotten it
	stats     Stats
}

// Stats count what a Fake was asked to do.
type Stats struct {
	Creates, Destroys, Lists, Looks, Pushes, Starts, Probes, Stops, Callbacks int
	MostVMs                                                                   int // at once

	Forgotten []string // names of VMs
}

type fakeVM struct {
	job.VM
	foreign bool // no marker of anybody's
	doubted bool // its marker was taken from it
	stopped bool
	boots   int // after the first

	jobs      map[string]*fakeJob // by job ID
	snapshots []string
}

// is reports whether this is the VM meant.
func (there *fakeVM) is(vm job.VM) bool {
	return !there.foreign && !there.doubted && there.Name == vm.Name && there.Job == vm.Job && there.Owner == vm.Owner
}

// another reports whether this is not the VM meant, and proves to be another.
func (there *fakeVM) another(vm job.VM) bool {
	return there.Name != vm.Name && (there.foreign || there.doubted || there.Job != vm.Job)
}

// bootID is the ID of the VM's present boot.
func (there *fakeVM) bootID() string {
	return fmt.Sprintf("%08d-0000-4000-8000-000000000000", there.boots)
}

var (
	_ job.Provider = (*Fake)(nil)
)

// NewFake makes an empty hypervisor.
func NewFake() *Fake {
	return &Fake{vms: map[int]*fakeVM{}, nextID: 100, opened: map[string]bool{}}
}

// Stats returns the counts so far.
func (f *Fake) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

// Doubt takes a VM's marker from it, as an operator does who rewrites its notes,
// or gives it back.
func (f *Fake) Doubt(id int, doubted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vms[id].doubted = doubted
}

// VMs returns the VMs there are, foreign ones left out, by ID.
func (f *Fake) VMs() []job.VM {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []job.VM
	for _, vm := range f.vms {
		if !vm.foreign {
			list = append(list, vm.VM)
		}
	}
	slices.SortFunc(list, func(a, b job.VM) int { return a.ID - b.ID })
	return list
}

// Leaks names what should be gone when every job is done: VMs, and guests that
// were not forgotten.
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

// Plant adds a VM that is not ours.
func (f *Fake) Plant(name string) (id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	vm := &fakeVM{VM: job.VM{ID: f.nextID, Name: name}, foreign: true}
	f.nextID++
	f.vms[vm.ID] = vm
	return vm.ID
}

// PlantAt adds a VM that is not ours at an ID that is free.
func (f *Fake) PlantAt(id int, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vms[id] = &fakeVM{VM: job.VM{ID: id, Name: name}, foreign: true}
}

// Return puts a VM back that was destroyed, as from a backup.
func (f *Fake) Return(vm job.VM) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.vms[vm.ID] = &fakeVM{VM: vm}
}

// Has reports whether there is a VM of this ID.
func (f *Fake) Has(id int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.vms[id] != nil
}

// Move gives a VM another address, as a DHCP server can; nobody is told. With
// reboot it has restarted as well, and what ran in it does not any more.
func (f *Fake) Move(id int, ip string, reboot bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	vm := f.vms[id]
	vm.IP = ip
	if reboot {
		vm.reboot()
	}
}

// Vanish removes a VM as an operator would: nobody is told.
func (f *Fake) Vanish(id int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.vms, id)
}
