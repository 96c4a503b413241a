package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab/sys"
)

// A guest has the machine's clock. That of a VM that was suspended stands behind, until
// it is set: for a process guest a date of its own shows that, which is there only as
// long. Every other way to the time shows the machine's.

const (
	behindPath = "/run/clock-behind" // nanoseconds
	dateTool   = "date"
	datePath   = "/usr/local/bin/" + dateTool
)

// setBehind puts back the clock of the guest with that root, by as much more.
func setBehind(root string, by time.Duration) error {
	before, err := readBehind(root)
	if err != nil {
		return err
	}
	text := strconv.FormatInt(int64(before+by), 10)
	if err := os.WriteFile(filepath.Join(root, behindPath), []byte(text), 0o644); err != nil {
		return err
	}
	if err := os.Symlink(toolPath, filepath.Join(root, datePath)); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// setRight ends that the guest's clock is behind, seen from inside the guest.
func setRight() error {
	return errors.Join(os.RemoveAll(datePath), os.RemoveAll(behindPath))
}

func readBehind(root string) (time.Duration, error) {
	raw, err := os.ReadFile(filepath.Join(root, behindPath))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	nanos, err := strconv.ParseInt(string(raw), 10, 64)
	return time.Duration(nanos), err
}

// runDate is date with the guest's own clock, which `date -s` sets right, whatever the
// time is that it is given.
func runDate(args []string, std sys.Streams) int {
	behind, err := readBehind("/")
	if err == nil && slices.ContainsFunc(args, func(arg string) bool { return arg == "-s" || strings.HasPrefix(arg, "--set") }) {
		err = setRight()
		args, behind = nil, 0
	}
	if err != nil {
		fmt.Fprintln(std.Err, "date:", err)
		return 1
	}
	if !slices.ContainsFunc(args, func(arg string) bool {
		return strings.HasPrefix(arg, "-d") || strings.HasPrefix(arg, "--date") || strings.HasPrefix(arg, "-r") || strings.HasPrefix(arg, "-f")
	}) {
		now := time.Now().Add(-behind)
		args = append([]string{"-d", fmt.Sprintf("@%d.%09d", now.Unix(), now.Nanosecond())}, args...)
	}
	cmd := exec.Command("/usr/bin/date", args...) //nolint:noctx // a command of a guest, which ends with it
	cmd.Stdin, cmd.Stdout, cmd.Stderr = std.In, std.Out, std.Err
	if err := cmd.Run(); err != nil {
		return 1
	}
	return 0
}
