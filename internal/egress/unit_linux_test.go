package egress_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"linus/internal/egress"
	"linus/internal/job"
)

// TestProxy_UnderTheServicesUnit connects as the packaged service does: with the unit's
// own filter of address families and system calls. It is in a network namespace in which
// a public address is this machine's.
func TestProxy_UnderTheServicesUnit(t *testing.T) {
	const inside = "LINUS_TEST_UNDER_UNIT"
	if os.Getenv(inside) == "" {
		if os.Geteuid() != 0 {
			t.Skip("a network namespace is root's to make")
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "--net", "bash", "-ec", `
			ip link set lo up; ip link add eth0 type veth peer name eth1; ip addr add 9.9.9.1/24 dev eth0; ip addr add 2620:fe::1/64 dev eth0 nodad; ip link set eth0 up; ip link set eth1 up
			exec "$0" -test.run "^$1\$" -test.v`, os.Args[0], t.Name())
		cmd.Env = append(os.Environ(), inside+"=yes")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	p := egress.New(egress.Options{
		Names: []string{"*.example"},
		Lookup: func(_ context.Context, name string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr(map[string]string{
				"own.example": "9.9.9.1", "own6.example": "2620:fe::1", "mapped.example": "::ffff:9.9.9.1", "other.example": "9.9.9.9", "other6.example": "2620:fe::9", "far.example": "8.8.8.8",
			}[name])}, nil
		},
		Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
			near, far := net.Pipe()
			_ = far.Close()
			return near, nil
		},
		Record: func(job.Connection) {},
	})
	defer p.Close()
	filter(t)
	for name, want := range map[string]string{"other": "200", "other6": "200", "far": "200", "own": "403", "own6": "403", "mapped": "403"} {
		if line, _, _ := ask(t, p, "CONNECT "+name+".example:443 HTTP/1.1\r\n\r\n"); !strings.Contains(line, " "+want+" ") {
			t.Errorf("%s: %q, want %s", name, line, want)
		}
	}
}

// filter does to this process what systemd does with the packaged unit's settings.
func filter(t *testing.T) {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join("..", "..", ".packaging", "linus.service"))
	if err != nil {
		t.Fatal(err)
	}
	setting := func(name string) (words []string) {
		for _, line := range regexp.MustCompile(`(?m)^`+name+`=(.+)$`).FindAllStringSubmatch(string(unit), -1) {
			words = append(words, strings.Fields(line[1])...)
		}
		return words
	}
	const load, equal, answer, refuse = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K, 0x00050000
	const allow = 0x7fff0000
	families := map[string]uint32{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK}
	names := setting("RestrictAddressFamilies")
	program := []unix.SockFilter{{Code: load}, {Code: equal, Jf: uint8(2*len(names) + 2), K: unix.SYS_SOCKET}, {Code: load, K: 16}}
	for _, name := range names {
		program = append(program, unix.SockFilter{Code: equal, Jf: 1, K: families[name]}, unix.SockFilter{Code: answer, K: allow})
	}
	program = append(program, unix.SockFilter{Code: answer, K: refuse | uint32(unix.EAFNOSUPPORT)})
	calls := systemCalls(setting("SystemCallFilter"))
	t.Logf("%d address families, %d system calls", len(names), len(calls))
	for _, nr := range calls {
		program = append(program, unix.SockFilter{Code: equal, Jf: 1, K: nr}, unix.SockFilter{Code: answer, K: allow})
	}
	last := uint32(allow)
	if len(calls) > 0 {
		last = refuse | uint32(unix.EPERM)
	}
	program = append(program, unix.SockFilter{Code: answer, K: last})
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	const setFilter, allThreads = 1, 1
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		t.Fatal(errno)
	}
	if _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(binary.NativeEndian.Uint16([]byte{0, 3}))); err != unix.EAFNOSUPPORT {
		t.Fatalf("the filter is not in force: %v", err)
	}
}

// systemCalls returns the numbers of those that a SystemCallFilter allows, as the systemd
// of this machine has its groups; none where it, or the C library's headers, are missing.
func systemCalls(groups []string) []uint32 {
	header, err := os.ReadFile("/usr/include/" + map[string]string{"amd64": "x86_64"}[runtime.GOARCH] + "-linux-gnu/asm/unistd_64.h")
	if err != nil {
		return nil
	}
	numbers := map[string]uint32{}
	for _, m := range regexp.MustCompile(`#define __NR_(\w+) (\d+)`).FindAllStringSubmatch(string(header), -1) {
		nr, _ := strconv.ParseUint(m[2], 10, 32)
		numbers[m[1]] = uint32(nr)
	}
	var of func(group string) []uint32
	of = func(group string) (all []uint32) {
		out, err := exec.Command("systemd-analyze", "syscall-filter", "--no-pager", group).Output() //nolint:noctx // a list that it has
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(out)) {
			switch name := strings.TrimSpace(line); {
			case strings.HasPrefix(line, " ") && strings.HasPrefix(name, "@"):
				all = append(all, of(name)...)
			case strings.HasPrefix(line, " "):
				if nr, known := numbers[name]; known {
					all = append(all, nr)
				}
			}
		}
		return all
	}
	var allowed []uint32
	for _, group := range groups {
		if without, no := strings.CutPrefix(group, "~"); no {
			not := of(without)
			allowed = slices.DeleteFunc(allowed, func(nr uint32) bool { return slices.Contains(not, nr) })
		} else {
			allowed = append(allowed, of(group)...)
		}
	}
	slices.Sort(allowed)
	return slices.Compact(allowed)
}
