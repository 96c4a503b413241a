package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/bench"
	"linus/internal/lab/image"
)

// The report's rows are measured by make bench-report; without -bench.rows the test
// that measures them is skipped.
var (
	benchRows   = flag.String("bench.rows", "", "measure these rows of the report; all: every one not yet measured at this commit")
	benchN      = flag.Int("bench.n", 0, "measurements of each row; 0: the row's own number")
	benchDriver = flag.String("bench.driver", "process", "qemu: the rows of the QEMU lab, too")
)

// reportRow measures a row of the report n times.
type reportRow struct {
	n       int // by default
	measure func(t *testing.T, n int) []bench.Sample
}

var reportRows = map[string]reportRow{
	"vm":                 {10, inPersistentVM(processLab)},
	"warm":               {10, fromPool(processLab, "--warm", "pool")},
	"hibernated":         {5, fromPool(processLab, "--hibernated", "hibernated")},
	"restored":           {10, fromCheckpoint(processLab)},
	"restored-slow":      {5, fromCheckpoint(slowLab, plainTools)},
	"restored-loaded":    {5, fromCheckpoint(slowLab, loadedTools)},
	"qemu-restored":      {2, fromCheckpoint(qemuLab)},
	"linked":             {10, inNewVM(processLab)},
	"import":             {5, byHand(processLab, importByHand)},
	"floor":              {10, byHand(processLab, cloneByHand)},
	"linked-slow":        {2, inNewVM(slowLab, plainTools)},
	"linked-loaded":      {5, inNewVM(slowLab, loadedTools)},
	"floor-slow":         {2, byHand(slowLab, cloneByHand)},
	"qemu-vm":            {5, inPersistentVM(qemuLab)},
	"qemu-warm":          {2, fromPool(qemuLab, "--warm", "pool")},
	"qemu-hibernated":    {1, fromPool(qemuLab, "--hibernated", "hibernated")},
	"qemu-linked":        {2, inNewVM(qemuLab)},
	"qemu-import":        {1, byHand(qemuLab, importByHand)},
	"qemu-floor":         {1, byHand(qemuLab, cloneByHand)},
	"burst":              {3, burst(false)},
	"burst-restored":     {3, burst(true)},
	"sandbox":            {10, sandboxes("measure.mjs")},
	"sandbox-computesdk": {10, sandboxes("computesdk.mjs")},
	"sandboxes-1000":     {20, manySandboxes},
	"jobs":               {20, sequentialJobs},
	"simulated":          {1000, simulatedVMs},
	"start":              {20, startToInitialize},
	"start-million":      {30, millionJobs},
	"submit":             {5, submits(0)},
	"submit-10000":       {5, submits(10_000)},
	"calls-10000":        {500, calls(10_000)},
	"callbacks":          {2000, callbacks},
}

// TestBenchReport measures the rows that are asked for, each into its own file, so
// that it can be interrupted and go on.
func TestBenchReport(t *testing.T) {
	if *benchRows == "" {
		t.Skip("measures only with -bench.rows: make bench-report")
	}
	asked := strings.Fields(*benchRows)
	for _, name := range asked {
		if _, ok := reportRows[name]; !ok && name != "all" {
			t.Fatalf("there is no row %q", name)
		}
	}
	dir := bench.Dir(filepath.Join("..", ".."))
	version := measuredVersion(t)
	for _, r := range bench.Rows {
		row, ok := reportRows[r.Name]
		named := slices.Contains(asked, r.Name)
		if !ok || !named && !slices.Contains(asked, "all") || strings.HasPrefix(r.Name, "qemu-") && *benchDriver != "qemu" {
			continue
		}
		if s, err := bench.Read(dir, r.Name); err == nil && s.About.Version == version && !named {
			t.Logf("%s: measured at %s already", r.Name, s.About.At.Format(time.RFC3339))
			continue
		}
		t.Run(r.Name, func(t *testing.T) {
			n := row.n
			if *benchN > 0 {
				n = *benchN
			}
			samples := row.measure(t, n)
			about := bench.About{Row: r.Name, Version: version, At: time.Now().UTC().Truncate(time.Second), Machine: machine()}
			if err := bench.Write(dir, bench.Series{About: about, Samples: samples}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// measuredVersion is the commit that is measured: the last one that changed more than
// the report.
func measuredVersion(t *testing.T) string {
	t.Helper()
	product := []string{"--", ":(top)", ":(top,exclude)testdata/bench", ":(top,exclude)embed/docs/benchmark*"}
	out, err := exec.Command("git", append([]string{"log", "-1", "--format=%h", "--abbrev=8"}, product...)...).Output()
	if err != nil {
		t.Fatalf("git: %v", err)
	}
	version := strings.TrimSpace(string(out))
	if exec.Command("git", append([]string{"diff", "--quiet", "HEAD"}, product...)...).Run() != nil {
		version += "-dirty"
	}
	return version
}

// machine describes this machine and what the lab is made of.
func machine() string {
	cpu, memory := "unknown CPU", ""
	if m := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindStringSubmatch(readAll("/proc/cpuinfo")); m != nil {
		cpu = m[1]
	}
	if m := regexp.MustCompile(`(?m)^MemTotal:\s+(\d+) kB$`).FindStringSubmatch(readAll("/proc/meminfo")); m != nil {
		var kb int
		_, _ = fmt.Sscan(m[1], &kb)
		memory = fmt.Sprintf(", %d GiB", (kb+1<<19)>>20)
	}
	parts := []string{
		fmt.Sprintf("%d cores of %s%s", runtime.NumCPU(), cpu, memory),
		"Linux " + strings.TrimSpace(readAll("/proc/sys/kernel/osrelease")), runtime.Version(),
		programVersion(`OpenSSH_[\w.]+`, "ssh", "-V"),
	}
	if *benchDriver == "qemu" {
		qemu := "QEMU " + programVersion(`\d+\.\d+\.\d+`, "qemu-system-x86_64", "--version")
		cache, err := image.CacheDir() // where the lab notes whether KVM works
		if err != nil || !strings.Contains(readAll(filepath.Join(cache, "kvm.json")), `"works":true`) {
			qemu += " without KVM"
		}
		parts = append(parts, qemu)
	}
	return strings.Join(parts, ", ")
}

func readAll(path string) string {
	data, _ := os.ReadFile(path)
	return string(data)
}

func programVersion(pattern, program string, args ...string) string {
	out, _ := exec.Command(program, args...).CombinedOutput()
	return regexp.MustCompile(pattern).FindString(string(out))
}
