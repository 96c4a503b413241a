package pve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"linus/internal/lab/state"
)

// A state can be loaded into a VM other than the saved one: `qm start --stateuri`, which leaves the
// state as it is. QEMU exits unless that VM has the same machine. A description of the saved
// machine is written behind the state.

// savedAs describes a machine at the time its state was saved.
type savedAs struct {
	Machine, CPU, NetsHostMTU string
	Cores, Sockets, Memory    string
	Devices                   string // the config's keys of drives and cards
}

func machineOf(conf *state.Conf, machine, cpu, mtu string) savedAs {
	var devices []string
	for _, key := range conf.Keys() {
		if _, card := state.ParseNIC(conf.Get(key)); card || state.IsDrive(key) {
			devices = append(devices, key)
		}
	}
	return savedAs{machine, cpu, mtu, conf.Get("cores"), conf.Get("sockets"), conf.Get("memory"), strings.Join(devices, " ")}
}

// The description is a block at the state's end, within the volume's size if that is larger.
const (
	noteSize  = 4096
	noteMagic = "\nlinus lab state of "
)

// noteMachine writes a machine's description behind its state.
func noteMachine(path string, machine savedAs) error {
	raw, err := json.Marshal(machine)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		at, end := info.Size(), make([]byte, noteSize)
		if n, err := f.ReadAt(end, max(0, at-noteSize)); err == nil && n == noteSize && bytes.Count(end, []byte{0}) == noteSize {
			at -= noteSize
		}
		block := append([]byte(noteMagic), raw...)
		_, err = f.WriteAt(append(block, bytes.Repeat([]byte{'\n'}, noteSize-len(block))...), at)
	}
	return errors.Join(err, f.Close())
}

func readMachine(path string) (machine savedAs, err error) {
	f, err := os.Open(path)
	if err != nil {
		return machine, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return machine, err
	}
	block := make([]byte, noteSize)
	if _, err := f.ReadAt(block, max(0, info.Size()-noteSize)); err != nil {
		return machine, err
	}
	raw, is := bytes.CutPrefix(block, []byte(noteMagic))
	if !is {
		return machine, errors.New("no state of a machine")
	}
	return machine, json.Unmarshal(bytes.TrimSpace(raw), &machine)
}

// stateFile is the file that --stateuri means: a path, or a volume.
func (c *call) stateFile(uri string) (path string, err error) {
	if uri == "tcp" || uri == "unix" {
		return "", state.Fail(255, "no migration type set")
	}
	if _, err := os.Stat(uri); err == nil {
		return uri, nil
	}
	if strings.HasPrefix(uri, "/") || !strings.Contains(uri, ":") {
		return "", state.Fail(255, "unable to parse volume ID '%s'", uri)
	}
	if path, err = c.s.VolumePath(uri); err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", state.Fail(255, "volume '%s' does not exist", uri)
	}
	return path, nil
}

// startWith starts a VM from a state, possibly another VM's, and keeps that state. The caller holds
// the VM's lock. The real qm takes an omitted machine and processor from the config, which may or
// may not match what was saved: here they must be given.
func (c *call) startWith(vm state.VM, path string) error {
	saved, err := readMachine(path)
	if err != nil || saved != machineOf(vm.Conf, c.opts["machine"], c.opts["force-cpu"], c.opts["nets-host-mtu"]) {
		return errors.New("QEMU exited with code 1")
	}
	if err := c.within(resumeTimeout, func(ctx context.Context) error { return c.drv.StartFrom(ctx, c.s, vm, path) }); err != nil {
		return err
	}
	return nil
}

// setLinks updates the links of a running VM's cards where the new config differs from the old.
func (c *call) setLinks(vm state.VM, before *state.Conf) error {
	for n := range state.MaxNICs {
		slot := fmt.Sprintf("net%d", n)
		was, _ := state.ParseNIC(before.Get(slot))
		if nic, ok := state.ParseNIC(vm.Conf.Get(slot)); ok && nic.Down != was.Down {
			if err := c.drv.SetLink(c.ctx, c.s, vm, slot, !nic.Down); err != nil {
				return state.Fail(255, "%s: hotplug problem - %s", slot, err)
			}
		}
	}
	return nil
}

// sameCard reports whether a card with other settings is still the card that a VM runs with: link,
// bridge, VLAN, firewall and rate change at once, everything else needs a new card.
func sameCard(before, after string) bool {
	part := func(value string) map[string]string {
		props := state.Props(value)
		for _, name := range []string{"link_down", "bridge", "tag", "trunks", "firewall", "rate"} {
			delete(props, name)
		}
		return props
	}
	was, is := part(before), part(after)
	for name, value := range was {
		if !strings.EqualFold(is[name], value) {
			return false
		}
	}
	return before != "" && len(was) == len(is)
}
