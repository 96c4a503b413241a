package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/job"
)

func (a *app) engineListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Short: "List the engines: where they run, their jobs, and how long their leases last",
		Long: "Lists the engines that share the database (LINUS_DATABASE_URL), the oldest first. An engine renews its lease every 5 s for 15 s; the others\n" +
			"take over the jobs of one that does not. One engine leads: it sweeps, and tends the pools. Without a shared database there is one engine.",
	}
	return listing(a, cmd, "engines", job.Engine.Engines, "no engine runs", "ID\tHOST\tPID\tVERSION\tJOBS\tLEASE\tSTATE", func(i job.EngineInfo) string {
		return fmt.Sprintf("%s\t%s\t%d\t%s\t%d\t%s\t%s", orDash(i.ID), oneLine(i.Host, 40), i.PID, oneLine(i.Version, 30), i.Jobs, engineLease(i), oneLine(engineState(i), 200))
	})
}

// engineLease returns how long an engine's lease lasts. An engine without others needs no lease.
func engineLease(i job.EngineInfo) string {
	switch {
	case i.ID == "":
		return "-"
	case i.Lease <= 0:
		return "ended " + (-i.Lease).Round(time.Second).String() + " ago"
	}
	return i.Lease.Round(time.Second).String()
}

func engineState(i job.EngineInfo) string {
	var words []string
	if i.Self {
		words = append(words, "this one")
	}
	if i.Leads && i.ID != "" {
		words = append(words, "leads")
	}
	if i.Draining {
		words = append(words, "draining")
	}
	if i.Problem != "" {
		words = append(words, "its jobs cannot be taken over: "+i.Problem)
	}
	return strings.Join(words, ", ")
}
