package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"linus/internal/sandbox/rpc"
)

func event() *rpc.ProcessEvent { return &rpc.ProcessEvent{} }

func TestTell_AListenerThatHoldsOthersUpIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &process{listeners: map[*listener]bool{}}
		slow, fast := p.listen(t.Context()), p.listen(t.Context())
		got := 0
		go func() {
			for range fast.events {
				got++
			}
		}()
		begin := time.Now()
		for range 3 * backlog {
			p.tell(event)
		}
		synctest.Wait()
		if took := time.Since(begin); got != 3*backlog || took != patience {
			t.Errorf("the other got %d events after %s", got, took)
		}
		select {
		case <-slow.slow:
		default:
			t.Error("it is not told")
		}
		close(fast.events)
	})
}

func TestTell_TheOnlyListenerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &process{listeners: map[*listener]bool{}}
		ctx, leave := context.WithCancel(t.Context())
		l := p.listen(ctx)
		told := make(chan int, 2*backlog)
		go func() {
			for i := range 2 * backlog {
				p.tell(event)
				told <- i
			}
			close(told)
		}()
		time.Sleep(10 * patience)
		if len(told) != backlog {
			t.Errorf("%d events were told", len(told))
		}
		<-l.events
		synctest.Wait()
		if len(told) != backlog+1 {
			t.Errorf("%d events were told when it had taken one", len(told))
		}
		leave()
		for range told { // nobody is waited for any more
		}
	})
}

func refusedAs(t *testing.T, err error, want connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func TestBounds(t *testing.T) {
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := New(Options{User: self.Username})
	a, err := s.account("")
	if err != nil {
		t.Fatal(err)
	}

	l := list{names: names{}, entries: make([]*rpc.EntryInfo, maxEntries-1)}
	refusedAs(t, l.add(t.Context(), dir, dir, 1), connect.CodeResourceExhausted)
	if l = (list{names: names{}, entries: make([]*rpc.EntryInfo, maxEntries-2)}); l.add(t.Context(), dir, dir, 1) != nil {
		t.Error("as many entries as may be are refused")
	}

	w, err := s.watch(t.Context(), &rpc.WatchDirRequest{Path: dir, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	for i := range maxWatched - 1 {
		w.dirs[-i-1] = ""
	}
	refusedAs(t, w.add(dir, nil), connect.CodeResourceExhausted)

	run := &rpc.StartRequest{Process: &rpc.ProcessConfig{Cmd: "true", Cwd: &dir}}
	s.processes = make([]*process, maxProcesses)
	_, _, err = s.start(t.Context(), a, run)
	refusedAs(t, err, connect.CodeResourceExhausted)

	// Of those that have ended the last are kept, for a while.
	s.processes = nil
	for i := range maxProcesses {
		s.ended = append(s.ended, &process{pid: uint32(1e9 + i), at: time.Now()})
	}
	p, _, err := s.start(t.Context(), a, run)
	if err != nil {
		t.Fatal(err)
	}
	<-p.ended
	s.Close()
	if len(s.ended) != maxProcesses || s.ended[0].pid != 1e9+1 || s.ended[maxProcesses-1] != p {
		t.Errorf("%d are kept, from %d", len(s.ended), s.ended[0].pid)
	}
	for _, old := range s.ended {
		old.at = old.at.Add(-retention - time.Second)
	}
	_, err = s.process(&rpc.ProcessSelector{Selector: &rpc.ProcessSelector_Pid{Pid: p.pid}}, true)
	refusedAs(t, err, connect.CodeNotFound)
	_, _, err = s.start(t.Context(), a, run)
	refusedAs(t, err, connect.CodeUnavailable) // it is closed
}

func TestRemovable_TheRootIsNot(t *testing.T) {
	s := New(Options{})
	for _, path := range []string{"/", "/..", "//", "/a/.."} {
		path, err := s.path(account{}, path)
		if err != nil {
			t.Fatal(err)
		}
		refusedAs(t, removable(path), connect.CodeInvalidArgument)
	}
	if err := removable("/a"); err != nil {
		t.Error(err)
	}
}

func TestFail_SaysWhatIsWrong(t *testing.T) {
	for err, want := range map[error]int{
		bad("no"):        400,
		fs.ErrNotExist:   404,
		fs.ErrPermission: 403,
		syscall.ENOSPC:   507,
		syscall.EDQUOT:   507,
		syscall.ENOTDIR:  400,
		syscall.EIO:      500,
	} {
		w := httptest.NewRecorder()
		failing(func(http.ResponseWriter, *http.Request) error { return fmt.Errorf("do it: %w", err) })(w, nil)
		if w.Code != want {
			t.Errorf("%v is %d", err, w.Code)
		}
	}
	for err, want := range map[error]connect.Code{
		fs.ErrExist: connect.CodeAlreadyExists, syscall.ENOTEMPTY: connect.CodeAlreadyExists, fs.ErrPermission: connect.CodePermissionDenied,
		syscall.EROFS: connect.CodePermissionDenied, syscall.ENOSPC: connect.CodeResourceExhausted, errors.ErrUnsupported: connect.CodeInternal,
	} {
		refusedAs(t, fault("do it", fmt.Errorf("%w", err)), want)
	}
}
