package actions

import (
	"fmt"
	"time"

	"linus/internal/dispatch"
)

// Task runs the runner for one job. The runner gets its configuration in a variable, which it removes
// from its environment as it starts (actions/runner, CommandSettings.cs): an argument would be visible to
// everybody in the VM.
//
// run.sh exits with 0 however the runner has ended. The log of a worker shows that the runner had a job:
// if none appears within the idle time, another runner has taken the job.
//
// GitHub gives any matching job to a runner, even one that was skipped here because it comes from a fork.
// So the runner checks its job itself, by its job-started hook, before containers and steps
// (actions/runner, docs/adrs/1751). A failing hook is not enough, since steps with if: always() would
// still run: the hook kills the worker, and GitHub sees a failed job.
//
// The hook also names the VM in the job's log. The runner's log (JobDispatcher.cs) says how the job has
// ended. If the job has failed, the session fails, too, so that its VM may be kept.
func (q *Queue) Task() string {
	guard := noForks
	if q.Forks {
		guard = ""
	}
	return fmt.Sprintf(task, dispatch.AwaitJob, guard, int(q.Idle/time.Second), dispatch.WorkFailed)
}

const noForks = `# No code of a fork runs here: the job of one ends before its first step.
for node in "${BASH_SOURCE[0]%/*}"/externals/node*/bin/node; do :; done
if ! "$node" -e '
  const e = JSON.parse(require("fs").readFileSync(process.env.GITHUB_EVENT_PATH));
  const own = process.env.GITHUB_REPOSITORY.toLowerCase();
  for (const [is, head] of [[e.pull_request, e.pull_request?.head?.repo], [e.workflow_run, e.workflow_run?.head_repository]])
    if (is && head?.full_name?.toLowerCase() !== own) process.exit(1);
'; then
  echo 'the runner serves no pull requests of forks (linus dispatch github --allow-forks), or cannot read what started the job'
  sleep 1
  kill -KILL "$PPID"
fi
`

const task = `# Serves a job of GitHub Actions.
set -eu
%sfor dir in /opt/actions-runner "$HOME/actions-runner" ''; do
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
hook=$PWD/.linus-job-started.sh
theirs=$(sed -n 's/^ACTIONS_RUNNER_HOOK_JOB_STARTED=//p' .env 2>/dev/null | tail -n 1)
cat >"$hook" <<'END'
echo "VM $(uname -n): linus vm ssh $(uname -n)"
%sif [[ -n ${LINUS_HOOK:-} ]]; then exec bash -e "$LINUS_HOOK"; fi
END
if [[ -n $theirs ]]; then sed -i '/^ACTIONS_RUNNER_HOOK_JOB_STARTED=/d' .env; fi
export ACTIONS_RUNNER_HOOK_JOB_STARTED=$hook LINUS_HOOK=${theirs:-${ACTIONS_RUNNER_HOOK_JOB_STARTED:-}}
workers() { compgen -G '_diag/Worker_*' || :; }
before=$(workers) logs=$(compgen -G '_diag/Runner_*' || :)
env --default-signal=INT ./run.sh </dev/null & # what bash starts so does not hear INT otherwise
runner=$!
unset ACTIONS_RUNNER_INPUT_JITCONFIG
trap 'kill -INT "$runner" 2>/dev/null || :' INT TERM
begun() { [[ $(workers) != "$before" ]]; }
await_job INT %d 'the group of runners is not for its repository'
if ((code == 7)); then
  echo 'GitHub takes no runner as old as that of the template: build it with a newer one' >&2
  exit 7
fi
without_job
for log in _diag/Runner_*; do
  if [[ $'\n'$logs$'\n' != *$'\n'$log$'\n'* ]] && grep -qsE 'WRITE LINE: .* completed with result: (Failed|Abandoned)\r?$' "$log"; then
    echo 'the job has failed' >&2
    exit %d
  fi
done
exit "$code"
`
