package nspawn

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
	"linus/internal/sleep"
)

// hierarchies returns the mounted hierarchies in which systemd keeps cgroups.
func hierarchies() []string {
	var found []string
	for _, dir := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			found = append(found, dir)
		}
	}
	return found
}

// cgroups returns the container's cgroups, one in each hierarchy.
func (c Container) cgroups() []string {
	var cgroups []string
	for _, hierarchy := range hierarchies() {
		cgroups = append(cgroups, filepath.Join(hierarchy, c.Name))
	}
	return cgroups
}

// processes returns the processes in the container's cgroups, including systemd-nspawn itself.
func (c Container) processes() []int {
	var pids []int
	for _, cgroup := range c.cgroups() {
		_ = filepath.WalkDir(cgroup, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil // cgroups appear and disappear meanwhile
			}
			raw, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			for field := range strings.FieldsSeq(string(raw)) {
				pid, err := strconv.Atoi(field)
				if _, alive := sys.ProcessStart(pid); err == nil && alive {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// owns reports whether a process is in a cgroup of the container.
func (c Container) owns(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(raw)) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 && strings.HasPrefix(parts[2]+"/", "/"+c.Name+"/") {
			return true
		}
	}
	return false
}

// init returns the machine's PID of the container's process 1, or 0 if there is none.
func (c Container) init() int {
	for _, pid := range c.processes() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && strings.Contains(string(status), fmt.Sprintf("\nNSpid:\t%d\t1\n", pid)) {
			return pid
		}
	}
	return 0
}

// removeCgroup removes a cgroup without processes, children first. The kernel frees a cgroup a
// moment after its last process ends.
func removeCgroup(ctx context.Context, cgroup string) error {
	entries, err := os.ReadDir(cgroup)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(ctx, filepath.Join(cgroup, entry.Name())); err != nil {
				return err
			}
		}
	}
	for {
		err := unix.Rmdir(cgroup)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || sleep.For(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("remove %s: %w", cgroup, err)
		}
	}
}
