#!/usr/bin/env bash
# One run of a host script that does not depend on the connection it was asked
# for over: it is started once, detached, and can be followed from any byte by
# whoever comes, as often as needed. linus calls this; there is nothing in it
# for people to run.
#
# Runs as root on a Proxmox VE host; needs bash, coreutils and util-linux, and
# uses systemd-run where systemd runs.
#
#   operation.sh start <operations> <id> <script>   inputs for the script by environment
#   operation.sh run <directory>                    the detached process itself
#   operation.sh follow <directory> <offset>
#   operation.sh stop <directory>
#   operation.sh settle <directory> <seconds>
#
# An operation is the directory <operations>/<id>, made whole in one rename, so
# it is there or not, and a second start finds the first. In it:
#   nonce, env, script   what is to be run (0700: root's alone)
#   lock                 held by `run` as long as it lives
#   owner, pid           processes of `run` and of the script: pid, start, boot
#   told                 the script was told to stop
#   out, log             its stdout and stderr
#   exit                 its exit status, last of all
# What nobody settled goes after a week.
# Exit codes: 0 ok, 66 no such operation, 75 it does not end, 127 no such
# script; else an error, in words on stderr.

# process_identity: <pid> so named that neither a recycled pid nor a reboot can
# be mistaken for it; empty when there is none, or a zombie.
identify() { # <pid>
  local line boot
  process_identity=''
  { IFS= read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
  # The command's name is in brackets and may hold blanks and brackets itself.
  local -a fields
  IFS=' ' read -r -a fields <<<"${line##*) }"
  IFS= read -r boot </proc/sys/kernel/random/boot_id
  if [[ ${fields[0]} != Z ]]; then
    process_identity="$1 ${fields[19]} ${boot}"
  fi
}

# process_alive: yes or no; process_pid
look() { # <file with an identity>
  local line=''
  process_alive=no
  process_pid=''
  { IFS= read -r line <"$1"; } 2>/dev/null || return 0
  process_pid=${line%% *}
  identify "${process_pid}"
  if [[ ${process_identity} == "${line}" ]]; then
    process_alive=yes
  fi
}

# A tenth of a second without a process of its own.
pause() {
  if [[ -z ${pause_open:-} ]]; then
    # shellcheck disable=SC2312 # `:` cannot fail
    exec 7<> <(:)
    pause_open=yes
  fi
  IFS= read -r -t 0.1 -u 7 _ || :
}

start() { # <operations> <id> <script>
  local -r operations=$1 dir=$1/$2 script=$3
  local staged nonce
  local -i waited=0
  if [[ ! -d ${dir} ]]; then
    if [[ ! -f ${script} ]]; then
      exit 127
    fi
    umask 077
    mkdir -p -- "${operations}"
    # Other starts come and go here meanwhile: what find then misses is no fault.
    find "${operations}" -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -rf -- {} + 2>/dev/null || :
    staged=$(mktemp -d "${operations}/.new.XXXXXXXX")
    nonce=$(od -An -N16 -tx1 /dev/urandom)
    printf '%s\n' "${nonce//[[:space:]]/}" >"${staged}/nonce"
    printf '%s\n' "${script}" >"${staged}/script"
    env -0 >"${staged}/env"
    : >"${staged}/out"
    : >"${staged}/log"
    # The reservation: another start's directory is not empty, and stays.
    mv -T -- "${staged}" "${dir}" 2>/dev/null || rm -rf -- "${staged}"
  fi
  if [[ ! -e ${dir}/owner ]]; then
    launch "${dir}" "$2"
  fi
  while [[ ! -e ${dir}/owner ]]; do
    if ((waited++ >= 150)); then
      printf 'the operation %s did not start within 15 s\n' "$2" >&2
      exit 1
    fi
    pause
  done
  nonce=$(<"${dir}/nonce")
  printf 'LINUS_OPERATION:%s\n' "${nonce}"
}

# Launching twice does no harm: the second `run` finds the first and leaves.
# systemd starts its units in the namespaces of process 1; in others (a lab's
# network namespace, a container's mounts) the script has to stay in ours.
launch() { # <directory> <id>
  if [[ -d /run/systemd/system && /proc/self/ns/net -ef /proc/1/ns/net && /proc/self/ns/mnt -ef /proc/1/ns/mnt ]] \
    && command -v systemd-run >/dev/null \
    && systemd-run --quiet --collect --unit="linus-$2" --property=KillMode=process \
      -- bash "${BASH_SOURCE[0]}" run "$1" </dev/null; then
    return 0
  fi
  setsid bash "${BASH_SOURCE[0]}" run "$1" </dev/null >/dev/null 2>&1 &
}

run() { # <directory>
  local -r dir=$1
  local script code
  local -a variables
  exec 8>>"${dir}/lock"
  if ! flock -n 8 || [[ -e ${dir}/owner ]]; then
    return 0
  fi
  cd /
  exec </dev/null >>"${dir}/out" 2>>"${dir}/log"
  LINUS_NONCE=$(<"${dir}/nonce")
  export LINUS_NONCE
  script=$(<"${dir}/script")
  mapfile -d '' -t variables <"${dir}/env"
  identify "$$"
  printf '%s\n' "${process_identity}" >"${dir}/owner.new"
  mv -T -- "${dir}/owner.new" "${dir}/owner"
  set +e
  (begin "${dir}" "${script}" "${variables[@]}") 8>&-
  code=$?
  set -e
  printf '%s\n' "${code}" >"${dir}/exit.new"
  mv -T -- "${dir}/exit.new" "${dir}/exit"
}

begin() { # <directory> <script> <variables...>
  identify "${BASHPID}"
  printf '%s\n' "${process_identity}" >"$1/pid" || exit 1
  exec env -- "${@:3}" bash "$2"
}

# operation_end: empty while it runs; exit:<status>, or lost when it was killed
# or the host restarted.
find_end() { # <directory>
  operation_end=''
  if [[ ! -e $1/exit ]]; then
    look "$1/owner"
    if [[ ${process_alive} == no ]]; then
      look "$1/pid" # its script may outlive it
    fi
    if [[ ${process_alive} == yes ]]; then
      return 0
    fi
  fi
  if [[ -e $1/exit ]]; then
    operation_end=exit:$(<"$1/exit")
  else
    operation_end=lost
  fi
}

# stdout: a line that tells where the script's output begins, whatever a login
# shell printed before, then the output from the offset on. stderr, when all is
# told: LINUS_OPERATION:<nonce>:<end>, and the end of the log unless all is well.
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
    pause
    cat <&5
    find_end "${dir}"
  done
  cat <&5
  printf 'LINUS_OPERATION:%s:%s\n' "${nonce}" "${operation_end}" >&2
  if [[ ${operation_end} != exit:0 ]]; then
    tail -c 7000 "${dir}/log" >&2
  fi
}

