package guest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"linus/embed"
	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// bakedRunner is the path of the job runner in linus's own templates. It belongs to root, but
// anybody who was root in the VM, such as an earlier job in a persistent VM, may have changed it.
// So a copy is used only if the VM computes the right sha256 of it. In a compromised VM that proves
// nothing, but such a VM could also run anything instead of a runner that is sent.
const bakedRunner = "/opt/linus/job-runner.sh"

// launcher prepares a VM for a job, up to its start, below the directories $1 to $3. It reports whether
// the VM has the runner with the sha256 $5, baked in at $4 or kept in $1 since an earlier job, and reads
// it from stdin if not. If $7 is wait and the top place is free, it becomes a runner that waits for a
// job there. Otherwise the launcher itself reads from stdin: the places of a job (home, state, tmpfs),
// the sizes of two archives, and the archives, the first for the tmpfs, the second for the home. Both
// are complete before anything is moved to where the runner looks, in one locked step. Then it waits for
// the word to start the task. If stdin ends before that, nothing has started, and nothing will.
//
// A launcher may survive the loss of its connection for a while: the leftovers of a dead launcher
// are removed and a live one is not disturbed, but a runner that waits at a place where a job is
// about to be put is killed. The directories may need root to create them, and belong to the user
// the job runs as, so that nothing below them needs root: in an emulated VM sudo takes longer than
// everything else. dd is used because it never reads more bytes from a pipe than requested.
const launcher = `set -eu
umask 077
say() { echo "$2" >&2; exit "$1"; }
tell() { printf 'LINUS_BEGIN:%s\n%s\nLINUS_RESULT:SUCCESS\nLINUS_END:%s\n' "$LINUS_NONCE" "$1" "$LINUS_NONCE"; }
for tool in tar flock dd sha256sum; do
  command -v "$tool" >/dev/null || say 2 "$tool is missing in the VM; install it in the template"
done
export LINUS_NONCE="$6"
top=$1 sum="$5  -"
own() {
  for dir in "$@"; do
    if [ ! -d "$dir" ] || [ ! -O "$dir" ]; then
      user=$(id -u) group=$(id -g)
      if [ "$user" = 0 ]; then s=; else s='sudo -n'; fi
      $s install -d -o "$user" -g "$group" -m 0700 -- "$@" || say 1 "cannot create $*"
      return
    fi
  done
}
alone() {
  exec 7<>waiter
  flock -n 7 || {
    if read -r waiter <waiter; then kill "$waiter" || true; fi
    flock -w 60 7 || say 5 "a runner that waits in $PWD does not end"
  }
  echo "$$" >waiter
}
locked() { flock -w 60 9 || say 5 "somebody has held the lock of $PWD for 60 s"; }
take() { dd bs=64K count="$1" iflag=fullblock,count_bytes status=none; }
own "$1" "$2" "$3"
cd -- "$top"
exec 9<.
locked
for old in .push-*; do
  if [ -e "$old" ] && { [ ! -d "$old" ] || flock -n "$old" true; }; then rm -rf -- "$old"; fi
done
new=$top/.push-$$ part=$top/.push-$$
trap 'rm -rf -- "$new" "$part"' EXIT
mkdir -- "$new"
exec 8<"$new"
flock 8
exec 9<&-
runner=missing waits=no
for known in "$4" runner; do
  if [ -f "$known" ] && cp -- "$known" "$new/job-runner.sh" && [ "$(sha256sum <"$new/job-runner.sh")" = "$sum" ]; then
    runner=present
    break
  fi
done
if [ "$7" = wait ]; then
  alone
  [ -e settings ] || waits=yes
fi
tell "LINUS_RUNNER:$runner
LINUS_WAITS:$waits"
if [ "$runner" = missing ]; then
  read -r size || exit 0
  rm -f -- "$new/job-runner.sh"
  take "$size" >"$new/job-runner.sh" || say 5 "cannot write below $top"
  [ "$(sha256sum <"$new/job-runner.sh")" = "$sum" ] || say 5 'the transfer was incomplete'
  ln -f -- "$new/job-runner.sh" runner
fi
if [ "$waits" = yes ]; then
  mv -f -- "$new/job-runner.sh" .
  rmdir -- "$new"
  trap - EXIT
  exec 8<&-
  cd /
  exec bash "$top/job-runner.sh" wait
fi
read -r home && read -r state && read -r tmpfs && read -r secret && read -r rest || exit 0
mkdir -p -- "$home" "$state" "$tmpfs" 2>/dev/null || true
own "$home" "$state" "$tmpfs"
cd -- "$home"
part=$tmpfs/.push-$$
for old in "$tmpfs"/.push-*; do
  alive=$top/${old##*/}
  if [ -e "$old" ] && { [ "$old" = "$part" ] || [ ! -d "$alive" ] || flock -n "$alive" true; }; then rm -rf -- "$old"; fi
done
mkdir -- "$part"
take "$secret" | tar -x -m -f - -C "$part" || say 5 "cannot write below $tmpfs"
take "$rest" | tar -x -m -f - -C "$new" || say 5 "cannot write below $home"
[ -e "$part/token" ] && [ -e "$new/settings" ] || say 5 'the transfer was incomplete'
exec 9<.
locked
[ ! -e waiter ] || alone
for old in files.tar files.index repository.tar command env artifacts; do
  [ ! -e "$old" ] || rm -f -- "$old"
done
mv -f -- "$part"/* "$tmpfs"
mv -f -- "$new"/* .
rmdir -- "$new" "$part"
trap - EXIT
exec 7<&- 8<&- 9<&-
cd /
tell LINUS_PLACED:yes
read -r start || exit 0
exec bash "$home/job-runner.sh" "$start"`

