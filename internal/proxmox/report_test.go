package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/vm"
)

func vmLine(id int, name string) string {
	return fmt.Sprintf("LINUS_VM:id=%d node=pve name=%s status=stopped job=%s owner=%s", id, name, jobID, owner)
}

func TestList_IsWhatTheHostHasOfThisInstallation(t *testing.T) {
	t.Parallel()
	listed := vm.VM{ID: 105, Name: "dev", Node: "pve", Job: jobID, Owner: owner, State: vm.Created, Status: vm.Stopped}
	tests := []struct {
		name  string
		lines []string
		want  []vm.VM
		class job.HostClass // of the error; "": none
		text  string        // in it
	}{
		{"none", nil, nil, "", ""},
		{"one", []string{vmLine(105, "dev")}, []vm.VM{listed}, "", ""},
		{"a node does not answer", []string{vmLine(105, "dev"), "LINUS_WARNING:node pve2 is offline"}, []vm.VM{listed}, job.HostOffline, "pve2 is offline"},
		{"one that cannot be", []string{vmLine(105, "dev"), vmLine(5, "odd")}, nil, job.HostVM, "without ID"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var env map[string]string
			h := newScripted(t, map[string]func(*run) int{"list-vms": func(r *run) int {
				env = r.env
				return succeeds(tt.lines...)(r)
			}})
			vms, err := h.provider(nil).List(t.Context())
			if tt.class == "" && err != nil {
				t.Error(err)
			} else if tt.class != "" {
				if host := hostError(t, err, tt.class); !strings.Contains(host.Text, tt.text) {
					t.Errorf("%+v, want %q", host, tt.text)
				}
			}
			if diff := cmp.Diff(tt.want, vms); diff != "" {
				t.Errorf("VMs (-want +got):\n%s", diff)
			}
			if env["LINUS_OWNER"] != owner || env["VM_KIND"] != "vm" {
				t.Errorf("asked with %v", env)
			}
		})
	}
}

