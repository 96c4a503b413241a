package guest

import (
	"context"
	"strings"

	"linus/internal/vm"
)

// inUse prints "used" if an sshd or a login has a child other than this script and file transfers.
// The connections that engines keep open have no children. $1 is the path of proc.
const inUse = `declare -A name=() parent=()
for status in "$1"/[0-9]*/status; do
  pid=${status%/status} pid=${pid##*/}
  while read -r key value _; do
    case ${key} in
      Name:) name[${pid}]=${value} ;;
      PPid:) parent[${pid}]=${value} && break ;;
    esac
  done 2>/dev/null <"${status}"
done 2>/dev/null
for pid in "${!parent[@]}"; do
  if [[ ${pid} == "$$" || ${pid} == "${PPID}" ]]; then continue; fi
  case ${name[${parent[${pid}]}]-}/${name[${pid}]} in
    sshd*/sshd* | sshd*/sftp-server) ;;
    sshd*/* | login/*) echo used && exit ;;
  esac
done
echo free`

// InUse reports whether somebody is logged in to a VM by SSH without an engine, or on its console.
func (g *Guest) InUse(ctx context.Context, v vm.VM) (bool, error) {
	said, err := g.ask(ctx, "look who is logged in to", v, "look who is logged in", inUse, "/proc")
	return err == nil && strings.TrimSpace(said) != "free", err
}
