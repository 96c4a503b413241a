package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

// vmAndSnapshot checks the arguments of snapshot and revert.
func vmAndSnapshot(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usage("%s takes two arguments: the VM's name or ID, and the snapshot's name", cmd.CommandPath())
	}
	return nil
}

func (a *app) vmSnapshotCommand() *cobra.Command {
	var memory bool
	cmd := &cobra.Command{
		Use:   "snapshot NAME|ID SNAPSHOT",
		Short: "Take a named snapshot of a VM's disk",
		Long: "Keeps the state of the VM's disk under a name, for linus vm revert. The storage must support snapshots.\n" +
			"With --memory the snapshot includes what runs in the VM: linus vm revert continues it there instead of booting. No job may be\n" +
			"running in the VM then, and its storage needs room for twice its memory.",
		Example: "  linus vm snapshot dev clean\n  linus vm snapshot dev live --memory",
		Args:    vmAndSnapshot,
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			info, err := s.SnapshotVM(ctx, args[0], args[1], memory)
			if err != nil {
				return err
			}
			return a.printVM(ctx, s, info, fmt.Sprintf("snapshot %s of VM %s (%d) taken", args[1], info.Name, info.ID))
		}),
	}
	cmd.Flags().BoolVar(&memory, "memory", false, "include what runs in the VM")
	return a.completeVMs(cmd)
}

func (a *app) vmRevertCommand() *cobra.Command {
	return a.completeSnapshots(a.vmAsked(&cobra.Command{
		Use:     "revert NAME|ID SNAPSHOT",
		Short:   "Revert a VM's disk to a snapshot and start the VM",
		Long:    "What was written to the VM's disk since the snapshot is lost. No job may be running in it. Where the snapshot was taken with\n--memory, what was running at that time continues instead of booting.",
		Example: "  linus vm revert dev clean --yes",
		Args:    vmAndSnapshot,
	}, func(ctx context.Context, s *session, info job.VMInfo, args []string) (string, error) {
		return fmt.Sprintf("Everything VM %s (%d) has written since snapshot %s will be lost. Revert it?", info.Name, info.ID, args[1]), hasSnapshot(ctx, s, info, args[1])
	}, func(ctx context.Context, s *session, _ job.VMInfo, args []string) error {
		info, err := s.RevertVM(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return a.printVM(ctx, s, info, fmt.Sprintf("VM %s (%d) is reverted to snapshot %s and running", info.Name, info.ID, args[1]))
	}))
}

func hasSnapshot(ctx context.Context, s *session, info job.VMInfo, name string) error {
	all, err := s.ListSnapshots(ctx, info.Name)
	if err == nil && !slices.ContainsFunc(all, func(s job.Snapshot) bool { return s.Name == name }) {
		err = usage("VM %s (%d) has no snapshot %s; linus vm snapshots %s lists them", info.Name, info.ID, name, info.Name)
	}
	return err
}

func (a *app) vmSnapshotsCommand() *cobra.Command {
	return a.completeVMs(&cobra.Command{
		Use:   "snapshots NAME|ID",
		Short: "List a VM's snapshots, oldest first",
		Long: "Shows which snapshots a VM has, their age, and which one its current state began with. MEMORY is what a snapshot with memory takes\n" +
			"of its storage. DISK is what the storage reports: ZFS what removing the snapshot would free, LVM-thin all that it maps, shared with the\n" +
			"disk or not. Other storages report nothing. linus vm remove-snapshot removes one.",
		Args: oneArg("the VM's name or ID"),
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			all, err := s.ListSnapshots(ctx, args[0])
			if err != nil {
				return err
			}
			return printAll(a, all, "no snapshots", "NAME\tTAKEN\tMEMORY\tDISK\tAFTER\tSTATE", func(s job.Snapshot) string {
				memory, state := "no", "-"
				if s.Memory {
					memory = knownBytes(s.MemoryBytes)
				}
				switch {
				case s.Incomplete:
					state = "incomplete"
				case s.Current:
					state = "current"
				}
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", s.Name, orDash(local(s.CreatedAt)), memory, knownBytes(s.DiskBytes), orDash(s.Parent), state)
			})
		}),
	})
}

func knownBytes(n int64) string {
	if n == 0 {
		return "unknown"
	}
	return bytesText(n)
}

func (a *app) vmRemoveSnapshotCommand() *cobra.Command {
	return a.completeSnapshots(a.vmAsked(&cobra.Command{
		Use:     "remove-snapshot NAME|ID SNAPSHOT",
		Short:   "Remove a snapshot of a VM for good; the VM stays as it is",
		Long:    "The VM may run, and jobs may be running in it. The rest of an incomplete snapshot is removed as well.",
		Example: "  linus vm remove-snapshot dev clean --yes",
		Args:    vmAndSnapshot,
	}, func(ctx context.Context, s *session, info job.VMInfo, args []string) (string, error) {
		return fmt.Sprintf("Remove snapshot %s of VM %s (%d)?", args[1], info.Name, info.ID), hasSnapshot(ctx, s, info, args[1])
	}, func(ctx context.Context, s *session, _ job.VMInfo, args []string) error {
		info, err := s.DeleteSnapshot(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return a.printVM(ctx, s, info, fmt.Sprintf("snapshot %s of VM %s (%d) is removed", args[1], info.Name, info.ID))
	}))
}
