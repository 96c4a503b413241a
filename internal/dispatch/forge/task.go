package forge

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"linus/internal/dispatch"
)

// Task runs the runner for one job, directly on the VM and not in a container: runs-on names a whole VM.
func (q *Queue) Task() string {
	return "# Serves a job of " + string(q.Kind) + " Actions.\nset -eu\nidle=" + strconv.Itoa(int(q.Idle/time.Second)) + " failed=" + strconv.Itoa(dispatch.WorkFailed) + "\n" + dispatch.AwaitJob + q.task + common
}

// lines returns what forgejoTask reads, in this order.
func (q *Queue) lines(s dispatch.Session, handle string, r registered) ([]byte, error) {
	return []byte(strings.Join([]string{q.api.url, r.uuid, handle, strings.Join(s.Work.Labels, " "), r.token}, "\n") + "\n"), nil
}

// forgejoTask has forgejo-runner take one job by its handle (one-job --help). The job's log cannot name
// the VM: the runner's name in it is that of its connection, which is "default" if given by arguments
// (version 12), or its UUID in any case (version 13; internal/app/cmd/job.go).
const forgejoTask = `program=$(command -v forgejo-runner) || program=
if [[ -z $program ]]; then
  echo 'the VM has no forgejo-runner: put it into the template' >&2
  exit 127
fi
if [[ $("$program" one-job --help 2>&1) != *--handle* ]]; then
  echo "$("$program" --version 2>&1): one-job of this forgejo-runner has no --handle: put a newer one into the template" >&2
  exit 127
fi
{
  read -r url
  read -r uuid
  read -r handle
  read -r -a labels
  read -r token
} <"$item"
(umask 077 && printf '%s' "$token" >"$item.token")
rm -f -- "$item"
unset token
run=("$program" one-job --url "$url" --uuid "$uuid" --token-url "file://$item.token" --handle "$handle" --wait)
for label in "${labels[@]}"; do
  run+=(--label "$label:host")
done
work=$(mktemp -d "$HOME/runner.XXXXXXXX")
`

// registration returns the file of a registered runner of Gitea (act_runner,
// internal/pkg/config/registration.go).
func (q *Queue) registration(s dispatch.Session, _ string, r registered) ([]byte, error) {
	labels := make([]string, len(s.Work.Labels))
	for i, l := range s.Work.Labels {
		labels[i] = l + ":host"
	}
	return json.Marshal(map[string]any{"id": r.id, "uuid": r.uuid, "name": s.Name, "token": r.token, "address": q.api.url, "labels": labels, "ephemeral": true})
}

// giteaTask has Gitea's runner take one job. The runner was called act_runner before version 1.
const giteaTask = `program=$(command -v gitea-runner) || program=$(command -v act_runner) || program=
if [[ -z $program ]]; then
  echo 'the VM has no gitea-runner or act_runner: put it into the template' >&2
  exit 127
fi
work=$(mktemp -d "$HOME/runner.XXXXXXXX")
sed -i "s/\"name\":\"[^\"]*\"/\"name\":\"VM $(uname -n)\"/" "$item" # the job's log begins with that
ln -s -- "$item" "$work/.runner"
run=("$program" daemon --once)
`

// common runs the runner, and ends it if no job comes. The runner's output or the job's directory shows
// that a job has come. Only the job's own log says how the job has ended. With debug messages the runner
// copies that log to its own (act/runner/logger.go and job_executor.go of both): "[NAME] Job failed", and
// "[NAME]   | LINE" for the output of steps, which is not kept. None of the job's log is shown: it
// belongs to the forge.
const common = `directories() { compgen -G "$HOME/.cache/act/*" || :; }
before=$(directories)
log=$work/log
: >"$log"
echo 'log: {level: debug}' >"$work/config.yaml"
run+=(--config "$work/config.yaml")
mkfifo "$work/said"
grep -av --line-buffered -e '^\[.*\]   | ' -e '^time=[^ ]* level=debug ' <"$work/said" >>"$log" &
kept=$!
(cd "$work" && exec "${run[@]}") </dev/null >"$work/said" 2>&1 &
runner=$!
tail -n +1 -s 0.2 -f --pid="$kept" -- "$log" | grep -av --line-buffered '^\[' &
shown=$!
trap 'kill -TERM "$runner" 2>/dev/null || :' INT TERM
begun() { grep -qaE 'task [0-9]+ repo is|msg="task started"' "$log" || [[ $(directories) != "$before" ]]; }
await_job TERM "$idle" 'it waits no more'
for ((n = 0; n < 25; n++)); do # the runner's last words are on their way; what it has left may hold its output
  kill -0 "$kept" 2>/dev/null || break
  sleep 0.2
done
kill "$kept" 2>/dev/null || :
wait "$shown" || :
without_job
if grep -qaE '^\[[^|]*\] [^|]{0,8}Job failed$' "$log"; then
  echo 'the job has failed' >&2
  exit "$failed"
fi
exit "$code"
`
