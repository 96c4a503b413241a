package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// shelf is a host's templates in memory.
type shelf struct {
	held  []vm.VM
	specs []job.TemplateSpec // that were built
	fault error              // every verb's
	waits bool               // for the host, before a list fails

	uninstalled int
}

func (s *shelf) BuildTemplate(_ context.Context, spec job.TemplateSpec, progress func(job.Progress)) (vm.VM, error) {
	progress(job.Progress{Step: "download_os_image", Text: "getting\nthe image", N: 1, Of: 2})
	progress(job.Progress{Warning: "the storage is almost full"})
	if s.fault != nil {
		return vm.VM{}, s.fault
	}
	s.specs = append(s.specs, spec)
	v := vm.VM{ID: 9000 + len(s.held), Name: spec.Name, Node: "pve", Job: spec.Build}
	s.held = append(s.held, v)
	return v, nil
}

func (s *shelf) Templates(ctx context.Context) ([]vm.VM, error) {
	if s.waits {
		job.Waits(ctx, "the host", s.fault, time.Now().Add(time.Minute))
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
			return nil, errors.New("it was waited for")
		}
	}
	return s.held, s.fault
}

func (s *shelf) RenameTemplate(context.Context, string, string) (vm.VM, error) {
	return vm.VM{}, errors.New("no command renames one")
}

func (s *shelf) RemoveTemplate(_ context.Context, nameOrID string) (vm.VM, error) {
	i := slices.IndexFunc(s.held, func(v vm.VM) bool { return v.Name == nameOrID || fmt.Sprint(v.ID) == nameOrID })
	if i < 0 || s.fault != nil {
		return vm.VM{}, &job.HostError{Op: "remove template " + nameOrID, Host: "root@pve:22", Class: job.HostInvalid, Text: "no such template", Remedy: string(job.ListTemplates) + " shows them"}
	}
	v := s.held[i]
	s.held = slices.Delete(s.held, i, i+1)
	return v, nil
}

func (s *shelf) Uninstall(_ context.Context, spec job.UninstallSpec) (job.Uninstalled, error) {
	done := job.Uninstalled{Node: "pve", Removed: []string{"/var/lib/linus: leases"}, Stays: []string{"VM 100 (web)"}}
	if s.fault != nil || !spec.LeaveVMs {
		return done, cmp.Or[error](s.fault, &job.HostError{Op: "uninstall", Host: "root@pve:22", Class: job.HostVM, Text: "pve has VMs of linus: 100 (web)", Remedy: "destroy them first"})
	}
	if !spec.Plan {
		s.uninstalled++
	}
	return done, nil
}

func TestTemplate(t *testing.T) {
	down := &job.HostError{Op: "list templates", Host: "root@pve:22", Class: job.HostOffline, Text: "node 'b' is offline", Remedy: "start it"}
	one := []vm.VM{{ID: 9000, Name: "agent-template", Node: "pve"}}
	saved := []vm.VM{{ID: 9001, Name: "setup", Node: "pve", Job: "0d3a4f63-0000-4000-8000-000000000001", Provenance: &vm.Provenance{VM: "dev", Template: "agent-template", By: "ann", At: time.Unix(1700000000, 0)}}}
	tests := []struct {
		name   string
		shelf  shelf
		args   string
		code   int
		stdout string // whole
		stderr string // a part
		left   int    // templates, then
	}{
		{
			name: "build", args: "build", left: 1,
			stdout: "template agent-template is VM 9000 on node pve\n",
			stderr: "1/2 getting the image\nwarning: the storage is almost full\n",
		},
		{
			name: "build as JSON", args: "build --os rocky-9 --name el -o json", left: 1,
			stdout: "{\n  \"id\": 9000,\n  \"name\": \"el\",\n  \"node\": \"pve\"\n}\n",
		},
		{name: "build of an image without its sum", args: "build --image file:///a.img", code: exitUsage, stderr: "--image and --sha256 go together"},
		{name: "build that fails", args: "build", shelf: shelf{fault: down}, code: exitFailure, stderr: "node 'b' is offline; start it"},
		{
			name: "list", args: "list", shelf: shelf{held: one}, left: 1,
			stdout: "ID    NAME            NODE  SAVED FROM\n9000  agent-template  pve   -\n",
		},
		{
			name: "list of one that was saved", args: "list", shelf: shelf{held: saved}, left: 1,
			stdout: "ID    NAME   NODE  SAVED FROM\n9001  setup  pve   dev\n",
		},
		{
			name: "show one that was saved", args: "show setup", shelf: shelf{held: saved}, left: 1,
			stdout: "template    setup\nVM          9001\nnode        pve\nbuild       " + saved[0].Job + "\nsaved from  dev\nmade from   agent-template\nsaved by    ann\nsaved       " + local(saved[0].Provenance.At) + "\n",
		},
		{name: "show one that was built", args: "show 9000 -o json", shelf: shelf{held: one}, left: 1, stdout: "{\n  \"id\": 9000,\n  \"name\": \"agent-template\",\n  \"node\": \"pve\"\n}\n"},
		{name: "show what is not there", args: "show other", shelf: shelf{held: one}, left: 1, code: exitUsage, stderr: `template: this installation has made no template called "other"; linus template list shows those it has`},
		{name: "list as JSON of nothing", args: "list -o json", stdout: "[]\n"},
		{
			name: "list where a node is down", args: "list", shelf: shelf{held: one, fault: down}, left: 1, code: exitFailure,
			stdout: "ID    NAME            NODE  SAVED FROM\n9000  agent-template  pve   -\n", stderr: "node 'b' is offline",
		},
		{name: "list where all is down", args: "list", shelf: shelf{fault: down}, code: exitFailure, stderr: "node 'b' is offline"},
		{name: "list of a host that refuses", args: "list", shelf: shelf{fault: down, waits: true}, code: exitFailure, stderr: "node 'b' is offline"},
		{name: "show of a host that refuses", args: "show setup", shelf: shelf{fault: down, waits: true}, code: exitFailure, stderr: "node 'b' is offline"},
		{name: "remove by name", args: "remove agent-template", shelf: shelf{held: one}, stdout: "template agent-template (VM 9000) is removed\n"},
		{name: "remove by ID", args: "remove 9000", shelf: shelf{held: one}, stdout: "template agent-template (VM 9000) is removed\n"},
		{name: "remove what is not there", args: "remove other", shelf: shelf{held: one}, left: 1, code: exitFailure, stderr: "no such template; linus template list shows them"},
		{name: "remove nothing", args: "remove", code: exitUsage, stderr: "takes one argument: the template's name or VM ID"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			useHost(t, sshtest.Start(t, sshtest.Options{}))
			t.Setenv("LINUS_STATE_DIR", filepath.Join(t.TempDir(), "s"))
			tt.shelf.held = slices.Clone(tt.shelf.held)
			var stdout, stderr bytes.Buffer
			withShelf := func(config.Config, daemon.Installation, *slog.Logger) daemon.Backend {
				return daemon.Backend{Templates: &tt.shelf, Close: func() {}}
			}
			code := run(t.Context(), withShelf, append([]string{"template"}, strings.Fields(tt.args)...), strings.NewReader(""), &stdout, &stderr)
			if code != tt.code || stdout.String() != tt.stdout || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit code %d\nstdout %q\nstderr %q", code, stdout.String(), stderr.String())
			}
			if len(tt.shelf.held) != tt.left {
				t.Errorf("%d templates left, want %d", len(tt.shelf.held), tt.left)
			}
		})
	}
}

