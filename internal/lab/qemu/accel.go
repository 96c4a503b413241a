package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"linus/internal/lab/sys"
)

// How QEMU runs a machine's processor, as stored in the lab's `accel` file.
const (
	accelKVM = "kvm"
	accelTCG = "tcg" // emulation
)

// kvmProbeTime is far more than a kernel's boot takes under KVM, and enough under emulation.
const kvmProbeTime = 6 * time.Second

// verdict says whether KVM works on this machine, and why not.
type verdict struct {
	Boot  string `json:"boot"` // ID of the machine's boot for which the verdict holds
	Works bool   `json:"works"`
	Why   string `json:"why,omitempty"`
}

func (v verdict) accel() string {
	if v.Works {
		return accelKVM
	}
	return accelTCG
}

func (v verdict) text() string {
	if v.Works {
		return "KVM works"
	}
	return "no KVM (" + v.Why + "): machines are emulated"
}

// kvmVerdict probes KVM and caches the answer until the machine reboots.
func kvmVerdict(ctx context.Context, cache, kernel string) (verdict, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return verdict{}, err
	}
	path := filepath.Join(cache, "kvm.json")
	var known verdict
	if sys.ReadJSON(path, &known) == nil && known.Boot == strings.TrimSpace(string(boot)) {
		return known, nil
	}
	v := verdict{Boot: strings.TrimSpace(string(boot))}
	if err := sys.Openable("/dev/kvm"); err != nil {
		v.Why = err.Error()
	} else if v.Why, err = probeKVM(ctx, kernel); err != nil {
		return verdict{}, err
	}
	v.Works = v.Why == ""
	return v, sys.WriteJSON(path, v, 0o644)
}

// probeKVM boots a kernel without a root file system and expects its panic on the serial line. A
// broken KVM (nested, on some clouds) gets through the BIOS and then hangs, using up a core of the
// host; the probe is killed when its time is up. why is empty if KVM works.
func probeKVM(ctx context.Context, kernel string) (why string, err error) {
	dir, err := os.MkdirTemp("", "pvelab-kvm.")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	serial := filepath.Join(dir, "serial")
	limited, cancel := context.WithTimeout(ctx, kvmProbeTime)
	defer cancel()
	cmd, err := sys.Command(limited, "qemu-system-x86_64", "-machine", "pc", "-accel", "kvm", "-cpu", "host", "-m", "256",
		"-nodefaults", "-no-user-config", "-display", "none", "-vga", "none", "-serial", "file:"+serial,
		"-no-reboot", "-kernel", kernel, "-append", "console=ttyS0 panic=-1")
	if err != nil {
		return "", err
	}
	// A machine that hangs in the kernel may take a while to die.
	cmd.WaitDelay = 10 * time.Second
	runErr := sys.RunCommand(cmd)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	console, _ := os.ReadFile(serial)
	switch {
	case bytes.Contains(console, []byte("Kernel panic")):
		return "", nil
	case limited.Err() != nil:
		return fmt.Sprintf("a guest got nowhere in %s", kvmProbeTime), nil
	case runErr != nil:
		first, _, _ := strings.Cut(runErr.Error(), "\n")
		return first, nil
	}
	return "a guest ended without output", nil
}
