package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/doctest"
)

// goPackage is what `go list -json` tells of a package.
type goPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

const module = "linus/"

// adapters are the packages around the domain: none knows another.
var adapters = []string{
	"internal/callback", "internal/cluster", "internal/config", "internal/control", "internal/credential", "internal/e2b", "internal/egress", "internal/executor", "internal/fleet", "internal/git",
	"internal/guest", "internal/hosttest", "internal/mcptool", "internal/oauth", "internal/policy", "internal/proxmox",
	"internal/schedule", "internal/store", "internal/telemetry", "internal/token", "internal/web", "internal/webhook",
}

// arrows says for each package which of ours it may import, outside tests:
//
//	cmd -> daemon -> adapters -> job -> field -> vm;  proxmox, guest -> remote, result, embed;  embed -> scripts
//
// A new package needs a line here: that is the moment to think of its place.
var arrows = map[string][]string{
	"cmd/linus":         {"internal/daemon", "internal/config", "internal/control", "internal/dispatch", "internal/dispatch/actions", "internal/dispatch/forge", "internal/field", "internal/gitlab", "internal/intake", "internal/job", "internal/junit", "internal/lategc", "internal/manual", "internal/mcptool", "internal/secret", "internal/view", "internal/worktree", "embed"},
	"cmd/linus-worker":  {"internal/handover", "internal/worker"},
	"cmd/linus-sandbox": {"internal/sandbox"},
	"internal/daemon":   append([]string{"internal/job", "internal/remote", "internal/secret"}, adapters...),

	"internal/credential": {"internal/job", "internal/lazyregexp", "internal/secret"},

	"internal/callback": {"internal/gate", "internal/job"},
	"internal/agent":    {},
	"internal/cluster":  {"internal/job"},
	"internal/config":   {"internal/job"},
	"internal/control":  {"internal/field", "internal/intake", "internal/job", "internal/view"},
	"internal/dispatch": {"internal/gate", "internal/handover", "internal/job"},
	"internal/gitlab":   {},

	"internal/dispatch/actions": {"internal/dispatch", "internal/job"},
	"internal/dispatch/forge":   {"internal/dispatch", "internal/job"},
	"internal/e2b":              {"internal/envd", "internal/gate", "internal/job", "internal/vmpage"},
	"internal/egress":           {"internal/job"},
	"internal/fleet":            {"internal/job", "internal/lock", "internal/patience", "internal/term"},
	"internal/git":              {"internal/job"},
	"internal/hosttest":         {"internal/job", "internal/lock"},
	"internal/executor":         {"internal/capture", "internal/job", "internal/lock", "internal/patience", "internal/secret"},
	"internal/capture":          {"internal/agent", "internal/job", "internal/patience", "internal/secret"},
	"internal/patience":         {"internal/job"},
	"internal/mcptool":          {"internal/field", "internal/job", "internal/junit", "internal/mcptask"},
	"internal/mcptask":          {},
	"internal/oauth":            {"internal/job"},
	"internal/policy":           {"internal/job"},
	"internal/secret":           {},
	"internal/schedule":         {"internal/job"},
	"internal/store":            {"internal/job"},
	"internal/web":              {"internal/field", "internal/gate", "internal/intake", "internal/job", "internal/junit", "internal/manual", "internal/view", "internal/vmpage"},
	"internal/view":             {"internal/job"},
	"internal/token":            {"internal/job"},
	"internal/webhook":          {"internal/job"},
	"internal/guest":            {"internal/job", "internal/remote", "internal/result", "internal/secret", "embed"},
	"internal/proxmox":          {"internal/job", "internal/remote", "internal/result", "embed"},
	"internal/telemetry":        {"internal/job"},

	"internal/field":       {"internal/agent"},
	"internal/job":         {"internal/agent", "internal/field"},
	"internal/vm":          {},
	"internal/manual":      {"embed"},
	"internal/envd":        {},
	"internal/envfile":     {},
	"internal/gate":        {},
	"internal/vmpage":      {},
	"internal/lategc":      {},
	"internal/lazyregexp":  {},
	"internal/handover":    {},
	"internal/lock":        {},
	"internal/sleep":       {},
	"internal/term":        {},
	"internal/intake":      {},
	"internal/junit":       {},
	"internal/sandbox":     {"internal/envd", "internal/sandbox/rpc"},
	"internal/sandbox/rpc": {},
	"internal/capped":      {},
	"internal/wholefile":   {},
	"internal/worker":      {"internal/handover"},
	"internal/worktree":    {"internal/intake"},
	"internal/remote":      {"internal/job"},
	"internal/result":      {},
	"embed":                {"scripts"},
	"scripts":              {},

	"cmd/pvelab": {"internal/lab", "internal/lab/process", "internal/lab/systemd"},

	// The lab: users see its root, the drivers know no commands, the commands no
	// driver.
	"internal/lab":           {"internal/lab/image", "internal/lab/pve", "internal/lab/process", "internal/lab/qemu", "internal/lab/netns", "internal/lab/nspawn", "internal/lab/sshserver", "internal/lab/state", "internal/lab/sys", "internal/lab/systemd"},
	"internal/lab/pve":       {"internal/lab/agent", "internal/lab/cloudinit", "internal/lab/state", "internal/lab/sys"},
	"internal/lab/process":   {"internal/lab/cloudinit", "internal/lab/sshserver", "internal/lab/state", "internal/lab/sys"},
	"internal/lab/qemu":      {"internal/lab/agent", "internal/lab/cloudinit", "internal/lab/image", "internal/lab/netns", "internal/lab/state", "internal/lab/sys"},
	"internal/lab/netns":     {"internal/lab/state", "internal/lab/sys"},
	"internal/lab/cloudinit": {"internal/lab/state", "internal/lab/sys"},
	"internal/lab/agent":     {"internal/lab/sys"},
	"internal/lab/image":     {"internal/lab/sys"},
	"internal/lab/sshserver": {"internal/lab/sys"},
	"internal/lab/state":     {"internal/lab/sys"},
	"internal/lab/sys":       {},
	"internal/lab/systemd":   {"internal/lab/sys"},
	"internal/lab/nspawn":    {"internal/lab/sys"},

	// Tests only.
	"internal/bench":         {},
	"internal/browsertest":   {"internal/loops"},
	"internal/doctest":       {},
	"internal/e2e":           {},
	"internal/e2e/simulated": {"internal/config", "internal/daemon", "internal/job", "internal/providertest"},
	"internal/forgetest":     {},
	"internal/githubtest":    {},
	"internal/gittest":       {},
	"internal/leaktest":      {},
	"internal/loops":         {},
	"internal/mutate":        {},
	"internal/pgtest":        {"internal/loops", "internal/wiretest"},
	"internal/providertest":  {"internal/job"},
	"internal/queuetest":     {"internal/dispatch", "internal/job"},
	"internal/sshtest":       {"internal/lab/sshserver"},
	"internal/storetest":     {"internal/store"},
	"internal/tlstest":       {},
	"internal/verbtest":      {"internal/job"},
	"internal/wiretest":      {},
}

