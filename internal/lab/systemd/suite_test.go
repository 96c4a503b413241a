package systemd

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/loops"
)

// host is a machine with a systemd, or with what plays one.
type host interface {
	// bash runs a script there, as root of that machine.
	bash(ctx context.Context, script string) *exec.Cmd
	// dir is a directory of the test's own that both sides see at one path.
	dir(t *testing.T) string
	// reboot returns when the machine is up again.
	reboot(t *testing.T)
}

var binary string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	flag.Parse()
	if testing.Short() {
		return m.Run() // nothing that starts a program
	}
	dir, err := os.MkdirTemp("", "systemd-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "pvelab")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", binary, "linus/cmd/pvelab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build pvelab: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// simulated is the work-alike, with a machine of its own.
type simulated struct{ lab, bin string }

func newSimulated(t *testing.T) simulated {
	t.Helper()
	h := simulated{lab: t.TempDir(), bin: t.TempDir()}
	for _, tool := range Tools() {
		if err := os.Symlink(binary, filepath.Join(h.bin, tool)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { h.reboot(t) })
	return h
}

func (h simulated) bash(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Env = []string{"PATH=" + h.bin + ":/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PVELAB_DIR=" + h.lab}
	return cmd
}

func (simulated) dir(t *testing.T) string { return t.TempDir() }

func (h simulated) reboot(t *testing.T) {
	if err := (Manager{Dir: Dir(h.lab), Binary: binary}).Reboot(); err != nil {
		t.Error(err)
	}
	if err := (Manager{Dir: Dir(h.lab), Binary: binary}).Boot(); err != nil {
		t.Error(err)
	}
}

func TestSimulated(t *testing.T) {
	loops.NotInCheck(t)
	t.Parallel()
	suite(t, newSimulated(t))
}

// prelude is what the suite's scripts share: files are in $d, names of units
// begin with $u.
const prelude = `
cd "$d"
await() { # <command...>: until it succeeds
  local -i tries=0
  until "$@" >/dev/null 2>&1; do
    if ((tries++ > 600)); then echo "never: $*"; exit 1; fi
    sleep 0.05
  done
}
inactive() { [[ $(systemctl is-active "$1") =~ ^(inactive|failed)$ ]]; }
gone() { ! kill -0 "$1"; }
begin() { systemd-run --quiet --collect --property=WorkingDirectory=$d --property=KillMode=process --unit="$@"; } # <unit> [<option...>] -- <command...>
post="--property=ExecStopPost=/bin/bash \"$d/note.sh\" it"
echo 'echo "$1 $EXIT_STATUS" >>post' >note.sh
files=${PVELAB_DIR:-}/etc/systemd/system
timer() { # <name> <script> <seconds>: files of a timer that comes again
  mkdir -p $files
  printf '%s\n' '[Service]' "ExecStart=/bin/bash \"$2\"" KillMode=mixed >$files/$1.service
  printf '%s\n' '[Timer]' OnActiveSec=$3 OnUnitActiveSec=$3 AccuracySec=100ms >$files/$1.timer
}
`

// suite is what the host scripts rely on. Scripts print what they see; both
// systemds must print the same.
func suite(t *testing.T, h host) {
	tests := []struct{ name, script, want string }{
		{"it returns when the unit runs, not when it ends", `
			begin $u -- sleep 1000; echo $?
			systemctl is-active $u; systemctl is-active --quiet $u.service; echo $?
			systemctl stop $u; echo $?; systemctl is-active $u; echo $?`, "0\nactive\n0\n0\ninactive\n3\n"},
		{"a name is a reservation", `
			begin $u -- sleep 1000
			begin $u -- touch second 2>err; echo $?; sed "s/$u/U/g" err
			systemctl kill --signal=KILL $u; await inactive $u
			await begin $u -- true; ls second 2>/dev/null`,
			"1\nFailed to start transient service unit: Unit U.service was already loaded or has a fragment file.\n"},
		{"of many who reserve one name at once, one has it", `
			for ((i = 0; i < 10; i++)); do
			  { begin $u -- sleep 1000 2>/dev/null && echo won >>won; } &
			done
			wait; cat won; systemctl stop $u`, "won\n"},
		{"a collected unit that failed is gone", `
			begin $u -- false; echo $?
			collected() { [[ $(systemctl is-active $u) == inactive ]]; }
			await collected; systemctl is-active $u; systemctl stop $u 2>err; echo $?; sed "s/$u/U/g" err`,
			"0\ninactive\n5\nFailed to stop U.service: Unit U.service not loaded.\n"},
		{"what is not there", `
			systemctl stop $u 2>err; echo $?; systemctl kill $u 2>>err; echo $?; systemctl stop $u.timer 2>>err; echo $?; sed "s/$u/U/g" err
			systemctl frob; echo $?; begin $u --frob true; echo $?; begin $u --property=Frob=1 true; echo $?; begin $u /nope; echo $?`,
			"5\n1\n5\nFailed to stop U.service: Unit U.service not loaded.\nFailed to kill unit U.service: Unit U.service not loaded.\n" +
				"Failed to stop U.timer: Unit U.timer not loaded.\n1\n1\n1\n1\n"},
		{"ExecStopPost sees how it ended", `
			for end in 'exit 7' true 'kill -KILL $BASHPID' 'kill -TERM $BASHPID'; do await begin $u "$post" -- bash -c "$end"; await inactive $u; done
			await begin $u "$post" -- sleep 1000; systemctl stop $u
			begin $u-b "$post" -- bash -c 'trap "exit 143" TERM; touch ready; while :; do sleep 0.1; done'
			await test -e ready; systemctl stop $u-b
			await begin $u "$post" --property=RuntimeMaxSec=1 -- sleep 1000; await inactive $u
			cat post`, "it 7\nit 0\nit KILL\nit TERM\nit TERM\nit 143\nit TERM\n"},
		{"ExecStopPost runs when its main process has gone, and before the unit has", `
			echo 's=$(cat /proc/$(<pid)/stat 2>/dev/null); [[ -z $s || $s == *") Z "* ]] || touch early; sleep 0.3; echo post >>post' >note.sh # systemd reaps it a moment later
			begin $u "$post" -- bash -c 'echo $BASHPID >pid.new; mv pid.new pid; exec sleep 1000'
			await test -e pid; systemctl stop $u; cat post; ls early 2>/dev/null; systemctl is-active $u`, "post\ninactive\n"},
		{"nothing of the caller's is inherited", `
			export SECRET=x
			trap '' HUP INT
			begin $u --property=WorkingDirectory=/ -- bash -c "exec >$d/out"'; echo "[$SECRET] $PWD $(umask) $(ls -l /proc/self/fd/0 | sed "s/.* //")"'
			await inactive $u
			begin $u -- bash -c 'exec >>out; trap "echo hup" HUP; kill -HUP $BASHPID; trap "echo pipe" PIPE; kill -PIPE $BASHPID'
			await inactive $u; cat out`, "[] / 0022 /dev/null\nhup\n"},
		{"no lock of the caller's is held by the unit", `
			exec 7>lock; flock 7
			timer $u /dev/null 1000
			begin $u-b -- sleep 1000; systemctl start $u.timer
			exec 7>&-; flock -n lock echo free; systemctl stop $u-b $u.timer; rm $files/$u.*`, "free\n"},
		{"the whole unit is killed", `
			begin $u -- bash -c 'setsid sleep 1000 & (sleep 1001 & echo $! >b.new; mv b.new b); echo $! >a.new; mv a.new a; exec sleep 1002'
			await test -e a; await test -e b; kill -0 $(<a) $(<b) && echo there
			systemctl kill --kill-whom=all --signal=KILL $u; await gone $(<a); await gone $(<b); await inactive $u; systemctl is-active $u`, "there\ninactive\n"},
		{"KillMode=mixed tells the main process, and kills the rest", `
			begin $u --property=KillMode=mixed -- bash -c '(trap "touch told" TERM; touch ready; while :; do sleep 0.1; done) & echo $! >a; trap "echo main >main; exit 0" TERM; while :; do sleep 0.1; done'
			await test -e ready; systemctl stop $u; gone $(<a); echo $?; ls told 2>/dev/null; cat main`, "0\nmain\n"},
		{"KillMode=process leaves what the main process left", `
			begin $u -- bash -c 'sleep 1000 & echo $! >a'
			await test -e a; await inactive $u; kill -0 $(<a) && echo there; systemctl is-active $u
			begin $u -- touch second 2>/dev/null; echo $? # the name is taken while anything is left
			systemctl stop $u; echo $?; kill -0 $(<a) && echo there; kill $(<a)
			await begin $u -- true; ls second 2>/dev/null`, "there\ninactive\n1\n0\nthere\n"},
		{"a unit that another has started is none of it", `
			begin $u -- env "PVELAB_DIR=${PVELAB_DIR:-}" "$(command -v systemd-run)" --quiet --collect --property=KillMode=process --unit=$u-b -- sleep 1000
			await systemctl is-active $u-b; await begin $u -- bash -c 'touch second; exec sleep 1000'; await test -e second; echo second
			systemctl kill --kill-whom=all --signal=KILL $u; await inactive $u; systemctl is-active $u-b; systemctl stop $u-b`, "second\nactive\n"},
		{"one that does not end is killed after TimeoutStopSec", `
			begin $u "$post" --property=TimeoutStopSec=1 -- bash -c 'trap "" TERM; touch ready; while :; do sleep 0.1; done'
			await test -e ready; systemctl stop $u; cat post`, "it KILL\n"},
		{"a signal to the main process alone", `
			begin $u -- bash -c 'sleep 1000 & echo $! >a; trap "kill -0 $! && echo there >b" USR1; touch ready; while :; do sleep 0.1; done'
			await test -e ready; systemctl kill --kill-whom=main --signal=USR1 $u; await test -s b; cat b; systemctl kill --signal=KILL $u`, "there\n"},
		{"a list of units", `
			timer $u-b /dev/null 1000; systemctl start $u-b.timer
			begin $u-a --description='is a' -- sleep 1000
			list() { systemctl list-units --plain --no-legend --state=active "$u-*" | sed -E "s/$u/U/g; s/ +/ /g" | cut -d' ' -f"$1"; }
			list 1-4; list 5- | head -n 1
			systemctl stop $u-a $u-b.timer; list 1; rm $files/$u-b.*`,
			"U-a.service loaded active running\nU-b.timer loaded active waiting\nis a\n"},
		{"a timer's service has its name", `
			timer $u /dev/null 1000; systemctl start $u.timer
			systemctl is-active $u.timer; systemctl is-active $u.service
			begin $u -- true 2>err; echo $?; sed "s/$u/U/g" err
			systemctl stop $u.timer; echo $?; systemctl is-active $u.timer; rm $files/$u.*`,
			"active\ninactive\n1\nFailed to start transient service unit: Unit U.service was already loaded or has a fragment file.\n0\ninactive\n"},
		{"a timer that is stopped does not fire", `
			echo 'touch "${0%.sh}"' >fired.sh; cp fired.sh later.sh
			timer $u $d/fired.sh 1; timer $u-later $d/later.sh 2
			systemctl start $u.timer $u-later.timer; systemctl stop $u.timer; echo $?
			await test -e later; ls fired 2>/dev/null; systemctl is-active $u.timer; systemctl stop $u-later.timer; rm $files/$u*`, "0\ninactive\n"},
		{"a timer comes again, also after a failure, and never twice at once", `
			echo 'cd "${0%/*}"; mkdir busy || touch twice; sleep 1.5; rmdir busy; echo >>fired; exit 1' >work.sh
			timer $u $d/work.sh 1
			thrice() { [[ $(wc -l <fired) -ge 3 ]]; }
			systemctl start $u.timer; await thrice; systemctl is-active $u.timer
			systemctl stop $u.timer $u.service; systemctl is-active $u.timer; ls twice 2>/dev/null; rm $files/$u.*`, "active\ninactive\n"},
	}
	t.Run("a reboot takes all units, and leaves files", func(t *testing.T) {
		dir := h.dir(t)
		see(t, h, "reboot", dir, `
			timer $u-timer /dev/null 1000; systemctl start $u-timer.timer
			begin $u "$post" -- bash -c 'echo $BASHPID >main; exec sleep 1000'
			await test -s main; rm $files/$u-timer.* note.sh`)
		h.reboot(t)
		const want = "main\ninactive\ninactive\n"
		if got := see(t, h, "reboot", dir, `rm note.sh; ls; systemctl is-active $u; systemctl is-active $u-timer.timer; gone $(<main) || grep -s sleep /proc/$(<main)/cmdline`); got != want {
			t.Error(cmp.Diff(want, got))
		}
	})
	t.Run("units of files: what is enabled starts when the machine does", func(t *testing.T) {
		dir := h.dir(t)
		got := see(t, h, "files", dir, `
			mkdir -p $files
			printf '%s\n' "echo 100% >>$d/swept" >$d/sweep%s.sh
			printf '%s\n' '# of a test' '[Unit]' 'Description=of a file' After=local-fs.target '[Service]' "ExecStart=/bin/bash \"$d/sweep%%s.sh\"" \
			  KillMode=mixed '[Install]' WantedBy=multi-user.target >$files/$u.service
			printf '%s\n' '[Unit]' 'Description=its timer' '[Timer]' OnActiveSec=1 OnUnitActiveSec=1 AccuracySec=100ms '[Install]' WantedBy=timers.target >$files/$u.timer
			systemctl enable --quiet --no-reload $u.service $u.timer; echo $?
			systemctl is-active $u.timer; systemctl is-active $u.service
			systemctl start $u.timer; echo $?; systemctl start $u.timer; echo $?; systemctl is-active $u.timer; await test -s swept
			begin $u -- true 2>/dev/null; echo $?; systemctl stop $u.timer; systemctl start $u.timer
			systemctl start $u-none 2>/dev/null; echo $?`)
		if want := "0\ninactive\ninactive\n0\n0\nactive\n1\n5\n"; got != want {
			t.Error(cmp.Diff(want, got))
		}
		h.reboot(t)
		got = see(t, h, "files", dir, `
			systemctl is-active $u.timer; rm -f swept; await test -s swept; head -n 1 swept
			systemctl disable --quiet --now $u.timer; systemctl disable --quiet $u.service; rm $files/$u.*; systemctl daemon-reload
			await inactive $u.service; systemctl is-active $u.timer; systemctl stop $u.timer; echo $?; ls $files/*.wants/$u* 2>/dev/null`)
		if want := "active\n100%\ninactive\n5\n"; got != want {
			t.Error(cmp.Diff(want, got))
		}
	})
	// Not beside others: a daemon-reload is everybody's.
	t.Run("a unit that runs as files are read anew ends as it would have", func(t *testing.T) {
		got := see(t, h, "reload", h.dir(t), `
			begin $u "$post" -- bash -c 'until [ -e go ]; do sleep 0.05; done; exit 3'
			systemctl daemon-reload; systemctl is-active $u; touch go; await test -s post; cat post`)
		if want := "active\nit 3\n"; got != want {
			t.Error(cmp.Diff(want, got))
		}
	})
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := see(t, h, fmt.Sprintf("u%d", i), h.dir(t), tt.script); got != tt.want {
				t.Error(cmp.Diff(tt.want, got))
			}
		})
	}
}

// see runs a script and returns its stdout.
func see(t *testing.T, h host, name, dir, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := h.bash(ctx, "u=linus-test-"+name+"\nd="+dir+prelude+strings.ReplaceAll(script, "\n\t\t\t", "\n"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); ctx.Err() != nil {
		t.Errorf("%v\n%s", err, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Logf("stderr: %s", stderr.String())
	}
	return stdout.String()
}
