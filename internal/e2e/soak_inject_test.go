package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab"
	"linus/internal/lab/state"
)

// What is done to the jobs of a soak, and to all that they need.

// again injects a fault again and again, after least and up to spread more each time.
func (s *soak) again(least, spread time.Duration, inject func(over <-chan struct{})) func(over <-chan struct{}) {
	return func(over <-chan struct{}) {
		for {
			select {
			case <-over:
				return
			case <-time.After(least + time.Duration(s.rng.Int64N(int64(spread)))):
				inject(over)
			}
		}
	}
}

// inject injects a fault.
func (s *soak) inject(<-chan struct{}) {
	switch p := s.rng.IntN(100); {
	case p < 15:
		s.killEngine("")
	case p < 40:
		s.cutConnections(s.h)
	case p < 50:
		s.count(s.faults, "host unreachable")
		thaw := s.h.freezeHost()
		time.Sleep(time.Duration(500+s.rng.IntN(2500)) * time.Millisecond)
		thaw()
	case p < 55:
		s.loseCheckpoints()
	default:
		s.failOnce(s.h.lab)
	}
}

func (s *soak) killEngine(when string) {
	if s.h.killEngine() {
		s.count(s.faults, "engine killed"+when)
	}
}

func (s *soak) cutConnections(of *host) {
	s.count(s.faults, "connections cut")
	of.cutConnections()
}

// failOnce has a node fail once as Proxmox does.
func (s *soak) failOnce(node *lab.Lab) {
	faults := []lab.Fault{state.FaultTaken, state.FaultTakenCT, state.FaultLockTimeout, state.FaultStorageLockTimeout, state.FaultCloneFails, state.FaultStorageFull}
	fault := faults[s.rng.IntN(len(faults))]
	s.count(s.faults, string(fault))
	if err := node.SetFault(fault, "1"); err != nil {
		s.t.Error(err)
	}
}

// loseCheckpoints removes the memory of the checkpoints.
func (s *soak) loseCheckpoints() {
	lost := slices.DeleteFunc(s.onNodes(checkpointFiles), func(file string) bool { return !strings.HasSuffix(file, ".state") || os.Remove(file) != nil })
	if len(lost) > 0 {
		s.count(s.faults, "memory of a checkpoint removed")
	}
}

// whenCloned does what is to be done when the job's VM is cloned, unless it is seen too late.
func (s *soak) whenCloned(j *soakJob, deadline time.Time) {
	for ; time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		vm := s.h.vmOf("linus-job=" + j.id)
		if vm == 0 {
			continue
		}
		if _, err := os.Stat(s.h.lab.QemuPidFile(vm)); err != nil {
			j.cloned()
		}
		return
	}
}

// hitVM does to the job's VM what its kind says, and reports whether it could.
func (s *soak) hitVM(j *soakJob, job map[string]any) bool {
	vm := 0
	if its, ok := job["vm"].(map[string]any); ok { // one of a pool has its maker's marker
		vm = s.h.vmOf(fmt.Sprint(its["name"]))
	}
	if vm == 0 {
		return false
	}
	number := strconv.Itoa(vm)
	commands := map[string][][]string{
		"VM destroyed": {{"stop", number}, {"destroy", number, "--purge", "1", "--destroy-unreferenced-disks", "1"}},
		"VM rebooted":  {{"reboot", number}},
		"VM reset":     {{"stop", number}, {"start", number}},
	}[j.kind]
	for _, command := range commands {
		var err error
		if !within(time.Minute, func() bool { _, err = s.h.lab.QM(s.t.Context(), command...); return err == nil }) { // the lab's faults hit operators too
			s.t.Errorf("job %d: %v", j.n, err)
			return true
		}
	}
	s.count(s.faults, j.kind)
	return true
}
