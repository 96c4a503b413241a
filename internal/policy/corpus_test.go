package policy_test

import (
	"slices"
	"testing"

	"linus/internal/job"
)

// attempts are scripts that try to run evil where only git is allowed, by all
// that bash evaluates.
var attempts = []string{
	// Plainly, and where a command can stand.
	`evil`, `git; evil`, `git | evil`, `! evil`, `{ evil; }`, `(evil)`, `if evil; then :; fi`, `while evil; do break; done`, `until evil; do break; done`,
	`for i in 1; do evil; done`, `case x in x) evil;; esac`, `f() { evil; }; f`, `function f { evil; }; f`, `f() (evil); f`, `coproc evil; wait`, `time evil`, `evil &
wait`, "git <<E\n$(evil)\nE", "git <<E\n`evil`\nE", "git <<-E\n\t$(evil)\n\tE", `git <<<"$(evil)"`, `: < <(evil)`, `: > >(evil)`, `select x in $(evil); do break; done`,
	"echo `evil`", "echo \"`evil`\"", `echo "${x:-$(evil)}"`, `echo ${x:+a}${y:=$(evil)}`, `echo ${x:?$(evil)}`, `x=$(evil)`, `x=(1 $(evil))`, `x[$(evil)0]=1`, `echo ${PATH#$(evil)}`,
	`echo ${PATH^$(evil)}`, `[[ $(evil) ]]`, `[[ x == $(evil) ]]`, `[[ x =~ $(evil) ]]`, `[[ -f $(evil) ]]`, `case x in $(evil)) ;; esac`, `case $(evil) in *) ;; esac`, `for x in $(evil); do :; done`,
	`e=evil; $e`, `e=evil; "$e"`, `e="il"; ev$e`, `${x:-evil}`, `$(echo evil)`, "`echo evil`", `{evil,}`, `ev''il`, `ev\il`, `"evil"`, `$'\x65vil'`, `$'evil'`, `*/evil`, `"$@" evil`, `e=(evil); "${e[@]}"`, `set -- evil; "$@"`, `set -- evil; $1`,
	// Programs and builtins that run others.
	`command evil`, `command -p evil`, `builtin eval evil`, `builtin command evil`, `exec evil`, `exec -a git evil`, `env evil`, `env -S 'evil'`, `env -S'evil x'`, `env -i evil`, `env X=1 evil`, `env -u X evil`, `env - evil`,
	`nice evil`, `nohup evil`, `timeout 5 evil`, `timeout -k 1 5 evil`, `setsid evil`, `setsid -w evil`, `stdbuf -o0 evil`, `sudo evil`, `xargs evil </dev/null`, `echo x | xargs evil`, `echo evil | xargs -I{} {}`, `echo evil | xargs env`, `echo evil | xargs -I{} bash -c {}`,
	`bash -c evil`, `sh -c evil`, `bash -c 'eval evil'`, `bash -c "$(echo evil)"`, `bash -c '$0' evil`, `bash -c '"$@"' x evil`, `bash <<<evil`, `bash <(echo evil)`, `echo evil | bash`, `echo evil | sh -s`, `bash -s <<<evil`, `bash -ec evil`, `bash -o posix -c evil`, `bash --rcfile <(echo evil) -ic :`,
	`eval evil`, `eval "ev""il"`, `x=evil; eval $x`, `x=evil; eval "$x"`, `eval 'eval "eval evil"'`, `eval "$(echo evil)"`, `. <(echo evil)`, `source <(echo evil)`, `source /dev/stdin <<<evil`, `echo evil >f; . ./f`,
	`trap evil EXIT`, `trap -- evil EXIT`, `trap 'eval evil' EXIT`, `x='evil EXIT'; trap $x`, `x=evil; trap "$x" EXIT`, `trap evil DEBUG; :`, `trap evil ERR; false`, `trap evil RETURN; f() { :; }; f`, `trap evil USR1; kill -USR1 $$`, `x=EXIT; trap evil $x`,
	`alias a=evil; a`, "shopt -s expand_aliases\nalias git=evil\ngit", `hash -p "$(type -P evil)" git; git`, `enable -f ./x.so x`, `enable -n git`, `mapfile -C evil -c 1 x <<<x`, `readarray -C evil -c 1 x <<<x`, `complete -C evil git`, `compgen -C evil`, `compgen -W '$(evil)'`, `compgen -F evil x`,
	`bind -x '"a":evil'`, `fc -s evil`, `history -s evil`, `jobs -x evil`, `jobs -x evil %1`, `x=-x; jobs $x evil`, `find . -maxdepth 0 -exec evil \;`, `find . -maxdepth 0 -execdir evil {} +`, `command_not_found_handle() { evil; }; nothere`, `find . -maxdepth 0 -ok evil \; <<<y`, `find /dev/null "$x" evil \;`,
	// Arithmetic evaluates what it is given.
	`let 'a[$(evil)]=1'`, `let "x=a[\$(evil)]"`, `x='a[$(evil)]'; let x`, `x='a[$(evil)]'; let y=x`, `x='a[$(evil)]'; ((x))`, `x='a[$(evil)]'; ((y = x + 1))`, `x='a[$(evil)]'; echo $((x))`, `x='a[$(evil)]'; echo $[x]`, `x='a[$(evil)]'; echo $(($x))`, `x='a[$(evil)]'; echo $((${x}))`, `x='a[$(evil)]'; echo $(("$x"))`,
	`echo $(('a[$(evil)]'))`, `echo $(( 1 + 'a[$(evil)]' ))`, `echo $((a[$(evil)]))`, `x='a[$(evil)]'; y=x; echo $((y))`, `x=1; x='a[$(evil)]'; echo $((x))`, `echo $((x)); x='a[$(evil)]'; echo $((x))`, `f() { echo $((x)); }; x='a[$(evil)]'; f`, `f() { local x=$1; echo $((x)); }; f 'a[$(evil)]'`, `set -- 'a[$(evil)]'; echo $(($1))`,
	`for x in 'a[$(evil)]'; do echo $((x)); done`, `read x <<<'a[$(evil)]'; echo $((x))`, `read <<<'a[$(evil)]'; echo $((REPLY))`, `printf -v x %s 'a[$(evil)]'; echo $((x))`, `: ${x:='a[$(evil)]'}; echo $((x))`, `x=('a[$(evil)]'); echo $((x))`, `x=('a[$(evil)]'); echo $((x[0]))`, `x=(1 2); x[1]='a[$(evil)]'; echo $((x[1]))`,
	`for ((i = 0; i < x; i++)); do :; done; x='a[$(evil)]'; for ((i = x; ; )); do break; done`, `echo 'a[$(evil)]'; echo $((_))`, `: 'a[$(evil)]'; ((_))`, `mapfile x <<<'a[$(evil)]'; echo $((x))`, `mapfile <<<'a[$(evil)]'; echo $((MAPFILE))`, `x='a[$(evil)]' bash -c 'echo $((x))'`, `env x='a[$(evil)]' bash -c 'echo $((x))'`, `export x='a[$(evil)]'; bash -c '((x))'`,
	`bash -c 'echo $(($1))' x 'a[$(evil)]'`, `getopts a: o -a 'a[$(evil)]'; echo $((OPTARG))`, `[[ x =~ x ]]; [[ 'a[$(evil)]' =~ .* ]]; echo $((BASH_REMATCH))`, `cd 'a[$(evil)]' 2>/dev/null; echo $((OLDPWD))`, `select x in 'a[$(evil)]'; do echo $((x)); break; done <<<1`, `echo $((x = y)); y='a[$(evil)]'; echo $((x += y))`, `echo $((1 ? y : 0)); y='a[$(evil)]'; ((1 ? y : 0))`, `y='a[$(evil)]'; echo $((${x:-$y}))`, `echo $((${x:-'a[$(evil)]'}))`, `y='a[$(evil)]'; echo $((${x:+1}${y}))`,
	`x='a[$(evil)]'; z=${#x}; echo $((z)) $((${x:0}))`, `y=x; x='a[$(evil)]'; echo $((!y))`, `readonly x='a[$(evil)]'; ((x))`, `declare x='a[$(evil)]'; ((x))`, `x+='a[$(evil)]'; ((x))`,
	// So does [[ -eq ]], and what takes the name of an element.
	`[[ 'a[$(evil)]' -eq 0 ]]`, `[[ 0 -lt 'a[$(evil)]' ]]`, `x='a[$(evil)]'; [[ x -eq 0 ]]`, `x='a[$(evil)]'; [[ $x -gt 0 ]]`, `x='a[$(evil)]'; [[ "$x" -ne 0 ]]`, `[[ ! ( 'a[$(evil)]' -le 0 ) ]]`, `[[ -n x && 'a[$(evil)]' -ge 0 ]]`, `[[ -v 'a[$(evil)]' ]]`, `x='a[$(evil)]'; [[ -v $x ]]`, `[[ -v a[$(evil)] ]]`, `[[ -R 'a[$(evil)]' ]]`, `[[ $(echo 'a[$(evil)]') -eq 0 ]]`,
	`test -v 'a[$(evil)]'`, `[ -v 'a[$(evil)]' ]`, `x='a[$(evil)]'; test -v "$x"`, `o=-v; test $o 'a[$(evil)]'`, `o=-v; [ "$o" 'a[$(evil)]' ]`, `[ ! -v 'a[$(evil)]' ]`, `[ -n x -a -v 'a[$(evil)]' ]`, `x='-v a[$(evil)]'; [ $x ]`, `x='-v a[$(evil)] -o x'; [ $x = y ]`, `builtin test -v 'a[$(evil)]'`, `command [ -v 'a[$(evil)]' ]`, `[ "$x" "$y" ]; x=-v y='a[$(evil)]'; [ "$x" "$y" ]`, `test -R 'a[$(evil)]'`, `set -- -v 'a[$(evil)]'; [ "$@" ]`, `set -- -v 'a[$(evil)]'; test $*`, `[ x = x -a "$x" "$y" ]`,
	`printf -v 'a[$(evil)]' x`, `printf -v'a[$(evil)]' x`, `o=-v; printf $o 'a[$(evil)]' x`, `o=-v; printf "$o" 'a[$(evil)]' x`, `x='a[$(evil)]'; printf -v "$x" x`, `builtin printf -v 'a[$(evil)]' x`, `o='-va[$(evil)]'; printf "$o" x`,
	`read 'a[$(evil)]' <<<x`, `read -r 'a[$(evil)]' <<<x`, `x='a[$(evil)]'; read "$x" <<<x`, `read -a 'a[$(evil)]' <<<x`, `read -e -i x y <<<z; read -rp '' 'a[$(evil)]' <<<x`, `mapfile 'a[$(evil)]' <<<x`, `mapfile -O 'a[$(evil)]' x <<<x`, `mapfile -t -n 'a[$(evil)]' x <<<x`,
	`unset 'a[$(evil)]'`, `unset -v 'a[$(evil)]'`, `a=(1); unset 'a[$(evil)]'`, `a=(1); x='a[$(evil)]'; unset $x`, `a=(1); unset -v 'a[b[$(evil)]]'`, `getopts a 'a[$(evil)]' -a`, `x='a[$(evil)]'; getopts a $x -a`, `: & wait -n -p 'a[$(evil)]'`, `: & x=-p; wait -n $x 'a[$(evil)]'`, `: & x='-pa[$(evil)]'; wait -n "$x"`,
	// Subscripts, slices and indirection.
	`x='a[$(evil)]'; echo ${b[x]}`, `x='a[$(evil)]'; echo ${b[$x]}`, `echo ${b['a[$(evil)]']}`, `x='a[$(evil)]'; b[x]=1`, `b['a[$(evil)]']=1`, `x='a[$(evil)]'; b=([x]=1)`, `b=(['a[$(evil)]']=1)`, `x=abc; echo ${x:'a[$(evil)]'}`, `x=abc; echo ${x:0:'a[$(evil)]'}`, `y='a[$(evil)]'; x=abc; echo ${x:y}`, `y='a[$(evil)]'; x=abc; echo ${x:$y:1}`, `y='a[$(evil)]'; x=abc; echo ${x: -y}`, `set -- a b; y='a[$(evil)]'; echo ${@:y}`,
	`x='a[$(evil)]'; echo ${!x}`, `x='a[$(evil)]'; echo ${!x:-y}`, `f() { echo ${!1}; }; f 'a[$(evil)]'`, `x='$(evil)'; echo ${x@P}`, `x='$(evil)'; y=(1); echo "${x[@]@P}"`, `echo ${#b['a[$(evil)]']}`, `y='a[$(evil)]'; echo ${#b[y]}`, `x=abc; echo "${x:'a[$(evil)]'}"`,
	// Declarations.
	`declare 'a[$(evil)]=1'`, `declare "a[\$(evil)]=1"`, `x='a[$(evil)]=1'; declare "$x"`, `declare -i x='a[$(evil)]'`, `declare -i x; x='a[$(evil)]'`, `typeset -i x; x='a[$(evil)]'`, `f() { local -i x='a[$(evil)]'; }; f`, `f() { local 'a[$(evil)]=1'; }; f`, `readonly 'a[$(evil)]=1'`, `export 'a[$(evil)]=1'`, `declare -a 'a=([$(evil)0]=1)'`, `declare -a "a=(\$(evil))"`, `declare -a a='($(evil))'`, `x='($(evil))'; declare -a a="$x"`, `a=(); x='($(evil))'; declare a="$x"`, `a=(); declare a='([$(evil)0]=1)'`, `declare -n r='a[$(evil)]'; echo $r`, `declare -n r='a[$(evil)]'; r=1`, `f() { local -n r=$1; echo "$r"; }; f 'a[$(evil)]'`, `typeset -n r='a[$(evil)]'; : $r`, `x='x=1 -i'; declare $x`, `x=-n; declare $x r='a[$(evil)]'; echo $r`, `declare -Ai m=([x]='a[$(evil)]')`, `readonly -a a='($(evil))'`, `export -n 'a[$(evil)]=1'`, `local_() { typeset -a a='($(evil))'; }; local_`,
	// The shell's own variables.
	`RANDOM='a[$(evil)]'`, `SECONDS='a[$(evil)]'; echo $SECONDS`, `HISTCMD='a[$(evil)]'`, `LINENO='a[$(evil)]'`, `OPTIND='a[$(evil)]'`, `PS4='$(evil)'; set -x; :`, `PS4='+$(evil)' bash -xc :`, `env PS4='$(evil)' bash -xc :`, `BASH_ENV=<(echo evil) bash -c :`, `echo evil >x; BASH_ENV=x bash -c :`, `echo evil >x; export BASH_ENV=x; bash -c :`, `echo evil >x; env BASH_ENV=x bash -c :`, `echo evil >x; ENV=x sh -ic :`, `PROMPT_COMMAND=evil; bash -ic :`, `PATH=.:$PATH; echo evil >git; git`, `BASH_CMDS[git]=evil; git`, `BASH_ALIASES[git]=evil; shopt -s expand_aliases; git`, `declare -x BASH_ENV=x; echo evil >x; bash -c :`, `read BASH_ENV <<<x; export BASH_ENV; echo evil >x; bash -c :`, `GIT_PAGER=evil git`, `GIT_SSH_COMMAND=evil git`, `PAGER=evil git`, `SHELLOPTS=xtrace bash -c :`, `IFS=v; x=evil; eval $x`, `IFS=-; x=git-evil; $x`, `export -f x; x() { evil; }`, `git() { evil; }; export -f git; bash -c git`, `env 'BASH_FUNC_git%%=() { evil; }' bash -c git`, `TEXTDOMAINDIR=. TEXTDOMAIN=x bash -c 'echo $"x"'`,
	// Names that hide others.
	`git() { evil; }; git`, `echo() { evil; }; echo`, `cd() { evil; }; cd`, `eval() { evil; }; eval`, `unset() { evil; }; unset x`, `'git'() { evil; }; git`, `function git() { evil; }; git`, `if :; then git() { evil; }; fi; git`, `eval 'git() { evil; }'; git`, `f() { g() { evil; }; }; f; g`,
	// What is written, and run by its name.
	`echo evil >git; ./git`, `echo evil >~/.bashrc; bash -ic :`, `echo evil >.bash_profile; bash -lc :`, `x=.bash_profile; echo evil >$x; bash -lc :`, `cd "$x"; echo evil >git`, `echo evil >../bin/git; git`, `pushd ../bin; echo evil >git; popd; git`, `env -C ../bin bash -c 'echo evil >git'; git`, `echo evil >|../bin/git; git`, `echo evil &>../bin/git; git`, `exec >../bin/git; echo evil; exec >/dev/null; git`, `x=../bin/git; echo evil >"$x"; git`, `echo evil >"$(pwd)/../bin/git"; git`, `exec {fd}>../bin/git; echo evil >&$fd; git`, `cd ..; echo evil >bin/git; git`, `cd -; echo evil >bin/git`, `echo evil >bin/git`, `x=../bin/git; echo evil >&$x; git`, `echo evil <>../bin/git >&0; git`,
	// What parser and shell may read in two ways.
	"git >&'$(evil)'", "git >&x='a[$(evil)]'", "git >&'`evil`'", "git 2>&'x$(evil)'", "git >&\\$\\(evil\\)", "git <&'$(evil)'", "git >& \"\\$(evil)\"", "git >&-evil", "git # \\\nevil", "git \\\r\nevil", "echo $\"$(evil)\"", "((evil))", "((evil) )", "$((evil) )", "$( (evil))", "case x in esac|x) evil;; esac", "a=$((evil)); evil", "[[ x ]]evil", "git <<E;evil\nE", "git <<'E' \\\n; evil\nE", "git <<\"\"\nx\n\nevil", "git <<E\nE\nevil", "git <<E\n\\$(evil) $(evil)\nE", "git '\\'; evil #'", "git \"\\\"\"; evil", "git $'\\''; evil #'", "`echo \\`evil\\``", "git {a,b};evil", "!evil", "! ! evil", "{evil;}; { evil; }", "if(evil)then :;fi", "for((;;))do evil;break;done", "for i do evil; done", "set -- x; for i do evil; done", "${ evil; }", "${| evil; }", "coproc X { evil; }; wait", "time -p -- evil", "time ! evil", "git &>/dev/null&evil\nwait", "echo @($(evil)|x)", "shopt -s extglob; echo !($(evil))", "[[ x == @($(evil)) ]]", "x=~evil; ~/evil", "a=( [0]=$(evil) )", "echo ${x[$(evil)]-y}", "echo {1..$(evil)}", "echo ~$(evil)", "> $(evil)", ">>\"`evil`\"",
}

