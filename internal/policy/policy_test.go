package policy_test

import (
	"errors"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/policy"
)

const rules = "git, npm test, go *, docker compose up *, /usr/bin/make\npython3*, ./run-tests.sh, git-*, systemctl * nginx"

func mustNew(t testing.TB, rules string) *policy.Policy {
	t.Helper()
	p, err := policy.New(rules)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func task(text string) job.Manifest {
	return job.Manifest{AgentType: job.AgentScript, Task: text}
}

func TestCheck_AllowsWhatRulesAndTheShellItselfCover(t *testing.T) {
	p := mustNew(t, rules)
	for _, text := range []string{
		"", "# only $(words", "git", "git status", "git status; git log | git apply && git push || git pull & wait", "git log |& git apply",
		"npm test", "npm 'test'", `n""pm te\st`, "npm \\\n  test", "npm te\\\nst", "go", "go build ./...", "docker compose up", "docker compose up -d", "/usr/bin/make all",
		"python3 x.py", "python3.12 -c 'import os'", "./run-tests.sh", "git-lfs pull", "systemctl restart nginx",
		"set -euo pipefail\nset -x\ncd /srv\n\ngit pull # $(comment)\ngo test ./...\n", "set -e -o pipefail; pwd; true; false; :; exit 1", "[ -f go.mod ] && test ! -d x || git log",
		"git log 2>&1 | git apply", "git log >/dev/null 2>&1", "git log &>/dev/null; git log > /dev/null", "git log </dev/null;git log 2>>/dev/null",
		"git show HEAD~1 --pretty=%h x@y a#b", `git commit -m "it's \$5 \"now\"; rm x" -m 'rm $(x)'`, "git commit -m 'two\nlines'\ngit log", "git log '*.go' \\*.md x\\ y", "echo a; echo 'rm x'",
		"\tgit\tstatus\t-s", "[\t-f x ]; [", `git commit -m "a\b"`, "npm \"te\\\nst\"",
	} {
		if err := p.Check(task(text)); err != nil {
			t.Errorf("%q is refused: %v", text, err)
		}
	}
}

func TestCheck_RefusesWhatNoRuleCovers(t *testing.T) {
	p := mustNew(t, rules)
	tests := []struct{ name, text, want string }{
		{"another command", "rm -rf /", `line 1: "rm -rf /" is not allowed: no rule of ALLOWED_COMMANDS matches rm; allowed are: git, npm test, go *,`},
		{"another argument", "npm install", `"npm install" is not allowed: for npm, ALLOWED_COMMANDS allows only: npm test`},
		{"one argument more", "npm test --all", "allows only: npm test"},
		{"one argument less", "docker compose", "allows only: docker compose up *"},
		{"line", "git log\n\nrm x", "line 3"},
		{"line behind a quote of several", "git log 'a\nb\n' \\\n  c\nrm x", `line 5: "rm x"`},
		{"by path", "/tmp/git log", `"/tmp/git log"`},
		{"by name what is allowed by path", "make all", `"make all"`},
		{"path below a pattern", "python3/x", "python3/x"},
		{"behind ;", "git log; rm x", `"rm x"`},
		{"behind newline", "git log\nrm x", `"rm x"`},
		{"behind &&", "git log && rm x", `"rm x"`},
		{"behind ||", "git log || rm x", `"rm x"`},
		{"behind &", "git log&rm x", `"rm x"`},
		{"in a pipe", "git log | rm x", `"rm x"`},
		{"in |&", "git log |& rm x", `"rm x"`},
		{"behind a redirection", "git log >/dev/null; 2>&1 rm x", `"rm x"`},
		{"behind a comment", "git log # x \\\nrm x", `line 2: "rm x"`},
		{"quoted name", `"rm" x`, `matches rm`},
		{"split name", `r''m x`, `matches rm`},
		{"escaped name", `\rm x`, `matches rm`},
		{"continued name", "r\\\nm x", `matches rm`},
		{"a program that runs another", "timeout 5 git log", "matches timeout"},
		{"a shell", "bash -c 'git log'", "matches bash"},
		{"subshell", "(git log)", "line 1: a parenthesis cannot be judged: with ALLOWED_COMMANDS a script may contain only literal commands; write commands whose words are literal"},
		{"group", "{ git log; }", "a brace cannot be judged"},
		{"negated", "! git log", "! cannot be judged"},
		{"timed", "time git log", "time cannot be judged"},
		{"condition", "git log\nif git log; then :; fi", "line 2: if cannot be judged"},
		{"loop", "while git log; do :; done", "while cannot be judged"},
		{"function", "function f\n{ git log; }", "function cannot be judged"},
		{"declared function", "git() { :; }", "a parenthesis cannot be judged"},
		{"expansion", "git log $x", "line 1: an expansion ($) cannot be judged"},
		{"expansion in quotes", `git log "a $x"`, "an expansion ($) cannot be judged"},
		{"substitution", "git log `git`", "a substitution (`) cannot be judged"},
		{"substitution in quotes", "git log \"`git`\"", "a substitution (`) cannot be judged"},
		{"ANSI-C quotes", `git $'\x72m'`, "an expansion ($)"},
		{"pattern", "git add *.go", "a pattern (*) cannot be judged"},
		{"pattern of one character", "git add ?", "a pattern (?)"},
		{"pattern of a set", "git add [ab]", "a pattern ([)"},
		{"double bracket", "[[ -n x ]]", "a pattern ([)"},
		{"braces", "git {add,rm} x", "a brace"},
		{"home", "git -C ~/x log", "a home directory (~)"},
		{"home in an option", "git --git-dir=~/x log", "a home directory (~)"},
		{"backslash in double quotes", `npm "te\st"`, "allows only: npm test"},
		{"pattern at a word's end", "git add a[ b", "a pattern ([)"},
		{"home behind a colon", "git log x:~/y", "a home directory (~)"},
		{"redirection to a file", "git log >out.txt", "a redirection other than 2>&1 and those to /dev/null"},
		{"redirection to what begins alike", "git log >/dev/nullx", "a redirection"},
		{"redirection from a file", "git apply < x", "a redirection"},
		{"redirection within a word", "git log>out.txt", "a redirection"},
		{"descriptor", "git log 3>&1", "a redirection"},
		{"closed descriptor", "git log >&-rm x", "a redirection"},
		{"here-document", "git apply <<E\nrm\nE", "a redirection"},
		{"assignment", "x=1", `"x=1" may set a variable; use the manifest's env`},
		{"assignment before a command", "PATH=/tmp git log", "may set a variable"},
		{"eval", "eval 'git log'", "eval can run what its words say, or change what commands mean, so it needs a rule with all of its words"},
		{"trap", "trap 'git log' EXIT", "trap can run"},
		{"export", "export PATH=/tmp", "export can run"},
		{"unusual options", "set -k", "set can run"},
		{"parameters", "set -- x", "set can run"},
		{"test of a subscript", "test -v 'a[$(rm)]'", "test can run"},
		{"brackets of a subscript", "[ -v 'a[$(rm)]' ]", "[ can run"},
		{"wait that sets", "wait -p PATH", "wait can run"},
		{"half a script", "git log\necho 'x", "line 2: a quote that is not closed cannot be judged"},
		{"half a script in double quotes", "git log\necho \"x", "line 2: a quote that is not closed"},
		{"backslash at the end", "git log \\", "a backslash at the end"},
		{"carriage return", "git log \\\r\nrm x", "line 1: has the control character 0x0d"},
		{"escape character", "git log\n\x1b", "line 2: has the control character 0x1b"},
		{"delete character", "git \x7f", "the control character 0x7f"},
		{"backslash at the end of double quotes", `git log "a\`, "a quote that is not closed"},
		{"not UTF-8", "git \xff", "UTF-8"},
		{"too long", strings.Repeat("git log\n", 40000), "a script may have 262144"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := p.Check(task(tt.text))
			var refused *job.InvalidError
			if !errors.As(err, &refused) {
				t.Fatalf("Check(%q) = %v, want *job.InvalidError", tt.text, err)
			}
			if refused.Fields[0].Field != "manifest.task" || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
		})
	}
}

func TestCheck_RulesMayNameWhatIsNotLookedThrough(t *testing.T) {
	for rule, text := range map[string]string{
		"bash":                       "bash x.sh",
		"sudo systemctl restart *":   "sudo systemctl restart nginx",
		"source .venv/bin/activate":  "source .venv/bin/activate",
		"env":                        "env",
		"*":                          "rm -rf x",
		"/opt/tools/*":               "/opt/tools/build now",
		"[0-9]*":                     "7z x",
		"git log,,\n  \n git status": "git log; git status",
	} {
		if err := mustNew(t, rule).Check(task(text)); err != nil {
			t.Errorf("rule %q, %q: %v", rule, text, err)
		}
	}
}

// A rule that allows a builtin with any words would allow what those words run.
func TestCheck_BuiltinsThatEvaluateNeedARuleWithAllOfTheirWords(t *testing.T) {
	open := mustNew(t, "git, printf, printf *, test *, read *, set *, export, declare *, e*, *")
	for _, text := range []string{
		`printf -v 'a[$(evil)]' x`, "printf -v PATH /tmp", "printf %n PATH", `test -v 'a[$(evil)]'`, `[ -v 'a[$(evil)]' ]`, `read 'a[$(evil)]'`, "read", "set -k", "export PATH=/tmp",
		"declare -n x=PATH", "eval evil", "exec evil", "enable -n git", ". x", "source x y", "jobs -x evil",
	} {
		if err := open.Check(task(text)); err == nil || !strings.Contains(err.Error(), "so it needs a rule with all of its words") {
			t.Errorf("%s: %v", text, err)
		}
	}
	exact := mustNew(t, "export CI=1, source .venv/bin/activate, set -a")
	if err := exact.Check(task("export CI=1; source .venv/bin/activate; set -a")); err != nil {
		t.Error(err)
	}
	if exact.Check(task("export CI=1 PATH=/tmp")) == nil {
		t.Error("more words than the rule has are allowed")
	}
}

func TestCheck_SaysEverythingAtOnce(t *testing.T) {
	err := mustNew(t, "git").Check(task("rm x\ngit log\nmv y z\nrm x\n" + strings.Repeat("rm x; ", 10)))
	var refused *job.InvalidError
	if !errors.As(err, &refused) || len(refused.Fields) != 4 {
		t.Fatalf("Check() = %v, want lines 1, 3, 4 and 5", err)
	}
	if err := mustNew(t, "git").Check(task(strings.Repeat("rm x\n", 40))); !errors.As(err, &refused) || len(refused.Fields) != 10 {
		t.Errorf("Check() = %v, want ten", err)
	}
}

func TestCheck_LooksAtAllOfTheManifest(t *testing.T) {
	p := mustNew(t, "git, ./run.sh")
	claude := mustNew(t, "git, claude")
	tests := []struct {
		name   string
		policy *policy.Policy
		m      job.Manifest
		field  string // empty: allowed
	}{
		{"no rules", mustNew(t, ""), task("rm -rf /"), ""},
		{"claude without a rule", p, job.Manifest{AgentType: job.AgentClaude, Task: "rm everything"}, "manifest.agentType"},
		{"codex with a rule for claude", claude, job.Manifest{AgentType: "codex", Task: "x"}, "manifest.agentType"},
		{"claude with a rule", claude, job.Manifest{AgentType: job.AgentClaude, Task: "rm everything"}, ""},
		{"what starts claude", claude, job.Manifest{AgentType: job.AgentClaude, Task: "x", Agent: job.Agent{Command: `rm x; exec "$@"`}}, "manifest.agent.command"},
		{"custom command", p, job.Manifest{AgentType: job.AgentCustom, Task: "rm x", Agent: job.Agent{Command: "git apply"}}, ""},
		{"custom command without a rule", p, job.Manifest{AgentType: job.AgentCustom, Task: "git log", Agent: job.Agent{Command: "bash"}}, "manifest.agent.command"},
		{"script with a command", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Agent: job.Agent{Command: "bash -s"}}, "manifest.agent.command"},
		{"env", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Env: map[string]string{"CI": "1", "LD_PRELOAD": "/tmp/x.so"}}, "manifest.env.LD_PRELOAD"},
		{"secret", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Secrets: []string{"KEY", "PATH"}}, "manifest.secrets[1]"},
		{"cwd among settings", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Cwd: "/etc/cron.d"}, "manifest.cwd"},
		{"cwd of the root", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Cwd: "/"}, "manifest.cwd"},
		{"cwd", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Cwd: "/srv/app", Files: []job.File{{Path: "/srv/app/x"}}}, ""},
		{"repository over programs", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Repository: job.Repository{URL: "https://git.example/a.git", Path: "/usr/local"}}, "manifest.repository.path"},
		{"repository", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Repository: job.Repository{URL: "https://git.example/a.git"}}, ""},
		{"file over a program", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Files: []job.File{{Path: "/tmp/x"}, {Path: "/usr/local/bin/git"}}}, "manifest.files[1].path"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.policy.Check(tt.m)
			var refused *job.InvalidError
			switch {
			case tt.field == "" && err != nil:
				t.Errorf("Check() = %v, want nil", err)
			case tt.field != "" && (!errors.As(err, &refused) || refused.Fields[0].Field != tt.field):
				t.Errorf("Check() = %v, want %s refused", err, tt.field)
			}
		})
	}
}

func TestNew_RefusesWhatIsNoRule(t *testing.T) {
	for _, rules := range []string{",", " \n ", "git; rm", "git | less", "git && rm", "$x", "git $(rm)", "'git'", "git [", "a\\b", "~/x", "{a", "git\n`rm`"} {
		if _, err := policy.New(rules); err == nil || !strings.Contains(err.Error(), "ALLOWED_COMMANDS: ") {
			t.Errorf("New(%q) = %v, want an error", rules, err)
		}
	}
}

// A file of a VM is written where a job may put it, too.
func TestCheckFile(t *testing.T) {
	free, err := policy.New("")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := policy.New("git, /opt/tool/run, npm test")
	if err != nil {
		t.Fatal(err)
	}
	for path, allowed := range map[string]bool{
		"/tmp/a": true, "src/main.go": true, "/tmp/a/../b": true,
		"/usr/local/bin/git": false, "/tmp/../etc/profile": false, ".bashrc": false, "/home/debian/.profile": false, "../debian/x": false,
		"/srv/app": false, "bin/git": false, "sbin/x": false, "./x": true, "opt/other/run": true, "tool/run": true, "/opt/tool/run": false, "/tmp/.git/hooks/post-checkout": false,
	} {
		if err := rules.CheckFile(path, false); (err == nil) != allowed {
			t.Errorf("%s: %v, want allowed %v", path, err, allowed)
		}
		if rules.CheckFile(path, true) == nil {
			t.Errorf("%s as a tree is allowed", path)
		}
		if err := errors.Join(free.CheckFile(path, false), free.CheckFile(path, true)); err != nil {
			t.Errorf("%s without rules: %v", path, err)
		}
	}
}
