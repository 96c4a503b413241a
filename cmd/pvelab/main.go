// Command pvelab is the lab: a stand-in Proxmox VE host for trials and tests. It is one binary with
// many names. Called qm, pvesh, pvesm, pveversion, systemd-run or systemctl, it plays that command
// in the lab named by PVELAB_DIR. In a process guest it plays what the guest lacks. Under its own
// name it starts and removes labs.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"linus/internal/lab"
	"linus/internal/lab/process"
	"linus/internal/lab/systemd"
)

func main() {
	os.Exit(run(os.Args, lab.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

func run(args []string, std lab.Streams) int {
	name := filepath.Base(args[0])
	if code, ok := process.RunTool(name, args[1:], std); ok {
		return code
	}
	if code, ok := systemd.Main(args, std); ok {
		return code
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if slices.Contains(lab.Tools(), name) {
		return tool(ctx, name, args[1:], std)
	}
	if len(args) > 1 && args[1] == "guest" {
		return guest(std)
	}
	return verb(ctx, args[1:], std)
}