// onSystem are such as name the system's own files: they must be refused, and
// are never run, whatever the policy says.
var onSystem = []string{
	`echo ${PATH/usr/$(evil)}`, `/bin/bash -c evil`, `/usr/bin/env bash -c evil`, `echo evil >/tmp/.linus-f; . /tmp/.linus-f`, `HOME=/tmp git`, `echo evil >/etc/profile.d/x.sh; bash -lc :`, `cd /usr/bin; echo evil >git; git`, `echo evil >/usr/local/bin/git; git`,
}

// How a job might be told to do it where the script is not to blame.
var settings = []job.Manifest{
	{Task: "git", Env: map[string]string{"BASH_ENV": "x"}}, {Task: "git", Env: map[string]string{"LD_PRELOAD": "x"}}, {Task: "git", Env: map[string]string{"PATH": "x"}}, {Task: "git", Env: map[string]string{"GIT_SSH": "x"}},
	{Task: "git", Env: map[string]string{"NODE_OPTIONS": "x"}}, {Task: "git", Env: map[string]string{"PYTHONPATH": "x"}}, {Task: "git", Env: map[string]string{"PYTHONSTARTUP": "x"}}, {Task: "git", Env: map[string]string{"PERL5OPT": "x"}},
	{Task: "git", Env: map[string]string{"HOME": "/tmp"}}, {Task: "git", Env: map[string]string{"BASH_FUNC_git%%": "() { evil; }"}}, {Task: "git", Env: map[string]string{"SHELLOPTS": "xtrace"}}, {Task: "git", Secrets: []string{"GIT_PAGER"}},
	{Task: "echo $((x))", Env: map[string]string{"x": "a[$(evil)]"}}, {Task: "echo $((x))", Secrets: []string{"x"}}, {Task: "[[ $X -eq 1 ]]", Env: map[string]string{"X": "a[$(evil)]"}},
	{Task: "git", Files: []job.File{{Path: "/usr/bin/git"}}}, {Task: "git", Files: []job.File{{Path: "/usr/local/sbin/git"}}}, {Task: "git", Files: []job.File{{Path: "/snap/bin/git"}}}, {Task: "git", Files: []job.File{{Path: "/etc/profile"}}},
	{Task: "git", Files: []job.File{{Path: "/root/.bashrc"}}}, {Task: "git", Files: []job.File{{Path: "/home/u/bin/git"}}, Cwd: "/home/u"}, {Task: "git", Files: []job.File{{Path: "/home/u/.bash_profile"}}, Cwd: "/home/u"}, {Task: "git", Files: []job.File{{Path: "/home/u/x"}}},
	{Task: "git", Files: []job.File{{Path: "/srv/app/.git/hooks/pre-commit"}}, Cwd: "/srv/app"}, {Task: "git", Files: []job.File{{Path: "/srv/appx/x"}}, Cwd: "/srv/app"}, {Task: "git", Cwd: "/usr/bin"}, {Task: "git", Cwd: "/"}, {Task: "git", Cwd: "/home/u/bin"},
	{Task: "./run-tests.sh", Files: []job.File{{Path: "/tmp/run-tests.sh"}}, Cwd: "/tmp"},
}