// launch is the engine's side of a launcher in a VM.
type launch struct {
	process *remote.Process
	nonce   string
	waits   bool // a runner waits in the VM's top place, so the job must go there
	stage   stage
	read    [2]int64 // bytes received of stdout and of stderr
}

// stage is the progress of a launch.
type stage int

const (
	waiting stage = iota // for a job
	placed               // has a job, and waits for the word to start it
	started              // reports on the task
)

// What a launcher does until it gets a job.
const (
	launcherPlaces = "place" // waits for a job at any place
	launcherWaits  = "wait"  // becomes a runner that waits at the top place
)

// openLaunch starts a launcher and returns when it has the job runner and waits for a job. If the
// VM lacks the runner, that takes one round trip more than a command.
func (g *Guest) openLaunch(ctx context.Context, pool *remote.Pool, until string) (*launch, error) {
	runner, err := embed.Script("job-runner")
	if err != nil {
		return nil, err
	}
	l := &launch{nonce: rand.Text()}
	l.process, err = pool.Begin(ctx, remote.Command{
		Name: "launch",
		Line: remote.Quote("sh", "-c", launcher, "launch", g.o.Root+topHome, g.o.Root+topState, g.o.Root+topTmpfs,
			g.o.Root+bakedRunner, runner.SHA256, l.nonce, until),
	})
	if err != nil {
		return nil, err
	}
	said, err := l.answer(ctx)
	if err == nil && said.Get("LINUS_RUNNER") != "present" {
		err = l.process.Send(ctx, io.MultiReader(strings.NewReader(fmt.Sprintln(len(runner.Body))), bytes.NewReader(runner.Body)))
	}
	if l.waits = said.Get("LINUS_WAITS") == "yes"; err == nil && l.waits {
		_, err = l.answer(ctx)
	}
	if err != nil {
		l.process.Close()
		return nil, err
	}
	return l, nil
}

// place puts a job where the runner looks for it.
func (l *launch) place(ctx context.Context, g *Guest, j job.Job, p job.Payload) error {
	input := packed
	if l.waits {
		input = listed
	}
	stream, err := input(j.ID, p)
	if err == nil && !l.waits {
		at := g.place(j)
		stream = io.MultiReader(strings.NewReader(fmt.Sprintf("%s\n%s\n%s\n", at.home, at.state, at.tmpfs)), stream)
	}
	if err == nil {
		err = l.process.Send(ctx, stream)
	}
	if err != nil {
		return err
	}
	_, err = l.answer(ctx)
	l.stage = placed
	return err
}

// start starts the placed task.
func (l *launch) start(ctx context.Context) (result.Result, error) {
	if err := l.process.Send(ctx, strings.NewReader("launch\n")); err != nil {
		return result.Result{}, err
	}
	l.stage = started
	return l.answer(ctx)
}

