package policy

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"linus/internal/lazyregexp"
)

// variables is what is known of the values variables can have in any of a job's
// scripts, however one runs another: a value set anywhere may be seen
// everywhere.
type variables struct {
	numbers map[string]bool // set to a number somewhere
	texts   map[string]bool // set to something else somewhere
	arrays  map[string]bool
}

var (
	plainName  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	lowerName  = lazyregexp.New(`^[a-z][a-z0-9_]*$`)
	numberText = lazyregexp.New(`^-?[0-9]*$`)
	rangeText  = lazyregexp.New(`^\{-?[0-9]+\.\.-?[0-9]+(\.\.-?[0-9]+)?\}$`)
)

// countingNames are variables in which the shell keeps its own numbers. Some of
// them evaluate what they are set to.
var countingNames = []string{
	"RANDOM", "SRANDOM", "SECONDS", "LINENO", "BASHPID", "EPOCHSECONDS", "UID", "EUID", "PPID", "SHLVL", "OPTIND", "HISTCMD", "COLUMNS", "LINES",
}

// ownNames are other variables with a meaning to the shell.
var ownNames = []string{
	"_", "DIRSTACK", "FUNCNAME", "GROUPS", "PIPESTATUS", "EPOCHREALTIME", "COPROC", "MAPFILE", "REPLY", "OPTARG", "OPTERR", "FUNCNEST",
}

// isNumber reports whether a variable holds a number or nothing, as far as is
// known after everything was checked. Of the variables that nobody sets, the
// shell's own have names in capitals.
func (v variables) isNumber(name string) bool {
	return !v.texts[name] && (v.numbers[name] || lowerName.MatchString(name) || slices.Contains(countingNames, name))
}

// set notes that a variable is set, to a number or to anything else, and
// refuses the guarded ones.
func (c *checker) set(at syntax.Node, name string, number bool) {
	switch {
	case !plainName.MatchString(name):
		c.refuse(at, "%q: which variable is set is only known when it runs", c.text(at))
		return
	case isGuarded(name):
		c.refuse(at, "%s may not be set: by it the shell, the loader or a program finds other programs", name)
	case !number && slices.Contains(countingNames, name), slices.Contains(ownNames, name) && name != "REPLY" && name != "OPTARG" && name != "OPTERR":
		c.refuse(at, "%s may not be set: it is the shell's own", name)
	}
	if number {
		c.vars.numbers[name] = true
	} else {
		c.vars.texts[name] = true
	}
}

// needNumber refuses a variable at the end if it may hold anything but a
// number: arithmetic runs $( ) in the subscripts it evaluates.
func (c *checker) needNumber(at syntax.Node, name string) {
	c.later = append(c.later, func() {
		if !c.vars.isNumber(name) {
			c.refuse(at, "%s is evaluated as arithmetic, which would run what its value holds; set it to numbers only, and in the script itself", name)
		}
	})
}

// --- values ------------------------------------------------------------------

// isNumeric reports whether a word's value is a number or nothing.
func isNumeric(w *syntax.Word) bool {
	switch {
	case w == nil || len(w.Parts) == 0:
		return true
	case len(w.Parts) > 1:
		return false
	}
	return isNumericPart(w.Parts[0])
}

func isNumericPart(part syntax.WordPart) bool {
	switch part := part.(type) {
	case *syntax.Lit:
		return numberText.MatchString(part.Value)
	case *syntax.SglQuoted:
		return numberText.MatchString(part.Value)
	case *syntax.DblQuoted:
		return len(part.Parts) == 0 || (len(part.Parts) == 1 && isNumericPart(part.Parts[0]))
	case *syntax.ArithmExp:
		return true
	case *syntax.ParamExp:
		return part.Length || (isPlain(part) && isCount(part.Param.Value))
	}
	return false
}

// isCount reports whether a special parameter is a number by nature.
func isCount(name string) bool { return len(name) == 1 && strings.Contains("#?$!", name) }

func allNumbers(words []*syntax.Word) bool {
	return !slices.ContainsFunc(words, func(w *syntax.Word) bool {
		return !isNumeric(w) && (len(w.Parts) != 1 || !rangeText.MatchString(w.Lit()))
	})
}

// --- arithmetic --------------------------------------------------------------

// index judges a subscript, if there is one.
func (c *checker) index(at syntax.Node, x syntax.ArithmExpr) {
	if w, ok := x.(*syntax.Word); ok && (w.Lit() == "@" || w.Lit() == "*") {
		return
	}
	c.arithmetic(at, x)
}

