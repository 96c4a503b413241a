package mutate

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/build"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	only   = flag.String("mutate.only", "", "break the guards of these packages, of scripts, or of files of them; all: of those marked")
	n      = flag.Int("mutate.n", 0, "break so many of them, others each day; 0: all")
	update = flag.Bool("mutate.update", false, "write down which survive")
)

// marked is what guards things.
const marked = "internal/gate internal/token internal/policy internal/worktree internal/credential internal/fleet internal/git internal/intake internal/oauth internal/result internal/egress internal/secret internal/callback internal/envfile internal/store/engines.go scripts/lib/destroy.sh scripts/lib/fence.sh scripts/lib/fork-point.sh scripts/lib/lease.sh scripts/lib/left.sh scripts/lib/mount.sh scripts/lib/quarantine.sh scripts/lib/result.sh scripts/lib/retry.sh scripts/lib/sweep.sh scripts/lib/validate.sh scripts/lib/vm.sh scripts/lib/volume.sh scripts/proxmox/uninstall.sh scripts/proxmox/volume.sh"

// also has the tests of shell files beside those of their own names, where that is not too slow.
var also = map[string]string{
	"checkpoint": "proxmox/checkpoint-vm", "fence": "proxmox/fence", "fork-point": "proxmox/fork-vm", "restore": "proxmox/checkpoint-vm", "vm": "lib/destroy",
}

// most is how many may survive. It becomes less.
const most = 1526

const list = "testdata/mutants.txt"

// A guard is broken in each way, and lines stay where they are.
func TestBreaks(t *testing.T) {
	for _, tt := range []struct{ name, src, want string }{
		{"a.go", "package a\nfunc f() {\n\tdefer end()\n\tif a < 1 && b {\n\t\treturn\n\t}\n}\n", "package a\nfunc f() {\n\tif mutantIs(\"1\") { end() } else { defer end() }\n\tif (" +
			"((a < 1 || mutantIs(\"5\") && (a) == (1)) || mutantIs(\"3\")) && (b || mutantIs(\"4\"))) && !mutantIs(\"2\") {\n\t\treturn\n\t}\n}\n"},
		{"b.sh", "[[ ! a || b ]] && c\n", "[[ ( ! a && ! -e d/on.1$(: >>d/1) ) || ( b && ! -e d/on.2$(: >>d/2) ) ]] && c\n"},
		{"a.sh", "f() {\n  if [[ -n ${a} ]]; then\n    return 1\n  fi\n  g \\\n    || die\n}\n", "f() {\n  if { [[ -n ${a} ]]; } && [[ ! -e d/on.1$(: >>d/1) ]]; then\n    return 1\n  fi\n  g \\\n    || [[ -e d/on.2$(: >>d/2) ]] || die\n}\n"},
	} {
		got, mutants, err := Go(tt.name, tt.src, 1)
		if filepath.Ext(tt.name) == ".sh" {
			got, mutants, err = Shell(tt.name, tt.src, 1, "d")
		}
		if err != nil || got != tt.want {
			t.Errorf("%s: %v, %v\n%s", tt.name, mutants, err, got)
		}
	}
}

func TestSurvivors_AreNoMore(t *testing.T) {
	t.Chdir("../..")
	if known := survivors(t); len(known) > most {
		t.Errorf("%s has %d mutants that survive, and at most %d may: have a test die of one", list, len(known), most)
	}
}

// survivors returns what is said of the mutants that are known to survive.
func survivors(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, why, _ := strings.Cut(strings.TrimSpace(line), " // ")
		known[key] = why
	}
	return known
}

// suite is the tests of what is broken: of a package, or of some scripts.
type suite struct {
	dir     string                      // where they run
	command func(names string) []string // what runs those of a pattern
	names   []string                    // of all
	marks   string                      // the directory that says what is in force
	took    map[string]time.Duration    // each
	reach   map[int][]string            // which tests come by a mutant, the fastest first
}

