package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"linus/internal/forgetest"
	"linus/internal/lab"
	"linus/internal/loops"
)

// standInForgeRunner is what forgejo-runner one-job and act_runner daemon --once are to a forge and to
// a VM: it takes one job by the runners' protocol, says so as they do, and ends it.
const standInForgeRunner = `#!/usr/bin/env bash
set -eu
case "$*" in
  'one-job --help') echo '--handle --wait'; exit ;;
  --version) echo 'runner version stand-in'; exit ;;
esac
handle='' labels=''
if [[ $1 == daemon ]]; then
  is() { sed -E "s/.*\"$1\":\"([^\"]*)\".*/\1/" .runner; }
  url=$(is address) uuid=$(is uuid) token=$(is token)
else
  while (($#)); do
    case $1 in
      --url) url=$2 ;;
      --uuid) uuid=$2 ;;
      --token-url) token=$(<"${2#file://}") ;;
      --handle) handle=$2 ;;
      --label) labels+=${labels:+,}\"${2%:host}\" ;;
    esac
    shift
  done
fi
call() { curl -fsS -H "X-Runner-Uuid: $uuid" -H "X-Runner-Token: $token" -H 'Content-Type: application/json' -d "$2" "$url/api/actions/runner.v1.RunnerService/$1"; }
until [[ $(call FetchTask "{\"handle\":\"$handle\",\"labels\":[$labels]}") == *task* ]]; do sleep 0.2; done
echo 'task 1 repo is acme/app'
echo "its labels: $labels" >/home/debian/runner.log
found=$(grep -rslE 'the-api-[t]oken|registers-any-[n]umber' /home /root /tmp /dev/shm /run /var /opt /etc || :)
until [[ $(call UpdateTask "in $(uname -n) found: $found.") != *'goes on'* ]]; do sleep 0.2; done
`

// Jobs of a forge have a VM each, with a runner of their own for that one job; none is lost or run
// twice when a dispatcher dies, and neither a runner nor a VM is left.
func TestDispatch_ServesJobsOfForges(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	place(t, h.templateDisk(t), map[string]string{"home/debian/.local/bin/forgejo-runner": standInForgeRunner, "home/debian/.local/bin/act_runner": standInForgeRunner})
	file := key(t, forgetest.Token)
	kinds := []string{"forgejo", "gitea"}
	for _, i := range loops.Every(len(kinds), 2, "TestDispatch_HearsOfJobsByWebhook serves a job of a Gitea, TestQueue_ServesJobs has both kinds") {
		kind, gitea := kinds[i], kinds[i] == "gitea"
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := forgetest.New(t, gitea)
			serve := func() *dispatcher {
				return h.dispatch(t, kind, "--url", s.URL, "--token-file", file, "--repository", "acme/app", "--name", kind, "--sessions", "2", "--runs-on", "linus,big", "--label", "of="+kind, "--artifact", "/home/debian/runner.log")
			}
			first := serve()
			quick, long := s.Add("quick", "linus"), s.AddLong("long", "linus", "big")
			others := s.Add("another's", "ubuntu-latest")
			h.until(t, func() bool { return s.Job(quick).Status == "success" && s.Job(long).Status == "running" })
			if err := first.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first.cmd.Wait()
			next := serve()
			h.until(t, func() bool { return strings.Contains(next.String(), "session continues") })
			more := s.Add("more", "linus")
			h.until(t, func() bool { return s.Job(more).Status == "success" })

			// A job that is cancelled while its VM is made leaves no runner; one of another forge's labels waits on.
			gone := s.Add("gone", "linus")
			h.until(t, func() bool {
				return strings.Contains(h.cli(t, "job", "list", "--label", fmt.Sprintf("dispatch/work=%d", gone), "--label", "of="+kind), "\n")
			})
			s.End(gone)
			if !gitea { // its runner knows which job it is for
				h.until(t, func() bool { return strings.Contains(next.String(), "is no longer waiting") })
			}
			if err := next.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			h.until(t, func() bool { return strings.Contains(next.String(), "no more work is taken") })
			s.Finish(long)
			h.until(t, func() bool { return s.Job(long).Status == "success" })
			if gitea { // its runner waits for any job
				s.Add("for the runner that is left", "linus")
			}
			if err := next.cmd.Wait(); err != nil {
				t.Errorf("%v", err)
			}
			vms := map[string]bool{}
			for _, id := range []int64{quick, long, more} {
				j := s.Job(id)
				vm, found, _ := strings.Cut(strings.TrimPrefix(j.Said, "in "), " found: ")
				if j.Taken != 1 || vms[vm] || found != "." {
					t.Errorf("job %d: %+v", id, j)
				}
				vms[vm] = true
			}
			listed := h.cli(t, "job", "list", "--label", fmt.Sprintf("dispatch/work=%d", quick), "--label", "of="+kind)
			_, listed, _ = strings.Cut(listed, "\n")
			of, _, _ := strings.Cut(listed, " ")
			if kept := h.cli(t, "job", "artifacts", of); !strings.Contains(kept, " home/debian/runner.log") {
				t.Errorf("the runner's log is not kept: %s", kept)
			}
			if j := s.Job(others); j.Status != "waiting" {
				t.Errorf("another's job: %+v", j)
			}
			if left := s.Runners(); len(left) > 0 {
				t.Errorf("runners are left: %+v", left)
			}
			if refused := s.Refused(); len(refused) > 0 {
				t.Errorf("refused: %q", refused)
			}
		})
	}
	t.Cleanup(func() {
		h.waitGone(t)
		if strings.Contains(h.wholeLog(), forgetest.Token) {
			t.Error("the log has the API's token")
		}
	})
}

// A Gitea 1.24 lists no jobs: those that its webhook tells of have their VMs.
func TestDispatch_HearsOfJobsByWebhook(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	place(t, h.templateDisk(t), map[string]string{"home/debian/.local/bin/act_runner": standInForgeRunner})
	s := forgetest.New(t, true)
	s.Age("1.24.7")
	d := h.dispatch(t, "gitea", "--url", s.URL, "--token-file", key(t, forgetest.Token), "--organization", "acme", "--name", "hears", "--webhook", "127.0.0.1:0", "--webhook-secret-file", key(t, "shared"))
	var at []string
	h.until(t, func() bool {
		at = regexp.MustCompile(`receiving webhooks at (\S+)`).FindStringSubmatch(d.String())
		return at != nil && strings.Contains(d.String(), "does not list jobs")
	})
	id := s.Add("test", "linus")
	for secret, want := range map[string]int{"guessed": http.StatusUnauthorized, "shared": http.StatusNoContent} {
		r := s.Event(t, id, "queued", "1", secret)
		sent, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at[1]+"/gitea", r.Body)
		if err != nil {
			t.Fatal(err)
		}
		sent.Header = r.Header
		resp, err := http.DefaultClient.Do(sent)
		if err != nil || resp.StatusCode != want {
			t.Fatalf("signed by %s: %v, %v", secret, resp, err)
		}
		_ = resp.Body.Close()
	}
	h.until(t, func() bool { return s.Job(id).Status == "success" })
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if left := s.Runners(); len(left) > 0 || s.Job(id).Taken != 1 {
		t.Errorf("runners %+v, %+v", left, s.Job(id))
	}
	h.waitGone(t)
}
