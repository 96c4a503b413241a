package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"linus/internal/job"
	"linus/internal/pgtest"
)

// childRole names, in the environment, what this test binary does as a child.
const childRole = "LINUS_STORE_TEST_CHILD"

// childURL names, there, the URL of its database; unset: SQLite.
const childURL = "LINUS_STORE_TEST_URL"

// children are the parts that need a process of their own. They get a state
// directory and write to stdout what the parent must know.
var children = map[string]func(dir string) error{
	"write until killed": writeUntilKilled,
	"fill the disk":      fillTheDisk,
}

func TestMain(m *testing.M) {
	role := os.Getenv(childRole)
	if role == "" {
		os.Exit(pgtest.Main(m))
	}
	err := children[role](os.Args[1])
	if err == nil {
		return
	}
	fmt.Println(err)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		os.Exit(exitForbidden)
	}
	os.Exit(1)
}

// exitForbidden is a child's exit status when the machine forbids what it needs.
const exitForbidden = 77

func child(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, dir)
	cmd.Env = append(os.Environ(), childRole+"="+role, childURL+"="+pgtest.URL(t, dir))
	cmd.Stderr = os.Stderr
	return cmd
}

// writeUntilKilled writes forever and prints, after each call, what has been
// acknowledged: "<job> <updates> <output bytes>".
func writeUntilKilled(dir string) error {
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: dir, URL: os.Getenv(childURL), MaxOutput: 1 << 30})
	if err != nil {
		return err
	}
	for {
		j := newJob("echo")
		if _, _, err := s.Insert(ctx, j, "key-"+j.ID, job.Limits{}); err != nil {
			return err
		}
		var seen int64
		for n := 1; n <= 20; n++ {
			_, err := s.Update(ctx, j.ID, func(j *job.Job) (job.Record, error) {
				j.Progress += "x"
				return job.Record{Events: []job.Event{{Kind: job.EventProgress, Text: j.Progress}}}, nil
			})
			if err != nil {
				return err
			}
			if seen, err = s.AppendOutput(ctx, j.ID, job.Stdout, seen, text(1000)); err != nil {
				return err
			}
			fmt.Println(j.ID, n, seen)
		}
	}
}

func TestKill_AcknowledgedSurvives(t *testing.T) {
	dir := t.TempDir()
	acknowledged := map[string][2]int64{} // updates and bytes by job
	for round := range 3 {                // killed again and again over one directory
		cmd := child(t, "write until killed", dir)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(stdout)
		for n := 1; lines.Scan(); n++ {
			var id string
			var updates, seen int64
			if _, err := fmt.Sscan(lines.Text(), &id, &updates, &seen); err != nil {
				t.Fatalf("child says %q", lines.Text())
			}
			acknowledged[id] = [2]int64{updates, seen}
			if n == 50+7*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the child ended by itself")
		}
	}
	if len(acknowledged) < 3 {
		t.Fatalf("the children made %d jobs", len(acknowledged))
	}
	s := openStore(t, Options{Dir: dir})
	check(t, s)
	for id, want := range acknowledged {
		j, err := s.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Manifest(t.Context(), id); err != nil {
			t.Error(err)
		}
		events, err := s.Events(t.Context(), id, 0)
		if err != nil || len(events) != len(j.Progress) {
			t.Errorf("%d updates and %d events, %v", len(j.Progress), len(events), err)
		}
		if int64(len(j.Progress)) < want[0] || j.Stdout.Held < want[1] {
			t.Errorf("acknowledged %d updates and %d bytes, found %d and %d", want[0], want[1], len(j.Progress), j.Stdout.Held)
		}
	}
}

// check asks SQLite whether the database is sound.
func check(t *testing.T, s *Store) {
	t.Helper()
	if pgtest.Chosen() {
		return
	}
	for _, pragma := range []string{"integrity_check", "foreign_key_check"} {
		found, err := query(t.Context(), s.read, func(row scanner) (string, error) {
			var v string
			return v, row.Scan(&v)
		}, "PRAGMA "+pragma)
		if err != nil || strings.TrimPrefix(strings.Join(found, "\n"), "ok") != "" {
			t.Errorf("%s: %q, %v", pragma, found, err)
		}
	}
}

