package guest_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/sshtest"
)

// launch puts a task into the VM and starts it.
func (r *rig) launch(task string, change func(*job.Payload)) {
	r.t.Helper()
	p := payload()
	p.Manifest.Task = task
	if change != nil {
		change(&p)
	}
	err := r.Push(r.t.Context(), r.job(), p)
	if err == nil {
		_, err = r.Start(r.t.Context(), r.job())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// told is what a channel has brought.
type told struct {
	out map[string]*strings.Builder
	end *job.RunState
}

// follow collects what a task's channel brings; until returns whether that is enough.
func (r *rig) follow(until func(told) bool) (told, error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	enough := errors.New("enough")
	got := told{out: map[string]*strings.Builder{job.Stdout: {}, job.Stderr: {}}}
	err := r.Follow(ctx, r.job(), func(p job.Piece) error {
		if p.End != nil {
			got.end = p.End
			return nil
		}
		if p.Offset != int64(got.out[p.Stream].Len()) {
			return fmt.Errorf("%s goes on at %d after %d bytes", p.Stream, p.Offset, got.out[p.Stream].Len())
		}
		got.out[p.Stream].Write(p.Data)
		if until != nil && until(got) {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return got, err
}

// Both streams come byte for byte, with the task's end and the sums of all.
func TestFollow_BringsAllAndTheEnd(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.endTask()
	w := r.wired(0)
	if err := r.Warm(t.Context(), r.job()); err != nil {
		t.Fatal(err)
	}
	w.RoundTrips()
	r.launch(`printf 'a\0b\n'; printf '\377LINUS_END:x\n' >&2; exit 3`, nil)
	got, err := r.follow(nil)
	if err != nil || got.out[job.Stdout].String() != "a\x00b\n" || got.out[job.Stderr].String() != "\xffLINUS_END:x\n" {
		t.Fatalf("stdout %q, stderr %q, %v", got.out[job.Stdout], got.out[job.Stderr], err)
	}
	if n := w.RoundTrips(); n > 2 {
		t.Errorf("%d round trips from the push to the end, want at most 2", n)
	}
	sum := func(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
	if got.end == nil || got.end.ExitCode != 3 || !got.end.Exited || got.end.StdoutBytes != 4 || got.end.Sums != [2]string{sum("a\x00b\n"), sum("\xffLINUS_END:x\n")} {
		t.Errorf("end %+v", got.end)
	}
	if _, err := r.follow(nil); !errors.Is(err, job.ErrNoChannel) {
		t.Errorf("followed again: %v", err)
	}
}

// What a task prints comes while it runs, and no more than is stored of a flood; the end
// has no sums then.
func TestFollow_BringsOutputAsItComes(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	r.endTask()
	end := filepath.Join(r.root, "end")
	r.launch("printf first; until [ -e "+end+" ]; do sleep 0.02; done; head -c 3000000 /dev/zero", func(p *job.Payload) { p.MaxOutput = 1_000_000 })
	asked := false
	got, err := r.follow(func(got told) bool {
		if !asked && got.out[job.Stdout].String() == "first" {
			asked = true
			go func() { _ = touch(end) }()
		}
		return false
	})
	if err != nil || !asked || got.out[job.Stdout].Len() != 1_000_000 {
		t.Errorf("%d bytes, %v", got.out[job.Stdout].Len(), err)
	}
	if got.end == nil || got.end.StdoutBytes != 3_000_005 || got.end.Sums != [2]string{} {
		t.Errorf("end %+v", got.end)
	}
}

// A channel that ends changes nothing for its task, whichever side ends it; and what
// follows the task in the VM ends with it.
func TestFollow_TheTaskOutlivesItsChannel(t *testing.T) {
	for name, cut := range map[string]func(*rig){"connection": func(r *rig) { r.inside.Drop() }, "engine": func(r *rig) { r.Close() }, "follower": func(*rig) {}} {
		t.Run(name, func(t *testing.T) {
			r := bareVM(t, sshtest.Options{})
			r.endTask()
			end := filepath.Join(r.root, "end")
			r.launch("echo on; until [ -e "+end+" ]; do sleep 0.02; done; echo over", nil)
			got, err := r.follow(func(got told) bool {
				cut(r)
				return name == "follower"
			})
			if (err == nil) != (name == "follower") || got.end != nil {
				t.Errorf("end %+v, %v", got.end, err)
			}
			r.within("the end of what followed it", func() bool {
				left, _ := filepath.Glob(filepath.Join(r.root, "var/lib/linus/job/follow.*"))
				return len(left) == 0
			})
			if name == "engine" {
				r.connect()
			}
			if state, err := r.Probe(t.Context(), r.job()); err != nil || !state.Started || state.Exited {
				t.Errorf("the task: %+v, %v", state, err)
			}
			if err := touch(end); err != nil {
				t.Fatal(err)
			}
			if state := r.exited(); state.Reason != "exit" || state.ExitCode != 0 || r.read("var/lib/linus/job/stdout") != "on\nover\n" {
				t.Errorf("state %+v", state)
			}
		})
	}
}

// A start that the runner refuses is that, and leaves no channel.
func TestStart_RefusedByTheRunner(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	p := payload()
	p.Manifest.Cwd = "/none"
	if err := r.Push(t.Context(), r.job(), p); err != nil {
		t.Fatal(err)
	}
	_, err := r.Start(t.Context(), r.job())
	refused(t, err, job.HostInvalid, "cwd: /none is not a directory", "create it first")
	if _, err := r.follow(nil); !errors.Is(err, job.ErrNoChannel) {
		t.Error(err)
	}
	if n := r.inside.Stats().Execs; n != 1 {
		t.Errorf("%d commands: it was started again", n)
	}
}

// Sums that are none are none: they hold nobody up, and agree with nothing.
func TestSums_OfAVMThatSaysNone(t *testing.T) {
	r := bareVM(t, sshtest.Options{})
	home := filepath.Join(r.root, "opt/job-runner")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, lines := range []string{"", "LINUS_STDOUT_SHA256:x LINUS_STDERR_SHA256:y", "LINUS_STDOUT_SHA256:" + strings.Repeat("0", 64)} {
		script := "printf '%s\\n' LINUS_BEGIN:$LINUS_NONCE " + lines + " LINUS_RESULT:SUCCESS LINUS_END:$LINUS_NONCE\n"
		if err := os.WriteFile(filepath.Join(home, "job-runner.sh"), []byte(script), 0o600); err != nil {
			t.Fatal(err)
		}
		if sums, err := r.Sums(t.Context(), r.job(), 1, 1); err != nil || sums != [2]string{} {
			t.Errorf("%q: %q, %v", lines, sums, err)
		}
	}
}
