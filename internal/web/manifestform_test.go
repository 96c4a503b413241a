package web

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/vm"
)

// leaves are the names of a struct's fields in JSON, those of structs within it
// after a dot.
func leaves(t reflect.Type, prefix string) (names []string) {
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		at := t.Field(i).Type
		if at.Kind() == reflect.Pointer {
			at = at.Elem()
		}
		if at.Kind() == reflect.Struct {
			names = append(names, leaves(at, prefix+name+".")...)
			continue
		}
		names = append(names, prefix+name)
	}
	return names
}

func inputNames(groups []group) (names []string) {
	for _, g := range groups {
		if g.Extra != "" {
			names = append(names, g.Extra)
		}
		for _, in := range g.fields {
			names = append(names, in.Name)
		}
	}
	return names
}

func TestForm_HasAllOfAManifest(t *testing.T) {
	want, got := leaves(reflect.TypeFor[job.Manifest](), ""), inputNames(jobGroups())
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the form has %q\nthe manifest has %q", got, want)
	}
}

func TestForm_HasAllOfAPoolsSize(t *testing.T) {
	want, got := leaves(reflect.TypeFor[job.PoolSize](), ""), inputNames(poolSize())
	if !slices.Equal(got, want) {
		t.Errorf("the form has %q, a size has %q", got, want)
	}
}

// What a form shows of a manifest it reads again.
func TestForm_ReadsWhatItShows(t *testing.T) {
	full := job.Manifest{
		Task: "\nls <b>&amp;\n\ttab \"q\" 'q'\n", AgentType: job.AgentCustom, Agent: job.Agent{Command: "bash -s -- \"$X\"", Model: "l", ClaudeModel: "m"},
		Secrets: []string{"A", "B_2"}, Credentials: []string{"github"}, Artifacts: []string{"dist/**", " odd name "}, Cwd: "/srv/a b", Sudo: true, Stdin: job.StdinOpen, TTY: true, TTYSize: "24x80",
		Resources: vm.Resources{CPU: 4, Memory: "2G", Disk: "20G"}, Timeout: 60, Lifecycle: vm.Persistent, VM: "v", VMName: "n", TTL: 600, AtEnd: vm.EndSuspend, Keep: job.KeepOnFailure, KeepFor: 7200, IdleSuspend: 1800, VMTemplate: "t", OS: "debian-12",
		Start: job.StartCold, Retry: job.RetryLost, Retries: 2, Network: vm.Network{Bridge: "vmbr1", VLAN: 7, IP: "10.0.0.2/24", Gateway: "10.0.0.1", Egress: vm.EgressAllow, Allow: []string{"github.com", "*.npmjs.org"}, Deny: []string{"9.9.9.0/24"}}, StatusMode: job.StatusDetailed,
		Volumes: []vm.Mount{{Name: "cache", Path: "/srv/cache"}, {Name: "repo", Path: "/srv/repo", Mode: vm.MountRO}},
		Matrix:  []string{"go=1,2", "db=pg"}, Shards: 2, FailFast: true,
		Repository: job.Repository{URL: "https://git.example/app", Ref: "main", Path: "/srv/app", Credential: "git", Submodules: true, LFS: true}, Push: job.Push{Branch: "fix"},
		Labels: map[string]string{"team": "web", "ref": "a=b c"}, Notify: &job.Notify{URL: "https://ci.example/hooks/linus"},
	}
	v := formView{form: form{groups: jobGroups}}
	v.show(full, nil)
	shown := map[string]string{}
	for _, g := range v.Groups {
		for _, c := range g.Controls {
			shown[c.Name] = strings.ReplaceAll(c.Value, "\n", "\r\n") // as browsers send it
		}
	}
	var d job.Manifest
	bad := typed(&d, jobGroups(), func(name string) string { return shown[name] })
	if len(bad) > 0 || !reflect.DeepEqual(d, full) {
		t.Errorf("%v: %+v\nwant %+v", bad, d, full)
	}
	for name, want := range shown {
		if want == "" {
			t.Errorf("%s is not among what is tried", name)
		}
	}
}

// Where a field applies is said by fields of the same form.
func TestForms_ConditionsAreAboutTheirFields(t *testing.T) {
	for name, groups := range map[string][]group{"job": jobGroups(), "token": tokenGroups()} {
		names := inputNames(groups)
		check := func(when string) {
			for condition := range strings.FieldsSeq(when) {
				field, pattern, ok := strings.Cut(condition, "=")
				if _, err := regexp.Compile(pattern); err != nil || !ok || !slices.Contains(names, field) {
					t.Errorf("%s: condition %q", name, condition)
				}
			}
		}
		for _, g := range groups {
			check(g.When)
			for _, in := range g.fields {
				check(in.When())
			}
		}
	}
}