// What is not used, and what is left alone, is logged as it comes and as it
// goes, and told in every report until it went.
func TestList_TellsOnceOfWhatIsLeft(t *testing.T) {
	t.Parallel()
	lines := make(chan []string, 10)
	h := newScripted(t, map[string]func(*run) int{
		"list-vms":   func(r *run) int { return succeeds(<-lines...)(r) },
		"check-host": succeeds("LINUS_VM_NODE:pve", "LINUS_CHECK:storage:ok:local-lvm has room"),
	})
	log := &logBook{}
	p := h.provider(logged(log))
	quarantined := "LINUS_QUARANTINED:103 local-lvm:vm-103-disk-0 local-lvm:vm-103-cloudinit"
	alone := "LINUS_LEFT_ALONE:105 " + jobID + " dev it does not carry the tag linus"
	told := func(name string) []job.Check {
		t.Helper()
		r, err := p.Check(t.Context())
		if err != nil || !r.OK {
			t.Errorf("check = %+v, %v", r, err)
		}
		return slices.DeleteFunc(r.Checks, func(c job.Check) bool { return c.Name != name })
	}
	list := func(said ...string) {
		t.Helper()
		lines <- said
		if _, err := p.List(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	counts := func(came, went int) {
		t.Helper()
		for word, want := range map[string]int{
			"VM ID is not used": came, "expired VM is left alone": came,
			"volumes left of a destroyed VM have changed": went, "no longer left alone": went,
		} {
			if got := len(log.lines(word)); got != want {
				t.Errorf("%q is logged %d times, want %d", word, got, want)
			}
		}
	}
	list()
	counts(0, 0)
	list(quarantined, alone)
	list(quarantined, alone)
	counts(1, 0)
	if got := told("quarantine"); len(got) != 1 || got[0].Level != "warn" || !strings.Contains(got[0].Text, "VM ID 103 ") ||
		!strings.HasSuffix(got[0].Remedy, "pvesm free local-lvm:vm-103-disk-0 local-lvm:vm-103-cloudinit") {
		t.Errorf("quarantine: %+v", got)
	}
	if got := told("left_alone"); len(got) != 1 || got[0].Level != "warn" || !strings.Contains(got[0].Text, "VM 105 (dev, of job "+jobID+")") ||
		!strings.Contains(got[0].Text, "does not carry the tag") || got[0].Remedy == "" {
		t.Errorf("left alone: %+v", got)
	}
	list()
	counts(1, 1)
	if got := append(told("quarantine"), told("left_alone")...); len(got) != 0 {
		t.Errorf("still told: %+v", got)
	}
}

func TestCheck_IsInOrderWhenEveryFindingIs(t *testing.T) {
	t.Parallel()
	bad := []string{"LINUS_VM_NODE:pve", "LINUS_CHECK:storage:ok:it has: room", "LINUS_CHECK:template:fail:VM_TEMPLATE=x is none", "LINUS_REMEDY:build it"}
	tests := []struct {
		name   string
		script func(*run) int
		ok     bool
		want   []job.Check // but ssh and forwarding, which are this side's
		class  job.HostClass
	}{
		{"all is well", succeeds("LINUS_VM_NODE:pve", "LINUS_CHECK:storage:ok:it has: room"), true,
			[]job.Check{{Name: "storage", Level: "ok", Text: "it has: room"}}, ""},
		{"a warning is no fault", succeeds("LINUS_VM_NODE:pve", "LINUS_CHECK:memory:warn:little", "LINUS_REMEDY:buy some"), true,
			[]job.Check{{Name: "memory", Level: "warn", Text: "little", Remedy: "buy some"}}, ""},
		{"a finding fails", succeeds(bad...), false, []job.Check{
			{Name: "storage", Level: "ok", Text: "it has: room"},
			{Name: "template", Level: "fail", Text: "DEFAULT_VM_TEMPLATE=x is none", Remedy: "build it"},
		}, ""},
		{"findings, and a script that fails", func(r *run) int { r.say(bad[:2]...); return r.fails(3, "no quorum", "wait") }, false,
			[]job.Check{{Name: "storage", Level: "ok", Text: "it has: room"}}, ""},
		{"no findings", func(r *run) int { return r.fails(2, "no qm", "install Proxmox VE") }, false, nil, job.HostDependency},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var env map[string]string
			h := newScripted(t, map[string]func(*run) int{"check-host": func(r *run) int {
				env = r.env
				return tt.script(r)
			}})
			p := h.provider(func(o *proxmox.Options) {
				o.Template = "agent-template"
				o.CallbackURL = func(context.Context) (string, error) { return "http://192.0.2.1:8765", nil }
			})
			r, err := p.Check(t.Context())
			if env["VM_TEMPLATE"] != "agent-template" || env["CALLBACK_URL"] != "http://192.0.2.1:8765" {
				t.Errorf("asked with %v", env)
			}
			if tt.class != "" {
				hostError(t, err, tt.class)
				return
			}
			if err != nil || r.OK != tt.ok || r.Node != "pve" || r.Host != h.pool.Login() {
				t.Errorf("report = %+v, %v", r, err)
			}
			got := slices.DeleteFunc(r.Checks, func(c job.Check) bool { return c.Name == "ssh" || c.Name == "forwarding" })
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("checks (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPlan_IsTheScriptsWord(t *testing.T) {
	t.Parallel()
	var args []string
	h := newScripted(t, map[string]func(*run) int{"create-vm": func(r *run) int {
		args = r.args
		return succeeds("LINUS_PLAN:qm clone 9000 105", "LINUS_PLAN:qm start 105")(r)
	}})
	plan, err := h.provider(nil).Plan(t.Context(), job.VMSpec{Name: "linus-job-1", Template: "agent-template"})
	if err != nil || !slices.Equal(plan, []string{"qm clone 9000 105", "qm start 105"}) || !slices.Equal(args, []string{"--dry-run"}) {
		t.Errorf("plan = %q, %v, by %q", plan, err, args)
	}
	if got := h.asked("start"); len(got) != 0 {
		t.Errorf("a plan began %v", got)
	}
}

func TestBuildTemplate_IsAnOperationThatIsSettled(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		script func(*run) int
		want   vm.VM // but its build's id
		class  job.HostClass
		text   string
	}{
		{"built", succeeds("LINUS_STEP:1/2:create_vm:making it", "LINUS_WARNING:slow", "LINUS_TEMPLATE_NAME:built", "LINUS_VM_ID:9001", "LINUS_VM_NODE:pve"),
			vm.VM{ID: 9001, Name: "built", Node: "pve", Owner: owner}, "", ""},
		{"a name that is taken", func(r *run) int {
			r.say("LINUS_VM_OUTCOME:exists")
			return r.fails(5, "VM already exists: 'built'", "another TEMPLATE_NAME")
		}, vm.VM{}, job.HostExists, "VM already exists"},
		{"success without an ID", succeeds("LINUS_TEMPLATE_NAME:built"), vm.VM{}, job.HostVM, "without an ID"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var env map[string]string
			h := newScripted(t, map[string]func(*run) int{"build-template": func(r *run) int {
				env = r.env
				return tt.script(r)
			}})
			var told []job.Progress
			spec := job.TemplateSpec{Name: "built", OS: "debian-12", Bootstrap: "base", Runners: map[string]job.FileSource{"github-runner": {URL: "https://x/r.tar.gz", SHA256: "11"}}}
			v, err := h.provider(nil).BuildTemplate(t.Context(), spec, func(p job.Progress) { told = append(told, p) })
			if env["TEMPLATE_NAME"] != "built" || env["VM_OS"] != "debian-12" || env["VM_BOOTSTRAP"] != "base" || env["VM_GITHUB_RUNNER"] != "https://x/r.tar.gz" || env["VM_GITHUB_RUNNER_SHA256"] != "11" || env["LINUS_OWNER"] != owner {
				t.Errorf("asked with %v", env)
			}
			if got := h.asked("settle template-" + env["LINUS_JOB"]); len(got) != 1 {
				t.Errorf("settled: %v", got)
			}
			if tt.class != "" {
				if host := hostError(t, err, tt.class); !strings.Contains(host.Text, tt.text) {
					t.Errorf("%+v, want %q", host, tt.text)
				}
				return
			}
			tt.want.Job = env["LINUS_JOB"]
			if err != nil || !reflect.DeepEqual(v, tt.want) {
				t.Errorf("%+v, %v; want %+v", v, err, tt.want)
			}
			if diff := cmp.Diff([]job.Progress{{Step: "create_vm", N: 1, Of: 2, Text: "making it"}, {Warning: "slow"}}, told); diff != "" {
				t.Errorf("progress (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemoveTemplate_OnlyOneThatIsOurs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		remove  string
		lines   []string
		destroy bool
		class   job.HostClass
		text    string
	}{
		{"by its name", "built", []string{vmLine(9001, "built"), vmLine(9002, "another")}, true, "", ""},
		{"by its ID", "9001", []string{vmLine(9001, "built"), vmLine(9002, "another")}, true, "", ""},
		{"none of ours", "foreign", []string{vmLine(9001, "built")}, false, job.HostInvalid, `"foreign"`},
		{"a name that several have", "built", []string{vmLine(9001, "built"), vmLine(9002, "built")}, false, job.HostInvalid, "9001, 9002"},
		{"it may be on a node that does not answer", "foreign", []string{"LINUS_WARNING:node pve2 is offline"}, false, job.HostOffline, "pve2"},
		{"found, though a node does not answer", "built", []string{vmLine(9001, "built"), "LINUS_WARNING:node pve2 is offline"}, true, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var listed, destroyed map[string]string
			h := newScripted(t, map[string]func(*run) int{
				"list-vms":   func(r *run) int { listed = r.env; return succeeds(tt.lines...)(r) },
				"destroy-vm": func(r *run) int { destroyed = r.env; return succeeds()(r) },
			})
			vm, err := h.provider(nil).RemoveTemplate(t.Context(), tt.remove)
			if listed["VM_KIND"] != "template" {
				t.Errorf("listed with %v", listed)
			}
			if (destroyed != nil) != tt.destroy {
				t.Fatalf("destroyed with %v; want it: %v", destroyed, tt.destroy)
			}
			if tt.destroy {
				if err != nil || vm.ID != 9001 || destroyed["VM_ID"] != "9001" || destroyed["VM_KIND"] != "template" || destroyed["LINUS_JOB"] != jobID {
					t.Errorf("%+v, %v, destroyed with %v", vm, err, destroyed)
				}
				return
			}
			if host := hostError(t, err, tt.class); !strings.Contains(host.Text, tt.text) {
				t.Errorf("%+v, want %q", host, tt.text)
			}
		})
	}
}

func TestCallbackHost_IsThisMachinesAddressOnTheWay(t *testing.T) {
	t.Parallel()
	h := newScripted(t, nil)
	if ip, err := h.provider(nil).CallbackHost(t.Context()); err != nil || ip != "127.0.0.1" {
		t.Errorf("%q, %v", ip, err)
	}
	h.pool.Close()
	if _, err := h.provider(nil).CallbackHost(t.Context()); !errors.As(err, new(*job.HostError)) {
		t.Errorf("err = %v, want a host error", err)
	}
}