// leaves may be imported by every package: they import none of ours.
var leaves = []string{"internal/capped", "internal/envfile", "internal/lazyregexp", "internal/sleep", "internal/term", "internal/vm", "internal/wholefile"}

// testOnly are the packages that nothing but tests may import.
var testOnly = []string{"internal/bench", "internal/browsertest", "internal/doctest", "internal/e2e", "internal/e2e/simulated", "internal/forgetest", "internal/githubtest", "internal/gittest", "internal/leaktest", "internal/loops", "internal/mutate", "internal/pgtest", "internal/providertest", "internal/queuetest", "internal/sshtest", "internal/storetest", "internal/tlstest", "internal/verbtest", "internal/wiretest"}

// onlyIn says which packages alone may import a foreign package, or one below
// it, outside tests.
var onlyIn = map[string][]string{
	"github.com/robfig/cron":               {"internal/schedule"},
	"golang.org/x/crypto/ssh":              {"internal/credential", "internal/git", "internal/gittest", "internal/remote", "internal/sshtest", "internal/lab", "internal/lab/process", "internal/lab/pve", "internal/lab/sshserver"},
	"github.com/pkg/sftp":                  {"internal/remote", "internal/sshtest", "internal/lab/process"},
	"github.com/mark3labs/mcp-go":          {"internal/mcptask", "internal/mcptool"},
	"github.com/kelseyhightower/envconfig": {"internal/config"},
	"modernc.org/sqlite":                   {"internal/store"},
	"github.com/pressly/goose":             {"internal/store"},
	"github.com/jackc/pgx":                 {"internal/store", "internal/pgtest"},
	"database/sql":                         {"internal/store"},
	"github.com/yuin/goldmark":             {"internal/manual"},
	"mvdan.cc/sh/v3":                       {"internal/mutate"},
	"github.com/go-jose/go-jose":           {"internal/dispatch/actions", "internal/githubtest", "internal/oauth"},
	"github.com/prometheus":                {"internal/telemetry"},
	"go.opentelemetry.io":                  {"internal/telemetry"},

	"github.com/anthropics/anthropic-sdk-go": {"internal/worker"},
	"connectrpc.com/connect":                 {"internal/sandbox", "internal/sandbox/rpc"},
}

// standardOnly are the packages that import nothing but the standard library.
var standardOnly = []string{"internal/capped", "internal/claude", "internal/envd", "internal/envfile", "internal/handover", "internal/job", "internal/lock", "internal/result", "internal/secret", "internal/sleep", "internal/term", "internal/vm", "internal/wholefile"}

