package guest

import (
	"cmp"
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/vm"
)

const (
	// loginTime is how long a key is accepted. sshd allows the same time for a login.
	loginTime = 2 * time.Minute
	leaveTime = 30 * time.Second // for removing a key, which expires anyway
)

// letIn adds a line with a public key to the authorized_keys of the user who runs it, or removes the
// line: $1 is the line's mark, $2 the key, $3 its lifetime in seconds. Expired lines with such a mark
// are removed, too. The file is replaced as a whole, because it holds the engine's own key; a symbolic
// link to it stays a link. sshd compares the expiry with the VM's own clock, so the VM computes it.
const letIn = `set -euo pipefail
umask 077
new=
trap 'code=$?; rm -f "${new}"; if ((code)); then exit 5; fi' EXIT # whatever fails, it is the VM's
mkdir -p ~/.ssh
exec 9<~/.ssh
flock -w 30 9
file=$(readlink -m ~/.ssh/authorized_keys)
new=${file}.linus
printf -v now '%(%s)T' -1
{
  if [[ -e ${file} ]]; then
    while IFS= read -r line || [[ -n ${line} ]]; do
      if [[ ${line} =~ \ linus-login-([A-Z0-9]+)-([0-9]+)$ ]] && [[ ${BASH_REMATCH[1]} == "$1" || 10#${BASH_REMATCH[2]} -le now ]]; then continue; fi
      printf '%s\n' "${line}"
    done <"${file}"
  fi
  if [[ -n $2 ]]; then
    printf -v until '%(%Y%m%d%H%M%S)T' "$((now + $3))"
    printf 'expiry-time="%s" %s linus-login-%s-%s\n' "${until}" "$2" "$1" "$((now + $3))"
  fi
} >"${new}"
if [[ -e ${file} ]]; then chmod --reference="${file}" "${new}"; fi
sync "${new}"
mv -f "${new}" "${file}"`

// Login connects to a VM's SSH server, which accepts a public key as the VM's user for loginTime.
// The key is removed after that time, or when the connection is closed.
func (g *Guest) Login(ctx context.Context, v vm.VM, key string) (job.Tunnel, error) {
	public, err := remote.PublicKey(key)
	if err != nil {
		return nil, &job.FieldError{Field: "key", Problem: "is no public key: " + err.Error(), Remedy: "give a line as in id_ed25519.pub, without options"}
	}
	mark := rand.Text()
	if err := g.letIn(ctx, v, mark, public); err != nil {
		return nil, err
	}
	end := sync.OnceFunc(func() {
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
		defer cancel()
		_ = g.letIn(timed, v, mark, "") // the key expires anyway
	})
	t, err := g.dial(ctx, v, v.IP, cmp.Or(g.o.Port, 22))
	if err != nil {
		end()
		return nil, err
	}
	return &login{t, time.AfterFunc(loginTime, end), end}, nil
}

// letIn runs the script letIn. An empty key removes the line with the mark.
func (g *Guest) letIn(ctx context.Context, v vm.VM, mark, key string) error {
	_, err := g.ask(ctx, "let a key in at", v, "let a key in", letIn, mark, key, strconv.Itoa(int(loginTime/time.Second)))
	return err
}

// login is a connection for which a key was let in.
type login struct {
	job.Tunnel

	timer *time.Timer
	end   func()
}

func (l *login) Close() error {
	defer l.end()
	l.timer.Stop()
	return l.Tunnel.Close()
}
