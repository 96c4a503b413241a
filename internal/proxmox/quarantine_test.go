package proxmox_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/proxmox"
)

// A logBook keeps what is logged.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// lines returns those of the log that have word in them.
func (l *logBook) lines(word string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(strings.Split(l.text.String(), "\n"), func(line string) bool { return !strings.Contains(line, word) })
}

func TestQuarantine_IsToldOnceInTheLogAndInEveryCheck(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	log := &logBook{}
	p := h.provider(t, func(o *proxmox.Options) { o.Log = slog.New(slog.NewTextHandler(log, nil)) })
	told := func() []job.Check {
		t.Helper()
		r, err := p.Check(t.Context())
		if err != nil || !r.OK {
			t.Errorf("check = %+v, %v", r, err)
		}
		return slices.DeleteFunc(r.Checks, func(c job.Check) bool { return c.Name != "quarantine" })
	}
	list := func() {
		t.Helper()
		for range 2 {
			if _, err := p.List(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	list()
	if got := told(); len(got) != 0 {
		t.Errorf("a clean host is told to be %+v", got)
	}

	vm, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.SetFault(state.FaultDestroyLeaves, "1"); err != nil {
		t.Fatal(err)
	}
	if err := p.Destroy(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	list()
	id := strconv.Itoa(vm.ID)
	if lines := log.lines("VM ID is not used"); len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "vm_id="+id+" volumes=") {
		t.Errorf("log: %q", lines)
	}
	got := told()
	if len(got) != 1 || got[0].Level != "warn" || !strings.Contains(got[0].Text, "VM ID "+id+" ") || !strings.Contains(got[0].Remedy, "pvesm free "+h.Config.Storage+":") {
		t.Fatalf("checks = %+v", got)
	}

	// What the remedy says.
	_, volumes, _ := strings.Cut(got[0].Remedy, "pvesm free ")
	for volume := range strings.FieldsSeq(volumes) {
		var said bytes.Buffer
		streams := lab.Streams{In: strings.NewReader(""), Out: &said, Err: &said}
		if code := h.Run(t.Context(), "pvesm", []string{"free", volume}, streams); code != 0 {
			t.Errorf("pvesm free %s: %s", volume, &said)
		}
	}
	list()
	if got := told(); len(got) != 0 {
		t.Errorf("after the volumes went: %+v", got)
	}
	if lines := log.lines("left of a destroyed VM have changed"); len(lines) != 1 {
		t.Errorf("log: %q", lines)
	}
}