func (l *launch) answer(ctx context.Context) (result.Result, error) {
	res, err := remote.Receive(ctx, l.process, func(stdout *bufio.Reader) (result.Result, error) {
		return readAnswer(stdout, l.nonce, "")
	})
	if err == nil && !res.Success() {
		if err = l.process.Wait(ctx); err == nil {
			err = errors.New("the launcher ended without a result")
		}
	}
	return res, err
}

// Warm connects to a job's VM and leaves a launcher waiting there. The launcher has the job runner,
// and has started it if the job's place is the VM's top place. The job's Push then takes one round
// trip, and Push and Start need almost no processes in the VM. Warm can be repeated: it keeps what
// is in place. What was warmed for the job that created a VM goes to the first job that uses the VM.
func (g *Guest) Warm(ctx context.Context, j job.Job) error {
	timed, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := g.retry(timed, j, func(pool *remote.Pool) error {
		if l := g.takeLaunch(j, waiting); l != nil {
			if l.process.Running() {
				g.keepLaunch(j, pool, l)
				return nil
			}
			l.process.Close()
		}
		until := launcherPlaces
		if g.atTop(j) {
			until = launcherWaits
		}
		l, err := g.openLaunch(timed, pool, until)
		if err == nil {
			g.keepLaunch(j, pool, l)
		}
		if err == nil && g.o.Sandboxes && j.VM.Member != nil {
			if program, err := g.sandboxProgram(); err == nil {
				_ = g.sandboxScript(timed, pool, *j.VM, putSandbox, program, program.packed) // if this fails, the first client's request tries again
			}
		}
		return err
	})
	return g.fault(ctx, "prepare", j, result.Result{}, err)
}

// takeLaunch returns the job's launch if it is at that stage, and nil otherwise. The caller then
// owns the launch.
func (g *Guest) takeLaunch(j job.Job, at stage) *launch {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.pools[j.ID]
	if known == nil || known.launch == nil || known.launch.stage != at {
		return nil
	}
	l := known.launch
	known.launch = nil
	return l
}

// keepLaunch keeps a launch for the job's next call, as long as the connections to the VM are kept.
func (g *Guest) keepLaunch(j job.Job, pool *remote.Pool, l *launch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	known := g.pools[j.ID]
	if known != nil && known.pool == pool {
		known.launch, l = l, known.launch
	}
	if l != nil {
		l.process.Close()
	}
}

// Push puts runner and payload into the VM, as one stream. It replaces the leftovers of an earlier,
// interrupted Push; a task that is already running is not disturbed.
func (g *Guest) Push(ctx context.Context, j job.Job, p job.Payload) error {
	timed, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	err := g.retry(timed, j, func(pool *remote.Pool) (err error) {
		l := g.takeLaunch(j, waiting)
		if l != nil && l.waits && !g.atTop(j) {
			l.process.Close()
			l = nil
		}
		if l == nil {
			l, err = g.openLaunch(timed, pool, launcherPlaces)
		}
		if err != nil {
			return err
		}
		if err = l.place(timed, g, j, g.trusting(j, p)); err != nil {
			l.process.Close()
			return err
		}
		g.keepLaunch(j, pool, l)
		return nil
	})
	err = g.fault(ctx, "put the job into", j, result.Result{}, err)
	if host, ok := errors.AsType[*job.HostError](err); ok && strings.Contains(host.Text, "No space left on device") {
		host.Remedy = "give the VM a larger disk (resources.disk), or more memory if it is a tmpfs that is full"
	}
	return err
}

// Start starts the task and returns the boot it was started under, if the runner reports it. It
// sends the word to the launcher that placed the job, which then reports on the task (Follow), or
// runs a command of its own if that launcher is gone. The runner starts no task twice.
func (g *Guest) Start(ctx context.Context, j job.Job) (bootID string, err error) {
	const what = "start the task in"
	pool, err := g.pool(ctx, j)
	if err != nil {
		return "", g.fault(ctx, what, j, result.Result{}, err)
	}
	var res result.Result
	l := g.takeLaunch(j, placed)
	if l != nil {
		timed, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		if res, err = l.start(timed); err == nil {
			g.keepLaunch(j, pool, l)
		} else {
			l.process.Close()
		}
	}
	if l == nil || remote.ClassOf(err) == remote.Lost && ctx.Err() == nil {
		res, err = g.runner(ctx, j, "start")
	}
	if boot := res.Get("LINUS_BOOT_ID"); bootForm.MatchString(boot) {
		bootID = boot
	}
	return bootID, g.fault(ctx, what, j, res, err)
}
