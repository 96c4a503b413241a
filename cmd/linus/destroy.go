package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/vm"
)

func (a *app) vmDestroyCommand() *cobra.Command {
	return a.vmAsked(&cobra.Command{
		Use:   "destroy NAME|ID",
		Short: "Destroy a VM and its disk; no job may be running in it",
		Long: "Destroys the VM and its disk, once the host has proven that it is ours and the one meant. If it cannot be destroyed\n" +
			"now, the engine tries again until it is gone. A VM that cannot be proven ours is left alone, and stays listed with the reason.",
		Args: oneArg("the VM's name or ID"),
	}, func(_ context.Context, _ *session, info job.VMInfo, _ []string) (string, error) {
		return fmt.Sprintf("Destroy VM %s (%d) and its disk?", info.Name, info.ID), nil
	}, a.destroyVM)
}

// destroyVM destroys a VM and waits until it is gone.
func (a *app) destroyVM(ctx context.Context, s *session, info job.VMInfo, args []string) error {
	f := following{quiet: true, until: func(j job.Job) bool { return j.VM != nil && j.VM.State.Settled() }}
	past, _, err := s.Watch(ctx, info.Job, 0)
	if err != nil {
		return err
	}
	for _, event := range past {
		f.after = event.Seq
	}
	if _, err = s.DestroyVM(ctx, args[0]); err != nil {
		return err
	}
	j, err := a.follow(ctx, s, info.Job, f)
	switch {
	case ctx.Err() != nil:
		a.note("\ndetached; the VM is still being destroyed")
		return exitError(exitDetached)
	case err != nil:
		return err
	case j.VM != nil && j.VM.State == vm.LeftAlone:
		return fmt.Errorf("VM %s (%d) is left alone: %s; %s", info.Name, info.ID, j.VM.Reason, j.VM.Remedy)
	case j.VM != nil && j.VM.State != vm.Destroyed:
		return errors.New("the VM could not be destroyed now; the engine tries again until it is gone: linus vm list")
	}
	_ = os.Remove(daemon.GuestKnownHosts(s.config, info.VM))
	info.State, info.Status = vm.Destroyed, vm.Gone
	return a.print(info, fmt.Sprintf("VM %s (%d) is destroyed", info.Name, info.ID))
}

func (a *app) vmForgetCommand() *cobra.Command {
	return a.vmAsked(&cobra.Command{
		Use:   "forget NAME|ID",
		Short: "Stop tracking a VM that is left alone; it stays on the host",
		Long: "Gives up a VM that was to be destroyed but cannot be proven ours, for example after somebody rewrote its notes, or that somebody\n" +
			"has protected: it is no longer checked or listed. The VM itself is not touched, its notes and network rules included, and is\n" +
			"yours from then on. Refused for any other VM.",
		Args: oneArg("the VM's name or ID"),
	}, func(_ context.Context, _ *session, info job.VMInfo, _ []string) (string, error) {
		return fmt.Sprintf("Forget VM %s (%d), which stays on the host?", info.Name, info.ID), nil
	}, func(ctx context.Context, s *session, _ job.VMInfo, args []string) error {
		info, err := s.ForgetVM(ctx, args[0])
		if err != nil {
			return err
		}
		told := jsonVM{VMInfo: info}
		text := fmt.Sprintf("VM %s (%d) is forgotten; it stays on the host", info.Name, info.ID)
		if behind := info.Network.Behind(); behind != "" {
			told.Note = behind
			text += "; " + behind
		}
		return a.print(told, text)
	})
}
