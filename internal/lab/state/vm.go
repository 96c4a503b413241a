package state

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"linus/internal/lab/sys"
)

// The two kinds of VM a lab runs.
const (
	DriverProcess = "process" // a process in its own namespaces: starts in milliseconds, isolates nothing
	DriverQemu    = "qemu"    // a real QEMU machine
)

// ErrShutdownTimeout is what Shutdown returns if the guest does not shut down in time; qm turns it
// into `VM quit/powerdown failed - got timeout`.
var ErrShutdownTimeout = errors.New("guest did not shut down in time")

// ErrBusy means that the guest uses a disk, so that it cannot be removed.
var ErrBusy = errors.New("still busy in guest?")

// VM is a VM as a driver needs it: its ID and the config to run, with pending changes applied.
type VM struct {
	ID   int
	Conf *Conf
}

// PidFile records the process of a running VM: QEMU, or the guest's init.
func (s *State) PidFile(id int) string { return filepath.Join(s.RunDir(id), "pid") }

// QemuPidFile is where Proxmox's QEMU writes its process ID. The path is among that process's
// arguments, by which scripts see whether a VM runs.
func (s *State) QemuPidFile(id int) string {
	return filepath.Join(s.QemuDir(), strconv.Itoa(id)+".pid")
}

// QemuDir stands for Proxmox's /run/qemu-server.
func (s *State) QemuDir() string { return s.Path("run", "qemu-server") }

// ShowAgent links the agent's socket to where Proxmox's QEMU has it. The link exists as long as the
// VM's process, whose pid file is beside it.
func (s *State) ShowAgent(id int) error {
	link := s.qemuAgent(id)
	if err := os.RemoveAll(link); err != nil {
		return err
	}
	return os.Symlink(s.AgentSocket(id), link)
}

func (s *State) qemuAgent(id int) string { return filepath.Join(s.QemuDir(), strconv.Itoa(id)+".qga") }

// ForgetProcess removes the pid file and socket that Proxmox's QEMU has for a running VM.
func (s *State) ForgetProcess(id int) error {
	return errors.Join(os.RemoveAll(s.QemuPidFile(id)), os.RemoveAll(s.qemuAgent(id)))
}

// Pid returns a VM's process, if it runs.
func (s *State) Pid(id int) (pid int, running bool) { return sys.ReadPidFile(s.PidFile(id)) }

// AgentSocketName is the name of AgentSocket in the VM's run directory.
const AgentSocketName = "qga"

// AgentSocket is the Unix socket that speaks the QEMU guest agent protocol.
func (s *State) AgentSocket(id int) string { return filepath.Join(s.RunDir(id), AgentSocketName) }

// AddressPath is the file with the address of a running process guest's SSH server.
func (s *State) AddressPath(id int) string { return s.Path("run", fmt.Sprint(id), "address") }

// AgentEnabled reports whether the VM is to have a guest agent.
func (c *Conf) AgentEnabled() bool {
	props := Props(c.Get("agent"))
	return cmp.Or(props["enabled"], props[""]) == "1"
}

// TaskPath is the pid file of the process that currently works on a VM.
func (s *State) TaskPath(id string) string { return s.Path("locks", "task-"+id) }