// Of each mutant a test dies, or it is known to survive.
func TestMutants(t *testing.T) {
	if *only == "" {
		t.Skip("breaks guards with -mutate.only alone: make mutants")
	}
	t.Chdir("../..")
	type broken struct {
		Mutant
		*suite
	}
	var all []broken
	of := map[string][]string{}
	for _, name := range strings.Fields(map[bool]string{true: marked, false: *only}[*only == "all"]) {
		dir, files := filepath.Dir(name), []string{name}
		if filepath.Ext(name) == ".sh" {
			dir = name // which has tests of its own
		} else if filepath.Ext(name) == "" {
			dir = name
			files, _ = filepath.Glob(name + "/*.*")
		}
		of[dir] = append(of[dir], files...)
	}
	for _, dir := range slices.Sorted(maps.Keys(of)) {
		s, mutants := open(t, dir, of[dir])
		for _, m := range mutants {
			all = append(all, broken{m, s})
		}
	}
	if total := len(all); *n > 0 && *n < total {
		from := int(time.Now().Unix()/86400) * *n % total
		all = slices.Concat(all[from:], all[:from])[:*n]
		fmt.Fprintf(os.Stderr, "%d of %d mutants, from %s on\n", *n, total, all[0].Key)
	}
	known, lives, tried := survivors(t), map[string]bool{}, map[string]bool{}
	for _, m := range all {
		result := m.try(t, m.ID)
		lives[m.Key], tried[m.File] = strings.HasPrefix(result, "survived"), *n == 0
		switch _, is := known[m.Key]; {
		case *update || !lives[m.Key]:
		case is:
			result += ", as known"
		default:
			if passed, _ := m.run(t, m.ID, m.names); passed {
				t.Errorf("%s:%d: no test dies of it: %s", m.File, m.Line, m.Key)
			} else {
				result = "killed by chance" // by a test that seldom comes by it
			}
		}
		fmt.Fprintf(os.Stderr, "%-20s %s:%d %s\n", result, m.File, m.Line, m.Key)
	}
	if *update {
		note(t, lives, tried)
	}
}