func TestCheck_RefusesWhatRunsTheForbidden(t *testing.T) {
	// A rule may name a builtin, and that allows no more than its words say.
	for _, rules := range []string{"git", "git, printf, test *, read, unset, export, declare, wait *, mapfile, let, trap, shopt, jobs *, getopts *"} {
		p := mustNew(t, rules)
		for _, script := range slices.Concat(attempts, onSystem) {
			if p.Check(task(script)) == nil {
				t.Errorf("with %q is allowed: %s", rules, script)
			}
		}
	}
}

func TestCheck_RefusesSettingsThatRunOtherPrograms(t *testing.T) {
	p := mustNew(t, "git, ./run-tests.sh")
	for _, m := range settings {
		m.AgentType = job.AgentScript
		if p.Check(m) == nil {
			t.Errorf("%+v is allowed", m)
		}
		if err := mustNew(t, "").Check(m); err != nil {
			t.Errorf("without rules %+v is refused: %v", m, err)
		}
	}
	fine := job.Manifest{AgentType: job.AgentScript, Task: "echo x; git log", Env: map[string]string{"n": "3", "N": "4", "CI": "true"}, Cwd: "/srv/app", Files: []job.File{{Path: "/tmp/x"}, {Path: "/srv/app/src/main.go"}}}
	if err := p.Check(fine); err != nil {
		t.Errorf("refused: %v", err)
	}
}
