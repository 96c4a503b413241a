package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"linus/internal/bench"
	"linus/internal/lab/image"
)

// ssh runs a command on the lab's host, as an operator does, and returns its stdout.
func (h *host) ssh(ctx context.Context, stdin io.Reader, command string) (string, error) {
	return h.sshBy(ctx, stdin, nil, h.lab.Env()["PROXMOX_HOST"], h.lab.Env()["PROXMOX_SSH_PORT"], h.lab.Env()["PROXMOX_SSH_USER"], command)
}

// sshBy is ssh to any machine, with further options.
func (h *host) sshBy(ctx context.Context, stdin io.Reader, options []string, address, port, user, command string) (string, error) {
	env := h.lab.Env()
	args := append([]string{
		"-F", "none", "-i", env["PROXMOX_SSH_KEY_PATH"], "-o", "UserKnownHostsFile=" + env["PROXMOX_KNOWN_HOSTS"],
		"-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-p", port,
	}, options...)
	cmd := exec.CommandContext(ctx, "ssh", append(args, user+"@"+address, command)...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("ssh %s: %w\n%s", address, err, stderr.Bytes())
	}
	return string(out), err
}

// firstOutput logs in to a guest through the host, as soon as it lets one in.
func (h *host) firstOutput(ctx context.Context, t *testing.T, address string) {
	t.Helper()
	env := h.lab.Env()
	port := env["VM_SSH_PORT"]
	if port == "" {
		port = "22"
	}
	through := fmt.Sprintf("ProxyCommand=ssh -F none -i %s -o UserKnownHostsFile=%s -o BatchMode=yes -p %s -W %%h:%%p %s@%s",
		env["PROXMOX_SSH_KEY_PATH"], env["PROXMOX_KNOWN_HOSTS"], env["PROXMOX_SSH_PORT"], env["PROXMOX_SSH_USER"], env["PROXMOX_HOST"])
	for {
		out, err := h.sshBy(ctx, nil, []string{"-o", through, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"}, address, port, "debian", "echo first")
		if err == nil && out == "first\n" {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("no login: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// cloneByHand is the least an operator types for a command in a VM of its own.
func cloneByHand(ctx context.Context, t *testing.T, h *host, id int) bench.Sample {
	t.Helper()
	began := time.Now()
	out, err := h.ssh(ctx, nil, fmt.Sprintf(`set -e
qm clone 9000 %[1]d --name by-hand-%[1]d >&2
qm set %[1]d --cores 2 --memory 1024 --sshkeys %[2]s.pub --ipconfig0 ip=dhcp >&2
qm start %[1]d >&2
until qm agent %[1]d ping 2>/dev/null >&2; do sleep 0.2; done
qm guest cmd %[1]d network-get-interfaces`, id, h.lab.Env()["PROXMOX_SSH_KEY_PATH"]))
	if err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`"ip-address"\s*:\s*"((?:127|10)\.77\.\d+\.\d+)"`).FindStringSubmatch(out)
	if address == nil {
		t.Fatalf("no address in %s", out)
	}
	h.firstOutput(ctx, t, address[1])
	sample := bench.Sample{bench.FirstOutput: ms(time.Since(began))}
	h.destroyByHand(ctx, t, id, began, sample)
	return sample
}

// destroyByHand ends a VM made by hand.
func (h *host) destroyByHand(ctx context.Context, t *testing.T, id int, began time.Time, sample bench.Sample) {
	t.Helper()
	destroying := time.Now()
	if _, err := h.ssh(ctx, nil, fmt.Sprintf("qm stop %[1]d && qm destroy %[1]d --purge", id)); err != nil {
		t.Fatal(err)
	}
	sample["destroy_ms"], sample["gone_ms"] = ms(time.Since(destroying)), ms(time.Since(began))
}

// importByHand makes a VM from a cloud image with linus's script, run by hand: the
// image is a file on the host, because a lab reaches no vendor.
func importByHand(ctx context.Context, t *testing.T, h *host, id int) bench.Sample {
	t.Helper()
	source := filepath.Join(h.dir, "cloud.img")
	if accel, err := os.ReadFile(filepath.Join(h.dir, "accel")); err == nil && len(accel) > 0 { // of real machines
		cache, err := image.CacheDir()
		if err == nil {
			source, err = image.Builder{Cache: cache, Recipe: image.Recipes, Log: io.Discard}.Ensure(ctx, "")
		}
		if err != nil {
			t.Fatal(err)
		}
	} else if err := os.WriteFile(source, []byte("a cloud image: the process driver takes any file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	_ = file.Close()
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(h.lab.Env()["PROXMOX_SSH_KEY_PATH"] + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	script := h.cli(t, "scripts", "print", "create-vm")
	began := time.Now()
	settings := fmt.Sprintf("VM_NAME=by-hand-%d VM_CPU=2 VM_RAM=1024 VM_DISK=10 VM_IMAGE_URL=file://%s VM_IMAGE_SHA256=%x IMAGE_DIR=%s VM_SSH_USER=debian SSH_PUBLIC_KEY='%s' PROXMOX_STORAGE=%s VM_SSH_PORT=%s",
		id, source, sum.Sum(nil), filepath.Join(h.dir, "images"), strings.TrimSpace(string(key)), h.lab.Env()["PROXMOX_STORAGE"], h.lab.Env()["VM_SSH_PORT"])
	out, err := h.ssh(ctx, strings.NewReader(script), settings+" bash -s")
	if err != nil {
		t.Fatal(err, out)
	}
	sample := bench.Sample{"provision_ms": ms(time.Since(began))}
	vm := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		vm[name] = value
	}
	h.firstOutput(ctx, t, vm["LINUS_VM_IP"])
	sample[bench.FirstOutput] = ms(time.Since(began))
	made := 0
	_, _ = fmt.Sscan(vm["LINUS_VM_ID"], &made)
	h.destroyByHand(ctx, t, made, began, sample)
	return sample
}
