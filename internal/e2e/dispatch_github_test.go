package e2e

import (
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"linus/internal/githubtest"
	"linus/internal/lab"
	"linus/internal/loops"
)

// standInGitHubRunner is what run.sh of actions/runner is to a VM: it takes its configuration from the
// environment, waits for one job, has a worker with a log of its own, which begins with the hook for
// that, and ends.
const standInGitHubRunner = `#!/usr/bin/env bash
set -eu
config=$ACTIONS_RUNNER_INPUT_JITCONFIG
unset ACTIONS_RUNNER_INPUT_JITCONFIG
trap 'kill "$call" 2>/dev/null; exit 0' INT
url=$(base64 -d <<<"$config" | sed -E 's/.*"url":"([^"]*)".*/\1/')
post() { exec curl -fsS -H "Authorization: Bearer $config" -d "$2" "$url/runner/$1"; }
post take '' >taken &
call=$!
wait "$call"
{ read -r job; read -r GITHUB_REPOSITORY; } <taken
sed 1,2d taken >event.json
export GITHUB_REPOSITORY GITHUB_EVENT_PATH=$PWD/event.json
mkdir -p _diag
: >_diag/Worker_1.log
echo "Running job: $job"
cat >worker <<'END'
if [[ -n ${ACTIONS_RUNNER_HOOK_JOB_STARTED:-} ]]; then bash -e "$ACTIONS_RUNNER_HOOK_JOB_STARTED" || :; fi
found=$(grep -rslE 'ghp_the-[t]oken' /home /root /tmp /dev/shm /run /var /opt /etc || :)
found+=$(cat /proc/[0-9]*/cmdline 2>/dev/null | grep -aoE -- '--jit[c]onfig' || :)
echo "in $(uname -n) found: $found." >said
END
echo 'lost its worker' >said
bash worker || :
until [[ $(post "done" "$(<said)") != *'goes on'* ]]; do sleep 0.2; done
`

var hearsAt = regexp.MustCompile(`receiving webhooks at (\S+)`)

// githubRunner is where a template has it, with the Node.js that it brings: without one here no event
// is looked at.
var githubRunner = map[string]string{
	"opt/actions-runner/run.sh":                    standInGitHubRunner,
	"opt/actions-runner/externals/node24/bin/node": "#!/bin/sh\ncommand -v node >/dev/null || exit 0\nexec node \"$@\"\n",
}

// Jobs of GitHub Actions have a VM each, with a runner for that one job; none is lost or run twice
// when a dispatcher dies, and neither a runner nor a VM is left.
func TestDispatch_ServesJobsOfGitHubActions(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	place(t, h.templateDisk(t), githubRunner)
	file := key(t, githubtest.Token)
	const repository = githubtest.Owner + "/web"
	_, hasNode := exec.LookPath("node")
	scopes := []struct {
		name string
		args []string
	}{
		{"organization", []string{"--organization", githubtest.Owner, "--runner-group", githubtest.GroupName, "--webhook", "127.0.0.1:0", "--webhook-secret-file", key(t, "shared")}},
		{"repository", []string{"--repository", repository}},
	}
	for _, i := range loops.Every(len(scopes), 2, "TestDocs_SessionsAreTrue serves a repository, TestWaiting_AsksForWhatHasChanged looks for its jobs again and again") {
		scope, args := scopes[i].name, scopes[i].args
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			g := githubtest.New(t)
			serve := func() *dispatcher {
				d := h.dispatch(t, append([]string{"github", "--api", g.URL, "--token-file", file, "--name", scope, "--sessions", "2", "--runs-on", "large", "--idle-timeout", "5s", "--label", "of=" + scope}, args...)...)
				if scope == "organization" { // there jobs are found by webhooks: all is looked at once only
					var at []string
					h.until(t, func() bool { at = hearsAt.FindStringSubmatch(d.String()); return at != nil })
					g.Tell("http://"+at[1]+"/github", "shared")
				}
				return d
			}
			ids := g.Queue(repository, "self-hosted", "self-hosted,linux,large", "ubuntu-latest")
			quick, long, others := ids[0], ids[1], ids[2]
			fork := g.QueueFork(repository, "self-hosted")[0]
			g.Stay(long)
			first := serve()
			h.until(t, func() bool { return g.Job(quick).Status == "completed" && g.Job(long).Status == "in_progress" })
			if err := first.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first.cmd.Wait()
			next := serve()
			h.until(t, func() bool { return strings.Contains(next.String(), "session continues") })
			more := g.Queue(repository, "self-hosted,large")[0]
			h.until(t, func() bool { return g.Job(more).Status == "completed" })

			// A runner whose job another one has taken ends by itself, and does not stay with GitHub.
			gone := g.Queue(repository, "large")[0]
			h.until(t, func() bool {
				return strings.Contains(h.cli(t, "job", "list", "--label", fmt.Sprintf("dispatch/work=%d", gone), "--label", "of="+scope), "\n")
			})
			g.Start(gone, "somebody-elses")
			h.until(t, func() bool { return strings.Contains(next.String(), "session has failed") && len(g.Runners()) == 1 })

			if err := next.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			h.until(t, func() bool { return strings.Contains(next.String(), "no more work is taken") })
			g.Let(long)
			if err := next.cmd.Wait(); err != nil {
				t.Errorf("%v", err)
			}
			vms := map[string]bool{}
			for _, id := range []int64{quick, long, more} {
				j := g.Job(id)
				vm, found, _ := strings.Cut(strings.TrimPrefix(j.Said, "in "), " found: ")
				if j.Status != "completed" || j.Attempts != 1 || vms[vm] || found != "." {
					t.Errorf("job %d: %+v", id, j)
				}
				vms[vm] = true
			}
			if j := g.Job(others); j.Status != "queued" {
				t.Errorf("a job that is not ours: %+v", j)
			}
			// GitHub may have given it to the runner of another job.
			if j := g.Job(fork); j.Status != "queued" && !strings.Contains(j.Said, "lost its worker") && hasNode == nil {
				t.Errorf("a fork's job: %+v", j)
			}
			if left := g.Runners(); len(left) > 0 {
				t.Errorf("runners are left: %+v", left)
			}
			if refused := g.Refused(); len(refused) > 0 {
				t.Errorf("refused: %q", refused)
			}
		})
	}
	t.Cleanup(func() {
		h.waitGone(t)
		if strings.Contains(h.wholeLog(), githubtest.Token) {
			t.Error("the log has the token")
		}
	})
}
