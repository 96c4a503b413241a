package actions

import (
	"fmt"
	"time"
)

// Task runs the runner for one job. Its configuration goes into the runner by a variable that the
// runner takes out of its environment as it starts (actions/runner, CommandSettings.cs), not by an
// argument, which everybody in the VM could read.
//
// run.sh ends with 0 however the runner has ended. That it had a job is seen by the log of its
// worker: without one within the time it may idle, its job was another runner's.
func (q *Queue) Task() string { return fmt.Sprintf(task, int(q.Idle/time.Second)) }

const task = `# Serves a job of GitHub Actions.
set -eu
for dir in /opt/actions-runner "$HOME/actions-runner" ''; do
  if [[ -x $dir/run.sh ]]; then break; fi
done
if [[ -z $dir ]]; then
  echo "there is no runner of GitHub Actions in /opt/actions-runner or $HOME/actions-runner: linus template build --bootstrap github-runner puts it into a template" >&2
  exit 127
fi
cd "$dir"
if [[ ! -w . ]]; then
  echo "$(id -un) may not write to $dir, where the runner keeps its configuration: give it to that user in the template" >&2
  exit 126
fi
ACTIONS_RUNNER_INPUT_JITCONFIG=$(<"$item")
rm -f -- "$item"
export ACTIONS_RUNNER_INPUT_JITCONFIG RUNNER_ALLOW_RUNASROOT=1 RUNNER_MANUALLY_TRAP_SIG=1 ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE=1
workers() { compgen -G '_diag/Worker_*' || :; }
before=$(workers)
env --default-signal=INT ./run.sh </dev/null & # what bash starts so does not hear INT otherwise
runner=$!
unset ACTIONS_RUNNER_INPUT_JITCONFIG
trap 'kill -INT "$runner" 2>/dev/null || :' INT TERM
deadline=$((SECONDS + %d))
while [[ $(workers) == "$before" ]] && kill -0 "$runner" 2>/dev/null; do
  if ((SECONDS >= deadline)); then
    echo 'no job has come: another runner has taken it, or the group of runners is not for its repository' >&2
    kill -INT "$runner" 2>/dev/null || :
    break
  fi
  sleep 1
done
code=0
wait "$runner" || code=$?
if ((code == 7)); then
  echo 'GitHub takes no runner as old as that of the template: build it with a newer one' >&2
  exit 7
fi
if [[ $(workers) == "$before" ]]; then
  echo "the runner has ended without a job (exit status $code)" >&2
  exit 69
fi
exit "$code"
`
