package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the workflows run is what somebody has read: each action is named by its commit, and
// its version is beside it. Each job says what it may do and how long. (make lint has
// actionlint look at the rest.)
func TestWorkflows_PinActionsAndBoundJobs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(repository, ".github", "workflows", "*.yml"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range workflowFaults(string(data)) {
			t.Errorf("%s: %s", filepath.Base(file), fault)
		}
	}
}

func TestWorkflowFaults_AreFound(t *testing.T) {
	t.Parallel()
	const good = `on: push
permissions: {}
concurrency: x
jobs:
  check:
    permissions:
      contents: read
    timeout-minutes: 20
    steps:
      - uses: actions/checkout@0123456789012345678901234567890123456789 # v1.2.3
`
	if faults := workflowFaults(good); len(faults) > 0 {
		t.Errorf("faults of a good one: %q", faults)
	}
	for name, change := range map[string][2]string{
		"a tag":              {"@0123456789012345678901234567890123456789 # v1.2.3", "@v1.2.3"},
		"a short commit":     {"@0123456789012345678901234567890123456789", "@0123456"},
		"no version":         {" # v1.2.3", ""},
		"rights of all jobs": {"permissions: {}\n", ""},
		"no concurrency":     {"concurrency: x\n", ""},
		"no rights":          {"    permissions:\n      contents: read\n", ""},
		"no limit":           {"    timeout-minutes: 20\n", ""},
		"a second job":       {"jobs:\n", "jobs:\n  other:\n    steps: []\n"},
		"no jobs":            {"  check:\n", ""},
	} {
		if changed := strings.Replace(good, change[0], change[1], 1); changed == good || len(workflowFaults(changed)) == 0 {
			t.Errorf("%s is not found in\n%s", name, changed)
		}
	}
}

var (
	action   = regexp.MustCompile(`(?m)^\s*(?:- )?uses:.*$`)
	pinned   = regexp.MustCompile(`^\s*(?:- )?uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	jobStart = regexp.MustCompile(`(?m)^  [\w-]+:$`)
)

// workflowFaults reads a workflow as text, in the one form that ours have.
func workflowFaults(text string) (faults []string) {
	for _, line := range action.FindAllString(text, -1) {
		if !pinned.MatchString(line) {
			faults = append(faults, "not pinned by a commit, with its version as comment: "+strings.TrimSpace(line))
		}
	}
	head, jobs, _ := strings.Cut(text, "\njobs:\n")
	for _, key := range []string{"permissions: {}", "concurrency:"} {
		if !strings.Contains(head, "\n"+key) {
			faults = append(faults, "before the jobs there is no "+key)
		}
	}
	starts := jobStart.FindAllStringIndex(jobs, -1)
	if len(starts) == 0 {
		faults = append(faults, "there are no jobs")
	}
	for i, at := range starts {
		end := len(jobs)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		for _, key := range []string{"permissions:", "timeout-minutes:"} {
			if !strings.Contains(jobs[at[0]:end], "\n    "+key) {
				faults = append(faults, "job"+jobs[at[0]+1:at[1]]+" has no "+key)
			}
		}
	}
	return faults
}

// Workflows run the commands that README and CONTRIBUTING name, with the Go of go.mod.
func TestWorkflows_RunWhatTheDocumentsSay(t *testing.T) {
	t.Parallel()
	read := func(path ...string) string {
		data, err := os.ReadFile(filepath.Join(append([]string{repository}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	module := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read("go.mod"))
	if module == nil {
		t.Fatal("go.mod has no version of Go")
	}
	targets := read("Makefile")
	for name, commands := range map[string][]string{
		"check.yml":   {"make check", "make test"},
		"nightly.yml": {"make nightly"},
		"release.yml": {"make check", "make dist"},
	} {
		text := read(".github", "workflows", name)
		for _, command := range commands {
			if !strings.Contains(text, "- run: "+command) || !strings.Contains(targets, "\n"+strings.TrimPrefix(command, "make ")+":") {
				t.Errorf("%s does not run %s, or there is no such target", name, command)
			}
		}
		for _, m := range regexp.MustCompile(`go-version: "(.*)"`).FindAllStringSubmatch(text, -1) {
			if m[1] != module[1] {
				t.Errorf("%s takes Go %s, go.mod has %s", name, m[1], module[1])
			}
		}
	}
}