func TestTemplateBuild_PassesOnWhatIsAskedFor(t *testing.T) {
	useHost(t, sshtest.Start(t, sshtest.Options{}))
	t.Setenv("LINUS_STATE_DIR", filepath.Join(t.TempDir(), "s"))
	var s shelf
	withShelf := func(config.Config, daemon.Installation, *slog.Logger) daemon.Backend {
		return daemon.Backend{Templates: &s, Close: func() {}}
	}
	args := []string{"template", "build", "--os", "debian-13", "--name", "big", "--image", "file:///a.img", "--sha256", "00", "--bootstrap", "python,github-runner", "--github-runner", "https://x/r.tar.gz", "--github-runner-sha256", "11"}
	var out bytes.Buffer
	if code := run(t.Context(), withShelf, args, strings.NewReader(""), &out, &out); code != exitOK {
		t.Fatalf("exit code %d, %s", code, &out)
	}
	want := job.TemplateSpec{Name: "big", OS: "debian-13", ImageURL: "file:///a.img", ImageSHA256: "00", Bootstrap: "python,github-runner", Runners: map[string]job.FileSource{"github-runner": {URL: "https://x/r.tar.gz", SHA256: "11"}}}
	if len(s.specs) != 1 || !reflect.DeepEqual(s.specs[0], want) {
		t.Errorf("built %+v, want %+v", s.specs, want)
	}
	for _, given := range [][]string{{"--bootstrap", "github-runner"}, {"--github-runner", "https://x/r.tar.gz", "--github-runner-sha256", "11"}, {"--bootstrap", "base github-runner", "--github-runner", "https://x"}, {"--bootstrap", "gitea-runner", "--forgejo-runner", "https://x", "--forgejo-runner-sha256", "11"}} {
		if code := run(t.Context(), withShelf, append([]string{"template", "build"}, given...), strings.NewReader(""), &out, &out); code != exitUsage {
			t.Errorf("%q: exit code %d, %s", given, code, &out)
		}
	}
}

// threeNodes is a cluster whose third node is down.
type threeNodes struct {
	job.Provider
	spread  bool
	shelves map[string]*shelf
}

func (n threeNodes) Nodes(context.Context) (job.Inventory, error) {
	inv := job.Inventory{Spread: n.spread, Nodes: []job.Node{{Name: "a"}, {Name: "c"}, {Name: "b"}}}
	for i, node := range inv.Nodes {
		for _, vm := range n.shelves[node.Name].held {
			inv.Nodes[i].Templates = append(inv.Nodes[i].Templates, job.NodeTemplate{ID: vm.ID, Name: vm.Name, Build: vm.Job})
		}
	}
	return inv, nil
}

