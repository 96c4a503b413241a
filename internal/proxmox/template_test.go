package proxmox_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"linus/embed"
	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/vm"
)

func TestTemplate_IsBuiltClonedListedAndRemoved(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	image := filepath.Join(h.Dir, "image.qcow2")
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	p := h.provider(t, func(o *proxmox.Options) { o.ImageDir = filepath.Join(h.Dir, "images") })
	spec := job.TemplateSpec{Name: "built", ImageURL: "file://" + image, ImageSHA256: hex.EncodeToString(sum[:])}
	var steps []string
	built, err := p.BuildTemplate(t.Context(), spec, func(s job.Progress) { steps = append(steps, s.Step) })
	if err != nil {
		t.Fatalf("%v, after %v", err, steps)
	}
	id := strconv.Itoa(built.ID)
	config, err := h.QM(t.Context(), "config", id)
	if err != nil || !strings.Contains(config, "template: 1") || !strings.Contains(config, "name: built") || strings.Contains(config, "sshkeys") {
		t.Errorf("config of the template: %v\n%s", err, config)
	}

	if _, err := p.BuildTemplate(t.Context(), spec, func(job.Progress) {}); err == nil || !strings.Contains(err.Error(), "VM already exists: 'built'") {
		t.Errorf("a second build under that name: %v", err)
	}
	if again, err := h.QM(t.Context(), "config", id); err != nil || again != config {
		t.Errorf("the template is changed by a build that was refused: %v\n%s", err, again)
	}

	// Two clones: machines of their own.
	first, err := p.Create(t.Context(), h.specOf("built"), func(job.Progress) {})
	if err != nil {
		t.Fatalf("create from the built template: %v", err)
	}
	second, err := p.Create(t.Context(), h.specOf("built"), func(job.Progress) {})
	if err != nil {
		t.Fatalf("create from the built template: %v", err)
	}
	if first.HostKey == "" || first.HostKey == second.HostKey {
		t.Errorf("host keys of two clones: %q, %q", first.HostKey, second.HostKey)
	}
	for _, v := range []vm.VM{first, second} {
		hasRunner(t, h, v)
	}
	if vms, err := p.List(t.Context()); err != nil || len(vms) != 2 {
		t.Errorf("the list of VMs has the template, or lacks a clone: %v, %v", vms, err)
	}
	templates, err := p.Templates(t.Context())
	if err != nil || len(templates) != 1 || templates[0].ID != built.ID || templates[0].Name != "built" {
		t.Fatalf("templates: %+v, %v", templates, err)
	}

	if err := p.Destroy(t.Context(), templates[0]); err == nil || !strings.Contains(err.Error(), "it is a template") {
		t.Errorf("a template taken for a VM: %v", err)
	}
	if _, err := p.RemoveTemplate(t.Context(), lab.TemplateName); err == nil || !strings.Contains(err.Error(), "this installation built no template") {
		t.Errorf("a template of somebody else: %v", err)
	}
	_, inUse := p.RemoveTemplate(t.Context(), id)
	if strings.HasPrefix(h.Config.Storage, "local-lvm") == (inUse != nil) {
		t.Errorf("remove while clones are there, on %s: %v", h.Config.Storage, inUse)
	}
	if err := p.Destroy(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if err := p.Destroy(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if inUse != nil {
		if !strings.Contains(inUse.Error(), "is still in use by linked cloned") {
			t.Errorf("not in Proxmox's words: %v", inUse)
		}
		if _, err := p.RemoveTemplate(t.Context(), "built"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.QM(t.Context(), "config", id); err == nil {
		t.Error("the template is still there")
	}
}

// hasRunner checks that a clone has the job runner from its template.
func hasRunner(t *testing.T, h *labHost, v vm.VM) {
	t.Helper()
	runner, err := embed.Script("job-runner")
	if err != nil {
		t.Fatal(err)
	}
	inside, err := h.pool.Guest(remote.GuestOptions{Options: remote.Options{Host: v.IP, Port: h.Config.GuestPort, User: v.User, KeyPath: h.key}, HostKey: v.HostKey})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	out, err := inside.Output(t.Context(), remote.Command{Name: "look", Line: "sha256sum </opt/linus/job-runner.sh"}, 1000)
	if err != nil || string(out) != runner.SHA256+"  -\n" {
		t.Errorf("the runner in VM %d is %q, %v", v.ID, out, err)
	}
}

// Where clones read the template's disk, it is said which VMs they are.
func TestTemplate_WithClonesSaysWhich(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	image := filepath.Join(h.Dir, "image.qcow2")
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	p := h.provider(t, func(o *proxmox.Options) { o.ImageDir, o.Storage = filepath.Join(h.Dir, "images"), "local" })
	built, err := p.BuildTemplate(t.Context(), job.TemplateSpec{Name: "built", ImageURL: "file://" + image, ImageSHA256: hex.EncodeToString(sum[:])}, func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	spec := h.spec()
	spec.Template = "built"
	clone, err := p.Create(t.Context(), spec, func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.RemoveTemplate(t.Context(), "built")
	var host *job.HostError
	if !errors.As(err, &host) || !strings.HasSuffix(host.Text, fmt.Sprintf("has linked clones, which read its disk: %d (%s)", clone.ID, clone.Name)) || !strings.HasPrefix(host.Remedy, "destroy these VMs first") {
		t.Errorf("%v", err)
	}
	if err := p.Destroy(t.Context(), clone); err != nil {
		t.Fatal(err)
	}
	if removed, err := p.RemoveTemplate(t.Context(), "built"); err != nil || removed.ID != built.ID {
		t.Errorf("%+v, %v", removed, err)
	}
}
