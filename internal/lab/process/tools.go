package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"linus/internal/lab/sys"
)

// RunTool runs one of the commands that pvelab provides in a process guest, and returns its exit
// code. ok is false if the name is none of them, or if it is not called in a guest: the lab's host
// has commands of the same names.
func RunTool(name string, args []string, std sys.Streams) (code int, ok bool) {
	if _, err := os.Stat(toolPath); err != nil {
		return 0, false
	}
	if !slices.Contains(guestTools(), name) {
		return 0, false
	}
	var err error
	switch name {
	case "cloud-init":
		return cloudInitTool(args, std), true
	case "systemctl":
		return systemctlTool(args, std), true
	case "ip":
		return ipTool(args, std), true
	case "blkid":
		return blkidTool(args, std), true
	case "fstrim", "sync": // the guest's disk is files of the machine
	case "lsblk", "findmnt", "wipefs", "mkfs.ext4", "mount":
		return volumeTool(name, args, std), true
	case "sudo":
		err = sudo(args)
	case "reboot":
		err = syscall.Kill(1, syscall.SIGINT)
	case "shutdown":
		sig := syscall.SIGUSR2
		if slices.Contains(args, "-r") {
			sig = syscall.SIGINT
		}
		err = syscall.Kill(1, sig)
	default:
		err = syscall.Kill(1, syscall.SIGUSR2)
	}
	if err != nil {
		fmt.Fprintf(std.Err, "%s: %v\n", name, err)
		return 1, true
	}
	return 0, true
}

// cloudInitTool is `cloud-init status [--wait]`, which looks for the file that cloud-init writes
// when done, and `cloud-init clean [--logs] [--machine-id]`: the next boot is then a first boot.
func cloudInitTool(args []string, std sys.Streams) int {
	if len(args) > 0 && args[0] == "clean" {
		err := errors.Join(os.RemoveAll("/var/lib/cloud"), os.MkdirAll(filepath.Dir(instanceIDPath), 0o755))
		if slices.Contains(args, "--machine-id") {
			err = errors.Join(err, os.WriteFile(machineIDPath, []byte(uninitialized), 0o444))
		}
		if err != nil {
			fmt.Fprintf(std.Err, "cloud-init clean: %v\n", err)
			return 1
		}
		return 0
	}
	if len(args) == 0 || args[0] != "status" {
		fmt.Fprintln(std.Err, "usage: cloud-init status [--wait] | clean [--logs] [--machine-id]")
		return 2
	}
	done := func() bool {
		_, err := os.Stat(cloudResultPath)
		return err == nil
	}
	for slices.Contains(args, "--wait") && !done() {
		fmt.Fprint(std.Out, ".")
		time.Sleep(250 * time.Millisecond) //nolint:forbidigo // a command that waits; a signal ends it
	}
	status := "running"
	if done() {
		status = "done"
	}
	fmt.Fprintln(std.Out, "status: "+status)
	return 0
}

// sudo runs the command directly: every user of a process guest is already its root. It accepts the
// options that scripts use, and changes the environment as they can see.
func sudo(args []string) error {
	env := append(os.Environ(), "SUDO_USER="+os.Getenv("USER")) //nolint:forbidigo // sudo's own job
	for len(args) > 0 && slices.Contains([]string{"-n", "-E", "-H"}, args[0]) {
		args = args[1:]
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	} else if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		return fmt.Errorf("option %s is not known to this stand-in", args[0])
	}
	for len(args) > 0 && strings.Contains(args[0], "=") {
		env = append(env, args[0])
		args = args[1:]
	}
	if len(args) == 0 {
		return errors.New("no command given")
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return fmt.Errorf("%s: command not found", args[0])
	}
	return syscall.Exec(program, args, env)
}
