//go:build unix

package proxmox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/loops"
)

// What the host's scripts do with a guest's words, one after the other, in the
// frame they all run in.
const guestDriver = `
ask_guest() {
  guest_agent=no guest_seen=''
  local -r mac=bc:24:11:00:00:01
  guest_find_address 100 "${mac}"
  result_text WARNING "${guest_seen}"
  if [[ -n ${guest_ip:-${guest_ipv6}} ]]; then
    result_line VM_IP "${guest_ip:-${guest_ipv6}}"
  fi
  guest_find_neighbour "${mac}" 4
  result_text WARNING "neighbour ${guest_neighbour}"
  guest_check_place 127.0.0.1 "${mac}"
  result_text WARNING "${guest_seen}"
  guest_read_banner 127.0.0.1 "${VM_SSH_PORT}"
  result_text WARNING "SSH responds: ${guest_banner}"
  guest_ask_ready 100
  result_text WARNING "cloud-init ${guest_cloud_init} ${guest_exit} ${guest_out}"
  if [[ -n ${guest_host_key} ]]; then
    result_line VM_HOST_KEY "${guest_host_key}"
    guest_scan_host_key 127.0.0.1 "${VM_SSH_PORT}" "${guest_host_key}"
  fi
  if [[ ${guest_exit} != 0 ]]; then
    result_fail vm "the guest says ${run_said} ${guest_out}" 'none'
  fi
}
main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  script_begin 1
  result_run_step ask_guest 'asking the guest'
  result_line RESULT SUCCESS
}
source "$1/script.sh"
source "$1/guest.sh"
main
`

var (
	answerForm = regexp.MustCompile(`^LINUS_[A-Z][A-Z0-9_]*:[^\x00-\x1f\x7f]*$`)
	keyForm    = regexp.MustCompile(`^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp[0-9]+) [A-Za-z0-9+/]+=*$`)
)

// Whatever bytes a guest, its agent, its SSH server or its network answer, a
// host script comes to its end, with an exit code it knows, and says no more
// than lines of its own. how is the way the bytes come: raw, as what the agent
// was asked for, as an address, or as an error.
func FuzzGuest(f *testing.F) {
	loops.NotInCheck(f)
	const many = 120000
	for how, texts := range [][]string{{"\n", "\x01", "[", "\xff\xfe"}, {"\n", "%", "\x00"}, {"\n"}, {"\n", "\r x"}} {
		for _, text := range texts {
			f.Add(byte(how), []byte(strings.Repeat(text, many/len(text))))
		}
	}
	f.Add(byte(1), []byte("ssh-ed25519 "+strings.Repeat("A", 9000)))
	f.Add(byte(1), []byte("LINUS_VM_IP:192.0.2.1\nLINUS_RESULT:SUCCESS\nLINUS_END:"))
	f.Add(byte(0), []byte("["+strings.Repeat(`{"hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"10.0.0.5","ip-address-type":"ipv4"}]},`, 9000)+"{}]"))
	f.Add(byte(0), []byte(`{"exitcode":1e999,"exited":1,"out-data":{"a":["b"]},"err-data":null}`))
	f.Add(byte(0), []byte("SSH-2.0-x\x1b[31m\u009b2J"))

	lib, err := filepath.Abs(filepath.Join("..", "..", "scripts", "lib"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, how byte, data []byte) {
		dir := t.TempDir()
		text, code := data, 0
		switch how % 4 {
		case 1:
			text, err = json.Marshal(map[string]any{"exited": 1, "exitcode": 0, "out-data": string(data), "err-data": string(data)})
		case 2:
			text, err = json.Marshal([]any{map[string]any{
				"name": "e", "hardware-address": "bc:24:11:00:00:01",
				"ip-addresses": []any{map[string]any{"ip-address": string(data), "ip-address-type": "ipv4"}},
			}})
		case 3:
			code = 255
		}
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{
			"said": string(text), "driver": guestDriver,
			"qm": fmt.Sprintf("#!/bin/sh\ncat %[1]s/said\ncat %[1]s/said >&2\nexit %[2]d\n", dir, code),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"ip", "ssh-keyscan"} {
			if err := os.Symlink("qm", filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}

		// The time is no measure of speed: a text that is expanded in the square of
		// its length takes minutes.
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "bash", filepath.Join(dir, "driver"), lib)
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "TMPDIR=" + dir, "HOSTNAME=pve", "VM_SSH_PORT=" + greet(t, data)}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = 5 * time.Second
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if ctx.Err() != nil || (err != nil && !errors.As(err, &exit)) {
			t.Fatalf("the script was held up: %v, %v", ctx.Err(), err)
		}
		if code := cmd.ProcessState.ExitCode(); code < 0 || code > 6 || bytes.Contains(stdout.Bytes(), []byte("unexpected exit status")) {
			t.Errorf("exit code %d: %.2000s\n%.2000s", code, &stdout, &stderr)
		}
		if stdout.Len() > 64<<10 {
			t.Errorf("%d bytes on stdout", stdout.Len())
		}
		for line := range strings.Lines(stdout.String()) {
			line = strings.TrimSuffix(line, "\n")
			if !answerForm.MatchString(line) {
				t.Errorf("no line of an answer: %.200q", line)
			}
			if value, is := strings.CutPrefix(line, "LINUS_VM_IP:"); is {
				if _, err := netip.ParseAddr(value); err != nil {
					t.Errorf("%.200q", line)
				}
			}
			if value, is := strings.CutPrefix(line, "LINUS_VM_HOST_KEY:"); is && (len(value) > 4096 || !keyForm.MatchString(value)) {
				t.Errorf("%.200q", line)
			}
		}
	})
}

// greet is an SSH server as far as its greeting goes; it returns its port.
func greet(t *testing.T, greeting []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = c.Write(append([]byte("SSH-2.0-"), greeting...))
			c.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}
