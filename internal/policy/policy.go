// Package policy decides what a client may ask for: which commands
// (ALLOWED_COMMANDS) and how much at the same time (LIMIT_*). It reads
// manifests and knows nothing of VMs, stores or the tools that submit.
//
// The command policy guards against the mistakes of an agent. It is not the
// boundary that holds an attacker: that is the VM. It sees the shell script as
// the shell will read it, with every command in pipes, lists, subshells,
// substitutions, functions, conditions and here-documents, looks through
// programs that run others (env, sudo, timeout, xargs, bash -c, ...), and
// refuses what it cannot judge: a command whose name is computed, eval of
// computed text, a PATH set anew. It does not see
//
//   - what an allowed program does: make, npm, find -exec, git -c, python run
//     whatever they are told to, by arguments, files or input (find -exec is
//     seen);
//   - what a file holds that an allowed command runs, but for where a file may
//     be put: below /tmp and the task's working directory, under names that
//     nobody runs without being told to.
//
// Of the shell's language what is not known to be harmless is refused. Bash
// evaluates many a text once more where few expect it, as the subscript in
// test -v 'a[$(reboot)]', or the value of a variable in arithmetic.
package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"linus/internal/job"
)

// Policy is a list of rules.
type Policy struct{ rules []rule }

// New reads rules as ALLOWED_COMMANDS has them, separated by commas or
// newlines. A rule is words: the command's name and, if given, its arguments.
//
//	git           git, whatever its arguments
//	npm test      npm test, and nothing after it
//	go test *     go test, whatever comes after it
//	/usr/bin/make make, called by this path
//	python3*      a * or ? within a word is for characters other than /
//
// Names are compared as they are written: git is not /usr/bin/git. Empty text
// allows everything. Errors are *job.FieldError, of the setting's name.
func New(rules string) (*Policy, error) {
	p := &Policy{}
	if rules == "" {
		return p, nil
	}
	for text := range strings.FieldsFuncSeq(rules, func(r rune) bool { return r == ',' || r == '\n' }) {
		if strings.TrimSpace(text) == "" {
			continue
		}
		r, err := parseRule(text)
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, r)
	}
	if len(p.rules) == 0 {
		return nil, setting("ALLOWED_COMMANDS", "%q has no rule", rules, "give commands separated by commas, or unset it to allow all")
	}
	return p, nil
}

// setting is what is wrong with a setting's value: the error of New and NewBounds.
func setting(name, problem, value, remedy string) error {
	return &job.FieldError{Field: name, Problem: fmt.Sprintf(problem, value), Remedy: remedy}
}

// Check says whether a job with this manifest may run; nil, or a
// *job.InvalidError with every command that no rule allows. Of the manifest,
// which is valid, it reads the task or the agent's command, and what could
// change which program a command's name means: env, secrets and files.
func (p *Policy) Check(m job.Manifest) error {
	if len(p.rules) == 0 {
		return nil
	}
	found := &findings{policy: p, cwd: m.Cwd, vars: newVariables()}
	found.vars.readEnv(m.Env, m.Secrets)
	switch {
	case m.AgentType == job.AgentClaude:
		if words := []word{literal("claude"), literal("--print"), {single: true}}; !p.allows(words) {
			found.add("manifest.agentType", "claude is not allowed: "+p.reason(words), p.remedy())
		}
	case m.Agent.Command != "":
		found.field = "manifest.agent.command"
		found.script(m.Agent.Command)
	default:
		found.field = "manifest.task"
		found.script(m.Task)
	}
	for _, check := range found.later {
		check()
	}
	p.checkRest(found, m)
	if len(found.list) > 0 {
		return &job.InvalidError{Fields: found.list}
	}
	return nil
}

// checkRest looks at what could change which program a command's name means.
func (p *Policy) checkRest(found *findings, m job.Manifest) {
	const variable = "is a variable the shell, the loader or a program finds other programs by, and ALLOWED_COMMANDS is set"
	guarded := func(name string) bool {
		return isGuarded(name) || slices.Contains(countingNames, name) || slices.Contains(ownNames, name)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Env)) {
		if guarded(name) {
			found.add("manifest.env."+name, variable, "leave it out")
		}
	}
	for i, name := range m.Secrets {
		if guarded(name) {
			found.add(fmt.Sprintf("manifest.secrets[%d]", i), variable, "give the secret another name")
		}
	}
	if m.Cwd != "" && (isSystem(m.Cwd) || hasSpecial(m.Cwd)) {
		found.add("manifest.cwd", "may hold programs, or what programs go by, and ALLOWED_COMMANDS is set", "use another directory")
	}
	for i, f := range m.Files {
		if problem := p.misplaced(m.Cwd, f.Path); problem != "" {
			found.add(fmt.Sprintf("manifest.files[%d].path", i), problem+", and ALLOWED_COMMANDS is set", "put the file below /tmp or the task's cwd, under a plain name")
		}
	}
}

// maxFindings is how many complaints one answer has.
const maxFindings = 10

// findings gathers what is wrong with one manifest.
type findings struct {
	policy *Policy
	field  string // the field a script comes from
	list   []*job.FieldError

	cwd      string // of the task; "" for its user's home
	vars     variables
	wandered bool     // cd may lead to where programs are
	later    []func() // checks that ask what is found everywhere
}

func (f *findings) add(field, problem, remedy string) {
	e := job.FieldError{Field: field, Problem: problem, Remedy: remedy}
	if len(f.list) < maxFindings && !slices.ContainsFunc(f.list, func(other *job.FieldError) bool { return *other == e }) {
		f.list = append(f.list, &e)
	}
}
