package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pkg/sftp"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// newSSHD starts the lab's sshd as the process driver has it.
func newSSHD(t *testing.T) *state.State { return newSSHDIn(t, "lab") }

func newSSHDIn(t *testing.T, name string) *state.State {
	t.Helper()
	if missing := Missing(state.DriverProcess); len(missing) > 0 {
		t.Skip(strings.Join(missing, " "))
	}
	s := &state.State{Dir: filepath.Join(t.TempDir(), name), Config: state.Config{Driver: state.DriverProcess}}
	if err := os.MkdirAll(s.BinDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stopSSHD(s); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(s.Dir); err != nil {
			t.Error(err)
		}
		assertNothingLeft(t, s)
	})
	if err := startSSHD(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSSHD_SessionsHaveTheLabsCommandsFirst(t *testing.T) {
	s := newSSHD(t)
	if err := os.WriteFile(filepath.Join(s.BinDir(), "qm"), []byte("#!/bin/sh\necho the lab: $PVELAB_DIR\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff("the lab: "+s.Dir+"\n", hostRun(t, s, "qm")); diff != "" {
		t.Errorf("qm (-want +got):\n%s", diff)
	}
}

func TestSSHD_SessionsLeaveTheUsersHomeAlone(t *testing.T) {
	s := newSSHD(t)
	if err := os.WriteFile(filepath.Join(s.HomeDir(), ".bashrc"), []byte("echo from the home of the lab\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got := hostRun(t, s, "echo ~")
	if diff := cmp.Diff("from the home of the lab\n"+s.HomeDir()+"\n", got); diff != "" {
		t.Errorf("home (-want +got):\n%s", diff)
	}
	host, err := dialHost(s)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	files, err := sftp.NewClient(host)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if dir, err := files.Getwd(); err != nil || dir != s.HomeDir() {
		t.Errorf("sftp begins in %q, %v; want %q", dir, err, s.HomeDir())
	}
}

func TestSSHD_StartIsIdempotent(t *testing.T) {
	s := newSSHD(t)
	before, _ := sys.ReadPidFile(s.Path("ssh", "pid"))
	port := s.Config.SSHPort
	if err := startSSHD(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if after, running := sys.ReadPidFile(s.Path("ssh", "pid")); !running || after != before || s.Config.SSHPort != port {
		t.Errorf("process %d at port %d became %d at %d", before, port, after, s.Config.SSHPort)
	}
}

func TestSSHD_StartsAgainOnItsOldPortWithItsOldKeyAfterKill(t *testing.T) {
	s := newSSHD(t)
	port := s.Config.SSHPort
	known, err := os.ReadFile(s.KnownHostsPath())
	if err != nil {
		t.Fatal(err)
	}
	known = append(known, "[127.0.0.1]:1 ssh-ed25519 AAAA of a host that was trusted since\n"...)
	if err := os.WriteFile(s.KnownHostsPath(), known, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sys.KillPidFile(t.Context(), s.Path("ssh", "pid"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := startSSHD(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(s.KnownHostsPath())
	if err != nil || string(again) != string(known) || s.Config.SSHPort != port {
		t.Errorf("port %d became %d, known_hosts %q became %q (%v)", port, s.Config.SSHPort, known, again, err)
	}
}

// What a client leaves running on the host, as detached work, ends with the lab:
// also when the sshd was killed before and its sessions go on.
func TestSSHD_StopEndsSessionsAndWhatTheyStarted(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run("sshd killed before: "+strconv.FormatBool(killed), func(t *testing.T) {
			s := newSSHD(t)
			host, err := dialHost(s)
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			out, err := guestRun(host, "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
			if err != nil {
				t.Fatal(err)
			}
			left, err := strconv.Atoi(strings.TrimSpace(out))
			if err != nil {
				t.Fatal(err)
			}
			if killed {
				if err := sys.KillPidFile(t.Context(), s.Path("ssh", "pid"), syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			if err := stopSSHD(s); err != nil {
				t.Fatal(err)
			}
			if _, alive := sys.ProcessStart(left); alive {
				t.Errorf("process %d lives on", left)
			}
			ended := make(chan error, 1)
			go func() { ended <- host.Wait() }()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the session is still open")
			}
		})
	}
}

func TestKillSessions_SparesWhatOnlyNamesTheLab(t *testing.T) {
	s := newSSHD(t)
	// A person's shell may well have PVELAB_DIR set, and the log open.
	log, err := os.Open(s.Path("ssh", "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	bystander := exec.Command("sleep", "1000")
	bystander.Env = []string{"PVELAB_DIR=" + s.Dir, sessionVariable + "=" + s.Dir + "-other"}
	bystander.Stdin = log
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bystander.Process.Kill(); _ = bystander.Wait() }()
	if err := killSessions(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	if _, alive := sys.ProcessStart(bystander.Process.Pid); !alive {
		t.Error("a process that is not the lab's was ended")
	}
}

// The state directory's name reaches sshd's config, its sessions' environment
// and its sftp server whole, whatever is in it.
func TestSSHD_WorksInADirectoryWithAnOddName(t *testing.T) {
	s := newSSHDIn(t, `a "b" 100% \ =c`)
	if diff := cmp.Diff(s.Dir+"\n", hostRun(t, s, `echo "$PVELAB_DIR"`)); diff != "" {
		t.Errorf("PVELAB_DIR (-want +got):\n%s", diff)
	}
}
