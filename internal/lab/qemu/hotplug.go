package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"linus/internal/lab/state"
	"linus/internal/sleep"
)

// Disks are plugged and unplugged in Proxmox's steps. A SCSI disk goes at once, mounted or not. Its
// controller is a PCI card, which goes when the guest releases it. If that takes too long, the disk
// is gone, the controller stays, and the next attempt succeeds, as with Proxmox.

// How long Proxmox waits for the disk and for its controller.
const (
	diskGone       = 5 * time.Second
	controllerGone = 15 * time.Second
	plugPoll       = 100 * time.Millisecond
)

// PlugDisk adds a disk.
func (Driver) PlugDisk(ctx context.Context, s *state.State, vm state.VM, slot string) error {
	drives, err := machineDrives(s, vm.Conf)
	at := slices.IndexFunc(drives, func(d machineDrive) bool { return d.slot == slot })
	if err != nil || at < 0 {
		return err
	}
	d, dir := drives[at], s.RunDir(vm.ID)
	if !strings.HasPrefix(slot, "scsi") {
		return fmt.Errorf("can't hotplug device '%s': the lab's machines take SCSI disks alone", slot)
	}
	there, err := devices(ctx, dir)
	if err != nil || there[slot] {
		return err
	}
	if c := d.controller(vm.Conf); c.device != "" && !there[c.id] {
		if c.thread != "" {
			if err := Monitor(ctx, dir, "object-add", map[string]any{"qom-type": "iothread", "id": c.thread}); err != nil {
				return err
			}
		}
		if err := addDevice(ctx, dir, c.device); err != nil {
			return err
		}
	}
	file := map[string]any{"driver": "file", "filename": d.path, "read-only": d.ro, "discard": "unmap"}
	node := map[string]any{"node-name": state.DriveID(slot), "driver": d.format, "file": file, "read-only": d.ro, "discard": "unmap"}
	if err := Monitor(ctx, dir, "blockdev-add", node); err != nil {
		return err
	}
	if err := addDevice(ctx, dir, d.device(vm.Conf)); err != nil {
		return errors.Join(err, deleteDrive(ctx, dir, slot))
	}
	return nil
}

// addDevice adds the device that -device would add.
func addDevice(ctx context.Context, dir, device string) error {
	options := map[string]any{}
	for option := range strings.SplitSeq("driver="+device, ",") {
		key, value, _ := strings.Cut(option, "=")
		options[key] = value
	}
	return Monitor(ctx, dir, "device_add", options)
}

// UnplugDisk removes a disk and its controller.
func (Driver) UnplugDisk(ctx context.Context, s *state.State, vm state.VM, slot string, was state.Drive) error {
	dir := s.RunDir(vm.ID)
	there, err := devices(ctx, dir)
	if err != nil || !there[slot] {
		return err
	}
	err = deleteDevice(ctx, dir, slot, diskGone)
	if err == nil {
		err = deleteDrive(ctx, dir, slot)
	}
	c := machineDrive{slot: slot, thread: was.Props["iothread"] == "1"}.controller(vm.Conf)
	if err != nil || !there[c.id] {
		return err
	}
	err = deleteDevice(ctx, dir, c.id, controllerGone)
	if err == nil && c.thread != "" {
		err = Monitor(ctx, dir, "object-del", map[string]any{"id": c.thread})
	}
	return err
}

// deleteDevice returns when a device is gone.
func deleteDevice(ctx context.Context, dir, id string, limit time.Duration) error {
	if err := Monitor(ctx, dir, "device_del", map[string]any{"id": id}); err != nil {
		return err
	}
	for until := time.Now().Add(limit); ; {
		there, err := devices(ctx, dir)
		switch {
		case err != nil || !there[id]:
			return err
		case time.Now().After(until):
			return fmt.Errorf("error on hot-unplugging device '%s' - %w", id, state.ErrBusy)
		}
		if err := sleep.For(ctx, plugPoll); err != nil {
			return err
		}
	}
}

// deleteDrive closes what was behind a disk. Nothing is left of a disk the machine started with.
func deleteDrive(ctx context.Context, dir, slot string) error {
	var said string
	err := ask(ctx, dir, "human-monitor-command", map[string]any{"command-line": "drive_del " + state.DriveID(slot)}, &said)
	if said = strings.TrimSpace(said); err == nil && said != "" && !strings.Contains(said, "not found") && !strings.Contains(said, "Cannot find") {
		err = fmt.Errorf("deleting drive %s failed: %s", slot, said)
	}
	return err
}

// devices returns the IDs of a machine's PCI cards and disks.
func devices(ctx context.Context, dir string) (map[string]bool, error) {
	type card struct {
		ID     string `json:"qdev_id"`
		Bridge struct {
			Devices []card `json:"devices"`
		} `json:"pci_bridge"`
	}
	var buses []struct {
		Devices []card `json:"devices"`
	}
	var blocks []struct {
		ID string `json:"qdev"`
	}
	if err := errors.Join(ask(ctx, dir, "query-pci", nil, &buses), ask(ctx, dir, "query-block", nil, &blocks)); err != nil {
		return nil, err
	}
	there := map[string]bool{}
	var note func(cards []card)
	note = func(cards []card) {
		for _, c := range cards {
			there[c.ID] = true
			note(c.Bridge.Devices)
		}
	}
	for _, bus := range buses {
		note(bus.Devices)
	}
	for _, b := range blocks {
		there[b.ID] = true
	}
	delete(there, "")
	return there, nil
}
