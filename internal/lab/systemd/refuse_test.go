package systemd

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/lab/sys"
)

// TestRefused holds that a form no script uses fails, and says what is not known, rather
// than do less than systemd would.
func TestRefused(t *testing.T) {
	t.Parallel()
	const unit = "systemd-run --quiet --collect --unit=u "
	const run = unit + "--property=KillMode=process "
	tests := []struct{ line, want string }{
		{"systemctl", "does not know"},
		{"systemctl show u", "does not know \"show u\""},
		{"systemctl --quiet is-active u", "does not know \"--quiet is-active u\""},
		{"systemctl daemon-reload u", "does not know \"daemon-reload u\""},
		{"systemctl stop --no-block u", "does not know the option --no-block"},
		{"systemctl stop u --now", "invalid unit name"},
		{"systemctl stop", "does not take 0 names"},
		{"systemctl is-active u v", "does not take 2 names"},
		{"systemctl enable u", "needs --quiet"},
		{"systemctl list-units --plain --state=active u", "needs --no-legend"},
		{"systemctl list-units --plain --no-legend u*", "needs --state="},
		{"systemctl list-units --all --plain --no-legend u*", "does not know the option --all"},
		{"systemctl list-units --plain --no-legend --state=active u", "patterns with *"},
		{"systemctl list-units --plain --no-legend --state=failed u*", "no state but --state=active"},
		{"systemctl kill --kill-whom=control u", "does not know --kill-whom=control"},
		{"systemctl kill --signal=9 u", "Failed to parse signal string 9"},
		{"systemd-run --collect --unit=u true", "needs --quiet"},
		{"systemd-run --quiet --unit=u true", "needs --collect"},
		{"systemd-run --quiet --collect true", "needs --unit="},
		{unit + "true", "needs a service's name, --property=KillMode="},
		{run, "Command line to execute required"},
		{run + "-p KillMode=mixed true", "does not know the option -p"},
		{run + "--property KillMode=mixed true", "does not know the option --property"},
		{run + "--wait true", "does not know the option --wait"},
		{run + "--on-active=1 true", "does not know the option --on-active=1"},
		{run + "--setenv=A=b true", "does not know the option --setenv=A=b"},
		{run + "--property=UMask=077 true", "does not know [Service]UMask=077"},
		{run + "--property=ExecStart=/bin/true true", "needs a service's name"},
		{run + "--property=OOMPolicy=kill true", "does not know [Service]OOMPolicy=kill"},
		{run + "--property=KillMode=control-group true", "does not know [Service]KillMode=control-group"},
		{run + "--property=RuntimeMaxSec=2h true", "does not know the time span"},
		{run + "--property=RuntimeMaxSec=0 true", "does not know the time span"},
		{run + "--property=WorkingDirectory=~ true", "expects an absolute path"},
		{run + "--property=ExecStopPost=-/bin/true true", "absolute path"},
		{run + "--property=ExecStopPost=/bin/a\\x20b true", "no escape"},
		{run + "--property=ExecStopPost=/bin/'true' true", "double quotes"},
		{run + "--property=ExecStopPost=/bin/\"true true", "double quotes"},
		{run + "--property=ExecStopPost=/bin/$A true", "no variable"},
		{run + "echo $A", "puts no variables"},
		{run + "echo x${A}", "puts no variables"},
		{run + "echo x$$", "puts no variables"},
		{"systemd-run --quiet --collect --unit=u.timer --property=KillMode=process true", "needs a service's name"},
	}
	m := Manager{Dir: filepath.Join(t.TempDir(), "run", "systemd")}
	for _, tt := range tests {
		args, err := strings.Fields(tt.line), error(nil)
		if args[0] == "systemctl" {
			_, err = m.control(args[1:], sys.Streams{Out: io.Discard, Err: io.Discard})
		} else {
			err = m.run(args[1:])
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.line, err, tt.want)
		}
	}
	if _, err := os.Stat(m.Dir); err == nil {
		t.Error("something refused has left something")
	}
}

func TestRefused_UnitFiles(t *testing.T) {
	t.Parallel()
	m := Manager{Dir: Dir(t.TempDir())}
	if err := os.MkdirAll(m.files(), 0o755); err != nil {
		t.Fatal(err)
	}
	const service = "[Service]\nExecStart=/bin/true\nKillMode=mixed\n"
	tests := []struct{ file, text, want string }{
		{"u.service", service + "Restart=always\n", "does not know [Service]Restart=always"},
		{"u.service", service + "[Install]\nWantedBy=default.target\n", "does not know [Install]WantedBy=default.target"},
		{"u.service", "[Service]\nExecStart=true\n", "absolute path"},
		{"u.service", "[Unit]\n", "bad unit file setting"},
		{"u.service", "[Service]\nExecStart=/bin/true\n", "bad unit file setting"},
		{"u.service", service, ""},
		{"u.timer", "[Timer]\nOnCalendar=daily\n", "does not know [Timer]OnCalendar=daily"},
		{"u.timer", "[Timer]\nOnActiveSec=1\n", "bad unit file setting"},
	}
	for _, tt := range tests {
		if err := os.WriteFile(m.files(tt.file), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := m.read(tt.file)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.text, err, tt.want)
		}
	}
}
