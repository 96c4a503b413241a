package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"linus/internal/lab"
)

// What was set up in a VM is in those of the template that it was saved as, and what its people and jobs
// had in it is not.
func TestSave_AVMBecomesATemplate(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "LIMIT_DISK=35G")
	h.cli(t, "vm", "create", "dev")
	const who = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
	before := h.cli(t, "job", "exec", "--vm", "dev", "--", "sh", "-c", `set -e
		mkdir -p ~/work ~/.ssh /opt/job-runner /var/lib/linus
		echo built >~/work/tool
		touch ~/.bash_history ~/.ssh/id_ed25519 ~/.netrc /opt/job-runner/mark /var/lib/linus/mark
		`+who)
	const mine = `cat ~/work/tool; ls ~/.bash_history ~/.ssh/id_ed25519 /opt/job-runner/mark /var/lib/linus/mark 2>/dev/null; ` + who
	if out := h.cli(t, "job", "exec", "--vm", "dev", "--", "sh", "-c", mine); strings.Count(out, "\n") != 7 {
		t.Fatalf("the VM:\n%s", out)
	}

	c := h.connect(t)
	seen := map[string]bool{}
	for _, line := range strings.Fields(before) {
		seen[line] = len(line) >= 32
	}
	for _, tt := range []struct {
		name, says string
		options    []string
	}{
		{"copied", "of a copy; the VM keeps running", nil},
		{"taken", "in place; VM dev is no VM any more", []string{"--in-place"}},
	} {
		out := h.cli(t, append([]string{"vm", "save", "dev", "--as", tt.name}, tt.options...)...)
		if !strings.Contains(out, "template "+tt.name+" is VM ") || !strings.Contains(out, tt.says) || !strings.Contains(out, ".netrc (may hold credentials)\n") {
			t.Fatalf("saved as %s:\n%s", tt.name, out)
		}
		var shown struct {
			Saved struct{ VM, Template, By, At string }
		}
		if err := json.Unmarshal([]byte(h.cli(t, "template", "show", tt.name, "-o", "json")), &shown); err != nil ||
			shown.Saved.VM != "dev" || shown.Saved.Template != "agent-template" || shown.Saved.By == "" || shown.Saved.At == "" {
			t.Errorf("shown: %+v, %v", shown, err)
		}
		m := script(mine)
		m["vmTemplate"] = tt.name
		got := c.call("submit_job", map[string]any{"manifest": m, "wait_seconds": 45})
		told, _ := got["stdout"].(string)
		if !strings.HasPrefix(told, "built\n") || strings.Contains(told, "mark") || strings.Contains(told, "id_ed25519") || strings.Contains(told, "history") {
			t.Errorf("a job from %s: %v", tt.name, got)
		}
		for _, line := range strings.Fields(told) {
			if len(line) >= 32 && seen[line] {
				t.Errorf("a VM of %s has %s, as another", tt.name, line)
			}
			seen[line] = true
		}
		if len(tt.options) == 0 { // it goes on, and its name is not given twice
			if out := h.cli(t, "job", "exec", "--vm", "dev", "--", "sh", "-c", mine); strings.Count(out, "\n") != 7 {
				t.Errorf("the VM after it was saved:\n%s", out)
			}
			if code, text := h.exits(t, "vm", "save", "dev", "--as", tt.name); code == 0 || !strings.Contains(text, "name: a VM or a template is called") {
				t.Errorf("saved twice: %d, %s", code, text)
			}
		}
	}
	if out := h.cli(t, "vm", "list"); strings.Contains(out, "dev") {
		t.Errorf("it is still a VM:\n%s", out)
	}
	if code, text := h.exits(t, "vm", "create", "more", "--disk", "20G"); code == 0 || !strings.Contains(text, "20480 are in use (saved templates 20480)") {
		t.Errorf("both count as disk of who has saved them: %d, %s", code, text)
	}
	for _, name := range []string{"copied", "taken"} {
		h.cli(t, "template", "remove", name)
	}
	h.cli(t, "vm", "create", "more", "--disk", "20G")
	h.cli(t, "vm", "destroy", "more", "--yes")
	h.waitGone(t)
}
