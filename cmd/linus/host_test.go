package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/sshtest"
)

// linus runs one command line in this process.
func linus(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), fakeBackend, args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// useHost points the settings at s, with a known_hosts file that is not there yet.
func useHost(t *testing.T, s *sshtest.Server) (knownHosts string) {
	t.Helper()
	for _, setting := range config.Table() {
		if value, ok := os.LookupEnv(setting.Name); ok {
			_ = os.Unsetenv(setting.Name)
			t.Cleanup(func() { _ = os.Setenv(setting.Name, value) })
		}
	}
	knownHosts = filepath.Join(t.TempDir(), "ssh", "known_hosts")
	t.Setenv("PROXMOX_HOST", s.Host)
	t.Setenv("PROXMOX_SSH_PORT", strconv.Itoa(s.Port))
	t.Setenv("PROXMOX_KNOWN_HOSTS", knownHosts)
	return knownHosts
}

func TestHostTrust_AsksBeforeItTrusts(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	knownHosts := useHost(t, s)
	code, _, stderr := linus(t, "y\n", "host", "trust")
	if code != exitUsage || !strings.Contains(stderr, "ssh-ed25519 SHA256:") || !strings.Contains(stderr, "give --fingerprint") {
		t.Errorf("without a terminal: exit code %d, %s", code, stderr)
	}
	if _, err := os.Stat(knownHosts); err == nil {
		t.Error("known_hosts was written without an answer")
	}
}

func TestHostTrust_WrongFingerprintIsRefused(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	knownHosts := useHost(t, s)
	code, _, stderr := linus(t, "", "host", "trust", "--fingerprint", "SHA256:somebodyelse")
	if code != exitFailure || !strings.Contains(stderr, "do not connect before you know why") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if _, err := os.Stat(knownHosts); err == nil {
		t.Error("known_hosts was written")
	}
}

func TestHostTrust_AddsTheKeyOnceAndRefusesAnother(t *testing.T) {
	first := sshtest.Start(t, sshtest.Options{})
	knownHosts := useHost(t, first)
	code, stdout, stderr := linus(t, "", "host", "trust", "--yes")
	if code != exitOK || !strings.Contains(stdout, "is trusted: ssh-ed25519 SHA256:") {
		t.Fatalf("exit code %d, %s%s", code, stdout, stderr)
	}
	_, fingerprint, _ := strings.Cut(strings.SplitN(stdout, ", in ", 2)[0], "ssh-ed25519 ")
	if code, stdout, stderr = linus(t, "", "host", "trust", "--fingerprint", fingerprint); code != exitOK || !strings.Contains(stdout, "is already trusted") {
		t.Errorf("again: exit code %d, %s%s", code, stdout, stderr)
	}
	held, err := os.ReadFile(knownHosts)
	if err != nil || strings.Count(string(held), "\n") != 1 {
		t.Errorf("known_hosts holds %q, %v; want one line", held, err)
	}

	first.Stop()
	sshtest.Start(t, sshtest.Options{Port: first.Port})
	if code, _, stderr = linus(t, "", "host", "trust", "--yes"); code != exitFailure || !strings.Contains(stderr, "ssh-keygen -R") {
		t.Errorf("another key: exit code %d, %s", code, stderr)
	}
	if now, err := os.ReadFile(knownHosts); err != nil || !bytes.Equal(now, held) {
		t.Error("known_hosts was changed for another key")
	}
}

func TestHostTrust_NobodyThere(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	useHost(t, s)
	s.Stop()
	if code, _, stderr := linus(t, "", "host", "trust", "--yes"); code != exitFailure || !strings.Contains(stderr, "is PROXMOX_HOST "+s.Host+" correct") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func TestHostCheck_HostThatCannotBeAskedIsAFinding(t *testing.T) {
	for class, name := range map[job.HostClass]string{job.HostAuth: "ssh", job.HostUnreachable: "ssh", job.HostVM: "host"} {
		r, err := finding(job.HostReport{}, fmt.Errorf("check: %w", &job.HostError{Host: "root@pve:22", Class: class, Text: "no", Remedy: "do"}))
		want := job.HostReport{Host: "root@pve:22", Checks: []job.Check{{Name: name, Level: "fail", Text: "no", Remedy: "do"}}}
		if diff := cmp.Diff(want, r); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", class, err, diff)
		}
	}
	if _, err := finding(job.HostReport{}, io.ErrUnexpectedEOF); err == nil {
		t.Error("an error of the engine's is lost")
	}
}
