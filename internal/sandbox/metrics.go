package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTimes are the CPU times at the previous measurement.
type cpuTimes struct {
	mu          sync.Mutex
	total, idle uint64
}

// used returns the CPU usage since the previous call, in percent.
func (c *cpuTimes) used() (float64, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	var times [8]uint64 // user, nice, system, idle, iowait, irq, softirq, steal
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &times[0], &times[1], &times[2], &times[3], &times[4], &times[5], &times[6], &times[7]); err != nil {
		return 0, fmt.Errorf("read /proc/stat: %w", err)
	}
	total, idle := uint64(0), times[3]+times[4]
	for _, t := range times {
		total += t
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all, rest := total-c.total, idle-c.idle
	c.total, c.idle = total, idle
	if all == 0 || rest > all {
		return 0, nil
	}
	return math.Round(10_000*float64(all-rest)/float64(all)) / 100, nil
}

// memory returns /proc/meminfo, in bytes.
func memory() (map[string]uint64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	found := map[string]uint64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		var kib uint64
		if _, err := fmt.Sscan(rest, &kib); err == nil {
			found[name] = kib << 10
		}
	}
	if found["MemTotal"] == 0 {
		return nil, fmt.Errorf("/proc/meminfo: %w", fs.ErrNotExist)
	}
	return found, nil
}

func (s *Server) getMetrics(w http.ResponseWriter, _ *http.Request) {
	cpu, err := s.cpu.used()
	mem, e := memory()
	var disk unix.Statfs_t
	if err := errors.Join(err, e, unix.Statfs("/", &disk)); err != nil {
		refuse(w, http.StatusInternalServerError, fmt.Errorf("measure the sandbox: %w", err))
		return
	}
	used := mem["MemTotal"] - min(mem["MemTotal"], mem["MemAvailable"])
	block := uint64(disk.Bsize) //nolint:gosec // the kernel's is positive
	answer(w, http.StatusOK, map[string]any{
		"ts":            time.Now().Unix(),
		"cpu_count":     runtime.NumCPU(),
		"cpu_used_pct":  cpu,
		"mem_total":     mem["MemTotal"],
		"mem_used":      used,
		"mem_cache":     mem["Cached"],
		"mem_total_mib": mem["MemTotal"] >> 20,
		"mem_used_mib":  used >> 20,
		"disk_total":    disk.Blocks * block,
		"disk_used":     (disk.Blocks - disk.Bavail) * block,
	})
}
