package policy

import (
	"path"
	"slices"
	"strings"

	"linus/internal/job"
)

// systemDirs contain programs, or what programs depend on.
var systemDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "boot", "dev", "proc", "sys", "run", "snap"}

// isSystem reports whether an absolute path is the root or in one of the system's directories.
func isSystem(file string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean(file), "/"), "/")
	return first == "" || slices.Contains(systemDirs, first)
}

// hasSpecial reports whether a path contains a name that shells or programs look for implicitly:
// dot-files and directories of programs.
func hasSpecial(file string) bool {
	return slices.ContainsFunc(strings.Split(path.Clean(file), "/"), func(name string) bool {
		return name == "bin" || name == "sbin" || (strings.HasPrefix(name, ".") && name != ".")
	})
}

// misplaced returns why a job may not put a file there, or "" if it may: below /tmp and the task's
// working directory cwd, which is "" if unknown.
func (p *Policy) misplaced(cwd, file string) string {
	clean := path.Clean(file)
	below := func(dir string) bool { return dir != "" && strings.HasPrefix(clean, path.Clean(dir)+"/") }
	switch {
	case path.IsAbs(clean) && isSystem(clean), p.isProgram(clean):
		return "is, or may be, a program or a setting of the system"
	case path.IsAbs(clean) && !below("/tmp") && !below(cwd):
		return "is neither below /tmp nor below the task's cwd"
	case hasSpecial(clean):
		return "contains a name that shells and programs look for by themselves: one that starts with a dot, or bin or sbin"
	}
	return ""
}

// CheckFile returns an error if a file may not be written in a VM, by the rules for a job's files.
// A tree has names that nobody has checked, and is not allowed at all.
func (p *Policy) CheckFile(file string, tree bool) error {
	if len(p.rules) == 0 {
		return nil
	}
	problem := p.misplaced("", file)
	if tree {
		problem = "would receive files under any name"
	}
	if problem == "" {
		return nil
	}
	return &job.FieldError{Field: "path", Problem: problem + ", and ALLOWED_COMMANDS is set", Remedy: "write single files below /tmp, or in the home of the VM's user, under a plain name"}
}

// isProgram reports whether a file may be the command of a rule that names it by path: writing the
// file would change what the rule allows.
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
