package loops

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"linus/internal/doctest"
)

var update = flag.Bool("update", false, "write the document's table anew")

// What runs at night only says which tests of make test hold to the same promise, and
// CONTRIBUTING has the table of both.
func TestAtNightOnly_SaysWhatCoversIt(t *testing.T) {
	tests, hidden, covered := map[string]bool{}, map[string]bool{}, map[string]string{}
	err := filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is || f.Recv != nil {
				continue
			}
			tests[f.Name.Name] = true
			ast.Inspect(f, func(n ast.Node) bool {
				switch function, text := nightly(n); function {
				case "AtNightOnly":
					covered[f.Name.Name], hidden[f.Name.Name] = text, true
				case "Every":
					covered[f.Name.Name+", all steps"] = text
				}
				return true
			})
		}
		return nil
	})
	if err != nil || len(covered) < 3 {
		t.Fatalf("%d tests run at night only: %v", len(covered), err)
	}
	var rows []string
	for name, text := range covered {
		found := regexp.MustCompile(`Test[A-Za-z0-9_]+`).FindAllString(text, -1)
		if len(found) == 0 {
			t.Errorf("%s: %q names no test", name, text)
		}
		for _, other := range found {
			if hidden[other] || !tests[other] {
				t.Errorf("%s is covered by %s, which is no test of make test", name, other)
			}
		}
		rows = append(rows, "| "+doctest.Cell(name)+" | "+doctest.Cell(text)+" |\n")
	}
	slices.Sort(rows)
	doctest.Keep(t, "nightly", "| at night only | in `make test` |\n| --- | --- |\n"+strings.Join(rows, ""), *update)
}

// nightly is the name of a function of this package that is called, and what it is told covers
// for the night, or nothing.
func nightly(n ast.Node) (function, said string) {
	call, is := n.(*ast.CallExpr)
	if !is || len(call.Args) < 2 {
		return "", ""
	}
	selector, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return "", ""
	}
	text, is := call.Args[len(call.Args)-1].(*ast.BasicLit)
	if of, named := selector.X.(*ast.Ident); !is || !named || of.Name != "loops" {
		return "", ""
	}
	said, err := strconv.Unquote(text.Value)
	if err != nil {
		return "", ""
	}
	return selector.Sel.Name, said
}
