package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"linus/internal/doctest"
	"linus/internal/job"
)

var repository = filepath.Join("..", "..")

// named is how an argument is written that names something there is.
var named = regexp.MustCompile(`^\[?(ID|NAME|NODE|VM|JOB|TOPIC)\b`)

func TestDocs_ListsEveryCommand(t *testing.T) {
	var b strings.Builder
	b.WriteString("| command | what |\n| --- | --- |\n")
	var list func(cmd *cobra.Command)
	list = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "completion" { // cobra's own
			return
		}
		// A group that takes arguments or options does something itself.
		if cmd.HasParent() && (!cmd.HasSubCommands() || cmd.Use != cmd.Name() || cmd.LocalFlags().HasFlags()) {
			if cmd.Short == "" {
				t.Errorf("%s does not say what it does", cmd.CommandPath())
			}
			use := cmd.CommandPath() + strings.TrimPrefix(cmd.Use, cmd.Name())
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(use, "|", `\|`), doctest.Cell(cmd.Short))
		}
		for line := range strings.Lines(cmd.Long) {
			if n := utf8.RuneCountInString(line); n > 150 {
				t.Errorf("%s: a line of its help is %d characters wide", cmd.CommandPath(), n)
			}
		}
		if words := strings.Fields(cmd.Use); len(words) > 1 && cmd.ValidArgsFunction == nil && cmd.ValidArgs == nil && !cmd.Hidden && named.MatchString(words[1]) {
			t.Errorf("%s %s completes no names", cmd.CommandPath(), words[1])
		}
		for _, sub := range cmd.Commands() {
			list(sub)
		}
	}
	root := (&app{}).root(nil)
	root.InitDefaultHelpCmd()
	list(root)
	b.WriteString("| `linus completion bash\\|zsh\\|fish\\|powershell` | Complete commands, options, job ids and VM names in your shell |\n")
	doctest.Keep(t, "commands", b.String(), *update)
}

func TestDocs_SaysWhatEachRoleMayDo(t *testing.T) {
	about := map[job.Subject]string{
		job.OfJob: "one's own", job.OfJobs: "one's own", job.OfVM: "one's own", job.OfVMs: "one's own", job.OfFile: "of one's own VMs", job.OfVolume: "one's own", job.OfQueues: "one's own", job.OfSchedule: "one's own", job.OfNew: "become one's own", job.OfAll: "the installation",
	}
	var b strings.Builder
	b.WriteString("Each role includes those above it. For an admin, what is said to be \"one's own\" is everybody's.\n\n| role | verb of the engine | about | toolset |\n| --- | --- | --- | --- |\n")
	for _, role := range job.Roles {
		for _, v := range job.Verbs() {
			if v.Role != role {
				continue
			}
			of := about[v.Of]
			if role == job.RoleAdmin {
				of = "everybody's"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.Role, v.Name, of, strings.Join(v.Toolsets, ", "))
		}
	}
	doctest.Keep(t, "roles", b.String(), *update)
}

func TestDocs_ListsEveryExitCode(t *testing.T) {
	var b strings.Builder
	b.WriteString("| code of linus | meaning |\n| --- | --- |\n")
	said := map[string]bool{}
	for _, e := range exitCodes() {
		said[fmt.Sprint(e.code)] = true
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, e.text)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "exitcodes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := 0
	for _, decl := range file.Decls {
		list, ok := decl.(*ast.GenDecl)
		if !ok || list.Tok != token.CONST {
			continue
		}
		for _, spec := range list.Specs {
			constants++
			c := spec.(*ast.ValueSpec)
			if code := c.Values[0].(*ast.BasicLit).Value; !said[code] {
				t.Errorf("what %s, %s, means is not said", c.Names[0], code)
			}
		}
	}
	if constants != len(exitCodes()) {
		t.Errorf("%d constants and %d meanings", constants, len(exitCodes()))
	}
	doctest.Keep(t, "exit-codes", b.String(), *update)
}

// TestDocs_ListsTheEnvironment: the document has what is read besides settings: whatever
// internal/config, which alone may, asks the environment for.
func TestDocs_ListsTheEnvironment(t *testing.T) {
	said := doctest.Part(t, "environment")
	files, err := filepath.Glob(filepath.Join(repository, "internal", "config", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	asked := regexp.MustCompile(`os\.(?:Getenv|LookupEnv)\("(\w+)"\)`)
	names := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range asked.FindAllStringSubmatch(string(source), -1) {
			names++
			if name := found[1]; !strings.Contains(said, "| `"+name+"` | ") && name != "PVELAB_LOOPBACK" { // of the lab alone
				t.Errorf("what %s means is not said (%s)", name, path)
			}
		}
	}
	if names < 5 {
		t.Errorf("only %d variables were found in the code", names)
	}
}

// TestDocs_ListsTheScriptsExitCodes takes them from where they are named.
func TestDocs_ListsTheScriptsExitCodes(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(repository, "scripts", "lib", "result.sh"))
	if err != nil {
		t.Fatal(err)
	}
	rows := []string{"| 0 | done |\n"}
	for _, m := range regexp.MustCompile(`(?m)^    [a-z]+\) result_status=(\d+) ;; +# (.+)$`).FindAllStringSubmatch(string(source), -1) {
		rows = append(rows, fmt.Sprintf("| %s | %s |\n", m[1], m[2]))
	}
	if len(rows) != 7 {
		t.Fatalf("%d exit codes in result.sh: %q", len(rows), rows)
	}
	slices.Sort(rows)
	rows = append(rows, "| 129, 130, 141, 143 | a signal, after roll-back |\n")
	doctest.Keep(t, "script-exit-codes", "| code of a host script | meaning |\n| --- | --- |\n"+strings.Join(rows, ""), *update)
}
