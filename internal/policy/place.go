package policy

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// systemDirs contain programs, or what programs depend on.
var systemDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "boot", "dev", "proc", "sys", "run", "snap"}

// isSystem reports whether an absolute path is the root or in one of the
// system's directories.
func isSystem(file string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean(file), "/"), "/")
	return first == "" || slices.Contains(systemDirs, first)
}

// hasSpecial reports whether a path contains a name that a shell or a program
// looks for of its own accord: dot-files and directories of programs.
func hasSpecial(file string) bool {
	return slices.ContainsFunc(strings.Split(path.Clean(file), "/"), func(name string) bool {
		return name == "bin" || name == "sbin" || (strings.HasPrefix(name, ".") && name != ".")
	})
}

// misplaced returns why a job may not put a file there, "" if it may: below
// /tmp and the task's working directory cwd, which is "" if unknown.
func (p *Policy) misplaced(cwd, file string) string {
	clean := path.Clean(file)
	below := func(dir string) bool { return dir != "" && strings.HasPrefix(clean, path.Clean(dir)+"/") }
	switch {
	case path.IsAbs(clean) && isSystem(clean), p.isProgram(clean):
		return "is, or may be, a program or a setting of the system"
	case path.IsAbs(clean) && !below("/tmp") && !below(cwd):
		return "is neither below /tmp nor below the task's cwd"
	case hasSpecial(clean):
		return "contains a name that shells and programs look for of their own accord: one that starts with a dot, or bin or sbin"
	}
	return ""
}

// CheckFile returns an error if a file may not be written in a VM: where a job may not put
// it either. A tree has names that nobody has read, and is not allowed at all.
func (p *Policy) CheckFile(file string, tree bool) error {
	if len(p.rules) == 0 {
		return nil
	}
	problem := p.misplaced("", file)
	if tree {
		problem = "gets files under any name"
	}
	if problem == "" {
		return nil
	}
	return &job.FieldError{Field: "path", Problem: problem + ", and ALLOWED_COMMANDS is set", Remedy: "write single files below /tmp, or in the home of the VM's user, under a plain name"}
}

// isProgram reports whether a file may be what a rule that names its command by
// path refers to: writing it would change what the rule allows.
func (p *Policy) isProgram(file string) bool {
	have := strings.Split(strings.TrimPrefix(path.Clean(file), "/"), "/")
	return slices.ContainsFunc(p.rules, func(r rule) bool {
		if !strings.Contains(r.words[0], "/") {
			return false
		}
		want := strings.TrimPrefix(path.Clean(r.words[0]), "/")
		n := 1 + strings.Count(want, "/")
		if n > len(have) {
			return false
		}
		ok, err := path.Match(want, strings.Join(have[len(have)-n:], "/"))
		return err == nil && ok
	})
}

// --- what a script writes --------------------------------------------------------

var writing = []syntax.RedirOperator{
	syntax.RdrOut, syntax.AppOut, syntax.RdrInOut, syntax.DplOut, syntax.RdrClob, syntax.RdrAll, syntax.AppAll,
}

var (
	descriptor    = lazyregexp.New(`^[0-9]+-?$|^-$`)
	descriptorVar = lazyregexp.New(`^\{([A-Za-z_][A-Za-z0-9_]*)\}$`)
	plainPath     = lazyregexp.New(`^[A-Za-z0-9_./+][A-Za-z0-9_./+-]*$`)
	device        = lazyregexp.New(`^/dev/(null|zero|full|tty|stdout|stderr|fd/[0-9]+)$`)
)

func (c *checker) redirect(n *syntax.Redirect) {
	if n.N != nil && !descriptor.MatchString(n.N.Value) {
		if m := descriptorVar.FindStringSubmatch(n.N.Value); m != nil {
			c.set(n, m[1], true)
		} else {
			c.refuse(n, "%q cannot be judged", c.text(n))
		}
	}
	// Bash reads >&-x as >&- and a command x, the parser as a file -x.
	if raw := c.text(n.Word); (n.Op == syntax.DplOut || n.Op == syntax.DplIn) && raw != "-" && strings.HasPrefix(raw, "-") {
		c.refuse(n, "%q: put a blank after the dash", c.text(n))
	}
	w := readWord(n.Word)
	if n.Op == syntax.DplOut || n.Op == syntax.DplIn {
		switch {
		case w.literal && descriptor.MatchString(w.text):
			return
		case isCount(w.param):
			return
		case plainName.MatchString(w.param):
			c.needNumber(n, w.param)
			return
		case n.Op == syntax.DplIn || !plainPath.MatchString(c.text(n.Word)):
			// Here bash also expands quoted parts of a file's name twice.
			c.refuse(n, "%q: only a descriptor, or the name of a file without quotes, is allowed there; for a file write >FILE 2>&1", c.text(n))
			return
		}
	}
	if !slices.Contains(writing, n.Op) {
		return
	}
	_, toProgram := n.Word.Parts[0].(*syntax.ProcSubst)
	switch {
	case toProgram && len(n.Word.Parts) == 1:
	case !w.literal:
		c.refuse(n, "%q: what is written is only known when it runs; write to a file named literally", c.text(n))
	case device.MatchString(w.text):
	case c.policy.misplaced(c.cwd, w.text) != "":
		c.refuse(n, "%s may not be written: it %s", shorten(w.text), c.policy.misplaced(c.cwd, w.text))
	case !path.IsAbs(w.text):
		c.later = append(c.later, func() {
			if c.wandered {
				c.refuse(n, "%s may not be written: because of cd it may be a program; give cd a directory that is named literally and has no programs, or write below /tmp", shorten(w.text))
			}
		})
	}
}

// changesDir notes whether relative paths still mean files that may be written.
func (f *findings) changesDir(words []word) {
	for _, w := range words {
		if w.literal && strings.HasPrefix(w.text, "-") && w.text != "-" {
			continue // an option
		}
		if !w.literal || w.text == "-" || hasSpecial(w.text) || (path.IsAbs(w.text) && isSystem(w.text)) {
			f.wandered = true
		}
	}
}
