package proxmox_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/proxmox"
	"linus/internal/vm"
)

// A VM whose notes and tag somebody has taken is there: no answer of the host may
// pass for its end, also not once its lease is over, until it is gone.
func TestLeftAlone_IsNotGone(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	log := &logBook{}
	p := h.provider(t, func(o *proxmox.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
	ctx, spec := t.Context(), h.spec()
	spec.Lease = time.Hour
	v, err := p.Create(ctx, spec, func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(v.ID)
	set := func(args ...string) {
		t.Helper()
		if _, err := h.QM(ctx, append([]string{"set", id}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	isThere := func() {
		t.Helper()
		if out, err := h.QM(ctx, "status", id); err != nil || !strings.Contains(out, "running") {
			t.Errorf("qm status: %q, %v", out, err)
		}
	}
	set("--description", "the database of accounting", "--tags", "keep")
	wantLeftAlone(t, p.Destroy(ctx, v), "does not carry linus-job="+v.Job)
	if status, err := p.Status(ctx, v); err != nil || status != vm.Unproven {
		t.Errorf("status = %q, %v", status, err)
	}
	isThere()

	// Its lease is over.
	lease := filepath.Join(h.Dir, "home", "linus", "leases", id+"-"+v.Job)
	lines := strings.Split(strings.TrimSpace(readText(t, lease)), "\n")
	fields := strings.Fields(lines[len(lines)-1]) // the last line is what holds
	fields[9], fields[10] = "1", "1"
	if err := os.WriteFile(lease, []byte(strings.Join(fields, " ")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if vms, err := p.List(ctx); err != nil || len(vms) != 0 {
			t.Errorf("list = %+v, %v", vms, err)
		}
	}
	isThere()
	if lines := log.lines("expired VM is left alone"); len(lines) != 1 || !strings.Contains(lines[0], "vm_id="+id) {
		t.Errorf("log: %q", lines)
	}
	r, err := p.Check(ctx)
	told := slices.DeleteFunc(r.Checks, func(c job.Check) bool { return c.Name != "left_alone" })
	if err != nil || len(told) != 1 || told[0].Level != "warn" || !strings.Contains(told[0].Text, "VM "+id+" ("+v.Name+", of job "+v.Job+")") || told[0].Remedy == "" {
		t.Errorf("checks = %+v, %v", told, err)
	}

	set("--description", "accounting linus-job="+v.Job+" linus-owner="+v.Owner+" linus-vm="+strconv.Itoa(v.ID))
	wantLeftAlone(t, p.Destroy(ctx, v), "does not carry the tag")
	set("--tags", "linus", "--protection", "1")
	wantLeftAlone(t, p.Destroy(ctx, v), "is protected")
	isThere()
	if err := os.Remove(lease + ".left"); err != nil { // else it would not be looked at again so soon
		t.Error(err)
	}
	if _, err := p.List(ctx); err != nil {
		t.Error(err)
	}
	isThere()
	r, err = p.Check(ctx)
	if err != nil || !slices.ContainsFunc(r.Checks, func(c job.Check) bool { return strings.HasPrefix(c.Remedy, "take the protection off (qm set "+id) }) {
		t.Errorf("checks = %+v, %v", r.Checks, err)
	}
	set("--protection", "0")
	if err := p.Destroy(ctx, v); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(lease); !os.IsNotExist(err) {
		t.Errorf("the lease is still there: %v", err)
	}
	if _, err := p.List(ctx); err != nil {
		t.Error(err)
	}
	if lines := log.lines("no longer left alone"); len(lines) != 2 { // once with each reason
		t.Errorf("log: %q", lines)
	}
}

func wantLeftAlone(t *testing.T, err error, why string) {
	t.Helper()
	var host *job.HostError
	if !errors.As(err, &host) || host.Class != job.HostLeftAlone || !strings.Contains(host.Text, why) || host.Remedy == "" {
		t.Errorf("destroy: %v, want it left alone, for it %s", err, why)
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Forgotten, it is not told of any more, and is as it was.
func TestLeftAlone_IsForgotten(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, nil)
	ctx, spec := t.Context(), h.spec()
	spec.Lease = time.Hour
	vm, err := p.Create(ctx, spec, func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	wantHost(t, p.ForgetVM(ctx, vm), job.HostVM)
	lease := filepath.Join(h.Dir, "home", "linus", "leases", strconv.Itoa(vm.ID)+"-"+vm.Job)
	readText(t, lease)
	if _, err := h.QM(ctx, "set", strconv.Itoa(vm.ID), "--description", "mine"); err != nil {
		t.Fatal(err)
	}
	if err := p.ForgetVM(ctx, vm); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(lease); !os.IsNotExist(err) {
		t.Errorf("its lease: %v", err)
	}
	// Nothing of linus is there any more but what it keeps on the host.
	done, err := p.Uninstall(ctx, job.UninstallSpec{})
	if err != nil || len(done.Removed) < 4 || len(done.Stays) != 0 {
		t.Errorf("uninstalled: %+v, %v", done, err)
	}
	for _, gone := range []string{filepath.Join(h.Dir, "home", "linus"), filepath.Join(h.Dir, "etc", "systemd", "system", "linus-sweep.timer")} {
		if _, err := os.Stat(gone); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", gone, err)
		}
	}
	if out, err := h.QM(ctx, "status", strconv.Itoa(vm.ID)); err != nil || !strings.Contains(out, "running") {
		t.Errorf("qm status: %q, %v", out, err)
	}
}
