package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"linus/internal/lab/sys"
)

// memoryMB is the memory of the lab's host in MiB. It is unrelated to the machine's own memory: VMs
// of the process driver use none.
func (l *Lab) memoryMB() int {
	if _, m, ok := l.Member(l.Config.Node); ok {
		return m.MemoryMB
	}
	return 64 << 10
}

// SetMemory sets what the lab's host reports about its memory: how many MiB are available, and the
// share of time, in percent, in which some work waited for memory.
func (l *Lab) SetMemory(free int, pressure float64) error {
	meminfo := fmt.Sprintf("MemTotal:       %d kB\nMemFree:        %d kB\nMemAvailable:   %d kB\n", l.memoryMB()<<10, free<<10, free<<10)
	waits := fmt.Sprintf("some avg10=%.2f avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", pressure)
	return errors.Join(l.writeProc("meminfo", meminfo), l.writeProc("pressure/memory", waits))
}

// writeProc replaces a file that stands for one of /proc.
func (l *Lab) writeProc(name, text string) error {
	path := l.Path("proc", name)
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), sys.WriteFile(path, []byte(text), 0o644))
}
