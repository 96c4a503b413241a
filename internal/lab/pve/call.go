// Package pve simulates Proxmox's commands (qm, pvesh, pvesm, pveversion, ip and nft) on a state
// directory: their options, texts, exit codes and locks. It runs VMs through any Driver.
package pve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/sleep"
)

// Tools returns the names of the work-alikes in the lab's bin directory. The qemu driver's host has
// its own network, and with it the real ip and nft.
func Tools() []string { return []string{"qm", "pvesh", "pvesm", "pveversion", "kvm", "ip", "nft"} }

// call is one run of a work-alike.
type call struct {
	ctx    context.Context
	s      *state.State
	via    *state.State // the node that a call was forwarded from; nil: it was not
	drv    Driver
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	opts   map[string]string
	extra  []string
}

func (c *call) id() int {
	n, _ := strconv.Atoi(c.opts["vmid"])
	return n
}

func (c *call) on(name string) bool { return c.opts[name] == "1" }

// Host is a simulated Proxmox host on a state directory, whose VMs a driver runs.
type Host struct {
	*state.State
	Driver Driver
	// Enter runs a command on the host if the host is not the caller's machine, else it is nil.
	Enter func(ctx context.Context, tool string, args []string, std sys.Streams) int
}

// QM runs qm with arguments and returns its stdout; an error holds its stderr.
func (h *Host) QM(ctx context.Context, args ...string) (stdout string, err error) {
	var out, errs strings.Builder
	code := h.Run(ctx, "qm", args, sys.Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != 0 {
		return out.String(), fmt.Errorf("qm %s: exit code %d: %s", strings.Join(args, " "), code, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Command is Run as a separate process, which is recorded so that Down can end it if it hangs.
func (h *Host) Command(ctx context.Context, tool string, args []string, std sys.Streams) int {
	if h.Enter != nil {
		return h.Run(ctx, tool, args, std) // recorded there
	}
	path := h.Path("run", "call-"+strconv.Itoa(os.Getpid()))
	if err := sys.WritePidFile(path, os.Getpid()); err != nil {
		fmt.Fprintln(std.Err, err)
		return 1
	}
	defer os.Remove(path)
	return h.Run(ctx, tool, args, std)
}

// Run runs a work-alike in the lab and returns its exit code.
func (h *Host) Run(ctx context.Context, tool string, args []string, std sys.Streams) int {
	if h.Enter != nil {
		return h.Enter(ctx, filepath.Base(tool), args, std)
	}
	err := h.run(ctx, tool, args, std)
	if err == nil {
		return 0
	}
	fmt.Fprintln(std.Err, strings.TrimRight(err.Error(), "\n"))
	if exit, ok := errors.AsType[*state.ExitError](err); ok {
		return exit.Code
	}
	return 255
}

func (h *Host) run(ctx context.Context, tool string, args []string, std sys.Streams) error {
	c := &call{ctx: ctx, s: h.State, drv: h.Driver, stdin: std.In, stdout: std.Out, stderr: std.Err}
	switch filepath.Base(tool) { // not Proxmox's tools, and never slow
	case "ip":
		return c.ip(args, std.Out)
	case "nft":
		return c.nft(args)
	case "kvm":
		return c.kvm(args)
	}
	price, how := h.Config.SlowMS, "started"
	if os.Getenv(loadedVariable) != "" { //nolint:forbidigo // a call of the stand-ins of Proxmox's modules
		price, how = h.Config.CallMS, "loaded"
	}
	if err := h.noteCall(how, filepath.Base(tool), args); err != nil {
		return err
	}
	if err := sleep.For(ctx, time.Duration(price)*time.Millisecond); err != nil {
		return err
	}
	switch filepath.Base(tool) {
	case "qm":
		return c.qm(args)
	case "pvesh":
		return c.pvesh(args)
	case "pvesm":
		return c.pvesm(args)
	case "pveversion":
		return c.pveversion(args)
	}
	return fmt.Errorf("the lab has no command %q", tool)
}

// noteCall logs how a tool was called: started by itself, or from loaded modules.
func (h *Host) noteCall(how, tool string, args []string) error {
	file, err := os.OpenFile(h.Path("log", "tools"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, how, tool, strings.Join(args[:min(2, len(args))], " "))
	return errors.Join(err, file.Close())
}

// qm finds the verb, longest first: `guest exec` before `guest`.
func (c *call) qm(args []string) error {
	for words := min(2, len(args)); words >= 1; words-- {
		name := strings.Join(args[:words], " ")
		if _, known := played()[name]; known {
			v, err := qmVerb(c.s.Config.Version, name)
			if err != nil {
				return err
			}
			return c.play(v, args[words:])
		}
	}
	return unknownCommand("qm", args)
}

// play runs a command with its arguments.
func (c *call) play(v *verb, args []string) (err error) {
	for i := range args {
		args[i] = inLocale(args[i])
	}
	if c.opts, c.extra, err = v.parse(args, c.stderr); err != nil {
		return err
	}
	return v.run(c)
}

func unknownCommand(tool string, args []string) error {
	problem := "no command specified"
	if len(args) > 0 {
		problem = fmt.Sprintf("unknown command '%s %s'", tool, args[0])
	}
	return state.Fail(255, "ERROR: %s\nUSAGE: %s <COMMAND> [ARGS] [OPTIONS]", problem, tool)
}

// child is a call in the same lab with other options, for verbs made of others.
func (c *call) child(opts map[string]string) *call {
	sub := *c
	sub.opts = opts
	return &sub
}

// kvm is QEMU, which is only asked for its version; the VMs run under a different QEMU.
func (c *call) kvm(args []string) error {
	if !slices.Equal(args, []string{"--version"}) {
		return state.Fail(1, "kvm: the lab's answers --version only")
	}
	version := c.qemuVersion()
	fmt.Fprintf(c.stdout, "QEMU emulator version %s (pve-qemu-kvm_%s-2)\nCopyright (c) 2003-2025 Fabrice Bellard and the QEMU Project developers\n", version, version)
	return nil
}

func (c *call) pveversion(args []string) error {
	verbose := slices.ContainsFunc(args, func(a string) bool { return a == "-v" || a == "--verbose" })
	manager, kernel, server := "9.2.2/3a1fb5d6e0b1c7a4", "6.17.4-1-pve", "9.2.6"
	if c.s.Config.Version == "8.2" {
		manager, kernel, server = "8.2.2/9355359cd7afbae4", "6.8.4-2-pve", "8.2.1"
	}
	if !verbose {
		fmt.Fprintf(c.stdout, "pve-manager/%s (running kernel: %s)\n", manager, kernel)
		return nil
	}
	release, build, _ := strings.Cut(manager, "/")
	fmt.Fprintf(c.stdout, "proxmox-ve: %s.0 (running kernel: %s)\npve-manager: %s (running version: %s/%s)\nqemu-server: %s\n",
		c.s.Config.Version, kernel, release, release, build, server)
	return nil
}

// VMStatus is one VM of a Report; PID is 0 unless the VM runs.
type VMStatus struct {
	ID     int    `json:"id"`
	Name   string `json:"name"`
	Status string `json:"status"`
	PID    int    `json:"pid"`
}

// VMs returns this node's VMs in order.
func (h *Host) VMs(ctx context.Context) []VMStatus {
	all := []VMStatus{}
	c := &call{ctx: ctx, s: h.State, drv: h.Driver}
	for id, conf := range h.ConfsOf(h.Config.Node) {
		status := c.vmStatus(id, conf)
		pid, _ := status["pid"].(int)
		all = append(all, VMStatus{id, fmt.Sprint(status["name"]), fmt.Sprint(status["status"]), pid})
	}
	return all
}
