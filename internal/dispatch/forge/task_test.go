package forge_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/dispatch"
	"linus/internal/dispatch/forge"
	"linus/internal/forgetest"
)

// runTask runs a queue's task in bash, with what it is handed over and a program that is the runner.
func runTask(t *testing.T, q dispatch.Queue, secret []byte, programs map[string]string) (code int, said string) {
	t.Helper()
	home := t.TempDir()
	bin := filepath.Join(home, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/usr/bin/env bash\n"+text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	item := filepath.Join(home, "item")
	if err := os.WriteFile(item, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", "item="+item+"\n"+q.Task())
	cmd.Env = []string{"HOME=" + home, "PATH=" + bin + ":/usr/bin:/bin"}
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

func TestTask_RunsTheRunnerForOneJob(t *testing.T) {
	const help = `if [[ $* == 'one-job --help' ]]; then echo --handle; exit; fi
`
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	const jobLog = `for a; do if [[ $a == */config.yaml && $(<"$a") == 'log: {level: debug}' ]]; then debug=yes; fi; done
if [[ ${debug:-} != yes ]]; then exit 3; fi
echo 'time="2026-11-29T08:00:00Z" level=info msg="task 3 repo is acme/app https://data.forgejo.org"'
echo 'time="2026-11-29T08:00:00Z" level=debug msg="a SECRET of the runner"'
printf '[CI / test]   | a SECRET\xff of the job\n'
`
	for name, c := range map[string]struct {
		kind     forge.Kind
		programs map[string]string
		idle     time.Duration
		code     int
		says     []string
	}{
		"forgejo": {forge.Forgejo, map[string]string{"forgejo-runner": help + `printf '<%s>' "$@"; echo
for a; do case $a in file://*) file=${a#file://}; stat -c %a "$file"; cat "$file"; echo ;; esac; done
[[ ! -e $HOME/item ]] && echo taken
echo 'task 3 repo is acme/app https://data.forgejo.org'`}, 0, 0,
			[]string{"<one-job><--url><", "><--handle><18e9cf40-c2f6-409f-b832-000000000001><--wait><--label><linus:host><--label><big:host><--config><", "\n600\n", "\ntaken\n"}},
		"gitea": {forge.Gitea, map[string]string{"act_runner": `printf '<%s>' "$@"; cat .runner; mkdir -p "$HOME/.cache/act/1"`}, 0, 0,
			[]string{"<daemon><--once><--config><", ">{\"address\":\"http://", `"ephemeral":true,"id":`, `"name":"VM ` + here + `"`, `"labels":["linus:host","big:host"]`}},
		"a job that fails":                     {forge.Forgejo, map[string]string{"forgejo-runner": help + jobLog + `echo '[CI / test (1, 2)] 🏁  Job failed'`}, 0, 99, []string{"repo is", "the job has failed"}},
		"a job that fails at Gitea":            {forge.Gitea, map[string]string{"gitea-runner": jobLog + `echo '[CI / test] Job failed'`}, 0, 99, []string{"repo is", "the job has failed"}},
		"a job that prints so":                 {forge.Gitea, map[string]string{"gitea-runner": jobLog + `echo '[CI / test]   | [a] Job failed'; echo '[CI / test] 🏁  Job succeeded'`}, 0, 0, []string{"repo is"}},
		"a newer runner":                       {forge.Gitea, map[string]string{"gitea-runner": `echo 'time="2026-11-29T08:00:00Z" level=info msg="task started" job=test'`}, 0, 0, []string{"task started"}},
		"leaves something that has its output": {forge.Gitea, map[string]string{"gitea-runner": jobLog + `sleep 60 & echo '[CI / test] Job failed'`}, 0, 99, []string{"the job has failed"}},
		"fails within a job":                   {forge.Gitea, map[string]string{"gitea-runner": "echo 'task 3 repo is acme/app'; exit 3"}, 0, 3, []string{"task 3"}},
		"ends without a job":                   {forge.Gitea, map[string]string{"act_runner": "exit 1"}, 0, 69, []string{"the runner has ended without a job (exit status 1)"}},
		"no job comes":                         {forge.Gitea, map[string]string{"act_runner": "exec sleep 600"}, time.Second, 69, []string{"no job has come: another runner has taken it", "exit status 143"}},
		"no Forgejo runner":                    {forge.Forgejo, nil, 0, 127, []string{"the VM has no forgejo-runner"}},
		"no Gitea runner":                      {forge.Gitea, nil, 0, 127, []string{"the VM has no gitea-runner or act_runner"}},
		"an old one":                           {forge.Forgejo, map[string]string{"forgejo-runner": "echo forgejo-runner version v11.0.0"}, 0, 127, []string{"v11.0.0: one-job of this forgejo-runner has no --handle"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := forgetest.New(t, c.kind == forge.Gitea)
			s.Add("test", "linus", "big")
			q := newQueue(t, s, forge.Options{Kind: c.kind, Idle: c.idle})
			h, err := q.Handover(t.Context(), dispatch.Session{Work: waiting(t, q)[0], Name: "A"})
			if err != nil {
				t.Fatal(err)
			}
			code, said := runTask(t, q, h.Secret, c.programs)
			if code != c.code {
				t.Errorf("%d: %s", code, said)
			}
			if strings.Contains(said, "SECRET") {
				t.Errorf("it says what is the forge's: %s", said)
			}
			for _, want := range c.says {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in %s", want, said)
				}
			}
			if arguments, _, _ := strings.Cut(said, "\n"); strings.Contains(arguments, s.Runners()[0].Token) && c.kind == forge.Forgejo {
				t.Error("the token is an argument")
			}
		})
	}
}
