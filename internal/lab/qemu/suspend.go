package qemu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"al.essio.dev/pkg/shellescape"

	"linus/internal/lab/state"
	"linus/internal/sleep"
)

// Pause stops the machine's processors.
func (Driver) Pause(ctx context.Context, s *state.State, vm state.VM) error {
	return Monitor(ctx, s.RunDir(vm.ID), "stop", nil)
}

// Continue resumes the machine's processors.
func (Driver) Continue(ctx context.Context, s *state.State, vm state.VM) error {
	return Monitor(ctx, s.RunDir(vm.ID), "cont", nil)
}

// Paused reports whether the machine's processors are stopped.
func (Driver) Paused(ctx context.Context, s *state.State, vm state.VM) bool {
	status, err := runState(ctx, s.RunDir(vm.ID))
	return err == nil && status == "paused"
}

// runState is QEMU's word for the machine's state: running, paused, inmigrate.
func runState(ctx context.Context, runDir string) (string, error) {
	var answer struct {
		Status string `json:"status"`
	}
	err := ask(ctx, runDir, "query-status", nil, &answer)
	return answer.Status, err
}

// statePoll is how often QEMU is asked for its progress with a machine's memory.
const statePoll = 50 * time.Millisecond

// SaveMemory makes QEMU migrate the machine into the volume. PVE's own QEMU does that with a
// command that other builds lack.
func (Driver) SaveMemory(ctx context.Context, s *state.State, vm state.VM, path string, size int64) error {
	if err := os.Truncate(path, size); err != nil {
		return err
	}
	runDir := s.RunDir(vm.ID)
	if err := Monitor(ctx, runDir, "migrate-set-parameters", map[string]any{"max-bandwidth": math.MaxInt32 * int64(1024)}); err != nil {
		return err
	}
	if err := Monitor(ctx, runDir, "migrate", map[string]any{"uri": "exec:cat 1<>" + shellescape.Quote(path)}); err != nil {
		return err
	}
	for {
		var answer struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := ask(ctx, runDir, "query-migrate", nil, &answer); err != nil {
			return err
		}
		switch answer.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("QEMU could not save the machine (%s): %s", answer.Status, answer.Error)
		}
		if err := sleep.For(ctx, statePoll); err != nil {
			return errors.Join(err, Monitor(context.WithoutCancel(ctx), runDir, "migrate_cancel", nil))
		}
	}
}

// Shelve ends QEMU.
func (d Driver) Shelve(ctx context.Context, s *state.State, vm state.VM, _ string) error {
	return d.Stop(ctx, s, vm)
}

// Restore starts QEMU with the memory in a volume.
func (d Driver) Restore(ctx context.Context, s *state.State, vm state.VM, path string) error {
	if err := d.launch(ctx, s, vm, "exec:cat "+shellescape.Quote(path)); err != nil {
		return err
	}
	err := d.awaitRestored(ctx, s, vm)
	if err != nil {
		return errors.Join(err, d.Stop(context.WithoutCancel(ctx), s, vm))
	}
	return nil
}

// StartFrom is Restore with another VM's memory. If a card's link is down in the config but was up
// in the saved state, it is up for a moment, as with PVE.
func (d Driver) StartFrom(ctx context.Context, s *state.State, vm state.VM, path string) error {
	return d.Restore(ctx, s, vm, path)
}

// SetLink is QEMU's set_link.
func (Driver) SetLink(ctx context.Context, s *state.State, vm state.VM, slot string, up bool) error {
	return Monitor(ctx, s.RunDir(vm.ID), "set_link", map[string]any{"name": slot, "up": up})
}

// downLinks takes down the links that are down in the config.
func (d Driver) downLinks(ctx context.Context, s *state.State, vm state.VM) error {
	for n := range state.MaxNICs {
		slot := fmt.Sprintf("net%d", n)
		if nic, ok := state.ParseNIC(vm.Conf.Get(slot)); ok && nic.Down {
			if err := d.SetLink(ctx, s, vm, slot, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// awaitRestored returns when the machine runs again: it was paused when it was saved, and is paused
// after its memory has been read.
func (d Driver) awaitRestored(ctx context.Context, s *state.State, vm state.VM) error {
	for {
		status, err := runState(ctx, s.RunDir(vm.ID))
		if err != nil {
			if _, running := s.Pid(vm.ID); !running {
				return errors.New("QEMU exited with code 1")
			}
			return err
		}
		if status != "inmigrate" {
			return errors.Join(d.Continue(ctx, s, vm), d.downLinks(ctx, s, vm)) // in PVE's order
		}
		if err := sleep.For(ctx, statePoll); err != nil {
			return err
		}
	}
}
