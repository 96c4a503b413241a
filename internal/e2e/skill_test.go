package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/doctest"
)

// What the skill's sessions take for granted: files beside them, and programs and files in the
// template, where npm and gofmt are stand-ins.
var (
	skillHere = map[string]string{
		"Makefile": "test:\n\techo tested\n", "main.go": "package  main\n", "src/Makefile": "all:\n\techo built >built\n",
		"suspicious.sh": "#!/bin/sh\necho harmless\n", "install.sh": "#!/bin/sh\necho installed on $(. /etc/os-release; echo $PRETTY_NAME)\n",
		"soak.sh":      "mkdir report; echo soaked >report/log\n",
		"configure-me": "#!/bin/bash\nread -rp 'Sure? ' sure; read -r rest || echo \"it is $sure\"\n",
	}
	skillThere = map[string]string{
		"usr/local/bin/gofmt": "#!/bin/sh\necho 'package main' >main.go\n",
		"usr/local/bin/npm":   "#!/bin/sh\nmkdir -p dist; echo \"$@\" >dist/made\n",
	}
	// skillThen are, by a session's title, commands that succeed after it if it did what it says.
	skillThen = map[string]string{
		"A command on the files here":                    `grep -qx tested shown`,
		"See what a command changes, then take it":       `grep -qx '+package main' shown && grep -qx 'package main' main.go`,
		"Bring build results back":                       `grep -qx 'run build' dist/made`,
		"Code that is not trusted":                       `grep -qx harmless shown`,
		"A job that runs on while you do something else": `grep -qx soaked out/report/log`,
		"The same on several systems":                    `grep -qx 'installed on Debian GNU/Linux 12 (bookworm)' shown && grep -qx 'installed on AlmaLinux 9' shown`,
		"A VM that stays":                                `grep -q 'VM dev (.*) is reverted to snapshot built' shown && grep -q 'VM dev (.*) is destroyed' shown`,
		"A program that asks questions":                  `linus job wait $id && linus job logs $id | grep -qx 'it is yes'`,
		"When jobs do not start":                         `grep -q 'PROXMOX_HOST' shown`,
	}
)

// Agents do what the skill says, word by word: its sessions do on the lab what they are there
// for.
func TestSkill_SessionsDoWhatTheySay(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process")
	place(t, h.templateDisk(t), skillThere)
	h.template(t, 9001, "debian-12", "Debian GNU/Linux 12 (bookworm)")
	h.template(t, 9002, "almalinux-9", "AlmaLinux 9")
	sessions := regexp.MustCompile(`(?m)^### \d+\. `).Split(doctest.Read(t, "../../skills/linus/SKILL.md"), -1)[1:]
	for _, session := range sessions {
		title, text, _ := strings.Cut(session, "\n")
		t.Run(title, func(t *testing.T) {
			if calls := regexp.MustCompile(`(?m)^\{"name".*$`).FindAllString(text, -1); len(calls) > 0 {
				h.callTools(t, calls)
				return
			}
			dir, commands := t.TempDir(), ""
			place(t, dir, skillHere)
			for _, m := range regexp.MustCompile(`(?m)^\$ (.+)$`).FindAllStringSubmatch(text, -1) {
				commands += strings.ReplaceAll(m[1], " --os ", " --template ") + "\n" // the lab has no images of systems
			}
			if commands == "" || skillThen[title] == "" {
				t.Fatal("it has no commands, or nothing says what they do")
			}
			shell := exec.CommandContext(t.Context(), "bash", "-ec", "{\n"+commands+"} >shown 2>&1\n"+skillThen[title])
			shell.Dir, shell.Env = dir, append(slices.Clone(h.env), "PATH="+binDir+string(filepath.ListSeparator)+os.Getenv("PATH"))
			if out, err := shell.CombinedOutput(); err != nil {
				shown, _ := os.ReadFile(filepath.Join(dir, "shown"))
				t.Errorf("%v: %s\n%s\nshows\n%s", err, out, commands, shown)
			}
		})
	}
}

// callTools makes calls as the skill has them, with the ID of the last job in place of its own.
func (h *host) callTools(t *testing.T, calls []string) {
	c, id := h.connect(t), ""
	for _, line := range calls {
		var call struct {
			Name      string
			Arguments map[string]any
		}
		if err := json.Unmarshal([]byte(line), &call); err != nil {
			t.Fatal(err)
		}
		if call.Arguments["job_id"] != nil {
			call.Arguments["job_id"] = id
		}
		out := c.call(call.Name, call.Arguments)
		if made, ok := out["job_id"].(string); ok {
			id = made
		}
		if code, ended := out["exit_code"]; ended && code != 0.0 {
			t.Errorf("%s: %v", line, out)
		}
	}
	h.waitGone(t)
}

// place writes programs and files below a directory.
func place(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
}

// templateDisk is what clones of the lab's template have of their own.
func (h *host) templateDisk(t *testing.T) string {
	t.Helper()
	disks, err := filepath.Glob(filepath.Join(h.dir, "storage", "*", "base-9000-disk-0"))
	if err != nil || len(disks) != 1 {
		t.Fatalf("disks of the template: %v, %v", disks, err)
	}
	return disks[0] + ".d"
}
