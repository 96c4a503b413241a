package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
)

// A verb has a tool, a command and a page, or it is said here that it is not to have one.
func TestVerbs_HaveAToolACommandAndAPage(t *testing.T) {
	for face, without := range map[string][]string{
		"internal/mcptool": {
			"Manifest", "DeleteJob", "Resize", "ForgetVM", "SetVM", "ReadTree", "WriteTree", "Network", "DialVM", "LoginVM", "ListPorts", "UnexposePort",
			"Pools", "Pool", "CreatePool", "ResizePool", "RemovePool", "Checkpoints", "Checkpoint", "CreateCheckpoint", "RemoveCheckpoint", "Volume", "Engines", "Dispatchers", "ReportDispatcher", "DrainDispatcher", "UndrainDispatcher", "Tokens", "CreateToken", "RevokeToken", "Credentials", "CreateCredential", "RemoveCredential", "CordonNode", "UncordonNode", "CancelHostTest", "Schedule", "PauseSchedule", "RunSchedule",
		},
		// A terminal is resized by control.Terminal, and linus cp takes trees.
		"cmd/linus": {"Manifest", "Resize", "WriteFile", "EditFile", "ReportDispatcher"},
		// The page's terminal is the API's.
		"internal/web": {"Result", "Cleanup", "DeleteJob", "Resize", "EditFile", "WriteTree", "SetVM", "Network", "LoginVM", "Checkpoint", "CreateCheckpoint", "RemoveCheckpoint", "CreateCredential", "RemoveCredential", "Volume", "CreateVolume", "RemoveVolume", "AttachVolume", "DetachVolume", "ReportDispatcher", "DrainDispatcher", "UndrainDispatcher", "Schedule", "CreateSchedule", "PauseSchedule", "RunSchedule", "RemoveSchedule"},
	} {
		calls := callsIn(t, filepath.Join(repository, filepath.FromSlash(face)))
		for _, v := range job.Verbs() {
			switch said := slices.Contains(without, v.Name); {
			case !calls[v.Name] && !said:
				t.Errorf("nothing in %s calls %s: add it, or say here that it is not to", face, v.Name)
			case calls[v.Name] && said:
				t.Errorf("%s calls %s", face, v.Name)
			}
		}
	}
}

// callsIn returns the names of what a package calls, and of the methods of an engine that it
// names.
func callsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go in %s, %v", dir, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.SelectorExpr); ok {
					names[f.Sel.Name] = true
				}
			case *ast.SelectorExpr: // as in job.Engine.StopVM and (*session).StopVM
				if of := types.ExprString(n.X); strings.HasSuffix(of, "Engine") || strings.Contains(of, "session") {
					names[n.Sel.Name] = true
				}
			}
			return true
		})
	}
	return names
}
