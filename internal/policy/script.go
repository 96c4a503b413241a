package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"linus/internal/lazyregexp"
)

// Bounds of a script, for the parser: its recursion is as deep as brackets are
// nested.
const (
	maxScript = 256 << 10 // bytes
	maxDepth  = 250

	maxNesting = 10 // commands run by commands
)

// checker walks one script: a task, or the text that a command in it runs.
type checker struct {
	*findings
	source    string
	line      uint // the line at which the script starts in the one around it; 0: none
	functions map[string][]*function
	// inner is text that this shell runs (eval, trap). A function declared
	// there may not exist yet, or no longer, when a command of its name runs.
	inner   bool
	nesting int // how many commands run this one
}

// function is a function of the script, declared on every path to what follows.
type function struct {
	body  *syntax.Stmt
	owner *checker // the script that declares it
	seen  bool
}

// script checks text that a new bash runs.
func (f *findings) script(text string) {
	c := checker{findings: f, functions: map[string][]*function{}}
	c.check(text, syntax.LangBash)
}

// refuse records a problem with the node's line.
func (c *checker) refuse(at syntax.Node, format string, args ...any) {
	c.add(c.field, fmt.Sprintf("line %d: ", c.lineOf(at))+fmt.Sprintf(format, args...), c.policy.remedy())
}

// lineOf returns the line to report for at.
func (c *checker) lineOf(at syntax.Node) uint {
	if c.line != 0 {
		return c.line
	}
	return at.Pos().Line()
}

// check parses text and walks through it. Functions declared at its top level
// may be called from there on: a function counts only where it is certainly
// declared, or else a command of the same name would run unseen.
func (c *checker) check(text string, language syntax.LangVariant) {
	const remedy = "write it so that it can be judged, or ask for a wider ALLOWED_COMMANDS"
	if problem := unreadable(text); problem != "" {
		c.add(c.field, problem, remedy)
		return
	}
	file, err := syntax.NewParser(syntax.Variant(language), syntax.KeepComments(true)).Parse(strings.NewReader(text), "")
	if err != nil {
		line := c.line
		var wrong syntax.ParseError
		if errors.As(err, &wrong) {
			err = errors.New(wrong.Text)
			if line == 0 {
				line = wrong.Pos.Line()
			}
		}
		c.add(c.field, fmt.Sprintf("line %d: cannot be read as a shell script: %v", line, err), remedy)
		return
	}
	c.source = text
	for _, s := range file.Stmts {
		f, ok := s.Cmd.(*syntax.FuncDecl)
		if ok && !c.inner && !s.Negated && !s.Background && len(s.Redirs) == 0 {
			c.declare(f)
			continue
		}
		syntax.Walk(s, c.visit)
	}
	for i := range file.Last {
		c.visit(&file.Last[i])
	}
	if c.inner {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.functions)) {
		c.enter(c.functions[name])
	}
}

// unreadable returns why text is not even parsed, "" if it is.
func unreadable(text string) string {
	if len(text) > maxScript {
		return fmt.Sprintf("is %d bytes; with ALLOWED_COMMANDS a script may have %d", len(text), maxScript)
	}
	depth := 0
	for i := range len(text) {
		switch c := text[i]; {
		case c < ' ' && c != '\n' && c != '\t', c == 0x7f:
			// Shells and parsers disagree about a carriage return.
			return fmt.Sprintf("line %d: has the control character 0x%02x", 1+strings.Count(text[:i], "\n"), c)
		case c == '(' || c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Sprintf("line %d: has brackets more than %d deep", 1+strings.Count(text[:i], "\n"), maxDepth)
			}
		case (c == ')' || c == '}' || c == ']') && depth > 0:
			depth--
		}
	}
	if !utf8.ValidString(text) {
		return "is not valid UTF-8"
	}
	return ""
}

