package e2b

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/vm"
)

const (
	metricTime = 10 * time.Second // for a VM to answer with its metrics
	eventTime  = time.Second      // to wait for events of a VM
	maxEvents  = 1000
	maxMetric  = 64 << 10        // bytes of a VM's answer about itself
	maxAsked   = 100             // sandboxes in one request for metrics
	maxAsking  = 16              // sandboxes asked concurrently
	pageTime   = 2 * time.Second // to list the processes for a page
	maxShown   = 50              // processes on a page
)

// metric is the load of a sandbox at a moment.
type metric struct {
	Time      string  `json:"timestamp"`
	Unix      int64   `json:"timestampUnix"`
	CPU       int     `json:"cpuCount"`
	Used      float64 `json:"cpuUsedPct"`
	MemUsed   int64   `json:"memUsed"`
	MemTotal  int64   `json:"memTotal"`
	MemCache  int64   `json:"memCache"`
	DiskUsed  int64   `json:"diskUsed"`
	DiskTotal int64   `json:"diskTotal"`
}

// metrics answers with the current load of a sandbox, if the requested period includes now. Asking
// may start the sandbox's program, so the caller must be allowed to use the sandbox.
func (s *server) metrics(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	if !s.mayUse(r.Context()) {
		return errNoUse
	}
	all := []metric{}
	within, err := isNowWithin(r.URL.Query())
	if err != nil {
		return err
	}
	if within && stateOf(v) == running {
		m, err := s.metricOf(r.Context(), v)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	respond(w, http.StatusOK, all)
	return nil
}

// isNowWithin reports whether the requested period includes now, give or take some seconds.
func isNowWithin(q url.Values) (bool, error) {
	now, slack := time.Now().Unix(), int64(5)
	for name, outside := range map[string]func(int64) bool{
		"start": func(at int64) bool { return now+slack < at }, "end": func(at int64) bool { return now-slack > at },
	} {
		if text := q.Get(name); text != "" {
			at, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return false, invalid(name, fmt.Sprintf("%.40q is not a time", text), "give seconds since 1970")
			}
			if outside(at) {
				return false, nil
			}
		}
	}
	return true, nil
}

// metricOf asks the program in a sandbox for its metrics.
func (s *server) metricOf(ctx context.Context, v vm.VM) (m metric, err error) {
	ctx, cancel := context.WithTimeout(ctx, metricTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox/metrics", nil)
	if err != nil {
		return m, err
	}
	way, _ := s.ways.to(s, vm.SandboxID(v.Job))
	resp, err := way.transport.RoundTrip(r)
	if err != nil {
		return m, err
	}
	defer resp.Body.Close()
	var said map[string]float64
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxMetric)).Decode(&said); err != nil {
		return m, &refusal{http.StatusBadGateway, "the sandbox does not report its state"}
	}
	now := time.Now()
	m = metric{Time: timeText(now), Unix: now.Unix(), CPU: int(said["cpu_count"]), Used: said["cpu_used_pct"]}
	m.MemUsed, m.MemTotal, m.MemCache = int64(said["mem_used"]), int64(said["mem_total"]), int64(said["mem_cache"])
	m.DiskUsed, m.DiskTotal = int64(said["disk_used"]), int64(said["disk_total"])
	return m, nil
}

// allMetrics answers with the load of several sandboxes.
func (s *server) allMetrics(w http.ResponseWriter, r *http.Request) error {
	ids := strings.Split(strings.Join(r.URL.Query()["sandbox_ids"], ","), ",")
	if len(ids) > maxAsked {
		return invalid("sandbox_ids", fmt.Sprintf("are %d", len(ids)), fmt.Sprintf("give at most %d", maxAsked))
	}
	if !s.mayUse(r.Context()) {
		return errNoUse
	}
	all := map[string]metric{}
	var mu sync.Mutex
	var asking sync.WaitGroup
	free := make(chan struct{}, maxAsking)
	for _, id := range ids {
		asking.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			_ = s.with(r, id, func(v vm.VM) error { // missing sandboxes are left out
				if stateOf(v) != running {
					return nil
				}
				m, err := s.metricOf(r.Context(), v)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					all[id] = m
				}
				return err
			})
		})
	}
	asking.Wait()
	respond(w, http.StatusOK, map[string]any{"sandboxes": all})
	return nil
}

// Processes returns the processes that a sandbox's program runs for clients, to be shown on a page.
// It returns nothing if the program is not in use, because asking could start it. The texts come
// from the VM and are not trusted.
func (s *Server) Processes(ctx context.Context, v vm.VM) (texts []string) {
	way := s.face.ways.there(vm.SandboxID(v.Job))
	if way == nil || stateOf(v) != running {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/process.Process/List", strings.NewReader("{}"))
	if err != nil {
		return nil
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := way.transport.RoundTrip(r)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	var said struct {
		Processes []struct {
			PID    uint32 `json:"pid"`
			Config struct {
				Cmd  string   `json:"cmd"`
				Args []string `json:"args"`
			} `json:"config"`
		} `json:"processes"`
	}
	_ = json.NewDecoder(io.LimitReader(resp.Body, maxMetric)).Decode(&said) // what cannot be read is not shown
	for _, p := range said.Processes[:min(len(said.Processes), maxShown)] {
		texts = append(texts, strings.Join(append([]string{strconv.Itoa(int(p.PID)), p.Config.Cmd}, p.Config.Args...), " "))
	}
	return texts
}

type entry struct {
	Time    string            `json:"timestamp"`
	Message string            `json:"message"`
	Level   string            `json:"level"`
	Fields  map[string]string `json:"fields"`
}

// logs answers with the events of a sandbox's VM.
func (s *server) logs(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	ctx, cancel := context.WithTimeout(r.Context(), eventTime)
	defer cancel()
	events, _, err := s.Engine.Watch(ctx, v.Job, 0)
	if err != nil && ctx.Err() == nil {
		return err
	}
	after := int64(math.MinInt64)
	if text := r.URL.Query().Get("start"); text != "" {
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			return invalid("start", fmt.Sprintf("%.40q is not a time", text), "give milliseconds since 1970")
		}
	}
	entries, lines := []entry{}, []map[string]string{}
	for _, e := range events[max(0, len(events)-maxEvents):] {
		if e.At.UnixMilli() < after {
			continue
		}
		entries = append(entries, entry{timeText(e.At), e.Text, "info", map[string]string{"kind": string(e.Kind)}})
		line, err := json.Marshal(map[string]string{"level": "info", "logger": "linus", "message": e.Text}) // the format that E2B's command reads
		if err != nil {
			return err
		}
		lines = append(lines, map[string]string{"timestamp": timeText(e.At), "line": string(line)})
	}
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		respond(w, http.StatusOK, map[string]any{"logs": entries})
		return nil
	}
	respond(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": entries})
	return nil
}
