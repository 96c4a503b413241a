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

// The VM that up makes a template of, so that a linked clone is the usual path. A
// cluster's nodes each have one of the name, with IDs from TemplateID on.
const (
	TemplateID   = 9000
	TemplateName = "agent-template"
)

// templateID is the ID of this node's template; 0: it has none, for the clones of all
// nodes are on the shared storage, of the first node's.
func (l *Lab) templateID() int {
	members, _ := l.Members()
	at := max(0, slices.IndexFunc(members, func(m state.Member) bool { return m.Name == l.Config.Node }))
	if st, err := l.Storage(l.Config.Storage); err == nil && st.Shared && at > 0 {
		return 0
	}
	return TemplateID + at
}

// makeTemplate makes a template the way an operator would, and makes a half of
// one again.
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
