#!/usr/bin/env bash
# Runs a host script independently of the connection that started it. The run is called an
# operation. It is started once, as a unit of the host's systemd, and anybody can follow it
# from any byte, as often as needed. linus calls this script; people need not run it.
#
# Runs as root on a Proxmox VE host; needs bash, coreutils and systemd.
#
#   operation.sh start <operations> <id> <script> [<prefix>]   inputs for the script by environment
#   operation.sh run <directory>                    the unit's process, which becomes the script
#   operation.sh ended                              systemd runs it afterwards, in the directory
#   operation.sh follow <directory> <offset>
#   operation.sh stop <directory>
#   operation.sh settle <directory> <seconds>
#
# An operation is the directory <operations>/<id> and the unit linus-<id>. One rename makes
# the directory, so it is there as a whole or not at all. systemd allows only one unit of that
# name. In the directory:
#   nonce, env, script   what to run (0700: for root alone)
#   out                  its stdout
#   log                  its stderr; made when the operation begins, so that it begins once
#   bell                 a pipe: the operation's end writes a line to it, for those who wait
#   stop                 the operation is to stop: the script looks for this file itself
#                        (lib/run.sh), and no signal but KILL has any effect on the script
#   exit                 its exit status, or the signal that killed it: systemd writes it,
#                        last of all
# <prefix>: unfinished operations whose IDs begin with it are told to stop first. An operation
# that has begun, and has neither exit nor unit, is lost: the host was restarted. One that a
# signal killed is lost, too.
# An operation that nobody settled is removed after a week; none runs that long.
#
# If others have taken an engine for dead (LINUS_ENGINE, with a file fence-<engine> in
# /etc/pve/priv/linus: lib/fence.sh), nothing is started, stopped or settled for it. Starts and
# settles for engines take turns: whatever was started before that file existed is there to be
# settled afterwards.
# Exit codes: 0 ok, 66 no such operation, 75 it does not stop, 76 the engine is taken for
# dead, 127 no such script; otherwise an error, with a text on stderr.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/afresh.sh"

# Waits a tenth of a second without a process of its own, or until the operation's end. An older
# engine's operation has no bell.
pause() { # [<directory>]
  if [[ -z ${pause_open:-} ]]; then
    # shellcheck disable=SC2312 # `:` cannot fail
    if ! [[ -p ${1:-}/bell ]] || ! { exec 7<>"$1/bell"; } 2>/dev/null; then
      exec 7<> <(:)
    fi
    pause_open=yes
  fi
  IFS= read -r -t 0.1 -u 7 _ || :
}

make_place() { # <operations>
  if [[ ! -d $1 ]]; then
    mkdir -p -- "$1"
  fi
}

# Takes the turn, on descriptor 6, and ends the script if the engine is fenced.
enter() { # <operations>
  if [[ -z ${LINUS_ENGINE:-} ]]; then
    return 0
  fi
  make_place "$1"
  exec 6<"$1"
  flock 6
  if [[ ! ${LINUS_ENGINE} =~ ^[0-9a-f-]{36}$ || -e ${LINUS_PVE_DIR:-/etc/pve}/priv/linus/fence-${LINUS_ENGINE} ]]; then
    printf 'refused for engine %s: others have taken it for dead, and its jobs over\n' "${LINUS_ENGINE}" >&2
    exit 76
  fi
}

leave() {
  if [[ -n ${LINUS_ENGINE:-} ]]; then
    exec 6<&-
  fi
}

start() { # <operations> <id> <script> [<beginning of the IDs of operations that are to stop>]
  local -r operations=$1 dir=$1/$2 script=$3
  local staged nonce
  enter "${operations}"
  if [[ -n ${4:-} ]]; then
    stop_earlier "$1/$4" "${dir}"
  fi
  if [[ ! -d ${dir} ]]; then
    if [[ ! -f ${script} ]]; then
      exit 127
    fi
    make_place "${operations}"
    clear_old "${operations}"
    staged=$(mktemp -d "${operations}/.new.XXXXXXXX")
    printf '%08x%08x%08x%08x\n' "${SRANDOM}" "${SRANDOM}" "${SRANDOM}" "${SRANDOM}" >"${staged}/nonce"
    printf '%s\n' "${script}" >"${staged}/script"
    env -0 >"${staged}/env"
    : >"${staged}/out"
    mkfifo -- "${staged}/bell"
    # The reservation: if another start has made the directory, it is not empty, and stays.
    mv -T -- "${staged}" "${dir}" 2>/dev/null || rm -rf -- "${staged}"
  fi
  leave
  launch "${dir}" "$2"
  nonce=$(<"${dir}/nonce")
  printf 'LINUS_OPERATION:%s\n' "${nonce}"
}

# An operation that an engine began on a VM before it ended may not have reached the VM's lock yet.
# It is stopped, so that it does not come after the operation that begins now.
stop_earlier() { # <beginning of their directories> <this one's>
  local dir
  for dir in "$1"*; do
    if [[ ${dir} != "$2" ]]; then
      tell_stop "${dir}"
    fi
  done
}

# Clears up once an hour, and when the date has gone back. Other starts add and remove directories
# meanwhile, so it is no fault if find misses some.
clear_old() { # <operations>
  local cleared=0
  { read -r cleared <"$1/.cleared"; } 2>/dev/null || :
  if [[ ! ${cleared} =~ ^[1-9][0-9]{0,11}$ ]] || ((cleared > EPOCHSECONDS || cleared + 3600 <= EPOCHSECONDS)); then
    printf '%s\n' "${EPOCHSECONDS}" >"$1/.cleared"
    find "$1" -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -rf -- {} + 2>/dev/null || :
  fi
}