// arithmetic judges an expression: operators, numbers, names and expansions
// that are numbers. The shell also evaluates the value of a name as an
// expression, and runs the $( ) in its subscripts, quoted or not.
func (c *checker) arithmetic(at syntax.Node, x syntax.ArithmExpr) {
	switch x := x.(type) {
	case nil:
	case *syntax.BinaryArithm:
		if strings.HasSuffix(x.Op.String(), "=") && !slices.Contains([]string{"==", "!=", "<=", ">="}, x.Op.String()) {
			c.setByArithmetic(at, x.X)
		}
		c.arithmetic(at, x.X)
		c.arithmetic(at, x.Y)
	case *syntax.UnaryArithm:
		if op := x.Op.String(); op == "++" || op == "--" {
			c.setByArithmetic(at, x.X)
		}
		c.arithmetic(at, x.X)
	case *syntax.ParenArithm:
		c.arithmetic(at, x.X)
	case *syntax.Word:
		c.operand(at, x)
	default:
		c.refuse(at, "%q: this arithmetic cannot be judged", c.text(at))
	}
}

func (c *checker) setByArithmetic(at syntax.Node, x syntax.ArithmExpr) {
	w, ok := x.(*syntax.Word)
	if !ok || len(w.Parts) != 1 {
		return // nothing that can be set; the operand is refused
	}
	switch part := w.Parts[0].(type) {
	case *syntax.Lit:
		c.set(at, part.Value, true)
	case *syntax.ParamExp:
		if part.Short && part.Index != nil {
			c.set(at, part.Param.Value, true)
		}
	}
}

var arithmeticNumber = lazyregexp.New(`^(0[xX][0-9A-Fa-f]+|[0-9]+(#[0-9A-Za-z@_]+)?)$`)

// operand judges a word that arithmetic evaluates.
func (c *checker) operand(at syntax.Node, w *syntax.Word) {
	if len(w.Parts) == 1 && c.isOperand(at, w.Parts[0]) {
		return
	}
	c.refuse(at, "%q: arithmetic evaluates what it is given, and runs $( ) in it; only numbers, names, $name and ${name:-0} are allowed there", c.text(w))
}

func (c *checker) isOperand(at syntax.Node, part syntax.WordPart) bool {
	switch part := part.(type) {
	case *syntax.Lit:
		if plainName.MatchString(part.Value) {
			c.needNumber(at, part.Value)
			return true
		}
		return arithmeticNumber.MatchString(part.Value) || (part.Value != "" && numberText.MatchString(part.Value))
	case *syntax.DblQuoted:
		return len(part.Parts) == 1 && !part.Dollar && c.isOperand(at, part.Parts[0])
	case *syntax.ArithmExp:
		return true // judged separately
	case *syntax.ParamExp:
		return c.isNumericExpansion(at, part)
	}
	return false
}

// isNumericExpansion judges an expansion within arithmetic; its subscript is
// judged separately.
func (c *checker) isNumericExpansion(at syntax.Node, p *syntax.ParamExp) bool {
	if p.Param == nil || p.Excl || p.Slice != nil || p.Repl != nil || p.Names != 0 {
		return false
	}
	if p.Exp != nil && ((p.Exp.Op != syntax.DefaultUnset && p.Exp.Op != syntax.DefaultUnsetOrNull) || !isNumeric(p.Exp.Word)) {
		return false
	}
	switch name := p.Param.Value; {
	case p.Length || isCount(name):
		return true
	case plainName.MatchString(name):
		c.needNumber(at, name)
		return true
	}
	return false
}

// --- [[ ]] -------------------------------------------------------------------

var comparing = []syntax.BinTestOperator{syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr}

// comparison judges the operands of -eq and the like, which are arithmetic.
func (c *checker) comparison(n *syntax.BinaryTest) {
	if !slices.Contains(comparing, n.Op) {
		return
	}
	for _, x := range []syntax.TestExpr{n.X, n.Y} {
		if w, ok := x.(*syntax.Word); ok {
			c.operand(n, w)
		} else {
			c.refuse(n, "%q cannot be judged", c.text(n))
		}
	}
}

// asksName judges the operand of -v and -R, whose subscript is arithmetic.
func (c *checker) asksName(n *syntax.UnaryTest, x syntax.TestExpr) {
	w, ok := x.(*syntax.Word)
	if !ok || !plainName.MatchString(w.Lit()) {
		c.refuse(n, "%q: only a plain name is allowed", c.text(n))
	}
}

// --- assignments and expansions ------------------------------------------------