// note writes down which mutants survive, of those that were tried; those that are not there any more
// go, if all of their files were tried.
func note(t *testing.T, lives, tried map[string]bool) {
	known := survivors(t)
	maps.DeleteFunc(known, func(key, _ string) bool {
		file, _, _ := strings.Cut(key, " ")
		lives, seen := lives[key]
		return seen && !lives || tried[file] && !seen
	})
	var lines strings.Builder
	for key := range lives {
		if lives[key] {
			known[key] += ""
		}
	}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		lines.WriteString(strings.TrimSuffix(key+" // "+known[key], " // ") + "\n")
	}
	if err := os.WriteFile(list, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// try runs the tests that come by a mutant, a few at first.
func (s *suite) try(t *testing.T, mutant int) string {
	if s.reach == nil {
		s.look(t)
	}
	tests := s.reach[mutant]
	for from, some := 0, 4; from < len(tests); from, some = from+some, 2*some {
		switch passed, ended := s.run(t, mutant, tests[from:min(from+some, len(tests))]); {
		case !ended:
			return "killed, it hung"
		case !passed:
			return "killed"
		}
	}
	if len(tests) == 0 {
		return "survived, unreached"
	}
	return "survived"
}

// look runs each test while nothing is broken, to see which mutants it comes by.
func (s *suite) look(t *testing.T) {
	s.took, s.reach = map[string]time.Duration{}, map[int][]string{}
	for _, name := range slices.Clone(s.names) {
		began := time.Now()
		s.took[name] = 5 * time.Minute
		if passed, _ := s.run(t, 0, []string{name}); !passed {
			t.Errorf("%s: %s fails while nothing is broken", s.dir, name)
			s.names = slices.DeleteFunc(s.names, func(other string) bool { return other == name })
		}
		s.took[name] = time.Since(began)
		marks, _ := filepath.Glob(s.marks + "/*")
		for _, mark := range marks {
			_ = os.Remove(mark)
			id, _ := strconv.Atoi(filepath.Base(mark))
			s.reach[id] = append(s.reach[id], name)
		}
	}
	for _, tests := range s.reach {
		slices.SortStableFunc(tests, func(a, b string) int { return int(s.took[a] - s.took[b]) })
	}
}

// run runs tests while a mutant is in force; 0: none.
func (s *suite) run(t *testing.T, mutant int, tests []string) (passed, ended bool) {
	on := fmt.Sprintf("%s/on.%d", s.marks, mutant)
	if err := os.WriteFile(on, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(on) //nolint:errcheck // of the test alone
	limit := 15 * time.Second
	for _, name := range tests {
		limit += 5 * s.took[name]
	}
	_, passed, ended = command(t, limit, s.dir, s.command("^("+strings.Join(tests, "|")+")$")...)
	return passed, ended
}

// command runs a program, which ends in time or is killed.
func command(t *testing.T, limit time.Duration, dir string, args ...string) (out string, passed, ended bool) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Dir, c.Env, c.WaitDelay = dir, append(os.Environ(), "LINUS_TEST_LOOP=nightly"), time.Second
	text, err := c.CombinedOutput()
	return string(text), err == nil, ctx.Err() == nil
}

// open breaks files of a directory.
func open(t *testing.T, dir string, files []string) (*suite, []Mutant) {
	temp, err := os.MkdirTemp("", "m")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	s, mutants := &suite{dir: dir, marks: t.TempDir()}, []Mutant(nil)
	write := func(to, text string) {
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken := func(file, to string, breaks func(file, src string, first int) (string, []Mutant, error)) {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text, more, err := breaks(file, string(src), 1+len(mutants))
		if err != nil {
			t.Fatal(err)
		}
		write(to, text)
		mutants = append(mutants, more...)
	}
	if strings.HasPrefix(dir, "scripts/") {
		if out, passed, _ := command(t, time.Minute, ".", "bash", "-c", `git ls-files -z | tar --null -T - -c | tar -x -C "$1"`, "copy", temp); !passed {
			t.Fatal(out)
		}
		var bats []string
		for _, file := range files {
			broken(file, filepath.Join(temp, file), func(file, src string, first int) (string, []Mutant, error) { return Shell(file, src, first, s.marks) })
			name := strings.TrimSuffix(filepath.Base(file), ".sh")
			for _, of := range []string{filepath.Base(filepath.Dir(file)) + "/" + name, also[name]} {
				found, _ := filepath.Glob("scripts/test/" + of + ".bats")
				bats = append(bats, found...)
			}
		}
		slices.Sort(bats)
		bats = slices.Compact(bats)
		for _, file := range bats {
			text, _ := os.ReadFile(file)
			for _, m := range regexp.MustCompile(`(?m)^@test ["'](.*)["'] \{$`).FindAllStringSubmatch(string(text), -1) {
				s.names = append(s.names, regexp.QuoteMeta(m[1]))
			}
		}
		s.dir, s.command = temp, func(names string) []string { return append([]string{"bats", "--filter", names}, bats...) }
		return s, mutants
	}
	pkg, err := build.ImportDir(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	replaced := map[string]string{}
	replace := func(name string) string {
		path, _ := filepath.Abs(filepath.Join(dir, name))
		replaced[path] = filepath.Join(temp, name)
		return replaced[path]
	}
	for _, name := range pkg.GoFiles {
		if file := filepath.Join(dir, name); slices.Contains(files, file) {
			broken(file, replace(name), Go)
		}
	}
	write(replace("mutants_on.go"), Switch(pkg.Name, s.marks))
	overlay, _ := json.Marshal(map[string]any{"Replace": replaced})
	write(temp+"/overlay", string(overlay))
	if out, passed, _ := command(t, 10*time.Minute, ".", "go", "test", "-c", "-vet=off", "-ldflags=-w", "-overlay", temp+"/overlay", "-o", temp+"/tests", "./"+dir); !passed {
		t.Fatal(out)
	}
	s.command = func(names string) []string {
		return []string{temp + "/tests", "-test.short", "-test.failfast", "-test.run", names}
	}
	out, _, _ := command(t, time.Minute, dir, temp+"/tests", "-test.list", "^(Test|Fuzz|Example)")
	s.names = strings.Fields(out)
	return s, mutants
}
