package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/vm"
)

// What scripts and documents tell of the lists in package job is what is there.

func TestLists_ImagesAreThoseOfTheSystems(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "bash", "-c", `source "$1"; shift; image_lookup none; echo "${image_known}"; for os; do image_lookup "${os}"; echo "${os} ${image_os} ${image_url}"; done`,
		"lists", filepath.Join("..", "..", "scripts", "lib", "image.sh"))
	cmd.Args = append(cmd.Args, vm.Systems...)
	cmd.Args = append(cmd.Args, "none")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(vm.Systems)+2 {
		t.Fatalf("%q", lines)
	}
	told := []string{lines[0]} // every text that lists them
	for _, file := range []string{"scripts/proxmox/create-vm.sh", "scripts/proxmox/build-template.sh", "embed/docs/templates.md", "embed/docs/manifest.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, string(text))
	}
	for _, line := range lines[1 : len(lines)-1] {
		words := strings.Fields(line)
		if len(words) != 3 || !strings.HasPrefix(words[1], words[0]) {
			t.Errorf("image.sh has no image of a system: %q", line)
			continue
		}
		for i, text := range told {
			if family, _, _ := strings.Cut(words[1], "-"); !strings.Contains(text, words[1]) && family != "ubuntu" || !strings.Contains(text, family) {
				t.Errorf("text %d does not tell of %s", i, words[1])
			}
		}
	}
	if strings.Fields(lines[len(lines)-1])[0] != "none" || len(strings.Fields(lines[len(lines)-1])) != 1 {
		t.Errorf("image.sh has an image of a system that is none: %q", lines[len(lines)-1])
	}
	// And of no other: each branch of its table is in the list.
	table, err := os.ReadFile(filepath.Join("..", "..", "scripts", "lib", "image.sh"))
	if err != nil {
		t.Fatal(err)
	}
	branches := 0
	for line := range strings.Lines(string(table)) {
		if text, ok := strings.CutSuffix(strings.TrimSpace(line), ")"); ok && strings.HasPrefix(line, "    ") && !strings.ContainsAny(text, "($*") {
			branches += strings.Count(text, "|") + 1
		}
	}
	if branches != len(vm.Systems) {
		t.Errorf("image.sh knows %d names, vm.Systems has %d", branches, len(vm.Systems))
	}
}

func TestLists_TheRunnerTakesTheSignals(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "scripts", "lib", "stop.sh"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "@(" + strings.Join(job.Signals, "|") + ")"; !strings.Contains(string(text), want) {
		t.Errorf("the job runner does not take %s", want)
	}
}
