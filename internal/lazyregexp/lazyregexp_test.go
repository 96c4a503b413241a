package lazyregexp_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"linus/internal/lazyregexp"
)

func TestRegexp(t *testing.T) {
	t.Parallel()
	r := lazyregexp.New(`(\d)(\d)`)
	upper := strings.ToUpper
	if got := r.FindStringSubmatch("a12"); len(got) != 3 || got[2] != "2" || !r.MatchString("12") || r.MatchString("1") ||
		r.ReplaceAllString("a12b", "$2") != "a2b" || lazyregexp.New("a").ReplaceAllStringFunc("bab", upper) != "bAb" {
		t.Errorf("it is not what regexp.Regexp is: %q", got)
	}
}

// What is compiled late fails late: so every text in the product is compiled here. And no
// package of the product compiles one when the program starts, but for a leaf.
func TestProduct(t *testing.T) {
	t.Parallel()
	texts := 0
	for _, dir := range []string{"../../cmd/linus", "../../internal", "../../embed"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			tests := strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/doctest/") || strings.Contains(path, "/mutate/")
			leaf := strings.Contains(path, "/envfile/")
			if err != nil || d.IsDir() || tests || leaf || filepath.Ext(path) != ".go" {
				return err
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, 0)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				vars, _ := decl.(*ast.GenDecl)
				if vars == nil {
					continue
				}
				ast.Inspect(vars, func(n ast.Node) bool {
					if _, later := n.(*ast.FuncLit); later {
						return false
					}
					call, _ := n.(*ast.CallExpr)
					if call == nil {
						return true
					}
					of, _ := call.Fun.(*ast.SelectorExpr)
					if of == nil {
						return true
					}
					switch from, _ := of.X.(*ast.Ident); {
					case from == nil:
					case from.Name == "regexp":
						t.Errorf("%s: compiled at every start", files.Position(call.Pos()))
					case from.Name == "lazyregexp":
						text, err := literal(call.Args[0])
						if err == nil {
							_, err = regexp.Compile(text)
						}
						if err != nil {
							t.Errorf("%s: %v", files.Position(call.Pos()), err)
						}
						texts++
					}
					return true
				})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if texts < 40 {
		t.Errorf("%d texts were found", texts)
	}
}

// literal is the text of a literal, or of several that are added.
func literal(e ast.Expr) (string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.BinaryExpr:
		x, err := literal(e.X)
		y, failed := literal(e.Y)
		return x + y, errors.Join(err, failed)
	}
	return "", fmt.Errorf("%T is no literal", e)
}
