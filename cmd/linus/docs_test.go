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

	"github.com/spf13/cobra"
)

var repository = filepath.Join("..", "..")

// keepInREADME holds the part of README that a pair of markers encloses to
// text; with -update it writes it there.
func keepInREADME(t *testing.T, part, text string) {
	t.Helper()
	path := filepath.Join(repository, "README.md")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	begin, end := fmt.Sprintf("<!-- %s:begin -->\n", part), fmt.Sprintf("<!-- %s:end -->", part)
	head, rest, found := strings.Cut(string(old), begin)
	_, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("README.md has no place for %s", part)
	}
	switch current := head + begin + text + end + tail; {
	case current == string(old):
	case *update:
		if err := os.WriteFile(path, []byte(current), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("README.md is stale (%s): run make golden", part)
	}
}

func TestREADME_ListsEveryCommand(t *testing.T) {
	var b strings.Builder
	b.WriteString("| command | what |\n| --- | --- |\n")
	var list func(cmd *cobra.Command)
	list = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "completion" || cmd.Name() == "help" { // cobra's own
			return
		}
		// A group that takes arguments or options does something itself.
		if cmd.HasParent() && (!cmd.HasSubCommands() || cmd.Use != cmd.Name() || cmd.LocalFlags().HasFlags()) {
			if cmd.Short == "" {
				t.Errorf("%s does not say what it does", cmd.CommandPath())
			}
			use := cmd.CommandPath() + strings.TrimPrefix(cmd.Use, cmd.Name())
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(use, "|", `\|`), strings.ReplaceAll(cmd.Short, "|", `\|`))
		}
		for _, sub := range cmd.Commands() {
			list(sub)
		}
	}
	root := (&app{}).root()
	list(root)
	b.WriteString("| `linus completion bash\\|zsh\\|fish\\|powershell` | Complete commands, options, job ids and VM names in your shell |\n")
	keepInREADME(t, "commands", b.String())
}

func TestREADME_ListsEveryExitCode(t *testing.T) {
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
	keepInREADME(t, "exit-codes", b.String())
}

// TestREADME_ListsTheScriptsExitCodes takes them from where they are named.
func TestREADME_ListsTheScriptsExitCodes(t *testing.T) {
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
	keepInREADME(t, "script-exit-codes", "| code of a host script | meaning |\n| --- | --- |\n"+strings.Join(rows, ""))
}
