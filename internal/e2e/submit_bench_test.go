package e2e

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"linus/internal/control"
	"linus/internal/job"
)

// BenchmarkSubmit submits jobs over MCP stdio to the real binaries, which store
// them and start none: their host accepts a connection and says nothing. It
// reports the CPU of both processes per job, the engine's memory, and how long
// linus mcp takes to start, with a new engine and with one that runs.
func BenchmarkSubmit(b *testing.B) {
	for _, has := range []struct {
		name           string
		waiting, ended int
	}{{"waiting=0", 0, 0}, {"waiting=10000", 10000, 0}, {"ended=100000", 0, 100_000}} {
		b.Run(has.name, func(b *testing.B) {
			if testing.Short() && has.ended > 0 {
				b.Skip("a large database takes half a minute to make")
			}
			h := silentHost(b)
			h.cliB(b, nil, "job", "submit", "--", "true")
			newWire(b, h.env).calls(b, has.waiting, 32, "submit_job", aTask)
			if has.ended > 0 {
				h.endedJobs(b, h.cancelled(b), has.ended)
			}
			h.cliB(b, nil, "serve", "--stop")
			fresh, attached := h.toInitialize(b), h.toInitialize(b)
			w := newWire(b, h.env)
			w.calls(b, 100, 32, "submit_job", aTask)
			pid, before := h.engine(), cpuTime(h.engine())+cpuTime(w.pid)
			b.ResetTimer()
			w.calls(b, b.N, 32, "submit_job", aTask)
			b.StopTimer()
			b.ReportMetric(float64((cpuTime(pid)+cpuTime(w.pid)-before).Microseconds())/float64(b.N), "cpu-us/op")
			b.ReportMetric(rss(pid), "engine-MB")
			b.ReportMetric(ms(fresh.took), "new-ms")
			b.ReportMetric(ms(attached.took), "attach-ms")
		})
	}
}

// silentHost is an installation of linus whose host never answers.
func silentHost(b testing.TB) *host {
	b.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close() // at the end, with the listener
		}
	})
	dir := b.TempDir()
	h := &host{state: filepath.Join(dir, "linus")}
	known := filepath.Join(dir, "known_hosts")
	if err := os.WriteFile(known, nil, 0o600); err != nil {
		b.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	h.env = append(os.Environ(), "LINUS_STATE_DIR="+h.state, "CALLBACK_HOST=127.0.0.1", "CALLBACK_PORT=0", "MAX_JOBS=1", "LINUS_ENV_FILE=",
		"PROXMOX_HOST=127.0.0.1", "PROXMOX_SSH_PORT="+port, "PROXMOX_KNOWN_HOSTS="+known, "PROXMOX_SSH_PASSWORD=none")
	b.Cleanup(func() {
		h.stop(b)
		l.Close()
		accepting.Wait()
	})
	return h
}

// cancelled submits a job, cancels it, and returns its ID once it has ended.
func (h *host) cancelled(b *testing.B) string {
	b.Helper()
	engine, err := control.Dial(b.Context(), control.Socket(h.state))
	if err != nil {
		b.Fatal(err)
	}
	defer engine.Close()
	j, err := engine.Submit(b.Context(), job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript}})
	if err == nil {
		err = engine.Cancel(b.Context(), j.ID)
	}
	if err != nil {
		b.Fatal(err)
	}
	awaitDone(b, engine, j.ID)
	return j.ID
}
