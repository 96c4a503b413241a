// Package policy decides what a client may ask for: which commands (ALLOWED_COMMANDS) and how much at
// the same time (LIMIT_*). It reads manifests and knows nothing of VMs, stores or the tools that submit.
//
// The command policy guards against the mistakes of an agent. It is not the boundary against an
// attacker: that is the VM. It reads literal commands (words without expansions, in pipes and
// lists), and refuses any other shell syntax with an explanation. It does not see
//
//   - what an allowed program does: make, npm, find -exec, git -c, python, env, sudo, xargs
//     run whatever they are told to, by arguments, files or input;
//   - the contents of a file that an allowed command runs. It only limits where a job may put
//     files: below /tmp and the task's working directory, under names that no program runs
//     implicitly.
package policy

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"

	"linus/internal/job"
)

// Policy is a list of rules.
type Policy struct{ rules []rule }

// New reads rules as in ALLOWED_COMMANDS, separated by commas or newlines. A rule is words: the
// command's name and, if given, its arguments.
//
//	git           git, whatever its arguments
//	npm test      npm test, and nothing after it
//	go test *     go test, whatever comes after it
//	/usr/bin/make make, called by this path
//	python3*      a * or ? within a word is for characters other than /
//
// Names are compared as written: git is not /usr/bin/git. Empty text allows everything. Errors are
// *job.FieldError, named after the setting.
func New(rules string) (*Policy, error) {
	p := &Policy{}
	if rules == "" {
		return p, nil
	}
	for _, text := range split(rules) {
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

// setting returns the error of New and NewBounds for a setting's value.
func setting(name, problem, value, remedy string) error {
	return &job.FieldError{Field: name, Problem: fmt.Sprintf(problem, value), Remedy: remedy}
}

// Check checks whether a job with this manifest may run. It returns nil, or a *job.InvalidError with
// every command that no rule allows. It reads the task or the agent's command of a valid manifest,
// and everything that could change which program a command's name means: env, secrets and files.
func (p *Policy) Check(m job.Manifest) error {
	if len(p.rules) == 0 {
		return nil
	}
	found := &findings{policy: p}
	agent, known := m.AgentType.Agent()
	if words := []string{agent.Name, "--print", "TASK"}; known && !p.allows(words) {
		found.add("manifest.agentType", agent.Name+" is not allowed: "+p.reason(words), p.remedy())
	}
	switch {
	case m.Agent.Command != "":
		found.field = "manifest.agent.command"
		found.script(m.Agent.Command)
	case !known:
		found.field = "manifest.task"
		found.script(m.Task)
	}
	p.checkRest(found, m)
	if len(found.list) > 0 {
		return &job.InvalidError{Fields: found.list}
	}
	return nil
}

// checkRest checks what could change which program a command's name means.
func (p *Policy) checkRest(found *findings, m job.Manifest) {
	const variable = "is a variable by which the shell, the loader or a program finds other programs, and ALLOWED_COMMANDS is set"
	for _, name := range slices.Sorted(maps.Keys(m.Env)) {
		if isGuarded(name) {
			found.add("manifest.env."+name, variable, "leave it out")
		}
	}
	for i, name := range m.Secrets {
		if isGuarded(name) {
			found.add(fmt.Sprintf("manifest.secrets[%d]", i), variable, "give the secret another name")
		}
	}
	if m.Cwd != "" && (isSystem(m.Cwd) || hasSpecial(m.Cwd)) {
		found.add("manifest.cwd", "may contain programs, or what programs depend on, and ALLOWED_COMMANDS is set", "use another directory")
	}
	if r := m.Repository; r.Given() {
		at := cmp.Or(r.Path, path.Join("/tmp", r.Name()))
		if problem := p.misplaced(m.Cwd, path.Join(at, "file")); problem != "" {
			found.add("manifest.repository.path", problem+", and ALLOWED_COMMANDS is set", "choose a directory below /tmp, under a plain name")
		}
	}
	for i, f := range m.Files {
		if problem := p.misplaced(m.Cwd, f.Path); problem != "" {
			found.add(fmt.Sprintf("manifest.files[%d].path", i), problem+", and ALLOWED_COMMANDS is set", "put the file below /tmp or the task's cwd, under a plain name")
		}
	}
}

// maxFindings bounds the problems that one error lists.
const maxFindings = 10

// findings collects the problems of one manifest.
type findings struct {
	policy *Policy
	field  string // the field that the script comes from
	list   []*job.FieldError
}

func (f *findings) add(field, problem, remedy string) {
	e := job.FieldError{Field: field, Problem: problem, Remedy: remedy}
	if len(f.list) < maxFindings && !slices.ContainsFunc(f.list, func(other *job.FieldError) bool { return *other == e }) {
		f.list = append(f.list, &e)
	}
}
