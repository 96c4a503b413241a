package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab/sys"
	"linus/internal/sleep"
)

// Fault is a fault on demand, by its name in faults.json.
type Fault string

// Faults. The value of a counted fault is how many more times it happens.
const (
	FaultLockTimeout        Fault = "lock_timeout"         // count: a VM's config lock cannot be acquired
	FaultStorageLockTimeout Fault = "storage_lock_timeout" // count: a storage's lock cannot be acquired
	FaultTaken              Fault = "taken"                // count: somebody else's VM takes the ID just before create or clone
	FaultTakenCT            Fault = "taken_ct"             // count: the same, with a container
	FaultResizeFails        Fault = "resize_fails_silently"
	FaultCloneFails         Fault = "clone_fails_silently"
	FaultTemplateFails      Fault = "template_fails_silently"
	FaultStartFails         Fault = "start_fails"           // count: QEMU does not start
	FaultDestroyLeaves      Fault = "destroy_leaves_volume" // count: destroy warns, exits 0 and leaves the disks
	FaultDestroyLate        Fault = "destroy_fails_late"    // count: destroy frees the disks, then fails and leaves lock: destroyed
	FaultStorageFull        Fault = "storage_full"          // count: the storage fills up during an import, a copy or the saving of memory
	FaultPoolFull           Fault = "pool_full"             // count: the thin pool is too full for another volume
	FaultKilledWorker       Fault = "killed_worker"         // count: create or clone dies halfway and leaves its lock
	FaultAgentDelay         Fault = "agent_delay"           // seconds from start until the agent responds
	FaultAgentSilent        Fault = "agent_silent"          // 1: the agent never responds
	FaultExtraInterfaces    Fault = "extra_interfaces"      // 1: docker0 and a link-local address before the right one
	FaultShutdownIgnored    Fault = "shutdown_ignored"      // 1: guests do not act on a shutdown request
	FaultSlowStorage        Fault = "slow_storage_ms"       // milliseconds each storage operation holds the storage's lock
	FaultMissingStorage     Fault = "missing_storage"       // name of a storage that does not exist
	FaultMissingBridge      Fault = "missing_bridge"        // name of a bridge that does not exist
	FaultMissingNode        Fault = "missing_node"          // name of a node that is offline
	FaultMissingTemplate    Fault = "missing_template"      // ID of a VM that nobody finds
	FaultNoQuorum           Fault = "no_quorum"             // 1: every write fails
	FaultNeighbourMAC       Fault = "neighbour_mac"         // process: hardware address of every VM's address in the host's neighbour table
	FaultNeighbourAddress   Fault = "neighbour_address"     // process: address, a stranger's, of every VM's card in that table
	FaultHAManaged          Fault = "ha_managed"            // ID of a VM that is a resource of the HA manager
	FaultRouted             Fault = "routed"                // process, 1: the host reaches its VMs through a router
)

// Faults returns all known faults.
func Faults() []Fault {
	return []Fault{
		FaultLockTimeout, FaultStorageLockTimeout, FaultTaken, FaultTakenCT, FaultResizeFails, FaultCloneFails,
		FaultTemplateFails, FaultStartFails, FaultDestroyLeaves, FaultDestroyLate, FaultStorageFull, FaultPoolFull, FaultKilledWorker,
		FaultAgentDelay, FaultAgentSilent, FaultExtraInterfaces, FaultShutdownIgnored, FaultSlowStorage, FaultMissingStorage, FaultMissingBridge,
		FaultMissingNode, FaultMissingTemplate, FaultNoQuorum, FaultNeighbourMAC, FaultNeighbourAddress, FaultHAManaged, FaultRouted,
	}
}

// named reports whether the fault's value is a name; the others hold a number.
func (f Fault) named() bool {
	return slices.Contains([]Fault{FaultMissingStorage, FaultMissingBridge, FaultMissingNode, FaultNeighbourMAC, FaultNeighbourAddress}, f)
}

// SetFault switches a fault on; an empty value or "0" switches it off.
func (s *State) SetFault(fault Fault, value string) error {
	if !slices.Contains(Faults(), fault) {
		return fmt.Errorf("unknown fault %q: `pvelab fault list` names them", fault)
	}
	if _, err := strconv.ParseFloat(value, 64); err != nil && value != "" && !fault.named() {
		return fmt.Errorf("fault %s takes a number, not %q", fault, value)
	}
	err := s.editFaults(func(faults map[Fault]string) {
		if value == "" || value == "0" {
			delete(faults, fault)
			return
		}
		faults[fault] = value
	})
	return errors.Join(err, s.showFaults())
}

// ClearFaults switches all faults off.
func (s *State) ClearFaults() error {
	err := s.editFaults(func(faults map[Fault]string) { clear(faults) })
	return errors.Join(err, s.showFaults())
}

// ActiveFaults returns the faults that are on.
func (s *State) ActiveFaults() (map[Fault]string, error) {
	faults := map[Fault]string{}
	if err := sys.ReadJSON(s.Path("faults.json"), &faults); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return faults, nil
}

func (s *State) editFaults(edit func(map[Fault]string)) error {
	return s.WithLock(context.Background(), io.Discard, "faults", "faults", LockWait, func() error {
		faults, err := s.ActiveFaults()
		if err != nil {
			return err
		}
		edit(faults)
		return sys.WriteJSON(s.Path("faults.json"), faults, 0o644)
	})
}

// Fault returns a fault's value, or "" if it is off or the control file is unreadable.
func (s *State) Fault(fault Fault) string {
	faults, _ := s.ActiveFaults()
	return faults[fault]
}

// UseFault reports whether a counted fault happens now, and uses up one count.
func (s *State) UseFault(fault Fault) bool {
	if s.Fault(fault) == "" {
		return false
	}
	happens := false
	err := s.editFaults(func(faults map[Fault]string) {
		n, _ := strconv.Atoi(faults[fault])
		if happens = n > 0; happens {
			faults[fault] = strconv.Itoa(n - 1)
		}
		if n <= 1 {
			delete(faults, fault)
		}
	})
	return happens && err == nil
}

// Lists reports whether a name or ID is among a fault's comma-separated values.
func (s *State) Lists(fault Fault, name string) bool {
	return slices.Contains(strings.Split(s.Fault(fault), ","), name)
}

// Pause sleeps for the fault's value in milliseconds.
func (s *State) Pause(ctx context.Context, fault Fault) error {
	ms, _ := strconv.Atoi(s.Fault(fault))
	return sleep.For(ctx, time.Duration(ms)*time.Millisecond)
}