// A VM's row is the fleet's: the executor of jobs, which has the VMs of its jobs in its hands,
// changes none.
func TestExecutor_ChangesNoVM(t *testing.T) {
	files, err := filepath.Glob("../../internal/executor/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	of := regexp.MustCompile(`\.VM\b`)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			assigned, ok := n.(*ast.AssignStmt)
			for i := 0; ok && i < len(assigned.Lhs); i++ {
				var text strings.Builder
				if err := printer.Fprint(&text, fset, assigned.Lhs[i]); err != nil {
					t.Fatal(err)
				}
				if of.MatchString(text.String()) && assigned.Tok != token.DEFINE {
					t.Errorf("%s: %s is assigned to: that is the fleet's", fset.Position(n.Pos()), &text)
				}
			}
			return true
		})
	}
}

// A writer that bounds what it keeps, and is a buffer itself, bounds nothing: io.Copy, and os/exec with
// it, asks the buffer to read by itself. So a type has a buffer or a file, and is none.
func TestTypes_AreNoBuffersOrFilesThemselves(t *testing.T) {
	embeds := regexp.MustCompile(`(?m)^\t\*?(bytes\.Buffer|bufio\.(Writer|ReadWriter)|os\.File|net\.(TCP|Unix)Conn)(\s*//.*)?$`)
	for _, dir := range []string{"../../cmd", "../../internal"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if found := embeds.Find(text); found != nil {
				t.Errorf("%s: a type embeds %s: give it a field of a name", path, bytes.TrimSpace(found))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestImports_GoOneWay(t *testing.T) {
	packages := listPackages(t)
	for name, p := range packages {
		allowed, known := arrows[name]
		if !known {
			t.Errorf("%s has no line in arrows: give it its place", name)
			continue
		}
		for _, i := range p.Imports {
			ours, ok := strings.CutPrefix(i, module)
			if ok && !slices.Contains(allowed, ours) && !slices.Contains(leaves, ours) {
				t.Errorf("%s imports %s; it may import %v", name, ours, allowed)
			}
			if !ok && slices.Contains(standardOnly, name) && strings.Contains(strings.Split(i, "/")[0], ".") {
				t.Errorf("%s imports %s; it may import the standard library only", name, i)
			}
			checkForeign(t, name, i)
		}
	}
}

func checkForeign(t *testing.T, name, imported string) {
	t.Helper()
	for foreign, users := range onlyIn {
		if (imported == foreign || strings.HasPrefix(imported, foreign+"/")) && !slices.Contains(users, name) {
			t.Errorf("%s imports %s; only %v may", name, imported, users)
		}
	}
}

func TestImports_NothingImportsCommandsAndOnlyTestsImportTestPackages(t *testing.T) {
	for name, p := range listPackages(t) {
		for _, i := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if strings.HasPrefix(i, module+"cmd/") {
				t.Errorf("%s imports %s; nothing imports a command", name, i)
			}
		}
		for _, i := range p.Imports {
			if slices.Contains(testOnly, strings.TrimPrefix(i, module)) && !slices.Contains(testOnly, name) {
				t.Errorf("%s imports %s; only tests may", name, i)
			}
		}
	}
}

// TestImports_AdaptersAreApart reads the table itself, so that a line added in
// haste shows.
func TestImports_AdaptersAreApart(t *testing.T) {
	for _, a := range adapters {
		for _, b := range arrows[a] {
			if slices.Contains(adapters, b) {
				t.Errorf("the table lets %s import %s", a, b)
			}
		}
	}
	for name, allowed := range arrows {
		if slices.Contains(allowed, "scripts") && name != "embed" {
			t.Errorf("the table lets %s import scripts; only embed may", name)
		}
	}
}

// The picture of the house, where people look for it, has every package of the
// product.
func TestImports_ThePictureHasEveryPackage(t *testing.T) {
	for _, file := range []string{"embed/docs/architecture.md", ".github/CONTRIBUTING.md"} {
		_, section, _ := strings.Cut(doctest.Read(t, filepath.Join("..", "..", file)), "\n## The house\n")
		_, picture, _ := strings.Cut(section, "```\n")
		picture, _, _ = strings.Cut(picture, "```\n")
		for name := range arrows {
			if slices.Contains(testOnly, name) || name == "cmd/pvelab" || strings.HasPrefix(name, "internal/lab") {
				continue
			}
			short := regexp.QuoteMeta(strings.TrimPrefix(name, "internal/"))
			if !regexp.MustCompile(`\b` + short + `\b`).MatchString(picture) {
				t.Errorf("%s does not show %s", file, name)
			}
		}
	}
}

// listPackages returns every package of the module by its path below it.
func listPackages(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"...")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("go list: %s", exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	packages := map[string]goPackage{}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages[strings.TrimPrefix(p.ImportPath, module)] = p
	}
	if len(packages) < 5 {
		t.Fatalf("go list found %d packages", len(packages))
	}
	return packages
}
