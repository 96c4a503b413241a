// Package bench is the report of what jobs cost: measurements as JSON lines in testdata/bench, and
// the table and plots in embed/docs that are made from them. It owns their form and measures
// nothing; internal/e2e does.
package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Series holds the measurements of one row of the report, stored as a file of JSON lines.
type Series struct {
	About   About
	Samples []Sample
}

// About is a file's first line: what was measured, where and when.
type About struct {
	Row     string    `json:"row"`
	Version string    `json:"version"` // the commit measured; -dirty: with changes
	At      time.Time `json:"at"`
	Machine string    `json:"machine"`
}

// Sample is one measurement: values by measure.
type Sample map[string]float64

// Row is a row of the report.
type Row struct {
	Name  string // of its file, and on make bench-report's command line
	Title string
	Plot  string // the plot with its times to first output; empty: none
}

// Rows are all rows, in the report's order.
var Rows = []Row{
	{"vm", "process lab: command in a persistent VM", "process"},
	{"warm", "process lab: warm pool member", "process"},
	{"hibernated", "process lab: hibernated pool member", "process"},
	{"restored", "process lab: restored from a checkpoint", "process"},
	{"linked", "process lab: linked clone", "process"},
	{"import", "process lab: image import", "process"},
	{"floor", "process lab: linked clone by hand", "process"},
	{"restored-slow", "process lab, 0.8 s per tool start: restored from a checkpoint", "slow"},
	{"restored-loaded", "process lab, tools loaded once (0.8 s), 0.04 s per call: restored from a checkpoint", "slow"},
	{"linked-slow", "process lab, 0.8 s per tool start: linked clone", "slow"},
	{"linked-loaded", "process lab, tools loaded once (0.8 s), 0.04 s per call: linked clone", "slow"},
	{"floor-slow", "process lab, 0.8 s per tool start: linked clone by hand", "slow"},
	{"qemu-vm", "QEMU lab: command in a persistent VM", "qemu"},
	{"qemu-warm", "QEMU lab: warm pool member", "qemu"},
	{"qemu-hibernated", "QEMU lab: hibernated pool member", "qemu"},
	{"qemu-restored", "QEMU lab: restored from a checkpoint", "qemu"},
	{"qemu-linked", "QEMU lab: linked clone", "qemu"},
	{"qemu-import", "QEMU lab: image import", "qemu"},
	{"qemu-floor", "QEMU lab: linked clone by hand", "qemu"},
	{"burst", "process lab: 20 jobs at once", ""},
	{"burst-restored", "process lab: 20 jobs at once, restored from a checkpoint", ""},
	{"sandbox", "process lab: sandbox from a warm pool, by E2B's SDK", ""},
	{"sandbox-computesdk", "process lab: sandbox from a warm pool, by ComputeSDK", ""},
	{"sandboxes-1000", "1,000 simulated sandboxes", ""},
	{"jobs", "process lab: jobs of true, one after the other", ""},
	{"simulated", "1,000 simulated VMs, 0.8 s per tool call", ""},
	{"start", "linus mcp, to the answer to initialize", ""},
	{"start-million", "the same with 1,000,000 finished jobs in the database", ""},
	{"submit", "submit_job over stdio, 32 in flight", ""},
	{"submit-10000", "the same with 10,000 jobs waiting", ""},
	{"calls-10000", "calls over stdio with 10,000 jobs waiting", ""},
	{"callbacks", "heartbeats of a job by HTTP", ""},
}

// Measures are the values that a sample can have, in the report's order. A name ends in its unit;
// numbers of calls and loads have none.
var Measures = []struct{ Name, Title string }{
	{FirstOutput, "submit to first output"},
	{"finished_ms", "submit to result"},
	{"gone_ms", "submit to VM gone"},
	{"provision_ms", "provision"},
	{"destroy_ms", "destroy"},
	{"create_ms", "create"},
	{"interactive_ms", "create, then the first command"},
	{"command_ms", "one more command"},
	{"file_ms", "1 MB written and read"},
	{"kill_ms", "kill"},
	{"sandboxes_ms", "list of all, in one answer"},
	{"tool_calls", "calls of qm, pvesh and pvesm, to VM gone"},
	{"tool_loads", "loads of their modules"},
	{"all_ms", "all jobs, to the last result"},
	{"attach_ms", "attaching to a running engine"},
	{"new_ms", "starting an engine"},
	{"submit_per_s", "jobs submitted"},
	{"submit_cpu_us", "CPU per job, client's process and engine"},
	{"status_ms", "get_job_status"},
	{"list_ms", "list_jobs"},
	{"call_cpu_us", "CPU per call, client's process and engine"},
	{"callback_per_s", "callbacks taken"},
	{"callback_cpu_us", "engine's CPU per callback"},
	{"engine_cpu_ms", "engine's CPU per job"},
	{"rss_mb", "engine's memory"},
}

// FirstOutput is the measure that is plotted.
const FirstOutput = "first_output_ms"

// Dir returns the directory of the measurements, given the repository's root.
func Dir(root string) string { return filepath.Join(root, "testdata", "bench") }

// Write replaces a row's file atomically.
func Write(dir string, s Series) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	err := enc.Encode(s.About)
	for _, sample := range s.Samples {
		err = errors.Join(err, enc.Encode(sample))
	}
	path := filepath.Join(dir, s.About.Row+".jsonl")
	if err == nil {
		err = os.WriteFile(path+".new", b.Bytes(), 0o644) //nolint:gosec // to be committed
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write the measurements of %s: %w", s.About.Row, err)
	}
	return nil
}

// Read returns a row's measurements. If there are none, the error is fs.ErrNotExist.
func Read(dir, row string) (Series, error) {
	var s Series
	data, err := os.ReadFile(filepath.Join(dir, row+".jsonl"))
	if err != nil {
		return s, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 0; lines.Scan(); n++ {
		var sample Sample
		if n == 0 {
			err = json.Unmarshal(lines.Bytes(), &s.About)
		} else if err = json.Unmarshal(lines.Bytes(), &sample); err == nil {
			s.Samples = append(s.Samples, sample)
		}
		if err != nil {
			return s, fmt.Errorf("%s.jsonl, line %d: %w", row, n+1, err)
		}
	}
	if s.About.Row != row || len(s.Samples) == 0 {
		return s, fmt.Errorf("%s.jsonl is of the row %q and has %d measurements", row, s.About.Row, len(s.Samples))
	}
	return s, lines.Err()
}

// ReadAll returns all existing measurements, in the order of Rows.
func ReadAll(dir string) ([]Series, error) {
	var all []Series
	for _, row := range Rows {
		s, err := Read(dir, row.Name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func (s Series) values(measure string) []float64 {
	var list []float64
	for _, sample := range s.Samples {
		if v, ok := sample[measure]; ok {
			list = append(list, v)
		}
	}
	slices.Sort(list)
	return list
}

// quantile returns the value that a share q of the sorted values does not exceed.
func quantile(sorted []float64, q float64) float64 {
	i := int(q * float64(len(sorted)))
	if float64(i) == q*float64(len(sorted)) && i > 0 {
		i--
	}
	return sorted[min(i, len(sorted)-1)]
}
