package mutate

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// Switch returns a file that a package needs beside its broken ones. It reports, by files in dir,
// which mutants are in force.
func Switch(name, dir string) string {
	return "package " + name + `

import (
	"os"
	"sync"
)

var mutants sync.Map

func mutantIs(id string) bool {
	is, seen := mutants.Load(id)
	if !seen {
		os.WriteFile(` + strconv.Quote(dir+"/") + ` + id, nil, 0o600)
		_, err := os.Stat(` + strconv.Quote(dir+"/on.") + ` + id)
		is, _ = mutants.LoadOrStore(id, err == nil)
	}
	return is.(bool)
}
`
}

var (
	// held matches calls that release what keeps others out. A mutex that is not held is for the
	// race detector to find.
	held = regexp.MustCompile(`^\w*(unlock|release|end|done)\w*\(\)$`)
	// clock matches comparisons that no test has at their bound.
	clock = regexp.MustCompile(`\b(time\.(Since|Until)|[nN]ow)\(`)
)

// Go breaks a Go file; its mutants are numbered from first.
func Go(file, src string, first int) (string, []Mutant, error) {
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return "", nil, err
	}
	b := &broken{file: file, src: src, first: first, is: `mutantIs("ID")`}
	at := func(n ast.Node) (int, int) { return fset.Position(n.Pos()).Offset, fset.Position(n.End()).Offset }
	text := func(n ast.Node) string { start, end := at(n); return src[start:end] }
	wrap := func(n ast.Node, what, before, after string) {
		start, end := at(n)
		b.wrap(start, end, what, src[start:end], before, after)
	}
	guard := func(e ast.Expr, about string, exits bool) {
		start, end := at(e)
		op := token.ILLEGAL
		if binary, is := e.(*ast.BinaryExpr); is {
			op = binary.Op
		}
		switch { // dropping one operand is worse
		case exits && op != token.LOR:
			b.wrap(start, end, "never", about, "(", ") && !IS")
		case !exits && op != token.LAND:
			b.wrap(start, end, "always", about, "(", ") || IS")
		}
	}
	var look func(n ast.Node) bool
	look = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			b.in = n.Name.Name
			if n.Recv != nil {
				b.in = strings.TrimLeft(text(n.Recv.List[0].Type), "*") + "." + b.in
			}
		case *ast.ForStmt: // a loop without its end shows nothing
			ast.Inspect(n.Body, look)
			return false
		case *ast.IfStmt:
			about := text(n.Cond)
			if n.Init != nil {
				about = text(n.Init) + "; " + about
			}
			guard(n.Cond, about, n.Else != nil || leaves(n.Body))
		case *ast.SwitchStmt:
			for _, s := range n.Body.List {
				for _, e := range s.(*ast.CaseClause).List {
					if n.Tag == nil {
						guard(e, text(e), true)
					}
				}
			}
		case *ast.BinaryExpr:
			bound := "IS && (" + text(n.X) + ") == (" + text(n.Y) + "))"
			switch n.Op {
			case token.LAND, token.LOR:
				for _, side := range []ast.Expr{n.X, n.Y} {
					if inner, is := side.(*ast.BinaryExpr); !is || inner.Op != n.Op {
						wrap(side, "without", "(", map[token.Token]string{token.LAND: " || IS)", token.LOR: " && !IS)"}[n.Op])
					}
				}
			case token.LSS, token.GTR, token.LEQ, token.GEQ:
				if clock.MatchString(bound) || strings.Contains(bound, "\n") {
					break
				}
				if n.Op == token.LSS || n.Op == token.GTR {
					wrap(n, "at the bound", "(", " || "+bound)
				} else {
					wrap(n, "not at the bound", "(", " && !("+bound+")")
				}
			}
		case *ast.DeferStmt:
			if held.MatchString(text(n.Call)) {
				wrap(n, "at once", "if IS { "+text(n.Call)+" } else { ", " }")
			}
		}
		return true
	}
	ast.Inspect(parsed, look)
	broken, mutants := b.result()
	return broken, mutants, nil
}

// leaves reports whether a block ends by leaving, so that nothing is done after it.
func leaves(body *ast.BlockStmt) bool {
	if len(body.List) == 0 {
		return false
	}
	switch body.List[len(body.List)-1].(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	}
	return false
}