# A unit of that name may be there: another start's, which is as good, or that of an operation just
# settled, which is about to go. What the script leaves running on purpose (a QEMU) outlives its
# unit.
launch() { # <directory> <id>
  local said
  local -i tries=0
  # There is no $ in it: systemd reads its units back at a daemon-reload, which any upgrade of the
  # host's packages may cause, and a $ in a transient unit comes back as another text.
  local -r note_exit="/bin/bash \"${BASH_SOURCE[0]}\" ended"
  until [[ -e $1/log ]] || said=$(
    systemd-run --quiet --collect --unit="linus-$2" --description="operation $2 of linus" --property=KillMode=process \
      --property=RuntimeMaxSec=6d --property=TimeoutStopSec=10 --property="WorkingDirectory=$1" --property="ExecStopPost=${note_exit}" \
      -- bash "${BASH_SOURCE[0]}" run "$1" 2>&1 </dev/null
  ); do
    if ((tries++ >= 50)); then
      printf 'the operation %s does not start: %s\n' "$2" "${said}" >&2
      exit 1
    fi
    pause
  done
}

run() { # <directory>
  local -r dir=$1
  local script variable
  set -C
  exec 2>"${dir}/log"
  set +C
  exec </dev/null >>"${dir}/out"
  cd /
  while IFS= read -r -d '' variable; do
    export "${variable?}" 2>/dev/null || : # bash keeps some for itself
  done <"${dir}/env"
  LINUS_NONCE=$(<"${dir}/nonce")
  script=$(<"${dir}/script")
  export LINUS_NONCE LINUS_STOP=${dir}/stop
  trap '' HUP INT PIPE TERM
  exec bash "${script}"
}

ended() {
  if [[ ! -e exit ]]; then
    printf '%s\n' "${EXIT_STATUS:-}" >exit.new && mv -- exit.new exit
    { exec 7<>bell && printf '\n' >&7; } 2>/dev/null || :
  fi
}

next_look=0 # SECONDS at which systemd is asked again

# operation_end: empty while it runs; exit:<status>, or lost when it was killed
# or the host restarted.
find_end() { # <directory>
  local state status=''
  operation_end=''
  if [[ ! -e $1/exit ]]; then
    if ((SECONDS < next_look)); then
      return 0
    fi
    next_look=$((SECONDS + 3))
    state=$(systemctl is-active "linus-${1##*/}.service") || :
    if [[ ${state} != inactive && ${state} != failed ]]; then
      return 0
    fi
  fi
  operation_end=lost
  { read -r status <"$1/exit"; } 2>/dev/null || :
  if [[ ${status} =~ ^[0-9]+$ ]]; then
    operation_end=exit:${status}
  fi
}

# Prints what has come on descriptor 5, byte for byte, without a process, because each follower
# looks ten times a second.
relay() {
  local text
  while IFS= read -r -d '' -u 5 text; do
    printf '%s\0' "${text}"
  done
  printf '%s' "${text}"
}

# stdout: a line that marks where the script's output begins, whatever a login shell printed before,
# then the output from the offset on. stderr, after all output: LINUS_OPERATION:<nonce>:<end>, and
# the end of the log unless all is well.
follow() { # <directory> <offset>
  local -r dir=$1
  local nonce
  if [[ ! -d ${dir} ]]; then
    exit 66
  fi
  nonce=$(<"${dir}/nonce")
  exec 5<"${dir}/out"
  printf 'LINUS_OPERATION:%s\n' "${nonce}"
  tail -c "+$(($2 + 1))" <&5
  find_end "${dir}"
  while [[ -z ${operation_end} ]]; do
    pause "${dir}"
    relay
    find_end "${dir}"
  done
  relay
  printf 'LINUS_OPERATION:%s:%s\n' "${nonce}" "${operation_end}" >&2
  if [[ ${operation_end} != exit:0 ]]; then
    tail -c 7000 "${dir}/log" >&2
  fi
}

stop() { # <directory>
  enter "${1%/*}"
  tell_stop "$1"
  leave
}

tell_stop() { # <directory>, which may go meanwhile
  if [[ -d $1 ]]; then
    : >"$1/stop" || [[ ! -d $1 ]]
  fi
}

# Ends an operation and removes what is left of it. An operation that has not begun cannot begin any
# more.
settle() { # <directory> <seconds>
  local -r dir=$1 deadline=$((SECONDS + $2))
  stop "${dir}"
  if [[ ! -d ${dir} ]]; then
    return 0
  fi
  if ! (set -C && : >"${dir}/log") 2>/dev/null; then
    find_end "${dir}"
    while [[ -z ${operation_end} ]]; do
      if ((SECONDS >= deadline)); then
        exit 75
      fi
      pause "${dir}"
      find_end "${dir}"
    done
  fi
  rm -rf -- "${dir}"
}

main() {
  afresh "$@"
  set -Eeuo pipefail
  shopt -s inherit_errexit
  export LC_ALL=C
  umask 077
  case ${1:-} in
    start | run | ended | follow | stop | settle) "$@" ;;
    *)
      printf 'usage: operation.sh start|run|ended|follow|stop|settle ...; see the top of the script\n' >&2
      exit 1
      ;;
  esac
}

if ! (return 0 2>/dev/null); then main "$@"; fi
