package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"linus/internal/doctest"
	"linus/internal/job"
)

// An action's code says what it is called on the command line, for all faces.
func TestWords_AreCommandsAndOptions(t *testing.T) {
	root := (&app{}).root(nil)
	build, _, _ := root.Find([]string{"template", "build"})
	for _, a := range job.Actions {
		text := words.In(string(a))
		if option, is := strings.CutPrefix(text, "--"); is && build.Flags().Lookup(option) != nil {
			continue
		}
		if cmd, rest, err := root.Find(strings.Fields(text)[1:]); err != nil || len(rest) > 0 || cmd.CommandPath() != text || cmd.HasSubCommands() {
			t.Errorf("%s is %q, which is no command", a, text)
		}
	}
}

// toolsAndCommands are what only faces speak of.
var toolsAndCommands = regexp.MustCompile(`\b(list_vms|list-vms shows|get_vm|destroy_vm|start_vm|stop_vm|provision_vm|check_host|submit_job|get_job_\w+|list_jobs|cancel_job|kill_job|interact_with_job|execute_command|tail_job_output)\b|\blinus (job|vm|host|template|serve|config) [a-z]`)

// The core tells what to do by job.Action; tools and commands have their names in
// the faces.
func TestWords_TheCoreSpeaksOfNoToolAndNoCommand(t *testing.T) {
	for _, name := range []string{"job", "executor", "capture", "patience", "proxmox", "guest", "remote", "store", "policy", "secret"} {
		eachText(t, filepath.Join("..", "..", "internal", name, "*.go"), func(path, text string) {
			if toolsAndCommands.MatchString(text) {
				t.Errorf("%s speaks of %q: %s", path, toolsAndCommands.FindString(text), text)
			}
		})
	}
}

// eachText looks at the texts in Go files that are no tests. A literal that is a name alone is an
// input of a script or a step's name.
func eachText(t *testing.T, pattern string, look func(path, text string)) {
	t.Helper()
	eachFile(t, pattern, func(path string) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING && strings.Contains(literal.Value, " ") {
				look(path, literal.Value)
			}
			return true
		})
	})
}

// eachFile looks at the files of a pattern that are no tests.
func eachFile(t *testing.T, pattern string, look func(path string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.FromSlash(pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", pattern, len(files), err)
	}
	for _, path := range files {
		if !strings.HasSuffix(path, "_test.go") {
			look(path)
		}
	}
}

// notEnglish are turns of phrase that a native engineer would not write.
var notEnglish = regexp.MustCompile(`gone on with|\bstood still\b|has changed nothing|\b(?:is|are) none(?:\.|:|$)|\bvouch(?:es|ed)?\b|\btold of\b|\bbelongs? into\b` +
	`|\bfor ever\b|\banew\b|\bwhoever has (?:issued|asked|created|saved)\b|\bas it was idle\b|\b(?:go|goes|went) on with\b|\b(?:tasks?|jobs?|run|work|VMs?) (?:go|goes|went) on\b` +
	`|\bwho (?:adds|asks for) it\b|\bis to be (?:asked|told|given)\b`)

// aComment is a line of one, or the end of one, in Go or in a shell.
var aComment = regexp.MustCompile(`(?m)(?:^|\s)(?://|#) .*$`)

// thereIsNone is how one says it, unlike the same of a thing.
var thereIsNone = regexp.MustCompile(`\bthere (?:is|are|was|were) none\b`)

// Documents, messages and comments say it as a native engineer would.
func TestWords_AreEnglish(t *testing.T) {
	t.Parallel()
	check := func(path, text string) {
		if m := notEnglish.FindString(thereIsNone.ReplaceAllString(text, "")); m != "" {
			t.Errorf("%s says %q, which is not how one says it: %s", path, m, text)
		}
	}
	for _, path := range doctest.Files(t) {
		if filepath.Base(path) == "CHANGELOG.md" {
			continue
		}
		for line := range strings.Lines(doctest.Read(t, path)) {
			check(path, line)
		}
	}
	texts := 0
	for _, pattern := range []string{"*.go", "../linus-worker/*.go", "../linus-sandbox/*.go", "../../internal/*/*.go"} {
		eachText(t, pattern, func(path, text string) {
			texts++
			check(path, text)
		})
	}
	if texts < 1000 {
		t.Errorf("only %d texts were found", texts)
	}
	comments := 0
	for _, pattern := range []string{"../*/*.go", "../../internal/*/*.go", "../../internal/*/*/*.go", "../../scripts/*/*.sh"} {
		eachFile(t, pattern, func(path string) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, comment := range aComment.FindAllString(string(data), -1) {
				comments++
				check(path, comment)
			}
		})
	}
	if comments < 10000 {
		t.Errorf("only %d comments were found", comments)
	}
}

func TestStatusText_ShowsWebhooks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.Local)
	got := statusText(job.Job{ID: "j", Status: job.Success, Webhooks: []job.Delivery{
		{State: job.DeliveryPending, At: at},
		{To: "ci.example", State: job.DeliveryPending, Attempts: 1, At: at, NextAt: at.Add(time.Hour), Error: "500"},
		{To: "ci.example", State: job.DeliveryDone, Attempts: 2, At: at},
		{To: "ci.example", State: job.DeliveryGivenUp, Attempts: 10, Error: "no\x1b[2J\nanswer", At: at},
	}})
	for _, want := range []string{
		"webhook  pending, to WEBHOOK_URL\n",
		"webhook  pending, to ci.example, attempt 1 at " + local(at) + ", the next at " + local(at.Add(time.Hour)) + ": 500\n",
		"webhook  delivered, to ci.example, attempt 2 at 2026-03-04 05:06",
		"webhook  given up, to ci.example, attempt 10 at 2026-03-04 05:06",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") || strings.Count(got, "\n") != 5 {
		t.Errorf("%q", got)
	}
}
