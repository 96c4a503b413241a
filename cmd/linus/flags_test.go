package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/vm"
)

// Each field of a manifest that has an option is what its option says.
func TestOptions_SayAllOfAManifest(t *testing.T) {
	t.Parallel()
	want := job.Manifest{
		Task: "kept", AgentType: job.AgentCustom, Agent: job.Agent{Command: "bash -s", Model: "opus", ClaudeModel: "sonnet"}, Env: map[string]string{"A": "1=2"},
		Secrets: []string{"A", "B,2"}, Credentials: []string{"github"}, Artifacts: []string{"dist/**", "a,b"}, Cwd: "/srv/a b", Sudo: true, Stdin: job.StdinOpen, TTY: true, TTYSize: "25x81",
		Resources: vm.Resources{CPU: 4, Memory: "2G", Disk: "20G"}, Timeout: 90, Lifecycle: vm.Persistent, VM: "v", VMName: "n", TTL: 5400, AtEnd: vm.EndSuspend, Keep: job.KeepOnFailure, KeepFor: 7200, IdleSuspend: 1800, VMTemplate: "t", OS: "debian-12",
		Start: job.StartCold, Retry: job.RetryLost, Retries: 2, StatusMode: job.StatusDetailed, Notify: &job.Notify{URL: "https://ci.example/hooks"},
		Repository: job.Repository{URL: "https://git.example/acme/tool.git", Ref: "main", Path: "/srv/tool", Credential: "git", Submodules: true, LFS: true}, Push: job.Push{Branch: "agent/fix"},
		Matrix: []string{"go=1.25,1.26", "db=pg"}, Shards: 2, FailFast: true,
		Labels:  map[string]string{"team": "web=1", "site": "a,b"},
		Volumes: []vm.Mount{{Name: "cache", Path: "/srv/cache"}, {Name: "repo", Path: "/srv/a b", Mode: vm.MountRO}},
		Network: vm.Network{Bridge: "vmbr1", VLAN: 7, IP: "10.0.0.2/24", Gateway: "10.0.0.1", Egress: vm.EgressAllow, Allow: []string{"github.com", "*.npmjs.org"}, Deny: []string{"9.9.9.0/24"}},
	}
	args := []string{"--file", "flags_test.go:/tmp/f:0600"}
	for _, f := range field.For(field.Submit) {
		switch at := f.Of(want); {
		case f.Name == "files":
		case at.IsZero():
			t.Errorf("%s is not among what is tried", f.Name)
		case at.Kind() == reflect.Map:
			for key, value := range at.Interface().(map[string]string) {
				args = append(args, "--"+f.Flag, key+"="+value)
			}
		case f.Name == "volumes":
			for _, m := range want.Volumes {
				args = append(args, "--"+f.Flag, m.Text())
			}
		case f.On != "" || at.Kind() == reflect.Bool:
			args = append(args, "--"+f.Flag)
		case f.Each:
			for _, entry := range at.Interface().([]string) {
				args = append(args, "--"+f.Flag, entry)
			}
		case at.Kind() == reflect.Slice:
			args = append(args, "--"+f.Flag, strings.Join(at.Interface().([]string), ","))
		case f.Name == "ttl":
			args = append(args, "--ttl", "1h30m")
		default:
			args = append(args, "--"+f.Flag, fmt.Sprint(at))
		}
	}
	var f manifestFlags
	cmd := &cobra.Command{}
	f.register(&app{}, cmd, field.Submit)
	got := job.Manifest{Task: "kept", Cwd: "/elsewhere", Network: vm.Network{Allow: []string{"old.example"}}}
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	if err := f.override(cmd, &got, nil); err != nil {
		t.Fatal(err)
	}
	if len(got.Files) != 1 || got.Files[0].Path != "/tmp/f" || got.Files[0].Mode != "0600" {
		t.Errorf("%+v", got.Files)
	}
	got.Files = nil
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