// clusterOf returns how commands about templates run on a cluster of three nodes with
// these templates.
func clusterOf(t *testing.T, shelves map[string]*shelf, spread bool) func(args ...string) (code int, text string) {
	t.Helper()
	useHost(t, sshtest.Start(t, sshtest.Options{}))
	t.Setenv("LINUS_STATE_DIR", filepath.Join(t.TempDir(), "s"))
	onNodes := func(config.Config, daemon.Installation, *slog.Logger) daemon.Backend {
		return daemon.Backend{
			Provider: threeNodes{spread: spread, shelves: shelves}, Close: func() {},
			TemplatesOn: func(_ context.Context, node string) (daemon.TemplateStore, error) { return shelves[node], nil },
		}
	}
	return func(args ...string) (code int, text string) {
		t.Helper()
		var out bytes.Buffer
		code = run(t.Context(), onNodes, append([]string{"template"}, args...), strings.NewReader(""), &out, &out)
		return code, out.String()
	}
}

// On all nodes it is one build; a node that fails keeps no other from it, and gets the
// same build when it is back, while those that have it already are left as they are.
func TestTemplate_OnAllNodes(t *testing.T) {
	shelves := map[string]*shelf{"a": {}, "b": {}, "c": {fault: &job.HostError{Op: "reach node c", Host: "a", Class: job.HostOffline, Text: "node 'c' is offline"}}}
	linus := clusterOf(t, shelves, true)
	code, text := linus("build", "--name", "big", "--all-nodes")
	if code != exitFailure || !strings.Contains(text, "b: 1/2 getting the image") || !strings.Contains(text, "node 'c' is offline") {
		t.Errorf("exit code %d, %s", code, text)
	}
	a, b := shelves["a"].specs, shelves["b"].specs
	if len(a) != 1 || len(b) != 1 || !reflect.DeepEqual(a[0], b[0]) || len(a[0].Build) != 36 || a[0].Build[14] != '7' {
		t.Errorf("built %+v and %+v", a, b)
	}
	shelves["c"].fault = nil
	for range 2 {
		code, text = linus("build", "--name", "big", "--all-nodes")
		if code != exitOK || !strings.Contains(text, "template big is VM 9000 on node a already\n") || !strings.Contains(text, "on node b already") {
			t.Errorf("exit code %d, %s", code, text)
		}
	}
	if c := shelves["c"].specs; len(c) != 1 || !reflect.DeepEqual(c[0], a[0]) || len(shelves["a"].specs)+len(shelves["b"].specs) != 2 {
		t.Errorf("built %+v on c, want %+v", c, a[0])
	}
	shelves["b"].held = nil
	if code, text := linus("remove", "big", "--all-nodes"); code != exitOK || !strings.Contains(text, "b: has no template big") || len(shelves["a"].held)+len(shelves["c"].held) != 0 {
		t.Errorf("exit code %d, %s", code, text)
	}
	if code, text := linus("remove", "big", "--all-nodes"); code != exitFailure || !strings.Contains(text, "no such template") {
		t.Errorf("exit code %d, %s", code, text)
	}
	linus = clusterOf(t, shelves, false)
	if code, text := linus("build", "--all-nodes"); code != exitFailure && code != exitUsage || !strings.Contains(text, "PROXMOX_NODES") {
		t.Errorf("exit code %d, %s", code, text)
	}
}

// A template that jobs do not use beside those of other nodes is told of as a failure,
// after the others are built. Where all are made by hand, all are used.
func TestTemplate_OnAllNodesBesideOthersOfTheName(t *testing.T) {
	const older, newer = "0199f000-0000-7000-8000-000000000001", "0199f000-0000-7000-8000-000000000002"
	big := func(build string) *shelf { return &shelf{held: []vm.VM{{ID: 200, Name: "big", Job: build}}} }
	for _, tt := range []struct {
		name    string
		a, b, c *shelf
		built   int // on c
		code    int
		text    string
	}{
		{"made by hand", big(""), big(newer), &shelf{}, 1, exitFailure, "a: template big (VM 200) was not built by linus, as on other nodes; rename or remove it by hand, then build again"},
		{"of an older build", big(older), big(newer), &shelf{}, 1, exitFailure, "a: template big (VM 200) is of an older build than on other nodes; remove it, then build again"},
		{"made by hand, before the first build", big(""), big(""), &shelf{}, 1, exitFailure, "b: template big (VM 200) was not built by linus"},
		{"all made by hand", big(""), big(""), big(""), 0, exitOK, "template big is VM 200 on node c already"},
		{"two of the name", &shelf{held: append(big(newer).held, big("").held...)}, big(newer), &shelf{}, 1, exitFailure, "a: template big (VM 200) is the name of several templates there; "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, text := clusterOf(t, map[string]*shelf{"a": tt.a, "b": tt.b, "c": tt.c}, true)("build", "--name", "big", "--all-nodes")
			if code != tt.code || !strings.Contains(text, tt.text) || len(tt.a.specs)+len(tt.b.specs) != 0 || len(tt.c.specs) != tt.built {
				t.Errorf("exit code %d, built %+v, %s", code, tt.c.specs, text)
			}
		})
	}
}
