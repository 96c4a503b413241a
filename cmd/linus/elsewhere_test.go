package main

import (
	"os"
	"testing"

	"golang.org/x/tools/go/packages"

	"linus/internal/loops"
)

// linus is released for macOS and Windows, too: its files for them have the right types.
// From sources, a whole build takes minutes where nothing is in Go's cache.
func TestElsewhere_TypesAreRight(t *testing.T) {
	loops.NotInCheck(t)
	systems := []string{"darwin", "windows"}
	for _, i := range loops.Some(len(systems), len(systems)) {
		system := systems[i]
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			loaded, err := packages.Load(&packages.Config{
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax,
				Dir:  "../..",
				Env:  append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH=amd64"),
			}, "./cmd/linus", "./embed")
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			packages.Visit(loaded, nil, func(p *packages.Package) {
				seen++
				for _, problem := range p.Errors {
					t.Errorf("%s: %v", p.PkgPath, problem)
				}
			})
			if seen < 100 {
				t.Errorf("%d packages were looked at", seen)
			}
		})
	}
}
