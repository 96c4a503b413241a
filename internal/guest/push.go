package guest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// unpack puts two archives from stdin in place: the first, of $3 bytes, in the
// tmpfs $2, the second in the job's home $1. Both are complete before anything
// is moved to where the runner looks, in one locked step. Such a command may
// survive the loss of its connection: what a dead one has left is removed, and
// a live one is left alone. The directories may need root, and belong to the
// user the job runs as. It uses dd because that never reads more bytes from a
// pipe than requested.
const unpack = `set -eu
umask 077
say() { echo "$2" >&2; exit "$1"; }
for tool in tar flock dd; do
  command -v "$tool" >/dev/null || say 2 "$tool is missing in the VM; install it in the template"
done
if [ "$(id -u)" = 0 ]; then s=; else s='sudo -n'; fi
$s install -d -o "$(id -un)" -g "$(id -gn)" -m 0700 -- "$1" "$2" || say 1 "cannot create $1 and $2"
cd -- "$1"
exec 9<.
flock -w 60 9 || say 5 "somebody has held the lock of $1 for 60 s"
for old in .push-* "$2"/.push-*; do
  old=${old##*/}
  if [ ! -d "$old" ] || flock -n "$old" true; then rm -rf -- "$old" "$2/$old"; fi
done
new=.push-$$
trap 'rm -rf -- "$new" "$2/$new"' EXIT
mkdir -- "$new" "$2/$new"
exec 8<"$new"
flock 8
flock -u 9
dd bs="$3" count=1 iflag=fullblock 2>/dev/null | tar -x -m -f - -C "$2/$new" || say 5 "cannot write below $2"
tar -x -m -f - -C "$new" || say 5 "cannot write below $1"
[ -e "$2/$new/token" ] && [ -e "$new/settings" ] || say 5 'the transfer was incomplete'
flock -w 60 9 || say 5 "somebody has held the lock of $1 for 60 s"
rm -rf -- files.tar files.index command env artifacts
mv -f -- "$2/$new"/* "$2"
mv -f -- "$new"/* .`

// Push puts runner and payload into the VM, as one stream. It replaces what an
// earlier, interrupted Push has left; a task that is already running is not
// disturbed.
func (g *Guest) Push(ctx context.Context, j job.Job, p job.Payload) error {
	const what = "put the job into"
	timed, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	at := g.place(j)
	err := g.retry(timed, j, func(pool *remote.Pool) error {
		secret, rest, err := archives(j.ID, p)
		if err != nil {
			return err
		}
		return pool.Run(timed, remote.Command{
			Name:  "push",
			Line:  remote.Quote("sh", "-c", unpack, "push", at.home, at.tmpfs, strconv.FormatInt(secret.size, 10)),
			Stdin: io.MultiReader(secret, rest),
		})
	})
	err = g.fault(ctx, what, j, result.Result{}, err)
	var host *job.HostError
	if errors.As(err, &host) && strings.Contains(host.Text, "No space left on device") {
		host.Remedy = "give the VM a larger disk (resources.disk), or more memory if it is a tmpfs that is full"
	}
	return err
}
