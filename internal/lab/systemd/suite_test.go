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
files=${PVELAB_DIR:-}/etc/systemd/system
timer() { # <name> <script> <seconds>: files of a timer that comes again
  mkdir -p $files
  printf '%s\n' '[Service]' "ExecStart=/bin/bash -c \"$2\"" >$files/$1.service
  printf '%s\n' '[Timer]' OnActiveSec=$3 OnUnitActiveSec=$3 AccuracySec=100ms >$files/$1.timer
}
`

// suite is what the host scripts rely on. Scripts print what they see; both
// systemds must print the same.
func suite(t *testing.T, h host) {
	tests := []struct{ name, script, want string }{
		{"an exit code is handed on", `
			systemd-run --quiet --collect --wait --unit=$u -- bash -c 'exit 7'; echo $?
			systemd-run --quiet --collect --wait --unit=$u -- true; echo $?
			systemd-run --quiet --collect --wait --unit=$u -- bash -c 'kill -KILL $BASHPID'; echo $?
			systemd-run --quiet --collect --wait --unit=$u -- bash -c 'kill -TERM $BASHPID'; echo $?`, "7\n0\n255\n0\n"},
		{"it returns when the unit runs, not when it ends", `
			systemd-run --quiet --collect --unit=$u -- sleep 1000; echo $?
			systemctl is-active $u; systemctl is-active --quiet $u.service; echo $?
			systemctl stop $u; echo $?; systemctl is-active $u; echo $?`, "0\nactive\n0\n0\ninactive\n3\n"},
		{"a name is a reservation", `
			systemd-run --quiet --collect --unit=$u -- sleep 1000
			systemd-run --quiet --collect --unit=$u -- touch second 2>err; echo $?; sed "s/$u/U/g" err
			systemctl kill --signal=KILL $u; await inactive $u
			await systemd-run --quiet --collect --wait --unit=$u -- true; ls second 2>/dev/null`,
			"1\nFailed to start transient service unit: Unit U.service was already loaded or has a fragment file.\n"},
		{"of many who reserve one name at once, one has it", `
			for ((i = 0; i < 10; i++)); do
			  { systemd-run --quiet --collect --unit=$u -- sleep 1000 2>/dev/null && echo won >>won; } &
			done
			wait; cat won; systemctl stop $u`, "won\n"},
		{"a collected unit that failed is gone", `
			systemd-run --quiet --collect --wait --unit=$u -- false; echo $?
			collected() { [[ $(systemctl is-active $u) == inactive ]]; }
			await collected; systemctl is-active $u; systemctl stop $u 2>err; echo $?; sed "s/$u/U/g" err`,
			"1\ninactive\n5\nFailed to stop U.service: Unit U.service not loaded.\n"},
		{"what is not there", `
			systemctl stop $u 2>err; echo $?; systemctl kill $u 2>>err; echo $?; systemctl stop $u.timer 2>>err; echo $?; sed "s/$u/U/g" err
			systemctl frob; echo $?; run="systemd-run --quiet --collect --unit=$u"; $run --frob true; echo $?; $run --property=Frob=1 true; echo $?; $run /nope; echo $?`,
			"5\n1\n5\nFailed to stop U.service: Unit U.service not loaded.\nFailed to kill unit U.service: Unit U.service not loaded.\n" +
				"Failed to stop U.timer: Unit U.timer not loaded.\n1\n1\n1\n1\n"},
		{"ExecStopPost sees how it ended", `
			post=(--property="ExecStopPost=/bin/sh -c 'echo \$EXIT_CODE \$EXIT_STATUS \$SERVICE_RESULT >>$d/post'")
			systemd-run --quiet --collect --unit=$u-1 --wait "${post[@]}" -- bash -c 'exit 7'
			systemd-run --quiet --collect --unit=$u-2 --wait "${post[@]}" -- true
			systemd-run --quiet --collect --unit=$u-3 --wait "${post[@]}" -- bash -c 'kill -KILL $BASHPID'
			systemd-run --quiet --collect --unit=$u "${post[@]}" -- sleep 1000; systemctl stop $u
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d "${post[@]}" -- bash -c 'trap "exit 143" TERM; touch ready; while :; do sleep 0.1; done'
			await test -e ready; systemctl stop $u
			systemd-run --quiet --collect --unit=$u-4 --wait "${post[@]}" --property=RuntimeMaxSec=1 -- sleep 1000; echo $?
			cat post`, "1\nexited 7 exit-code\nexited 0 success\nkilled KILL signal\nkilled TERM success\nexited 143 exit-code\nkilled TERM timeout\n"},
		// What its parent has yet to reap, once that is systemd, has gone.
		{"ExecStopPost runs when its processes have gone, and before the unit has", `
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory="$d" --property="ExecStopPost=/bin/bash -c 'grep -qs State:.[^ZX] /proc/\$(<$d/pid)/status && touch $d/early; sleep 0.3; echo post >>$d/post2'" \
			  -- bash -c 'sleep 1000 & echo $! >pid.new; mv pid.new pid; wait'
			await test -e pid; systemctl stop $u; cat post2; ls early 2>/dev/null; systemctl is-active $u`, "post\ninactive\n"},
		{"a failing ExecStopPost fails the unit", `
			systemd-run --quiet --collect --wait --property=ExecStopPost=/bin/false --unit=$u -- true; echo $?
			systemd-run --quiet --collect --wait --property='ExecStopPost=nope/false' --unit=$u-b -- true 2>/dev/null; echo $?`, "1\n1\n"},
		{"nothing of the caller's is inherited", `
			export SECRET=x
			trap '' HUP INT
			systemd-run --quiet --collect --wait --unit=$u -- bash -c "exec >$d/out"'; echo "[$SECRET] $PWD $(umask) $(ls -l /proc/self/fd/0 | sed "s/.* //")"'
			systemd-run --quiet --collect --wait --unit=$u-b -- bash -c "exec >>$d/out"'; trap "echo hup" HUP; kill -HUP $BASHPID; trap "echo pipe" PIPE; kill -PIPE $BASHPID'
			cat out`, "[] / 0022 /dev/null\nhup\n"},
		{"no lock of the caller's is held by the unit", `
			exec 7>lock; flock 7
			systemd-run --quiet --collect --unit=$u -- sleep 1000
			systemd-run --quiet --collect --unit=$u-timer --on-active=1000 -- true
			exec 7>&-; flock -n lock echo free; systemctl stop $u $u-timer.timer`, "free\n"},
		{"the whole unit is killed", `
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d -- bash -c 'setsid sleep 1000 & (sleep 1001 & echo $! >b.new; mv b.new b); echo $! >a.new; mv a.new a; exec sleep 1002'
			await test -e a; await test -e b; kill -0 $(<a) $(<b) && echo there
			systemctl kill --signal=KILL $u; await gone $(<a); await gone $(<b); await inactive $u; systemctl is-active $u`, "there\ninactive\n"},
		{"what the main process leaves is ended, and killed when it does not end", `
			systemd-run --quiet --collect --unit=$u-5 --wait --property=WorkingDirectory=$d --property=TimeoutStopSec=4 -- bash -c '(trap ": >told" TERM; touch ready; while :; do sleep 0.1; done) & echo $! >a; until [[ -e ready ]]; do sleep 0.05; done'
			gone $(<a); echo $?; ls told`, "0\ntold\n"},
		{"KillMode=mixed tells the main process, and kills the rest", `
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d --property=KillMode=mixed -- bash -c '(trap "touch told" TERM; touch ready; while :; do sleep 0.1; done) & echo $! >a; trap "echo main >main; exit 0" TERM; while :; do sleep 0.1; done'
			await test -e ready; systemctl stop $u; gone $(<a); echo $?; ls told 2>/dev/null; cat main`, "0\nmain\n"},
		{"KillMode=process leaves what the main process left", `
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d --property=KillMode=process -- bash -c 'sleep 1000 & echo $! >a'
			await test -e a; await inactive $u; kill -0 $(<a) && echo there; systemctl is-active $u
			systemd-run --quiet --collect --unit=$u -- touch second 2>/dev/null; echo $? # the name is taken while anything is left
			systemctl stop $u; echo $?; kill -0 $(<a) && echo there; kill $(<a)
			await systemd-run --quiet --collect --wait --unit=$u -- true; ls second 2>/dev/null`, "there\ninactive\n1\n0\nthere\n"},
		{"one that does not end is killed after TimeoutStopSec", `
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d --property=TimeoutStopSec=1 --property="ExecStopPost=/bin/sh -c 'echo \$SERVICE_RESULT \$EXIT_STATUS >$d/post'" -- bash -c 'trap "" TERM; touch ready; while :; do sleep 0.1; done'
			await test -e ready; systemctl stop $u; cat post`, "timeout KILL\n"},
		{"a signal to the main process alone", `
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d -- bash -c 'sleep 1000 & echo $! >a; trap "kill -0 $! && echo there >b" USR1; touch ready; while :; do sleep 0.1; done'
			await test -e ready; systemctl kill --kill-whom=main --signal=USR1 $u; await test -s b; cat b; systemctl stop $u`, "there\n"},
		{"a list of units", `
			systemd-run --quiet --collect --unit=$u-a --description='is a' -- sleep 1000; systemd-run --quiet --collect --unit=$u-b --description='is b' --on-active=1000 -- true
			list() { systemctl list-units --plain --no-legend "$@" "$u-*" | sed -E "s/$u/U/g; s/ +/ /g"; }
			list --all | cut -d' ' -f1-4; list --state=active | cut -d' ' -f1,5-
			systemctl stop $u-a $u-b.timer; list --all`,
			"U-a.service loaded active running\nU-b.service loaded inactive dead\nU-b.timer loaded active waiting\nU-a.service is a\nU-b.timer is b\n"},
		{"a timer holds its name and its service's", `
			systemd-run --quiet --collect --unit=$u --on-active=1000 -- true
			systemctl is-active $u.timer; systemctl is-active $u.service
			systemd-run --quiet --collect --unit=$u -- true 2>err; echo $?; sed "s/$u/U/g" err
			systemd-run --quiet --collect --on-active=1 --unit=$u -- true 2>err; echo $?; sed "s/$u/U/g" err
			systemctl stop $u.timer; echo $?; systemctl is-active $u.timer`,
			"active\ninactive\n1\nFailed to start transient service unit: Unit U.service was already loaded or has a fragment file.\n" +
				"1\nFailed to start transient timer unit: Unit U.timer was already loaded or has a fragment file.\n0\ninactive\n"},
		{"a timer that is stopped does not fire", `
			timer $u "touch $d/fired" 1; timer $u-later "touch $d/later" 2
			systemctl start $u.timer $u-later.timer; systemctl stop $u.timer; echo $?
			await test -e later; ls fired 2>/dev/null; systemctl is-active $u.timer; systemctl stop $u-later.timer; rm $files/$u*`, "0\ninactive\n"},
		{"a timer comes again, also after a failure, and never twice at once", `
			timer $u "cd $d; mkdir busy || touch twice; sleep 1.5; rmdir busy; echo >>fired; exit 1" 1
			thrice() { [[ $(wc -l <fired) -ge 3 ]]; }
			systemctl start $u.timer; await thrice; systemctl is-active $u.timer
			systemctl stop $u.timer $u.service; systemctl is-active $u.timer; ls twice 2>/dev/null; rm $files/$u.*`, "active\ninactive\n"},
	}
	t.Run("a reboot takes all units, and leaves files", func(t *testing.T) {
		dir := h.dir(t)
		see(t, h, "reboot", dir, `
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d --property="ExecStopPost=/bin/touch $d/post" -- bash -c 'echo $BASHPID >main; exec sleep 1000'
			systemd-run --quiet --collect --unit=$u-timer --on-active=1000 -- true
			await test -s main`)
		h.reboot(t)
		const want = "main\ninactive\ninactive\n"
		if got := see(t, h, "reboot", dir, `ls; systemctl is-active $u; systemctl is-active $u-timer.timer; gone $(<main) || grep -s sleep /proc/$(<main)/cmdline`); got != want {
			t.Error(cmp.Diff(want, got))
		}
	})
	t.Run("units of files: what is enabled starts when the machine does", func(t *testing.T) {
		dir := h.dir(t)
		got := see(t, h, "files", dir, `
			mkdir -p $files
			printf '%s\n' '[Unit]' 'Description=of a file' After=local-fs.target '[Service]' "ExecStart=/bin/bash -c \"echo 100%% >>$d/swept\"" \
			  KillMode=mixed '[Install]' WantedBy=multi-user.target >$files/$u.service
			printf '%s\n' '[Unit]' 'Description=its timer' '[Timer]' OnActiveSec=1 OnUnitActiveSec=1 AccuracySec=100ms '[Install]' WantedBy=timers.target >$files/$u.timer
			systemd-run --quiet --collect --unit=$u-old --on-active=1000 -- true; cp $files/$u.service $files/$u-old.service; cp $files/$u.timer $files/$u-old.timer
			systemctl enable --quiet $u-old.timer 2>/dev/null; echo $?; systemctl stop $u-old.timer
			systemctl enable --quiet $u-old.timer; echo $?; systemctl is-active $u-old.timer; systemctl disable --quiet --now $u-old.timer; rm $files/$u-old.*
			systemctl enable --quiet --no-reload $u.service $u.timer; echo $?
			systemctl is-active $u.timer; systemctl is-active $u.service
			systemctl start $u.timer; echo $?; systemctl start $u.timer; echo $?; systemctl is-active $u.timer; await test -s swept
			systemd-run --quiet --collect --unit=$u -- true 2>/dev/null; echo $?; systemctl stop $u.timer; systemctl start $u.timer
			systemctl start $u-none 2>/dev/null; echo $?`)
		if want := "1\n0\ninactive\n0\ninactive\ninactive\n0\n0\nactive\n1\n5\n"; got != want {
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
			echo 'echo "$1 $EXIT_STATUS" >post' >note.sh
			systemd-run --quiet --collect --unit=$u --property=WorkingDirectory=$d --property=ExecStopPost="/bin/bash \"$d/note.sh\" it" -- bash -c 'until [ -e go ]; do sleep 0.05; done; exit 3'
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
