package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/lab/nspawn"
	"linus/internal/loops"
)

// makePackage makes the package of a format that a release has, of the program that is tested.
func makePackage(t *testing.T, version, format, path string) {
	t.Helper()
	dir := t.TempDir()
	share, program := filepath.Join(dir, "share"), filepath.Join(binDir, "linus")
	packaging(t, nil, "share.sh", program, share)
	packaging(t, nil, "packages.sh", version, runtime.GOARCH, program, share, dir)
	data, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("linus_%s_linux_%s.%s", version, runtime.GOARCH, format)))
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// packaging runs a script of .packaging.
func packaging(t *testing.T, env []string, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("bash", append([]string{filepath.Join("../../.packaging", script)}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func needsDebian(t *testing.T) {
	t.Helper()
	missing := nspawn.Missing()
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		missing = append(missing, "A Debian is made by mmdebstrap (package mmdebstrap).")
	}
	if len(missing) > 0 {
		t.Skipf("no container with a Debian here: %s", strings.Join(missing, " "))
	}
}

// debian is a machine with a minimal Debian 12, and with apt's lists of packages.
type debian struct {
	nspawn.Container
	t *testing.T
}

func bootDebian(t *testing.T, name string) debian {
	t.Helper()
	dir, err := os.MkdirTemp("", "linus-e2e-"+name)
	if err != nil {
		t.Fatal(err)
	}
	d := debian{nspawn.Container{Name: fmt.Sprintf("linus-%s-%d", name, os.Getpid()), Root: filepath.Join(dir, "root"), Log: filepath.Join(dir, "console"), Tied: true, Whole: true}, t}
	t.Cleanup(func() {
		if err := d.Stop(context.Background()); err != nil {
			t.Errorf("the container does not go: %v", err) // its root stays: something is mounted there
			return
		}
		os.RemoveAll(dir)
	})
	out, err := exec.Command("bash", "-euo", "pipefail", "-c", `
		source ../lab/image/rootfs.sh
		sources=$(rootfs_sources)
		mmdebstrap --quiet --variant=minbase --mode=root --format=directory --include=systemd-sysv --skip=cleanup/apt/lists \
			--aptopt='Acquire::Languages "none"' --customize-hook='tr -d - </proc/sys/kernel/random/uuid >"$1/etc/machine-id"' \
			bookworm "$0" ${sources:+-} <<<"${sources}"`, d.Root).CombinedOutput()
	if err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

// sh runs a command line as its root and returns what it prints.
func (d debian) sh(line string) string {
	d.t.Helper()
	return d.run("", "bash", "-c", line)
}

func (d debian) run(typed string, argv ...string) string {
	d.t.Helper()
	cmd, err := d.Command(d.t.Context(), argv...)
	if err != nil {
		d.t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, "HOME=/root", "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdin = strings.NewReader(typed)
	out, err := cmd.CombinedOutput()
	printed := strings.ReplaceAll(string(out), "\r\n", "\n") // of a terminal, as apt makes one
	d.t.Logf("%s\n%s", argv, printed)
	if err != nil {
		d.t.Fatalf("%s: %v", argv, err)
	}
	return printed
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0) // the package brings it
	if err == nil {
		_, err = f.WriteString(text)
		err = cmp.Or(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// On a Debian with nothing but what the package depends on, the steps that it prints when
// it is installed are enough: as they are printed, one right after the other, they lead to
// a service that runs jobs. When it is purged, nothing of it is left.
func TestDeb_ItsPrintedStepsLeadToAJob(t *testing.T) {
	loops.AtNightOnly(t, "TestPackaging_PrintedStepsMakeAKeyThatTheServiceTries compares the printed steps with the unit")
	t.Parallel()
	needsDebian(t)
	h := newHost(t, lab.DriverProcess)
	d := bootDebian(t, "deb")
	makePackage(t, "0.0.1", "deb", filepath.Join(d.Root, "root", "linus.deb"))
	d.sh("systemctl set-environment PVELAB_LOOPBACK=1") // as in linus's own tests: VMs are processes
	printed := d.sh("apt-get install -qqy --no-install-recommends /root/linus.deb")

	steps := regexp.MustCompile(`(?m)^  \d\. (.+)((?:\n {5}.+)*)`).FindAllStringSubmatch(printed, -1)
	if len(steps) < 5 {
		t.Fatalf("the package prints %d steps", len(steps))
	}
	for _, step := range steps {
		if file, ok := strings.CutPrefix(step[1], "PROXMOX_HOST=... into "); ok {
			appendTo(t, filepath.Join(d.Root, file), h.settings())
			continue
		}
		d.run("y\n", "script", "-qec", step[1], "/dev/null") // on a terminal: who is asked answers yes
		if key := regexp.MustCompile(`and the line of (\S+) into \S+ of the host`).FindStringSubmatch(step[2]); key != nil {
			appendTo(t, filepath.Join(h.dir, "ssh", "authorized_keys"), d.sh("cat "+key[1]))
		}
	}

	if out := d.sh("runuser -u linus -- linus job submit --wait -- sh -c 'echo ran in $(hostname)'"); !strings.Contains(out, "ran in linus-job-") {
		t.Error("the job did not run in a VM")
	}
	for deadline := time.Now().Add(time.Minute); !strings.Contains(d.sh("journalctl -u linus"), `msg="job done"`); <-time.After(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the service's log has no job")
		}
	}
	h.waitGone(t)

	d.sh("systemctl stop linus && runuser -u linus -- linus job list --env-file /etc/linus/env") // starts an engine
	d.sh("apt-get remove -qqy linus")
	d.sh("! systemctl is-active linus && ! test -e /usr/bin/linus && test -e /etc/linus/env && test -e /var/lib/linus-engine/.local/state/linus/linus.db")
	d.sh("apt-get purge -qqy linus")
	d.sh("! getent passwd linus && ! getent group linus")
	if left := d.sh("find /etc /usr /var /run -xdev -name '*linus*'"); left != "" {
		t.Errorf("purged, and there is still:\n%s", left)
	}
}

// settings are those of the lab for an engine with a key and a known_hosts of its own.
func (h *host) settings() string {
	env := h.lab.Env()
	lines := "CALLBACK_PORT=0\n"
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !strings.HasPrefix(name, "PVELAB_") && name != "PROXMOX_SSH_KEY_PATH" && name != "PROXMOX_KNOWN_HOSTS" {
			lines += name + "=" + env[name] + "\n"
		}
	}
	return lines
}
