package policy_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"linus/internal/loops"
	"linus/internal/policy"
)

var (
	scripts = flag.Int("policy.scripts", 1000, "scripts made at random that are compared with bash")
	seed    = flag.Uint64("policy.seed", 1, "what they are made of")
)

// probe makes bash report the names of the commands it would run: its PATH has
// no programs, and it calls this function for each. Restricted, it can neither
// write files nor run programs by path.
const probe = `command_not_found_handle() { printf 'RAN %s\n' "$1" >&9; }
FUNCNEST=20
`

// ranIn runs an allowed script in a restricted bash without programs and
// returns the names of the commands it reached.
func ranIn(t *testing.T, script string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", `exec 9>&1 >/dev/null 2>&1 </dev/null; exec -- "$BASH" --restricted -c "$1"`, "bash", probe+script)
	cmd.Env, cmd.Dir = []string{"PATH=/nonexistent"}, t.TempDir()
	out, _ := cmd.Output() // the script's exit code does not matter
	var names []string
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "RAN "); ok {
			names = append(names, strings.TrimSuffix(name, "\n"))
		}
	}
	return names
}

// What bash runs counts, not what the parser reads: scripts generated at random,
// from parts that the two might read differently, are allowed only if bash runs
// nothing but the allowed command.
func TestCheck_RealBashRunsNothingThatWasNotAllowed(t *testing.T) {
	loops.NotInCheck(t)
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash")
	}
	if ran := ranIn(t, "git log; evil x | git $(evil)"); len(ran) != 4 {
		t.Fatalf("the probe saw %q", ran)
	}
	pieces := []string{
		"git", "evil", " ", " ", " ", "\n", "\n", "\t", ";", ";", "&&", "||", "|", "|&", "&", "!", "! ", "\\", "\\\n", "'", "'", `"`, `"`, "\\\"", "\\'", "`", "$(", ")", "(", "{ ", "; }",
		" >/dev/null ", " 2>&1 ", " &>/dev/null", "</dev/null", ">/dev/null", "1", "2", ">", "<", " <<E\n", "\nE\n", "#", " #", "\n#", "$", "x=", "[ ", " ]", "~", "*", "{a,evil}", "if ", "; then ", "; fi", "time ",
		"echo ", "test ", "set -e", "cd ", "exit", "wait", "true", "-e", "--", "\u00a0", "é", "'evil'", `"evil`, "=", ":", "%", "^", "@", ",", "]", "-v ", "'a[$(evil)]'",
	}
	p := mustNew(t, "git")
	random := rand.New(rand.NewPCG(*seed, 0))
	allowed, ran := 0, 0
	for range *scripts {
		var b strings.Builder
		b.WriteString("git ")
		for range random.IntN(6) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		b.WriteString("evil")
		for range random.IntN(5) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		script := b.String()
		if p.Check(task(script)) != nil {
			continue
		}
		allowed++
		for _, name := range ranIn(t, script) {
			ran++
			if name != "git" {
				t.Errorf("%q is allowed, and bash runs %q", script, name)
			}
		}
	}
	t.Logf("%d scripts were allowed, %d commands were run", allowed, ran)
	if allowed < 50 || ran < 50 {
		t.Error("that shows little")
	}
}

func FuzzCheck(f *testing.F) {
	for _, text := range []string{
		"git log", "git \\\n log # x", "git 'a\nb' | git \"x\" && git;git&git", "git >/dev/null 2>&1 &>/dev/null </dev/null", "set -e\ncd x; [ -f y ] || exit 1", `git \x 'y'"z\"`,
	} {
		f.Add(text, "git, npm test *")
	}
	f.Fuzz(func(t *testing.T, text, rules string) {
		p, err := policy.New(rules)
		if err != nil || rules == "" {
			return
		}
		if p.Check(task(text)) != nil || strings.Contains(text+rules, "reboot") || strings.ContainsAny(rules, "*?[") {
			return
		}
		// Whatever was allowed before it, a command without a rule is seen.
		for _, more := range []string{text + "\n\nreboot\n", text + "\n;reboot", text + "\n|reboot", "reboot\n" + text} {
			if p.Check(task(more)) == nil {
				t.Errorf("%q is allowed with rules %q", more, rules)
			}
		}
	})
}
