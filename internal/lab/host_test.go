package lab

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReboot_TakesSessionsUnitsAndVMsAndLeavesFiles(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100 --name vm")
	l.must(t, "qm start 100")
	unit := "systemd-run --quiet --unit=linus-op -p ExecStopPost='/bin/touch post' --working-directory=" + l.HomeDir()
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
