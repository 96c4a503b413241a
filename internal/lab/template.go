package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"linus/internal/lab/process"
	"linus/internal/lab/state"
)

// The VM that Up turns into a template, so that linked clones are the usual case. Each node of a
// cluster has a template of this name, with IDs from TemplateID on.
const (
	TemplateID   = 9000
	TemplateName = "agent-template"
)

// templateID returns the ID of this node's template, or 0 if it has none: on shared storage, all
// nodes clone the first node's template.
func (l *Lab) templateID() int {
	members, _ := l.Members()
	at := max(0, slices.IndexFunc(members, func(m state.Member) bool { return m.Name == l.Config.Node }))
	if st, err := l.Storage(l.Config.Storage); err == nil && st.Shared && at > 0 {
		return 0
	}
	return TemplateID + at
}

// makeTemplate makes a template the way an operator would, and remakes one that was left half-made.
func (l *Lab) makeTemplate(ctx context.Context) error {
	templateID := l.templateID()
	if templateID == 0 {
		return nil
	}
	conf, err := l.LoadConf(templateID)
	if err == nil && conf.IsTemplate() {
		return nil
	}
	image, imageErr := l.Driver.BuildImage(ctx, l.State)
	if imageErr != nil {
		return fmt.Errorf("build the guest image: %w", imageErr)
	}
	id := strconv.Itoa(templateID)
	if err == nil {
		if _, err := l.QM(ctx, "unlock", id); err != nil {
			return err
		}
		if _, err := l.QM(ctx, "destroy", id, "--destroy-unreferenced-disks", "1"); err != nil {
			return err
		}
	}
	st := l.Config.Storage
	_, err = l.QM(ctx, "create", id, "--name", TemplateName, "--memory", "1024", "--cores", "2", "--cpu", "host", "--ostype", "l26",
		"--scsihw", "virtio-scsi-single", "--scsi0", st+":0,import-from="+image+",discard=on,iothread=1", "--scsi1", st+":cloudinit",
		"--net0", "virtio,bridge="+l.Config.Bridge, "--serial0", "socket", "--vga", "serial0", "--agent", "enabled=1",
		"--ciuser", process.DefaultUser, "--ipconfig0", "ip=dhcp", "--ciupgrade", "0")
	if err != nil {
		return err
	}
	if _, err := l.QM(ctx, "template", id); err != nil {
		return err
	}
	if conf, err := l.LoadConf(templateID); err != nil || !conf.IsTemplate() {
		return errors.Join(fmt.Errorf("VM %s did not become a template", id), err)
	}
	fmt.Fprintf(l.Progress(), "template: %s %s on %s\n", id, TemplateName, st)
	return nil
}