// visit is called for every node of the script. It refuses what it does not
// know: otherwise a parser that learns something new would let it through.
func (c *checker) visit(node syntax.Node) bool {
	switch n := node.(type) {
	case nil, *syntax.Stmt, *syntax.Word, *syntax.Lit, *syntax.SglQuoted, *syntax.Block, *syntax.Subshell, *syntax.IfClause,
		*syntax.WhileClause, *syntax.ForClause, *syntax.BinaryCmd, *syntax.CaseClause, *syntax.CaseItem, *syntax.TimeClause,
		*syntax.TestClause, *syntax.ParenTest, *syntax.ProcSubst, *syntax.ArrayExpr,
		*syntax.BinaryArithm, *syntax.UnaryArithm, *syntax.ParenArithm: // judged as part of the whole expression
	case *syntax.CallExpr:
		if len(n.Args) > 0 {
			words := make([]word, len(n.Args))
			for i, w := range n.Args {
				words[i] = readWord(w)
			}
			c.command(n, words, true)
		}
	case *syntax.FuncDecl:
		c.nameFunction(n)
	case *syntax.DeclClause:
		c.declaration(n)
	case *syntax.Assign:
		c.assign(n)
	case *syntax.ArrayElem:
		c.index(n, n.Index)
	case *syntax.WordIter:
		c.set(n, n.Name.Value, len(n.Items) > 0 && allNumbers(n.Items))
	case *syntax.CStyleLoop:
		for _, x := range []syntax.ArithmExpr{n.Init, n.Cond, n.Post} {
			c.arithmetic(n, x)
		}
	case *syntax.ArithmExp:
		c.arithmetic(n, n.X)
	case *syntax.ArithmCmd:
		c.arithmetic(n, n.X)
	case *syntax.LetClause:
		c.refuse(n, "let evaluates its words again; write $(( )) or (( ))")
	case *syntax.UnaryTest:
		if n.Op == syntax.TsVarSet || n.Op == syntax.TsRefVar {
			c.asksName(n, n.X)
		}
	case *syntax.BinaryTest:
		c.comparison(n)
	case *syntax.CoprocClause:
		if n.Name != nil {
			c.set(n, readWord(n.Name).text, true)
		}
	case *syntax.DblQuoted:
		if n.Dollar {
			c.refuse(n, "%s: a translation may contain anything; leave out the dollar sign", c.text(n))
		}
	case *syntax.CmdSubst:
		if n.TempFile || n.ReplyVar {
			c.refuse(n, "%q: write $( )", c.text(n))
		}
	case *syntax.ParamExp:
		c.expansion(n)
	case *syntax.ExtGlob:
		// The parser does not look into these.
		if strings.ContainsAny(n.Pattern.Value, "$`<>") {
			c.refuse(n, "a substitution within the pattern %q cannot be judged", shorten(n.Pattern.Value))
		}
	case *syntax.Redirect:
		c.redirect(n)
	case *syntax.Comment:
		// The parser treats the next line as part of the comment; shells do
		// not.
		if line, _, _ := strings.Cut(c.source[n.Pos().Offset():], "\n"); strings.HasSuffix(line, `\`) {
			c.refuse(n, "a comment may not end in a backslash: what follows cannot be judged")
		}
	default:
		c.refuse(n, "%q cannot be judged", c.text(n))
	}
	return true
}

// --- functions ---------------------------------------------------------------

var functionName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_.:-]*$`)

// nameFunction refuses names that would hide what this package relies on.
func (c *checker) nameFunction(f *syntax.FuncDecl) bool {
	if f.Name == nil || !functionName.MatchString(f.Name.Value) {
		c.refuse(f, "a function's name must be plain")
		return false
	}
	if isSpecial(f.Name.Value) {
		c.refuse(f, "a function may not be named %s, as the shell's or the system's own", f.Name.Value)
		return false
	}
	return true
}

func (c *checker) declare(f *syntax.FuncDecl) {
	if c.nameFunction(f) {
		name := f.Name.Value
		c.functions[name] = append(c.functions[name], &function{body: f.Body, owner: c})
	}
}

// enter checks the bodies a call may run, each once: with the functions
// declared at the first call or, if there is no call, at the script's end.
func (c *checker) enter(all []*function) {
	for _, f := range all {
		if !f.seen {
			f.seen = true
			syntax.Walk(f.body, f.owner.visit)
		}
	}
}
