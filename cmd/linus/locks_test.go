package main_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// Who calls another package with a mutex held waits for what that waits for, and hangs for good
// if it is called back. So none is held across such a call: not across one of an interface of
// ours or of a function that is a value, nor of a function of another package that does so or
// takes a mutex itself. The packages are those of the engine's own work, which call each other.
func TestMutexes_AreHeldAcrossNoCallOfAnotherPackage(t *testing.T) {
	t.Chdir("../..")
	for _, f := range newLocks(t, "internal/executor", "internal/fleet", "internal/job", "internal/lock", "internal/patience").find() {
		t.Error(f)
	}
}

// The test finds what it is to find.
func TestMutexes_PlantedCallsAreFound(t *testing.T) {
	t.Chdir("../..")
	l := newLocks(t, "testdata/locks")
	found := l.find()
	want := map[string]bool{}
	for _, p := range l.pkgs {
		for _, file := range p.Syntax {
			for _, group := range file.Comments {
				for _, c := range group.List {
					if what, is := strings.CutPrefix(c.Text, "// held: "); is {
						at := p.Fset.Position(c.Pos())
						want[fmt.Sprintf("%d: %s", at.Line, what)] = true
					}
				}
			}
		}
	}
	got := map[string]bool{}
	for _, f := range found {
		_, at, _ := strings.Cut(f, ".go:")
		got[at] = true
	}
	if len(want) < 8 || !maps.Equal(got, want) {
		t.Errorf("found %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}

// locks finds calls with a mutex held.
type locks struct {
	pkgs  []*packages.Package
	funcs map[string]*function // by full name
	found map[string]bool
}

// function is a function of ours, and what calling it comes to, once that is known.
type function struct {
	pkg     *packages.Package
	body    *ast.BlockStmt
	known   bool
	outside string // a call that leaves its package; empty: there is none
	takes   bool   // it takes a mutex, or one that it calls does
}

// engineRoom is what the packages that are looked at import of ours.
var engineRoom = []string{"internal/agent", "internal/capture", "internal/executor", "internal/fleet", "internal/job", "internal/lazyregexp", "internal/lock", "internal/patience", "internal/secret", "internal/term", "internal/vm"}

// newLocks looks at packages. The functions of engineRoom are known, too.
func newLocks(t *testing.T, looked ...string) *locks {
	t.Helper()
	var patterns []string
	for _, path := range slices.Concat(engineRoom, looked) {
		patterns = append(patterns, "./"+path)
	}
	pkgs, err := packages.Load(&packages.Config{Mode: packages.NeedName | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedExportFile}, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	l := &locks{funcs: map[string]*function{}, found: map[string]bool{}}
	for _, p := range pkgs {
		for _, err := range p.Errors {
			t.Fatal(err)
		}
		if slices.Contains(looked, strings.TrimPrefix(p.PkgPath, module)) {
			l.pkgs = append(l.pkgs, p)
		}
		for _, file := range p.Syntax {
			for _, d := range file.Decls {
				if d, is := d.(*ast.FuncDecl); is && d.Body != nil {
					l.funcs[p.TypesInfo.Defs[d.Name].(*types.Func).FullName()] = &function{pkg: p, body: d.Body}
				}
			}
		}
	}
	return l
}

func ours(path string) bool { return strings.HasPrefix(path, module) }

func (l *locks) find() []string {
	for _, f := range l.funcs {
		if slices.Contains(l.pkgs, f.pkg) {
			w := &walk{l: l, pkg: f.pkg, local: map[types.Object]*ast.FuncLit{}}
			w.block(f.body.List, held{})
		}
	}
	return slices.Sorted(maps.Keys(l.found))
}

// held are the mutexes that are held at a point, as they are written.
type held map[string]bool

// walk goes through a function in the order in which it runs.
type walk struct {
	l     *locks
	pkg   *packages.Package
	local map[types.Object]*ast.FuncLit // functions that are a variable of this one

	sum *function // what it comes to is noted there, whatever is held; nil: what is held counts
}

// block returns what is held after statements, and whether the next one is reached.
func (w *walk) block(list []ast.Stmt, h held) (held, bool) {
	for _, s := range list {
		var ends bool
		if h, ends = w.stmt(s, h); ends {
			return h, true
		}
	}
	return h, false
}

func (w *walk) stmt(s ast.Stmt, h held) (after held, ends bool) {
	switch s := s.(type) {
	case *ast.BlockStmt:
		return w.block(s.List, h)
	case *ast.LabeledStmt:
		return w.stmt(s.Stmt, h)
	case *ast.ReturnStmt:
		w.exprs(s, h)
		return h, true
	case *ast.BranchStmt:
		return h, true
	case *ast.GoStmt:
		w.later(s.Call, h)
	case *ast.DeferStmt:
		if name, _ := w.mutex(s.Call); name == "" { // which is released at the end, if it is the mutex's
			w.call(s.Call, h)
		}
	case *ast.IfStmt:
		if s.Init != nil {
			h, _ = w.stmt(s.Init, h)
		}
		w.exprs(s.Cond, h)
		then, thenEnds := w.block(s.Body.List, maps.Clone(h))
		other, otherEnds := h, false
		if s.Else != nil {
			other, otherEnds = w.stmt(s.Else, maps.Clone(h))
		}
		return join(branch{then, thenEnds}, branch{other, otherEnds})
	case *ast.ForStmt:
		if s.Init != nil {
			h, _ = w.stmt(s.Init, h)
		}
		if s.Cond != nil {
			w.exprs(s.Cond, h)
		}
		body, _ := w.block(s.Body.List, maps.Clone(h))
		if s.Post != nil {
			body, _ = w.stmt(s.Post, body)
		}
		return join(branch{h, false}, branch{body, false})
	case *ast.RangeStmt:
		w.exprs(s.X, h)
		body, _ := w.block(s.Body.List, maps.Clone(h))
		return join(branch{h, false}, branch{body, false})
	case *ast.SwitchStmt:
		if s.Init != nil {
			h, _ = w.stmt(s.Init, h)
		}
		if s.Tag != nil {
			w.exprs(s.Tag, h)
		}
		return w.clauses(s.Body.List, h)
	case *ast.TypeSwitchStmt:
		w.exprs(s.Assign, h)
		return w.clauses(s.Body.List, h)
	case *ast.SelectStmt:
		return w.clauses(s.Body.List, h)
	default:
		return w.exprs(s, h), false
	}
	return h, false
}

func (w *walk) clauses(list []ast.Stmt, h held) (held, bool) {
	all, every := []branch{}, false
	for _, c := range list {
		mine := maps.Clone(h)
		var body []ast.Stmt
		switch c := c.(type) {
		case *ast.CaseClause:
			for _, e := range c.List {
				w.exprs(e, mine)
			}
			body, every = c.Body, every || c.List == nil
		case *ast.CommClause:
			if c.Comm != nil {
				w.exprs(c.Comm, mine)
			}
			body, every = c.Body, true
		}
		after, ends := w.block(body, mine)
		if n := len(body); n > 0 {
			if b, is := body[n-1].(*ast.BranchStmt); is && b.Tok == token.BREAK {
				ends = false
			}
		}
		all = append(all, branch{after, ends})
	}
	if !every {
		all = append(all, branch{h, false})
	}
	return join(all...)
}

type branch struct {
	held held
	ends bool
}

// join is what may be held after one of several ways.
func join(ways ...branch) (after held, ends bool) {
	after, ends = held{}, true
	for _, way := range ways {
		if !way.ends {
			maps.Copy(after, way.held)
			ends = false
		}
	}
	return after, ends
}

// exprs goes through the calls of a statement or an expression, and returns what is held then.
func (w *walk) exprs(n ast.Node, h held) held {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, e := range n.Rhs {
				if lit, is := e.(*ast.FuncLit); is && i < len(n.Lhs) {
					if id, is := n.Lhs[i].(*ast.Ident); is {
						w.local[w.pkg.TypesInfo.ObjectOf(id)] = lit
					}
				}
			}
		case *ast.FuncLit: // called later, by whoever has it
			if w.sum == nil {
				w.block(n.Body.List, held{})
			}
			return false
		case *ast.CallExpr:
			name, takes := w.mutex(n)
			switch {
			case name != "" && takes:
				h = maps.Clone(h)
				h[name] = true
				if w.sum != nil {
					w.sum.takes = true
				}
			case name != "":
				h = maps.Clone(h)
				delete(h, name)
			default:
				w.call(n, h)
			}
			return false
		}
		return true
	})
	return h
}

// mutex returns the mutex that a call takes or else releases; empty: it does neither.
func (w *walk) mutex(c *ast.CallExpr) (name string, takes bool) {
	sel, is := c.Fun.(*ast.SelectorExpr)
	if !is {
		return "", false
	}
	f, is := w.pkg.TypesInfo.Uses[sel.Sel].(*types.Func)
	if !is {
		return "", false
	}
	switch f.FullName() {
	case "(*sync.Mutex).Lock", "(*sync.RWMutex).Lock", "(*sync.RWMutex).RLock", "(*sync.Mutex).TryLock", "(*sync.RWMutex).TryLock":
		return types.ExprString(sel.X), true
	case "(*sync.Mutex).Unlock", "(*sync.RWMutex).Unlock", "(*sync.RWMutex).RUnlock":
		return types.ExprString(sel.X), false
	}
	return "", false
}

// laters take a function that they do not call, or not here.
var laters = []string{"(*sync.WaitGroup).Go", "time.AfterFunc", "context.AfterFunc", "sync.OnceFunc", "sync.OnceValue", "sync.OnceValues", "(*linus/internal/fleet.Fleet).Spawn"}

// later goes through a call that is made by another goroutine.
func (w *walk) later(c *ast.CallExpr, h held) {
	for _, a := range c.Args {
		w.exprs(a, h)
	}
	if lit, is := c.Fun.(*ast.FuncLit); is {
		w.exprs(lit, h)
	}
}

// call goes through a call and its arguments.
func (w *walk) call(c *ast.CallExpr, h held) {
	info := w.pkg.TypesInfo
	fun := ast.Unparen(c.Fun)
	if index, is := fun.(*ast.IndexExpr); is {
		fun = index.X
	}
	var obj types.Object
	switch f := fun.(type) {
	case *ast.Ident:
		obj = info.Uses[f]
	case *ast.SelectorExpr:
		obj = info.Uses[f.Sel]
		w.exprs(f.X, h)
	case *ast.FuncLit:
		w.block(f.Body.List, maps.Clone(h))
	default:
		w.exprs(fun, h)
	}
	static, _ := obj.(*types.Func)
	for _, a := range c.Args {
		lit, is := a.(*ast.FuncLit)
		switch {
		case is && static != nil && slices.Contains(laters, static.FullName()):
			w.exprs(lit, h)
		case is: // which may be called at once
			w.block(lit.Body.List, maps.Clone(h))
		default:
			w.exprs(a, h)
		}
	}
	switch {
	case static != nil:
		w.function(c, static.Origin(), h)
	case obj == nil || info.Types[c.Fun].IsType() || info.Types[c.Fun].IsBuiltin():
	case w.local[obj] != nil:
		lit := w.local[obj]
		delete(w.local, obj) // it may call itself
		w.block(lit.Body.List, maps.Clone(h))
		w.local[obj] = lit
	case strings.HasPrefix(types.TypeString(obj.Type(), nil), "context.Cancel"): // which calls nobody
	default:
		w.leaves(c, types.ExprString(c.Fun), h)
	}
}

// function goes through a call of a function or a method that is known by name.
func (w *walk) function(c *ast.CallExpr, f *types.Func, h held) {
	name := types.ExprString(c.Fun)
	if recv := f.Signature().Recv(); recv != nil && types.IsInterface(recv.Type()) {
		if f.Pkg() != nil && ours(f.Pkg().Path()) {
			w.leaves(c, name, h)
		}
		return
	}
	called := w.l.funcs[f.FullName()]
	if called == nil {
		if f.Pkg() != nil && ours(f.Pkg().Path()) {
			w.leaves(c, name, h)
		}
		return
	}
	w.l.sum(called)
	foreign := called.pkg != w.pkg
	switch {
	case foreign && (called.outside != "" || called.takes):
		w.leaves(c, name, h)
	case !foreign && called.outside != "":
		w.leaves(c, name+" -> "+called.outside, h)
	}
	if w.sum != nil && called.takes && !foreign {
		w.sum.takes = true
	}
}

// sum finds out what calling a function comes to.
func (l *locks) sum(f *function) {
	if f.known {
		return
	}
	f.known = true // what calls itself comes to no more by that
	(&walk{l: l, pkg: f.pkg, local: map[types.Object]*ast.FuncLit{}, sum: f}).block(f.body.List, held{})
}

// leaves notes a call that leaves the package.
func (w *walk) leaves(c *ast.CallExpr, name string, h held) {
	switch {
	case w.sum != nil && w.sum.outside == "":
		w.sum.outside = name
	case w.sum == nil && len(h) > 0:
		at := w.pkg.Fset.Position(c.Pos())
		w.l.found[fmt.Sprintf("%s/%s:%d: %s holds %s", w.pkg.Name, filepath.Base(at.Filename), at.Line, name, strings.Join(slices.Sorted(maps.Keys(h)), ", "))] = true
	}
}