func TestReopen_CopyTakenWhileOpen(t *testing.T) {
	sqliteOnly(t)
	dir, snapshot := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	s := openStore(t, Options{Dir: dir, MaxOutput: 100})
	j := newJob("echo")
	j.Manifest.Files = []job.File{{Path: "/a", Content: "aGk="}}
	insert(t, s, j)
	want := live(t, s, j.ID)
	appendOutput(t, s, j.ID, 0, text(130))
	if err := os.CopyFS(snapshot, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	reopened := openStore(t, Options{Dir: snapshot, MaxOutput: 100})
	check(t, reopened)
	got, err := reopened.Job(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	want.Stdout = job.OutputInfo{Held: 100, Total: 130, Dropped: 30}
	diff(t, want, got)
	m, err := reopened.Manifest(t.Context(), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	diff(t, j.Manifest, m)
	if seen := appendOutput(t, reopened, j.ID, 130, text(20)); seen != 150 {
		t.Errorf("seen %d", seen)
	}
}

func TestFullDisk_NamesWhatWasWrittenAndRecovers(t *testing.T) {
	sqliteOnly(t)
	dir := t.TempDir()
	cmd := child(t, "fill the disk", dir)
	// A small disk of the child's own, which goes with the child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() != exitForbidden:
		t.Error(string(out))
	case err != nil:
		t.Skipf("no disk of our own here: %v %s", err, out)
	}
}

// fillTheDisk runs every kind of write against a full disk, and again after
// room was made.
func fillTheDisk(dir string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: dir})
	if err != nil {
		return err
	}
	j := newJob("echo")
	if _, _, err := s.Insert(ctx, j, "", job.Limits{}); err != nil {
		return err
	}
	var seen int64
	events := 0
	writes := []struct {
		write func() error
		says  string
	}{
		{func() error {
			_, err := s.Update(ctx, j.ID, func(*job.Job) (job.Record, error) {
				return job.Record{Events: []job.Event{{Kind: job.EventProgress, Text: strings.Repeat("x", job.MaxText)}}}, nil
			})
			if err == nil {
				events++
			}
			return err
		}, "write job " + j.ID + " to linus.db"},
		{func() (err error) {
			seen, err = s.AppendOutput(ctx, j.ID, job.Stdout, seen, text(5000))
			return err
		}, "write stdout of job " + j.ID},
		{func() error {
			_, _, err := s.Insert(ctx, newJob(strings.Repeat("x", 5000)), "", job.Limits{})
			return err
		}, "to linus.db"},
		{func() error { _, err := s.Update(ctx, j.ID, newToken(strings.Repeat("h", 20000))); return err }, "write job " + j.ID},
	}
	for _, w := range writes {
		ballast := filepath.Join(dir, "ballast")
		if err := fill(ballast); err != nil {
			return err
		}
		var err error
		for i := 0; err == nil; i++ {
			if i == 1000 {
				return fmt.Errorf("%s: 1000 writes went well on a full disk", w.says)
			}
			err = w.write()
		}
		if !strings.Contains(err.Error(), w.says) || !strings.Contains(err.Error(), "full") && !errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("%w: does not say %q and that the disk is full", err, w.says)
		}
		if err := os.Remove(ballast); err != nil {
			return err
		}
		if err := w.write(); err != nil {
			return fmt.Errorf("after room was made: %w", err)
		}
	}
	return afterwards(ctx, s, j.ID, seen, events)
}

// afterwards checks that what was acknowledged is there, and nothing else.
func afterwards(ctx context.Context, s *Store, id string, seen int64, events int) error {
	got, err := s.Output(ctx, id, job.Stdout, 0, 1<<20)
	if err != nil || int64(len(got)) != seen {
		return fmt.Errorf("%d bytes held, %d acknowledged, %w", len(got), seen, err)
	}
	told, err := s.Events(ctx, id, 0)
	if err != nil || len(told) != events {
		return fmt.Errorf("%d events, %d acknowledged, %w", len(told), events, err)
	}
	page, err := s.List(ctx, job.Filter{})
	if err != nil {
		return err
	}
	for _, j := range page.Jobs {
		if _, err := s.Manifest(ctx, j.ID); err != nil {
			return err
		}
	}
	return s.Close()
}

// fill writes a file until the disk is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for size := 1 << 16; size > 0; size /= 2 { // down to the last byte
		for err == nil {
			_, err = io.WriteString(f, strings.Repeat("b", size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return errors.Join(err, f.Close())
		}
		err = nil
	}
	return f.Close()
}
