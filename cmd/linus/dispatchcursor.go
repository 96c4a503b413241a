package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/config"
	"linus/internal/dispatch"
	"linus/internal/field"
)

// dispatchCursorCommand is the spawn hook of Cursor's worker controller.
func (a *app) dispatchCursorCommand() *cobra.Command {
	var f manifestFlags
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "cursor-worker",
		Short: "Start a worker of Cursor's cloud agents in a VM of its own (--spawn)",
		Long: "What agent worker controller --session-token --spawn runs for each request that it has claimed: starts a worker for it in a VM of\n" +
			"its own, and returns when the VM has what it needs. The request's own token goes into the VM's memory; the service account's key\n" +
			"stays with the controller. The VM ends with the worker, which waits for --idle-timeout after the agent's session. The options for\n" +
			"VMs are those of linus job submit; a VM has to reach Cursor (--egress internet).",
		Example: "  agent worker controller --pool proxmox --session-token --spawn ./spawn.sh   # spawn.sh: exec linus dispatch cursor-worker",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := dispatch.ReadCursor(config.Cursor())
			if err != nil {
				return usage("%w", err)
			}
			if c.Idle = idle; idle < time.Second || idle > dispatch.MaxReplace {
				return usage("--idle-timeout %s: give 1s to %s", idle, dispatch.MaxReplace)
			}
			o := dispatch.Options{Name: "cursor"}
			if err := f.override(cmd, &o.Manifest, nil); err != nil {
				return err
			}
			return a.attaching(true, func(ctx context.Context, s *session, _ []string) error {
				a.warnEgress(o.Manifest.Network)
				o.Engine, o.Log = s, logger(a.stderr, s.config)
				id, err := dispatch.SpawnCursor(ctx, o, c)
				if err != nil {
					return fmt.Errorf("worker %s of pool %s does not start: %w", c.Worker, c.Pool, err)
				}
				return a.print(map[string]any{"id": id, "worker": c.Worker, "pool": c.Pool}, fmt.Sprintf("worker %s of pool %s is job %s", c.Worker, c.Pool, id))
			})(cmd, nil)
		},
	}
	f.register(a, cmd, field.Dispatch)
	cmd.Flags().DurationVar(&idle, "idle-timeout", 10*time.Minute, "how long the worker, and its VM, wait after the agent's session")
	_ = cmd.RegisterFlagCompletionFunc("idle-timeout", cobra.NoFileCompletions)
	return cmd
}
