package proxmox_test

import (
	"context"
	"strings"
	"testing"

	"linus/embed"
	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/vm"
)

// A machine is a VM used as such: it has systemd, and a clock that a test may
// set.
type machine struct {
	*testing.T
	pool *remote.Pool
}

// newVM makes a VM that goes with the test.
func newVM(t *testing.T, h *labHost, change func(*proxmox.Options)) vm.VM {
	t.Helper()
	p := h.provider(t, change)
	v, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Destroy(context.Background(), v); err != nil {
			t.Error(err)
		}
	})
	return v
}

// newMachine reaches into a VM, and puts the named scripts of ours into its /tmp.
func newMachine(t *testing.T, h *labHost, v vm.VM, scripts ...string) machine {
	t.Helper()
	pool, err := h.pool.Guest(remote.GuestOptions{
		Options: remote.Options{Host: v.IP, Port: h.Config.GuestPort, User: v.User, KeyPath: h.key}, HostKey: v.HostKey,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, name := range scripts {
		script, err := embed.Script(name)
		if err == nil {
			err = pool.Upload(t.Context(), remote.File{Path: "/tmp/" + name + ".sh", Data: script.Body, Mode: 0o700})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return machine{t, pool}
}

// run runs a bash script in a session of its own and returns its stdout.
func (m machine) run(script string) string {
	m.Helper()
	out, err := m.pool.Output(m.Context(), remote.Command{
		Name: "script", Line: "bash -euo pipefail -s", Stdin: strings.NewReader(script),
	}, 1<<20)
	if err != nil {
		m.Errorf("%v in\n%s\nstdout: %s", err, script, out)
	}
	return strings.TrimSpace(string(out))
}

func (m machine) want(what, script, want string) {
	m.Helper()
	if got := m.run(script); got != want {
		m.Errorf("%s: %q, want %q", what, got, want)
	}
}

// operationsInUnits runs operation.sh where the whole machine is systemd's.
func operationsInUnits(t *testing.T, m machine) {
	m.T = t
	m.run(`mkdir /tmp/ops
		cat >/tmp/slow.sh <<'END'
echo "value: $VALUE"
setsid sleep 1000 &
trap 'echo TERM' TERM
until [[ -e $LINUS_STOP ]]; do sleep 0.1; done
echo undone
exit 143
END
		echo 'echo "value: $VALUE"; exit 7' >/tmp/short.sh`)

	// The caller's cgroup and all in it goes, as a session of sshd's may.
	m.run(`sudo systemd-run --quiet --scope --unit=caller env VALUE='a b' bash /tmp/operation.sh start /tmp/ops slow /tmp/slow.sh
		sudo systemctl kill --kill-whom=all --signal=KILL caller.scope || :`)
	m.want("the unit", `systemctl is-active linus-slow.service`, "active")
	m.want("its process is the script", `until sudo grep -q value /tmp/ops/slow/out; do sleep 0.1; done
		pid=$(systemctl show --property=MainPID --value linus-slow.service); tr '\0' ' ' </proc/$pid/cmdline; cat /proc/$pid/cgroup`,
		"bash /tmp/slow.sh 0::/system.slice/linus-slow.service")
	m.run(`sudo systemctl kill --kill-whom=main --signal=TERM linus-slow.service`) // it hears no signal
	m.run(`sudo bash /tmp/operation.sh start /tmp/ops slow /tmp/short.sh`)         // it is there
	m.run(`sudo bash /tmp/operation.sh stop /tmp/ops/slow`)
	m.want("what is told", `sudo bash /tmp/operation.sh follow /tmp/ops/slow 0 2>&1 | sed 's/OPERATION:[0-9a-f]*/OPERATION/'`,
		"LINUS_OPERATION\nvalue: a b\nundone\nLINUS_OPERATION:exit:143")
	m.want("the unit afterwards", `for i in {1..50}; do state=$(systemctl is-active linus-slow.service) || [ "$state" = active ] || break; sleep 0.2; done; echo "$state"`, "failed") // as its exit status is, and kept by what the script left
	// What a script leaves running on purpose (qm's QEMU) outlives its unit.
	m.want("what the script left", `pgrep -fc '^sleep 1000'`, "1")
	m.run(`sudo pkill -KILL -f '^sleep 1000'; sudo bash /tmp/operation.sh settle /tmp/ops/slow 10`)

	m.run(`sudo VALUE=x bash /tmp/operation.sh start /tmp/ops short /tmp/short.sh`)
	m.want("a script that fails", `sudo bash /tmp/operation.sh follow /tmp/ops/short 0 2>&1 >/dev/null | sed 's/OPERATION:[0-9a-f]*/OPERATION/'`, "LINUS_OPERATION:exit:7")
	m.run(`sudo bash /tmp/operation.sh settle /tmp/ops/short 10
		sudo VALUE=y bash /tmp/operation.sh start /tmp/ops short /tmp/short.sh`) // the unit's name is free again
	m.want("a second run under its name", `sudo bash /tmp/operation.sh follow /tmp/ops/short 0 2>/dev/null | tail -1`, "value: y")
	m.run(`sudo bash /tmp/operation.sh settle /tmp/ops/short 10`)
	m.want("what is left", `sudo ls -A -I .cleared /tmp/ops
		for i in {1..50}; do units=$(systemctl list-units --all --plain --no-legend 'linus-*'); [ "$units" ] || break; sleep 0.2; done; echo "$units"`, "")
}

// clockJumps sets the clock of a machine in which jobs run.
func clockJumps(t *testing.T, m machine) {
	m.T = t
	start := func(name, task string, timeout string) {
		m.run(`export LINUS_ROOT=/tmp/` + name + `; home=$LINUS_ROOT/opt/job-runner; mkdir -p $home/files $LINUS_ROOT/run/linus
			printf '%s\n' JOB_ID=` + name + ` AGENT=script TIMEOUT=` + timeout + ` STATUS_MODE=simple HEARTBEAT_INTERVAL=30 MAX_OUTPUT_SIZE=1000000 >$home/settings
			printf '%s' ` + remote.Quote(task) + ` >$home/task
			cp /tmp/job-runner.sh $home
			bash $home/job-runner.sh start`)
	}
	// code, reason, and whether it ran about as long as the uptime says.
	end := func(name string, least, most string) string {
		return m.run(`file=/tmp/` + name + `/var/lib/linus/job/exit_status
			for ((i = 0; i < 600; i++)); do [[ ! -e $file ]] || break; sleep 0.1; done
			read -r code reason _ _ duration _ <$file
			echo "$code $reason $((${duration%.*} >= ` + least + ` && ${duration%.*} <= ` + most + ` ? 0 : ${duration%.*}))"`)
	}
	start("forward", "sleep 8; exit 7", "60")
	m.run(`sudo date -s '+1 hour'`)
	if got := end("forward", "8", "50"); got != "7 exit 0" {
		t.Errorf("a jump of an hour forward: %s", got)
	}
	start("back", "sleep 1000", "8")
	m.run(`sudo date -s '-2 hours'`)
	if got := end("back", "8", "50"); got != "143 timeout 0" {
		t.Errorf("a jump of two hours back: %s", got)
	}
}