func (c *checker) assign(n *syntax.Assign) {
	if n.Name == nil {
		return // an option or a word of a declaration
	}
	name := n.Name.Value
	if n.Naked && n.Array == nil && n.Value == nil {
		if isGuarded(name) {
			c.refuse(n, "%s may not be set: by it the shell, the loader or a program finds other programs", name)
		}
		return
	}
	number := isNumeric(n.Value)
	if n.Array != nil {
		number = !slices.ContainsFunc(n.Array.Elems, func(e *syntax.ArrayElem) bool { return !isNumeric(e.Value) })
	}
	if n.Array != nil || n.Index != nil {
		c.vars.arrays[name] = true
	}
	c.set(n, name, number)
	c.index(n, n.Index)
}

// declarationFlags are the options that neither evaluate a value again (-i) nor
// set a variable by another's name (-n).
var declarationFlags = map[string]string{"export": "np", "readonly": "aAp", "declare": "aAfFglprux", "typeset": "aAfFglprux", "local": "aAglprux"}

// declaration checks the words of declare, export, local, readonly and typeset;
// plain assignments are also visited separately.
func (c *checker) declaration(n *syntax.DeclClause) {
	variant, array := n.Variant.Value, false
	for _, a := range n.Args {
		if a.Name != nil {
			if a.Value != nil {
				c.declaredValue(n, a, array)
			}
			continue
		}
		if a.Value == nil {
			continue
		}
		w := readWord(a.Value)
		option := len(w.text) > 1 && strings.Contains("-+", w.text[:1])
		switch {
		case w.literal && w.text == "--":
		case w.literal && option && strings.Trim(w.text[1:], declarationFlags[variant]) == "":
			array = array || strings.ContainsAny(w.text, "aA")
		case w.literal && option && strings.Contains(w.text, "n"):
			c.refuse(n, "%s %s: which variable is set through another's name is only known when it runs", variant, w.text)
		case w.literal && option:
			c.refuse(n, "%s %s: of its options only %s can be judged", variant, w.text, declarationFlags[variant])
		default:
			c.refuse(n, "%q: which variable is set is only known when it runs; write NAME=value, with quotes around the value only", c.text(a.Value))
		}
	}
}

// declaredValue refuses a value that a declaration may take for the elements of
// an array, (...), and expand again.
func (c *checker) declaredValue(n *syntax.DeclClause, a *syntax.Assign, array bool) {
	w := readWord(a.Value)
	if isNumeric(a.Value) || (w.text != "" && w.text[0] != '(') || (w.literal && w.text == "") {
		return
	}
	refuse := func() {
		c.refuse(n, "%q: the value of an array may be expanded again; assign it in a separate line", c.text(n))
	}
	if array || w.literal {
		refuse()
		return
	}
	c.later = append(c.later, func() {
		if c.vars.arrays[a.Name.Value] {
			refuse()
		}
	})
}

func (c *checker) expansion(n *syntax.ParamExp) {
	listing := n.Names != 0 // ${!prefix*}
	if w, ok := n.Index.(*syntax.Word); ok && n.Excl {
		listing = listing || w.Lit() == "@" || w.Lit() == "*" // ${!array[@]}
	}
	switch {
	case n.Param == nil || n.Flags != nil || n.NestedParam != nil || n.Width || n.IsSet || len(n.Modifiers) > 0:
		c.refuse(n, "%q cannot be judged", c.text(n))
		return
	case n.Excl && !listing:
		c.refuse(n, "%q: which variable is meant is only known when it runs", c.text(n))
	}
	c.index(n, n.Index)
	if n.Slice != nil {
		c.arithmetic(n, n.Slice.Offset)
		c.arithmetic(n, n.Slice.Length)
	}
	switch {
	case n.Exp == nil:
	case n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull:
		c.set(n, n.Param.Value, isNumeric(n.Exp.Word))
	case n.Exp.Op == syntax.OtherParamOps && !slices.Contains([]string{"Q", "U", "u", "L", "a"}, n.Exp.Word.Lit()):
		c.refuse(n, "${%s@%s} may run what its value holds", n.Param.Value, n.Exp.Word.Lit())
	}
}

// readEnv notes the initial values of a job's variables.
func (v variables) readEnv(env map[string]string, secrets []string) {
	for name, value := range env {
		if numberText.MatchString(value) {
			v.numbers[name] = true
		} else {
			v.texts[name] = true
		}
	}
	for _, name := range secrets {
		v.texts[name] = true
	}
}

func newVariables() variables {
	return variables{numbers: map[string]bool{}, texts: map[string]bool{}, arrays: map[string]bool{}}
}
