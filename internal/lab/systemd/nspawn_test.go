package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// container is a real systemd as process 1 of a container: what runs a Proxmox
// host's units.
type container struct {
	root, cgroup, shared string
	nspawn               *exec.Cmd
}

// TestContainer holds systemd itself to what the work-alike is held to.
func TestContainer(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"systemd-nspawn", "mmdebstrap", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil || os.Geteuid() != 0 {
			t.Skipf("no container here: it needs root and %s", tool)
		}
	}
	root, err := containerRoot(t.Context())
	if err != nil {
		t.Skipf("no root file system for a container: %v", err)
	}
	h := &container{root: root, cgroup: fmt.Sprintf("pvelab-test-%d", os.Getpid()), shared: t.TempDir()}
	t.Cleanup(func() {
		h.stop(t)
		for _, hierarchy := range hierarchies() {
			if err := removeCgroup(filepath.Join(hierarchy, h.cgroup)); err != nil {
				t.Errorf("a cgroup was left: %v", err)
			}
		}
	})
	h.start(t)
	suite(t, h)
}

// containerRoot is a minimal Debian, made once for this machine.
func containerRoot(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "linus-lab")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "systemd.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", err
	}
	root := filepath.Join(cache, "systemd-bookworm")
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	half := root + ".new"
	if err := os.RemoveAll(half); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "mmdebstrap", "--variant=minbase", "--include=systemd,systemd-sysv,dbus", "bookworm", half).CombinedOutput()
	if err != nil {
		return "", errors.Join(fmt.Errorf("mmdebstrap: %w: %s", err, lastLines(string(out))), os.RemoveAll(half))
	}
	return root, os.Rename(half, root)
}

func lastLines(text string) string { return text[max(0, len(text)-500):] }

// hierarchies are the mounted ones in which systemd keeps cgroups.
func hierarchies() []string {
	var found []string
	for _, dir := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			found = append(found, dir)
		}
	}
	return found
}

// start boots the container and returns when its systemd takes units. It runs in
// cgroups of its own, and is not run where it is not: next to others it would be
// next to their processes.
func (h *container) start(t *testing.T) {
	t.Helper()
	args := []string{"-c", `
		for hierarchy in "${@:2}"; do
			mkdir -p "${hierarchy}/$1" && echo $$ >"${hierarchy}/$1/cgroup.procs" || exit 1
		done
		if grep -E '^[0-9]+:(name=systemd)?:' /proc/self/cgroup | grep -vq ":/$1\$"; then
			echo 'not in a cgroup of its own' >&2
			exit 1
		fi
		exec systemd-nspawn --quiet --directory="${root}" --volatile=overlay --boot --register=no --keep-unit \
			--private-network --machine="$1" --bind="${shared}"`, "bash", h.cgroup}
	h.nspawn = exec.Command("bash", append(args, hierarchies()...)...) //nolint:noctx // stop ends it
	h.nspawn.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "root=" + h.root, "shared=" + h.shared}
	h.nspawn.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	var log strings.Builder
	h.nspawn.Stdout, h.nspawn.Stderr = &log, &log
	if err := h.nspawn.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(90 * time.Second)
	for {
		if init := h.init(); init != "" {
			out, _ := h.bash(t.Context(), "systemctl is-system-running").Output()
			if state := strings.TrimSpace(string(out)); state == "running" || state == "degraded" {
				return
			}
		}
		if time.Now().After(deadline) {
			h.stop(t)
			t.Fatalf("the container did not boot: %s", lastLines(log.String()))
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the container's boot tells nobody
	}
}

// init is the container's process 1, as the machine counts.
func (h *container) init() string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", h.nspawn.Process.Pid))
	if err != nil {
		return ""
	}
	for pid := range strings.FieldsSeq(string(raw)) {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err == nil && strings.Contains(string(status), "\nNSpid:\t"+pid+"\t1\n") {
			return pid
		}
	}
	return ""
}

// stop is a power cut.
func (h *container) stop(t *testing.T) {
	t.Helper()
	if h.nspawn == nil || h.nspawn.ProcessState != nil {
		return
	}
	if init := h.init(); init != "" {
		if err := exec.Command("kill", "-KILL", init).Run(); err != nil { //nolint:noctx // at once
			t.Error(err)
		}
	} else if err := h.nspawn.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = h.nspawn.Wait() // it was killed
}

func (h *container) bash(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "-t", h.init(), "-m", "-p", "-n", "-u", "-i", "-C", "bash", "-c", script)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return cmd
}

func (h *container) dir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(h.shared, "")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (h *container) reboot(t *testing.T) {
	t.Helper()
	h.stop(t)
	h.start(t)
}

// removeCgroup removes a cgroup without processes, children first.
func removeCgroup(cgroup string) error {
	entries, err := os.ReadDir(cgroup)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(cgroup, entry.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(cgroup)
}
