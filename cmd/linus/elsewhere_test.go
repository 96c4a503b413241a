package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"

	"linus/internal/loops"
)

// linus is released for macOS and Windows, too: its files for them have the right types.
// From sources, a whole build takes minutes where nothing is in Go's cache.
func TestElsewhere_TypesAreRight(t *testing.T) {
	loops.NotInCheck(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range []string{"darwin", "windows"} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			loaded, err := packages.Load(&packages.Config{
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax,
				Dir:  "../..",
				Env:  append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH=amd64"),
				ParseFile: func(fset *token.FileSet, path string, src []byte) (*ast.File, error) {
					file, err := parser.ParseFile(fset, path, src, parser.SkipObjectResolution)
					if err == nil && !strings.HasPrefix(path, root) {
						for _, d := range file.Decls {
							if f, is := d.(*ast.FuncDecl); is {
								f.Body = nil // others' takes most of the time
							}
						}
					}
					return file, err
				},
			}, "./cmd/linus", "./embed")
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			packages.Visit(loaded, nil, func(p *packages.Package) {
				seen++
				for _, problem := range p.Errors {
					if problem.Kind != packages.TypeError || strings.HasPrefix(problem.Pos, root) { // others' lack bodies
						t.Errorf("%s: %v", p.PkgPath, problem)
					}
				}
			})
			if seen < 100 {
				t.Errorf("%d packages were looked at", seen)
			}
		})
	}
}