tell_again=5 # SECONDS at which a script that was told and lives is told again

# TERM to the script alone: the commands it runs must end by themselves before
# it can know what to undo. Every 5 s anew, for bash (5.2) can lose a signal;
# roll-back does not break off for one more.
tell() { # <directory>
  look "$1/pid"
  if [[ ${process_alive} == yes ]] && { mkdir "$1/told" 2>/dev/null || ((SECONDS >= tell_again)); }; then
    tell_again=$((SECONDS + 5))
    kill -TERM "${process_pid}" 2>/dev/null || :
  fi
}

# Returns as soon as the script is told, or has ended.
stop() { # <directory>
  local -i waited=0
  while [[ -d $1 && ! -e $1/told && ! -e $1/exit ]]; do
    tell "$1"
    if ((waited++ >= 150)); then
      exit 75
    fi
    pause
  done
}

# Ends an operation and removes what is left of it. One that has not begun will
# not begin any more.
settle() { # <directory> <seconds>
  local -r dir=$1 deadline=$((SECONDS + $2))
  if [[ ! -d ${dir} ]]; then
    return 0
  fi
  exec 8>>"${dir}/lock"
  until flock -n 8; do
    tell "${dir}"
    give_up "${deadline}"
  done
  look "${dir}/pid"
  while [[ ${process_alive} == yes ]]; do
    tell "${dir}"
    give_up "${deadline}"
    look "${dir}/pid"
  done
  rm -rf -- "${dir}"
}

give_up() { # <deadline>
  if ((SECONDS >= $1)); then
    exit 75
  fi
  pause
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  export LC_ALL=C
  case ${1:-} in
    start | run | follow | stop | settle) "$@" ;;
    *)
      printf 'usage: operation.sh start|run|follow|stop|settle ...; see the top of the script\n' >&2
      exit 1
      ;;
  esac
}

if ! (return 0 2>/dev/null); then main "$@"; fi
