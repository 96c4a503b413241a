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
		"", "# only words", "git", "git status", "git status; git log | git apply && git push || git pull & wait",
		"npm test", "npm 'test'", `n""pm te\st`, "go", "go build ./...", "docker compose up", "docker compose up -d", "/usr/bin/make all",
		"python3 x.py", "python3.12 -c 'import os'", "./run-tests.sh", "git-lfs pull", "systemctl restart nginx", `systemctl "$verb" nginx`,
		"set -euo pipefail\ncd /srv\nexport CI=1 X\nfor d in */; do git -C \"$d\" pull; done",
		"if [ -f go.mod ]; then go test ./...; elif [[ $x == y* ]]; then :; else echo none; fi",
		"while read -r line; do printf '%s\\n' \"$line\"; done < <(git log)",
		"case $1 in a|b) git add .;; *) exit 1;; esac", "x=$(git rev-parse HEAD) y=`git log` git commit -m \"$(git log -1)\"",
		"cat=1; echo $((cat + 2)) ${x:-$(git log)} > out.txt 2>&1", "{ git log; } 2>/dev/null", "( git log )", "git log 2>&- <&- >&2", "! git diff", "time git gc",
		"git log <<EOF\n$(git status) rm -rf /\nEOF\n", "git log <<'EOF'\n$(rm -rf /)\nEOF\n", "echo '$(rm -rf /)' \"\\$(rm)\"",
		"env CI=1 FOO=\"$x\" git status", "env -i -u HOME -C /srv git status", "sudo -n -u ada git pull", "sudo -- git pull", "env -- CI=1 git status", "timeout -k 5 -- 60 git pull", "timeout -k 5 -s KILL 60 git pull",
		"timeout --signal=TERM --kill-after 3 1m go test", `timeout "$t" git pull`, "nohup nice -n 5 git gc", "exec git log", "exec 2>err.txt", "command git log", "command -v docker", "/usr/bin/env git log",
		"git ls-files -z | xargs -0 -n 10 git add", "git log | xargs", "xargs -I{} git show {}", "bash -c 'git log; git status'", "bash -euo pipefail -c 'git log' name \"$arg\"", "sh -ec 'git log && echo ok'", "/bin/bash -lc 'go test'",
		"eval 'git log'", "eval git log", "trap 'git stash' EXIT", "trap '' INT; trap - INT; trap INT; trap",
		"f() { git log; }\nf x | f", "main() { helper; }\nX=1\nhelper() { git log; }\nmain \"$@\"", "f() { echo; }; trap 'f' EXIT; eval f; f() { git log; }; f",
		"coproc git log", "coproc W { git log; }", "select x in a b; do git add $x; done", "for ((i = 0; i < 3; i++)); do git log; done", "a=(1 2 $(git log)); a[0]=x; echo ${#a[@]}",
		"local_=1 readonly_=2; declare -A m=([x]=1); readonly R=1; unset m 'a[0]'; printf -v y z; read -r a b; printf 'PATH=%s' \"$PATH\"", "shopt -s globstar nullglob; git add **/*.go", "echo @(a|b) !(c)",
		"echo \"${x[@]}\" \"${x%.*}\"; git commit -m \"$*\" \"${x[@]}\"",
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
		{"a command that looks like an option of env", "env -- -i git status", "no rule of ALLOWED_COMMANDS matches -i"},
		{"a command that looks like an option of sudo", "sudo -- -n git status", "no rule of ALLOWED_COMMANDS matches -n"},
		{"a command that looks like one with a value", "nice -- -n 5 git status", "no rule of ALLOWED_COMMANDS matches -n"},
		{"a command that looks like a long option", "timeout -- 5 --foreground git status", "no rule of ALLOWED_COMMANDS matches --foreground"},
		{"a second end of options", "nohup -- -- git status", "no rule of ALLOWED_COMMANDS matches --"},
		{"one argument more", "npm test --all", "allows only: npm test"},
		{"one argument less", "docker compose", "allows only: docker compose up *"},
		{"line", "git log\n\nrm x", "line 3"},
		{"by path", "/tmp/git log", `"/tmp/git log"`},
		{"by name what is allowed by path", "make all", `"make all"`},
		{"path below a pattern", "python3/x", "python3/x"},
		{"behind ;", "git log; rm x", `"rm x"`},
		{"behind newline", "git log\nrm x", `"rm x"`},
		{"behind &&", "git log && rm x", `"rm x"`},
		{"behind ||", "git log || rm x", `"rm x"`},
		{"behind &", "git log & rm x", `"rm x"`},
		{"in a pipe", "git log | rm x", `"rm x"`},
		{"in |&", "git log |& rm x", `"rm x"`},
		{"subshell", "(rm x)", `"rm x"`},
		{"group", "{ rm x; }", `"rm x"`},
		{"negated", "! rm x", `"rm x"`},
		{"timed", "time rm x", `"rm x"`},
		{"coprocess", "coproc rm x", `"rm x"`},
		{"substitution", "git log $(rm x)", `"rm x"`},
		{"backquotes", "git log `rm x`", `"rm x"`},
		{"in double quotes", `git log "$(rm x)"`, `"rm x"`},
		{"in backquotes in backquotes", "git log `git log \\`rm x\\``", "matches rm"},
		{"in an assignment", "x=$(rm x)", `"rm x"`},
		{"in an array", "x=(a $(rm x))", `"rm x"`},
		{"in a subscript", "x[$(rm x)]=1", `"rm x"`},
		{"in arithmetic", "echo $((1 + $(rm x)))", `"rm x"`},
		{"in an arithmetic command", "((x = $(rm x)))", `"rm x"`},
		{"in a default", "echo ${x:-$(rm x)}", `"rm x"`},
		{"in a replacement", "echo ${x/a/$(rm x)}", `"rm x"`},
		{"in a slice", "echo ${x:$(rm x)}", `"rm x"`},
		{"in an index", "echo ${a[$(rm x)]}", `"rm x"`},
		{"in a redirection", "git log > $(rm x)", `"rm x"`},
		{"process substitution", "git log <(rm x)", `"rm x"`},
		{"output process substitution", "git log > >(rm x)", `"rm x"`},
		{"in a here-document", "git log <<E\n$(rm x)\nE\n", `"rm x"`},
		{"in a here-string", `git log <<< "$(rm x)"`, `"rm x"`},
		{"behind a here-document", "git log <<'E'\nx\nE\nrm x\n", `line 4: "rm x"`},
		{"condition", "if rm x; then :; fi", `"rm x"`},
		{"branch", "if :; then :; else rm x; fi", `"rm x"`},
		{"loop", "until rm x; do :; done", `"rm x"`},
		{"loop's words", "for x in $(rm x); do :; done", `"rm x"`},
		{"case word", "case $(rm x) in *) ;; esac", `"rm x"`},
		{"case pattern", "case x in $(rm x)) ;; esac", `"rm x"`},
		{"case branch", "case x in x) rm x;; esac", `"rm x"`},
		{"test", "[[ -n $(rm x) ]]", `"rm x"`},
		{"test pattern", "[[ x == @($(rm x)) ]]", "within the pattern"},
		{"declaration", "export X=$(rm x)", `"rm x"`},
		{"let", `let "x=$(rm x)"`, `"rm x"`},
		{"quoted name", `"rm" x`, `no rule of ALLOWED_COMMANDS matches rm`},
		{"split name", `r''m x`, `matches rm`},
		{"escaped name", `\rm x`, `matches rm`},
		{"continued name", "r\\\nm x", `matches rm`},
		{"name from a variable", "$x y", `"$x y": the command's name is only known when it runs`},
		{"name from a substitution", "$(git log) y", "only known when it runs"},
		{"name from braces", "{git,rm} x", "only known when it runs"},
		{"name from a pattern", "/bin/r? x", "only known"},
		{"name from ANSI-C quotes", `$'\x72m' x`, "only known"},
		{"name from a home", "~/rm", "only known"},
		{"translated name", `$"git" x`, "only known"},
		{"argument from a variable", "npm $x", "allows only: npm test"},
		{"argument from one variable", `npm "$x"`, "allows only: npm test"},
		{"argument that may be several", "systemctl $x nginx", "allows only: systemctl * nginx"},
		{"arguments of the script", `systemctl "$@" nginx`, "allows only"},
		{"arguments of an array", `systemctl "${x[@]}" nginx`, "allows only"},
		{"argument from a default", `systemctl "${x:-$@}" nginx`, "allows only"},
		{"env", "env X=1 rm x", `"env X=1 rm x" is not allowed: no rule of ALLOWED_COMMANDS matches rm`},
		{"env -S", "env -S 'rm x'", "the option -S cannot be judged"},
		{"env alone", "env", "matches env"},
		{"env of a variable", `env "$x" git`, "only known"},
		{"env of several", `env X=$x git`, "only known"},
		{"sudo", "sudo rm x", "matches rm"},
		{"sudo -i", "sudo -i", "option -i"},
		{"sudo --login", "sudo --login", "option --login"},
		{"sudo with an option's value", "sudo -u rm git", ""},
		{"sudo's value from a variable", `sudo -u $x git rm`, "option -u"},
		{"sudo with a value that may be none", "sudo -u$x rm git log", "option -u"},
		{"several wrappers", "sudo -n env X=1 timeout 5 nice -n 3 rm x", "matches rm"},
		{"timeout", "timeout 5 rm x", "matches rm"},
		{"timeout of several", "timeout $t git", "where its command begins"},
		{"timeout alone", "timeout", "where its command begins"},
		{"exec", "exec rm x", "matches rm"},
		{"exec -a", "exec -a git rm x", "matches rm"},
		{"command", "command rm x", "matches rm"},
		{"command -p", "command -p rm", "matches rm"},
		{"builtin", "builtin eval 'rm x'", `matches eval`},
		{"xargs", "git log | xargs rm", "matches rm"},
		{"xargs completes", "git log | xargs npm", "allows only: npm test"},
		{"xargs a name", "git log | xargs -I{} {}", "only known"},
		{"xargs a name by env", "git log | xargs env", "only known"},
		{"xargs a script", "git log | xargs bash -c", "only known"},
		{"xargs into a script", "xargs -I{} bash -c 'git {}'", "only known"},
		{"xargs of a variable", `xargs -I "$x" git-x`, "option -I"},
		{"bash -c", "bash -c 'git log; rm x'", `line 1: "rm x"`},
		{"bash -c on line 3", "\n\nbash -c '\nrm x'", `line 3: "rm x"`},
		{"bash -c of a variable", `bash -c "$x"`, "text that is only known"},
		{"bash -c with values", `bash -c "rm $x"`, "only known"},
		{"bash of a file", "bash x.sh", "no rule of ALLOWED_COMMANDS matches it"},
		{"bash of its input", "git log | bash", "no rule"},
		{"bash -s", "bash -s", "option -s"},
		{"bash -i", "bash -ic 'git log'", "option -ic"},
		{"bash +e", "bash -c +e 'rm x'", "option +e"},
		{"bash -", "bash - x", "option -"},
		{"bash -O", "bash -O extglob -c x", "option -O"},
		{"bash -o", "bash -o posix -c 'git log'", "usual options"},
		{"sh -c reads (( otherwise", "sh -c '((rm))'", "matches rm"},
		{"bash in bash", `bash -c "bash -c 'rm x'"`, "matches rm"},
		{"/bin/sh", "/bin/sh -c 'rm x'", "matches rm"},
		{"a shell elsewhere", "/tmp/sh -c 'git log'", "matches /tmp/sh"},
		{"eval", "eval 'rm x'", "matches rm"},
		{"eval put together", "eval r''m x", "matches rm"},
		{"eval of a variable", "eval $x", "text that is only known"},
		{"eval of eval", `eval "eval 'rm x'"`, "matches rm"},
		{"trap", "trap 'rm x' EXIT", "matches rm"},
		{"trap --", "trap -- 'rm x' EXIT", "matches rm"},
		{"trap of a variable", `trap "$x" EXIT`, "only known"},
		{"source", "source x.sh", "matches source"},
		{".", ". x.sh", "matches ."},
		{"alias", "alias git=rm", "matches alias"},
		{"hash", "hash -p /bin/rm git", "matches hash"},
		{"enable", "enable -f x.so git", "matches enable"},
		{"mapfile", "mapfile -C rm -c 1 x", "matches mapfile"},
		{"function's body", "f() { rm x; }\nf", `line 1: "rm x"`},
		{"function never called", "f() { rm x; }", "matches rm"},
		{"function called too early", "rm x\nrm() { git log; }", "line 1"},
		{"function perhaps declared", "if false; then rm() { git log; }; fi\nrm x", `line 2: "rm x"`},
		{"function declared elsewhere", "(rm() { :; })\nrm x", "line 2"},
		{"function declared by eval", "false && eval 'rm() { :; }'\nrm x", "line 2"},
		{"function called by a program", "rm() { git log; }\nenv rm x\n", "line 2"},
		{"function called by a shell", "rm() { git log; }\nbash -c 'rm x'\n", "line 2"},
		{"function unset", "rm() { git log; }\nunset -f rm\nrm x\n", "line 2"},
		{"function unset by name", "rm() { git log; }\nunset rm\n", "line 2"},
		{"function unset by a variable", "rm() { git log; }\nunset $x\n", "line 2"},
		{"function called before a later one by its body", "f() { rm x; }\nf\nrm() { git log; }\n", "line 1"},
		{"function that hides eval", "eval() { :; }\neval 'rm x'\n", "may not be named eval"},
		{"function that hides cd", "git log && cd() { :; }", "may not be named cd"},
		{"function with a path's name", "function /bin/rm { :; }", "must be plain"},
		{"PATH", "PATH=/tmp git log", "PATH may not be set"},
		{"PATH for all", "export PATH=/tmp:$PATH", "PATH may not be set"},
		{"PATH appended", "PATH+=:/tmp", "PATH"},
		{"PATH by env", "env PATH=/tmp git log", "PATH"},
		{"PATH by sudo", "sudo LD_PRELOAD=x git log", "LD_PRELOAD"},
		{"PATH by a loop", "for PATH in /tmp; do git log; done", "PATH"},
		{"PATH by read", "read -r PATH", "PATH"},
		{"PATH by printf", "printf -v PATH /tmp", "PATH"},
		{"PATH by printf in one", "printf -vPATH /tmp", "PATH"},
		{"PATH by a default", "echo ${PATH:=/tmp}", "PATH"},
		{"PATH by arithmetic", "((PATH = 5))", "PATH"},
		{"PATH by increment", "echo $((PATH++))", "PATH"},
		{"PATH by let", "let PATH=5", "let evaluates"},
		{"PATH unset", "unset PATH", "PATH"},
		{"PATH by a descriptor", "exec {PATH}>x", "PATH"},
		{"PATH by a coprocess", "coproc PATH { git log; }", "PATH"},
		{"PATH in quotes", `export "PATH=/tmp"`, "PATH"},
		{"PATH by wait", "wait -p PATH", "PATH"},
		{"the loader", "LD_LIBRARY_PATH=/tmp git log", "LD_LIBRARY_PATH"},
		{"the trace's prompt", `PS4='$(rm x)'`, "PS4"},
		{"bash's start", "BASH_ENV=x bash -c 'git log'", "BASH_ENV"},
		{"bash's table", "BASH_CMDS[git]=/bin/rm", "BASH_CMDS"},
		{"reference", "declare -n x=PATH", "another's name"},
		{"reference by local", "f() { local -rn x=PATH; }", "another's name"},
		{"export of a variable", "export $x", "which variable"},
		{"export of a computed name", `export "$x=1"`, "which variable"},
		{"prompt expansion", "echo ${x@P}", "@P"},
		{"keyword option", "set -k", "usual options"},
		{"history", "set -o history", "usual options"},
		{"options of a variable", "set $x", "usual options"},
		{"aliases", "shopt -s expand_aliases", "usual options"},
		{"a program overwritten", "echo x > /usr/bin/git", "/usr/bin/git may not be written"},
		{"by a detour", "echo x >> /tmp/../bin/git", "may not be written"},
		{"a rule's own program", "echo rm >run-tests.sh", "run-tests.sh may not be written"},
		{"both outputs", "git log &> /usr/bin/make", "may not be written"},
		{"not a script", "if", "line 1: cannot be read as a shell script"},
		{"half a script", "git log\necho 'x", "line 2: cannot be read"},
		{"carriage return", "git log \\\r\nrm x", "line 1: has the control character 0x0d"},
		{"escape character", "git log\n\x1b", "line 2: has the control character 0x1b"},
		{"not UTF-8", "git \xff", "UTF-8"},
		{"wrappers without end", strings.Repeat("env ", 10000) + "git log", "run by more than 10 others"},
		{"evals without end", strings.Repeat("eval ", 10000) + "git log", "run by more than 10 others"},
		{"command glued to a closed descriptor", "git log >&-rm x", `line 1: ">&-rm": put a blank`},
		{"command glued to a closed input", "git log; <& -rm x", "put a blank"},
		{"comment that seems to go on", "git log # see below \\\nrm x", "line 1: a comment may not end in a backslash"},
		{"comment that seems to go on at the end", "git log\n# see below \\\nrm x", "line 2: a comment may not end"},
		{"comment in a function that seems to go on", "f() {\n# see below \\\nrm x\n}", "line 2: a comment may not end"},
		{"too deep", strings.Repeat("$(", 300) + strings.Repeat(")", 300), "brackets more than 250 deep"},
		{"too long", strings.Repeat("git log\n", 40000), "a script may have 262144"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := p.Check(task(tt.text))
			if tt.want == "" {
				if err != nil {
					t.Errorf("%q is refused: %v", tt.text, err)
				}
				return
			}
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
		"eval":                       `eval "$x"`,
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

func TestCheck_SaysEverythingAtOnce(t *testing.T) {
	err := mustNew(t, "git").Check(task("rm x\ngit log\nmv y z\nrm x\n" + strings.Repeat("rm x; ", 10)))
	var refused *job.InvalidError
	if !errors.As(err, &refused) || len(refused.Fields) != 4 {
		t.Fatalf("Check() = %v, want lines 1, 3, 4 and 5", err)
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
		{"claude with a rule", claude, job.Manifest{AgentType: job.AgentClaude, Task: "rm everything"}, ""},
		{"custom command", p, job.Manifest{AgentType: job.AgentCustom, Task: "rm x", Agent: job.Agent{Command: "git apply"}}, ""},
		{"custom command without a rule", p, job.Manifest{AgentType: job.AgentCustom, Task: "git log", Agent: job.Agent{Command: "bash"}}, "manifest.agent.command"},
		{"script with a command", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Agent: job.Agent{Command: "bash -s"}}, "manifest.agent.command"},
		{"env", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Env: map[string]string{"CI": "1", "LD_PRELOAD": "/tmp/x.so"}}, "manifest.env.LD_PRELOAD"},
		{"secret", p, job.Manifest{AgentType: job.AgentScript, Task: "git log", Secrets: []string{"KEY", "PATH"}}, "manifest.secrets[1]"},
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
		"/srv/app": false, "bin/git": false, "/opt/tool/run": false, "/tmp/.git/hooks/post-checkout": false,
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
