// Command linus-sandbox serves what clients of E2B do in a sandbox. It runs in the sandbox's VM and
// listens on a socket. The engine copies it there and reaches the socket by SSH;
// nobody else runs it.
// usage: linus-sandbox serve --socket PATH [--user NAME] [--root DIR] [--detach]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"linus/internal/sandbox"
)

// version is set by the linker: -X main.version=...
var version = ""

const ready = "ready\n" // what a detached process reports when it serves

func main() {
	flags := flag.NewFlagSet("linus-sandbox", flag.ContinueOnError)
	socket := flags.String("socket", "", "the socket to listen on")
	user := flags.String("user", "root", "whose calls are that name no user")
	root := flags.String("root", "", "below which is kept what outlasts a boot: /; empty: nothing is kept")
	detach := flags.Bool("detach", false, "return when it serves, and leave it behind")
	tell := flags.Bool("tell", false, "tell file descriptor 3 when it serves, as --detach wants")
	flags.Usage = func() {
		_, _ = fmt.Fprintf(os.Stderr, "linus-sandbox %s serves a sandbox in its VM: the engine starts it\nusage: linus-sandbox serve --socket PATH [--user NAME] [--root DIR] [--detach]\n", version)
		flags.PrintDefaults()
	}
	if len(os.Args) < 2 || os.Args[1] != "serve" || flags.Parse(os.Args[2:]) != nil || *socket == "" || flags.NArg() > 0 {
		flags.Usage()
		os.Exit(2)
	}
	path, err := filepath.Abs(*socket)
	if err == nil && *detach {
		err = leave(path, *user, *root)
	} else if err == nil {
		err = serve(path, sandbox.Options{User: *user, Root: *root}, *tell)
	}
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "linus-sandbox: %v\n", err)
		os.Exit(1)
	}
}

// serve serves until it is stopped. It is no error if another process serves the socket already.
func serve(socket string, o sandbox.Options, tell bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	signal.Ignore(syscall.SIGHUP)
	syscall.Umask(0o022)
	// If memory runs out, the kernel is to kill a process of the sandbox rather than this one.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-500"), 0) // without root, it is as likely as others
	said := func() {}
	if tell {
		to := os.NewFile(3, "starter")
		said = func() { _, _ = io.WriteString(to, ready); _ = to.Close() }
	}
	err := sandbox.Serve(ctx, socket, o, said)
	if errors.Is(err, sandbox.ErrServed) {
		said()
		return nil
	}
	return err
}

// leave starts this program in a session of its own, and waits until it serves.
func leave(socket, user, root string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	from, to, err := os.Pipe()
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // only read
	log, err := os.OpenFile(socket+".log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the other writes to it
	if err := log.Truncate(0); err != nil {
		return err
	}
	cmd := exec.Command(self, "serve", "--socket", socket, "--user", user, "--root", root, "--tell") //nolint:noctx // it stays
	cmd.Dir, cmd.Stderr, cmd.ExtraFiles = "/", log, []*os.File{to}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = to.Close()
	if err != nil {
		return err
	}
	if said, err := io.ReadAll(io.LimitReader(from, int64(len(ready)))); err != nil || string(said) != ready {
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("it did not start: %.2000s", text)
	}
	return cmd.Process.Release()
}
