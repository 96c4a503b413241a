package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/vm"
)

func (a *app) volumeCommand() *cobra.Command {
	return group("volume", "Keep disks that outlive the VMs they are attached to: caches, repositories",
		a.volumeCreateCommand(), a.volumeListCommand(), a.volumeShowCommand(), a.volumeAttachCommand(), a.volumeDetachCommand(), a.volumeRemoveCommand())
}

func (a *app) volumeCreateCommand() *cobra.Command {
	var spec job.VolumeSpec
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a volume: a disk that jobs and VMs use one after the other",
		Long: "Creates an empty disk on a node's storage. Jobs have it mounted with --volume NAME:/PATH, persistent VMs with linus volume\n" +
			"attach; it gets its filesystem (ext4) when it is first mounted. One VM may write to it, or any number read it (:ro). It stays\n" +
			"until linus volume rm, also when its VMs are destroyed. VMs have it on its own node alone, or on all nodes if their storage\n" +
			"is shared.",
		Example: "  linus volume create cache --size 20G\n  linus run --volume cache:/srv/cache -- make test",
		Args:    oneArg("the volume's name"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			spec.Name = args[0]
			return saying(a, func(v job.VolumeInfo) string {
				return fmt.Sprintf("volume %s of %d GB is ready on node %s", v.Name, v.SizeGB, v.Node)
			})(s.CreateVolume(ctx, spec))
		}),
	}
	f := cmd.Flags()
	f.StringVar(&spec.Size, "size", "", "size in whole G, as in 20G (required)")
	f.StringVar(&spec.Node, "node", "", "the node that is to have it, where VMs are spread over several (default: one that is chosen)")
	f.StringVar(&spec.Storage, "storage", "", "the storage there (default PROXMOX_STORAGE)")
	_ = cmd.MarkFlagRequired("size")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

func (a *app) volumeListCommand() *cobra.Command {
	cmd := &cobra.Command{Short: "List the volumes, and which VMs have them; orphaned ones are on the host and unknown here"}
	return listing(a, cmd, "volumes", job.Engine.Volumes, "no volumes; linus volume create makes one", "NAME\tSIZE\tNODE\tSTATUS\tUSED BY", func(v job.VolumeInfo) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", v.Name, volumeSize(v), orDash(v.Node), v.Status, orDash(strings.Join(usesOf(v), ", ")))
	})
}

func volumeSize(v job.VolumeInfo) string {
	if v.SizeGB == 0 {
		return "-"
	}
	return fmt.Sprintf("%d GB", v.SizeGB)
}

func usesOf(v job.VolumeInfo) (uses []string) {
	for _, u := range v.Uses {
		uses = append(uses, fmt.Sprintf("VM %d (%s)", u.VMID, u.Mode()))
	}
	return uses
}

func (a *app) volumeShowCommand() *cobra.Command {
	return a.completeVolumes(&cobra.Command{
		Use:   "show NAME|ID",
		Short: "Show a volume: where it is, and which VMs have it",
		Args:  oneArg("the volume's name or ID"),
		RunE: a.reading(func(ctx context.Context, e job.Engine, args []string) error {
			return saying(a, volumeText)(e.Volume(ctx, args[0]))
		}),
	})
}

func volumeText(v job.VolumeInfo) string {
	return details(func(_ io.Writer, row func(name, value string)) {
		row("volume", v.Name)
		row("id", v.ID)
		row("status", string(v.Status))
		row("size", volumeSize(v))
		row("node", v.Node)
		row("storage", v.Storage)
		if v.Shared {
			row("shared", "VMs of all nodes that have its storage can have it")
		}
		if v.VMID != 0 {
			row("held by", fmt.Sprintf("VM %d, which never runs", v.VMID))
		}
		for i, use := range usesOf(v) {
			row("used by", use+" at "+oneLine(v.Uses[i].Path, 255)+", of "+v.Uses[i].VM)
		}
		row("owner", v.Principal)
		row("created", local(v.CreatedAt))
	})
}

func (a *app) volumeAttachCommand() *cobra.Command {
	var readOnly bool
	cmd := &cobra.Command{
		Use:     "attach VOLUME VM PATH",
		Short:   "Mount a volume in a running persistent VM, and again after each restart",
		Example: "  linus volume attach cache dev /srv/cache",
		Args:    theseArgs("the volume's name or ID", "the VM's", "the directory in the VM"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			mode := vm.MountRW
			if readOnly {
				mode = vm.MountRO
			}
			return saying(a, func(v job.VolumeInfo) string {
				return fmt.Sprintf("volume %s is at %s in %s (%s)", v.Name, args[2], args[1], mode)
			})(s.AttachVolume(ctx, job.VolumeAttach{Volume: args[0], VM: args[1], Path: args[2], Mode: mode}))
		}),
	}
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "read-only; other VMs may then read it as well")
	return completeFirst(cmd, a.volumeNames(), a.vmNames())
}

func (a *app) volumeDetachCommand() *cobra.Command {
	return completeFirst(&cobra.Command{
		Use:   "detach VOLUME VM",
		Short: "Unmount a volume in a persistent VM and detach it",
		Args:  theseArgs("the volume's name or ID", "the VM's"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			return saying(a, func(v job.VolumeInfo) string { return fmt.Sprintf("volume %s is detached from %s", v.Name, args[1]) })(s.DetachVolume(ctx, args[0], args[1]))
		}),
	}, a.volumeNames(), a.vmNames())
}

func (a *app) volumeRemoveCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:     "remove NAME|ID",
		Aliases: []string{"rm"},
		Short:   "Remove a volume that is attached to no VM, with everything on it",
		Args:    oneArg("the volume's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			v, err := s.Volume(ctx, args[0])
			if err == nil && !yes {
				err = a.confirm(ctx, fmt.Sprintf("Remove volume %s (%s) and all that is on it? [y/N] ", v.Name, volumeSize(v)), "--yes")
			}
			if err != nil {
				return err
			}
			return saying(a, func(v job.VolumeInfo) string { return fmt.Sprintf("volume %s is removed", v.Name) })(s.RemoveVolume(ctx, v.ID))
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return a.completeVolumes(cmd)
}

func (a *app) completeVolumes(cmd *cobra.Command) *cobra.Command {
	return completeFirst(cmd, a.volumeNames())
}

func (a *app) volumeNames() completer {
	return each(a, job.Engine.Volumes, func(v job.VolumeInfo) string {
		return fmt.Sprintf("%s\t%s, %s", v.Name, volumeSize(v), v.Status)
	})
}

// mountsFlag is NAME:/PATH[:ro], given once or more.
type mountsFlag []vm.Mount

func (m *mountsFlag) String() string { return "" }

// Type returns the placeholder for the value in help.
func (m *mountsFlag) Type() string { return "NAME:/PATH[:ro]" }

// Set is called each time the flag is given.
func (m *mountsFlag) Set(text string) error {
	mount, ok := vm.ParseMount(text)
	if !ok {
		return errors.New("give NAME:/PATH, or NAME:/PATH:ro, as in cache:/srv/cache")
	}
	*m = append(*m, mount)
	return nil
}
