// Command simulated is an engine whose VMs exist only in memory, for measurements: it
// runs in the foreground over the state directory of its settings, and linus attaches
// to it. SIMULATED_STEP is how long each of the nine steps of creating a VM takes,
// SIMULATED_TASK how long a task runs, SIMULATED_FIRST the first VM's ID, and
// SIMULATED_CALLBACKS a file that gets the last started job's ID and callback token.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // the signals go with the process
	}
}

// serve runs until it is interrupted, and says on stdout when it is ready.
func serve(ctx context.Context) error {
	c, err := config.Load(config.Sources{})
	if err != nil {
		return err
	}
	b := providertest.Behaviour{StepDelay: duration("SIMULATED_STEP")}
	task := providertest.Task{Stdout: []byte("done\n"), For: duration("SIMULATED_TASK")}
	b.Task = func(job.Payload) providertest.Task { return task }
	if path := os.Getenv("SIMULATED_CALLBACKS"); path != "" {
		b.OnStart = func(j job.Job, p job.Payload) {
			if err := os.WriteFile(path, []byte(j.ID+" "+p.Token), 0o600); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	fake := providertest.NewFake()
	fake.Set(b)
	if first, err := strconv.Atoi(os.Getenv("SIMULATED_FIRST")); err == nil {
		fake.CountFrom(first)
	}
	return daemon.Serve(ctx, daemon.Options{
		Config: c, Version: os.Getenv("SIMULATED_VERSION"), Log: slog.New(slog.DiscardHandler),
		Backend: func(config.Config, daemon.Installation, *slog.Logger) daemon.Backend {
			return daemon.Backend{Provider: fake, Guest: fake, Templates: templates{}, Close: func() {}}
		},
	}, 0, func(daemon.Serving) { fmt.Println("ready") })
}

// templates are those of the host: none.
type templates struct{ daemon.TemplateStore }

func (templates) Templates(context.Context) ([]vm.VM, error) { return nil, nil }

func duration(name string) time.Duration {
	d, _ := time.ParseDuration(os.Getenv(name))
	return d
}
