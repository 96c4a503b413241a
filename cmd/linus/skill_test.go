package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"mvdan.cc/sh/v3/syntax"

	"linus/internal/doctest"
	"linus/internal/job"
	"linus/internal/manual"
)

// Agents do what the skill says: each command has its options and arguments, each call of a tool
// fits its schema, each message stands in troubleshooting.

func skill(t *testing.T) string {
	t.Helper()
	return doctest.Read(t, filepath.Join(repository, "skills", "linus", "SKILL.md"))
}

func TestSkill_HasANameAndSaysWhenToUseIt(t *testing.T) {
	t.Parallel()
	head := regexp.MustCompile(`^---\nname: linus\ndescription: (.+)\n---\n`).FindStringSubmatch(skill(t))
	if head == nil || len(head[1]) > 1024 || strings.Contains(head[1], ": ") { // a longer one is not read, and ": " is YAML's
		t.Errorf("the front matter: %q", head)
	}
	if n := strings.Count(skill(t), "\n### "); n != 10 {
		t.Errorf("%d sessions", n)
	}
}

func TestSkill_CommandsAreThere(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, m := range regexp.MustCompile(`(?m)^\$ (.+)$`).FindAllStringSubmatch(skill(t), -1) {
		lines = append(lines, m[1])
	}
	for _, m := range regexp.MustCompile("`(linus [^`]+)`").FindAllStringSubmatch(skill(t), -1) {
		if !strings.HasPrefix(m[1], "linus COMMAND") && !strings.HasSuffix(m[1], "...") {
			lines = append(lines, m[1])
		}
	}
	calls := 0
	for _, line := range lines {
		for _, args := range callsOfLinus(t, line) {
			calls++
			if err := understands(args); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if calls < 25 {
		t.Errorf("%d commands are found", calls)
	}
}

func TestSkill_WrongCommandsAreFound(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"linus jobs list", "linus job lost", "linus run --fast -- make", "linus vm create", "linus vm destroy a b --yes",
		"id=$(linus job submit --tail 3 -- make)", "linus help nothing", "linus run --timeout soon -- make",
	} {
		found := false
		for _, args := range callsOfLinus(t, line) {
			found = found || understands(args) != nil
		}
		if !found {
			t.Errorf("%s is taken for a command", line)
		}
	}
}

// callsOfLinus returns the arguments of each call of linus in a line of shell; what is not
// known before the line runs stands as a word.
func callsOfLinus(t *testing.T, line string) (calls [][]string) {
	t.Helper()
	file, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 || call.Args[0].Lit() != "linus" {
			return true
		}
		var args []string
		for _, word := range call.Args[1:] {
			text := word.Lit()
			if len(word.Parts) == 1 {
				if quoted, ok := word.Parts[0].(*syntax.SglQuoted); ok {
					text = quoted.Value
				}
			}
			if text == "" {
				text = "unknown"
			}
			args = append(args, text)
		}
		calls = append(calls, args)
		return true
	})
	return calls
}

// understands returns what a command line's options or number of arguments have against it.
func understands(args []string) error {
	root := (&app{}).root(nil)
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(args)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err == nil {
		err = cmd.ValidateArgs(cmd.Flags().Args())
	}
	if topic := cmd.Flags().Args(); err == nil && cmd.Name() == "help" && len(topic) == 1 && topic[0] != "TOPIC" {
		if _, ok := manual.Find(topic[0]); !ok {
			err = usage("there is no topic %s", topic[0])
		}
	}
	return err
}

func TestSkill_ToolsAreThere(t *testing.T) {
	t.Parallel()
	calls := regexp.MustCompile(`(?m)^\{"name".*$`).FindAllString(skill(t), -1)
	for _, line := range calls {
		if err := accepts(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if len(calls) < 5 {
		t.Errorf("%d calls are found", len(calls))
	}
	for _, wrong := range []string{`{"name": "no_tool"}`, `{"name": "get_vm", "arguments": {"vm": "dev"}}`, `{"name": "destroy_vm", "arguments": {"vm_id": "dev", "confirm": "dev"}}`} {
		if accepts(wrong) == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
	tools := doctest.Part(t, "tools")
	for _, m := range regexp.MustCompile("`([a-z]+_[a-z_]+)`").FindAllStringSubmatch(skill(t), -1) {
		if !strings.Contains(tools, "| `"+m[1]+"` |") && !slices.Contains(job.Reasons, job.Reason(m[1])) {
			t.Errorf("%s is neither a tool nor a reason", m[1])
		}
	}
}

// accepts returns what a tool's schema has against a call.
func accepts(call string) error {
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(call))
	if err != nil {
		return err
	}
	fields, _ := value.(map[string]any)
	name, _ := fields["name"].(string)
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join(repository, "testdata", "tools", name+".json") + "#/inputSchema")
	if err != nil {
		return err
	}
	return schema.Validate(fields["arguments"])
}

func TestSkill_QuotesWhatIsSaid(t *testing.T) {
	t.Parallel()
	messages := doctest.Read(t, filepath.Join(repository, "embed", "docs", "troubleshooting.md"))
	for _, quoted := range []string{"is left alone", "it is protected"} {
		if !strings.Contains(skill(t), "`"+quoted+"`") || !strings.Contains(messages, "`"+quoted+"`") {
			t.Errorf("%q is not both in the skill and in troubleshooting", quoted)
		}
	}
	for _, e := range exitCodes() {
		if e.code != 0 && !strings.Contains(skill(t), fmt.Sprintf(" %d ", e.code)) {
			t.Errorf("the skill does not say what exit code %d means", e.code)
		}
	}
}
