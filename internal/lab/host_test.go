package lab

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab/nspawn"
)

func TestReboot_TakesSessionsUnitsAndVMsAndLeavesFiles(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100 --name vm")
	l.must(t, "qm start 100")
	unit := "systemd-run --quiet --collect --unit=linus-op --property=KillMode=process --property=ExecStopPost='/bin/touch post' --property=WorkingDirectory=" + l.HomeDir()
	hostRun(t, l.State, unit+` bash -c 'echo $PVELAB_DIR $PATH >unit; exec sleep 1000'; systemctl is-active linus-op; until [[ -s ~/unit ]]; do sleep 0.05; done`)
	if got, want := hostRun(t, l.State, "cat ~/unit"), l.Dir+" "+l.BinDir()+":"; !strings.HasPrefix(got, want) {
		t.Errorf("the unit's directory and PATH: %q, want %q...", got, want)
	}
	if err := l.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := hostRun(t, l.State, "systemctl is-active linus-op || :; qm status 100; ls ~")
	if diff := cmp.Diff("inactive\nstatus: stopped\nunit\n", got); diff != "" {
		t.Errorf("after the reboot (-want +got):\n%s", diff)
	}
	// Down finds a unit that is at work.
	hostRun(t, l.State, unit+" sleep 1000")
}

func TestRealSystemd_IsTakenDownWhole(t *testing.T) {
	if missing := nspawn.Missing(); len(missing) > 0 {
		t.Skipf("no real systemd here: %s", strings.Join(missing, " "))
	}
	l := newLab(t, func(o *Options) { o.Systemd = SystemdReal })
	hostRun(t, l.State, "qm clone 9000 100 --name vm && qm start 100 && systemd-run --quiet --collect --unit=linus-op sleep 1000")
	if out, err := l.QM(t.Context(), "status", "100"); err != nil || out != "status: running\n" {
		t.Errorf("seen from this machine: %q, %v", out, err)
	}
	report, err := l.Status(t.Context())
	if err != nil || !report.SSHRunning || len(report.VMs) != 2 || report.VMs[0].PID == 0 {
		t.Errorf("status = %+v, %v", report, err)
	}
	if err := l.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := hostRun(t, l.State, "systemctl is-active linus-op || :; qm status 100; qm start 100 >/dev/null"); got != "inactive\nstatus: stopped\n" {
		t.Errorf("after the reboot: %q", got)
	}
	// Whoever takes the lab down knows its directory only.
	if err := Down(t.Context(), l.Dir); err != nil {
		t.Fatal(err)
	}
	if l.container().Running() {
		t.Error("the container still runs")
	}
	left, _ := exec.CommandContext(t.Context(), "bash", "-c", `ls -d /sys/fs/cgroup/{,*/}"$1"; pgrep -fa -- "$2"; grep -F "$2" /proc/mounts`,
		"bash", l.container().Name, l.Dir).Output()
	for line := range strings.Lines(string(left)) {
		if !strings.Contains(line, "pgrep") { // the question itself
			t.Errorf("left: %s", line)
		}
	}
}
