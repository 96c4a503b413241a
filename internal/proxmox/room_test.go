package proxmox_test

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// The host is told by what each VM is proven, and which leases to renew.
func TestRoom_TellsOfVMsThatAreNotProven(t *testing.T) {
	t.Parallel()
	other := vm.VM{ID: 106, Name: "linus-job-2", Job: "22222222-2222-4333-8444-555555555555"}
	var told map[string]string
	h := newScripted(t, map[string]func(*run) int{"host-room": func(r *run) int {
		told = maps.Clone(r.env)
		r.say("LINUS_MEMORY:1024 4096 1.5", "LINUS_DOUBT:"+jobID+" its name is 'db'", "LINUS_LEASE:"+other.Job+" renewed", "LINUS_RESULT:SUCCESS")
		return 0
	}})
	room, err := h.provider(nil).Room(t.Context(), nil, []job.Watched{{VM: theVM}, {VM: other, Renew: time.Hour}})
	want := job.HostRoom{
		FreeMB: 1024, TotalMB: 4096, Pressure: 1.5, Generations: map[job.Origin]string{},
		Doubts: map[string]string{jobID: "its name is 'db'"},
		Leases: map[string]job.LeaseState{other.Job: job.LeaseRenewed},
	}
	if diff := cmp.Diff(want, room); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
	if vms := "105:" + jobID + ":" + theVM.Name + " 106:" + other.Job + ":" + other.Name; told["ROOM_VMS"] != vms || told["ROOM_LEASES"] != "106:"+other.Job+":3600" {
		t.Errorf("the host was told %v", told)
	}
}
