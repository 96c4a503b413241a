# shellcheck shell=bash
# The fence against engines of linus that others have taken for dead: a file fence-<engine> in
# /etc/pve/priv/linus. pmxcfs shows it to every node at once, and accepts no file without quorum. A
# script that changes something for an engine looks for the file inside its lock. A change that
# began before the file was there has ended then, or is seen by those who wait for the lock, and a
# later change does nothing.
#
# LINUS_ENGINE is the engine that asks; empty where there can be only one.

source "${BASH_SOURCE[0]%/*}/validate.sh"

fence_engine='' # the engine that this script works for

fence_read_inputs() {
  fence_engine=${LINUS_ENGINE:-}
  if [[ -n ${fence_engine} ]]; then
    validate_uuid LINUS_ENGINE "${fence_engine}"
  fi
}

fence_look() { # fence_up: yes or no
  fence_up=no
  if [[ -n ${fence_engine} && -e ${LINUS_PVE_DIR:-/etc/pve}/priv/linus/fence-${fence_engine} ]]; then
    fence_up=yes
  fi
}

fence_fail() { # <what was to be done>
  result_fail vm "refused to $1 for engine ${fence_engine}: others have taken it for dead, and its jobs over" 'restart that engine: it joins the others as a new one'
}
