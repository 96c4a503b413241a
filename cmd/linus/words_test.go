package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"linus/internal/job"
)

func TestWords_HaveEveryAction(t *testing.T) {
	for _, a := range job.Actions {
		if words[a] == "" {
			t.Errorf("there are no words for %s", a)
		}
	}
}

// toolsAndCommands are what only faces speak of.
var toolsAndCommands = regexp.MustCompile(`\b(list_vms|list-vms shows|get_vm|destroy_vm|start_vm|stop_vm|provision_vm|check_host|submit_job|get_job_\w+|list_jobs|cancel_job|kill_job|interact_with_job|execute_command|tail_job_output)\b|\blinus (job|vm|host|template|serve|config) [a-z]`)

// The core tells what to do by job.Action; tools and commands have their names in
// the faces.
func TestWords_TheCoreSpeaksOfNoToolAndNoCommand(t *testing.T) {
	for _, name := range []string{"job", "executor", "capture", "patience", "proxmox", "guest", "remote", "store", "policy", "secret"} {
		files, err := filepath.Glob(filepath.Join("..", "..", "internal", name, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", name, len(files), err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				literal, ok := n.(*ast.BasicLit)
				// A literal that is a name alone is an input of a script or a step's name.
				if ok && literal.Kind == token.STRING && strings.Contains(literal.Value, " ") && toolsAndCommands.MatchString(literal.Value) {
					t.Errorf("%s speaks of %q: %s", path, toolsAndCommands.FindString(literal.Value), literal.Value)
				}
				return true
			})
		}
	}
}
