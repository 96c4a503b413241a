package mutate

import (
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// ending matches how a guard in shell ends.
var ending = regexp.MustCompile(`^(return|exit|continue|break|\w*die|\w*fail)\b`)

// Shell breaks a shell file, as Go breaks a Go file, for tests that have in dir which mutants are
// in force.
func Shell(file, src string, first int, dir string) (string, []Mutant, error) {
	parsed, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(src), file)
	if err != nil {
		return "", nil, err
	}
	syntax.Walk(parsed, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.TestClause:
			n.X = bind(n.X)
		case *syntax.ParenTest:
			n.X = bind(n.X)
		case *syntax.BinaryTest:
			n.X, n.Y = bind(n.X), bind(n.Y)
		}
		return true
	})
	b := &broken{file: file, src: src, first: first, is: `-e ` + dir + `/on.ID$(: >>` + dir + `/ID)`}
	at := func(p syntax.Pos) int { return int(p.Offset()) }
	var look func(n syntax.Node) bool
	look = func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.FuncDecl:
			outer := b.in
			b.in = n.Name.Value
			syntax.Walk(n.Body, look)
			b.in = outer
			return false
		case *syntax.WhileClause: // a loop without its end shows nothing
			for _, s := range n.Do {
				syntax.Walk(s, look)
			}
			return false
		case *syntax.IfClause:
			if len(n.Cond) != 1 || len(n.Then) == 0 || strings.Contains(src[at(n.Cond[0].Pos()):at(n.ThenPos)], "<<") {
				break
			}
			op := syntax.BinTestOperator(0)
			if test, is := n.Cond[0].Cmd.(*syntax.TestClause); is {
				if binary, is := test.X.(*syntax.BinaryTest); is {
					op = binary.Op
				}
			}
			start, end, last := at(n.Cond[0].Pos()), stop(n.Cond[0]), n.Then[len(n.Then)-1]
			switch exits := n.Else != nil || ending.MatchString(src[at(last.Pos()):]); {
			case exits && op != syntax.OrTest:
				b.wrap(start, end, "never", src[start:end], "{ ", "; } && [[ ! IS ]]")
			case !exits && op != syntax.AndTest:
				b.wrap(start, end, "always", src[start:end], "{ ", "; } || [[ IS ]]")
			}
		case *syntax.BinaryCmd:
			start, end := at(n.Y.Pos()), stop(n.Y)
			if does := src[start:end]; n.Op == syntax.OrStmt && does != ":" && does != "true" && !strings.Contains(does, "$?") {
				b.wrap(start, end, "never", src[at(n.X.Pos()):end], "[[ IS ]] || ", "")
			}
		case *syntax.BinaryTest:
			after := map[syntax.BinTestOperator]string{syntax.AndTest: " || IS )", syntax.OrTest: " && ! IS )"}[n.Op]
			for _, side := range []syntax.TestExpr{n.X, n.Y} {
				if inner, is := side.(*syntax.BinaryTest); after != "" && (!is || inner.Op != n.Op) {
					b.wrap(at(side.Pos()), at(side.End()), "without", src[at(side.Pos()):at(side.End())], "( ", after)
				}
			}
		}
		return true
	}
	syntax.Walk(parsed, look)
	broken, mutants := b.result()
	return broken, mutants, nil
}

// bind makes ! apply to the first operand of && or ||, as bash does, and not to the whole test.
func bind(test syntax.TestExpr) syntax.TestExpr {
	not, is := test.(*syntax.UnaryTest)
	if !is || not.Op != syntax.TsNot {
		return test
	}
	joins := func(x syntax.TestExpr) *syntax.BinaryTest {
		if b, is := x.(*syntax.BinaryTest); is && (b.Op == syntax.AndTest || b.Op == syntax.OrTest) {
			return b
		}
		return nil
	}
	whole := joins(not.X)
	if whole == nil {
		return test
	}
	first := whole
	for joins(first.X) != nil {
		first = joins(first.X)
	}
	not.X, first.X = first.X, not
	return whole
}

// stop is where a statement ends, before what separates it from the next.
func stop(s *syntax.Stmt) int {
	end := s.Cmd.End().Offset()
	for _, r := range s.Redirs {
		end = max(end, r.End().Offset())
	}
	return int(end)
}
