# shellcheck shell=bash
# Runs qm, pvesh and pvesm by a server that has their modules loaded (proxmox/tool-server.pl),
# because each of them loads the modules at every start, which takes most of a second.
# lib/run.sh asks the server if an engine has provided its file (LINUS_TOOL_SERVER, with
# PROXMOX_TOOLS=auto); a script run by hand has none. All scripts of a host share it; it ends a
# minute after its last call.
#
# A call is like one under timeout(1): it has its own process group, inherits nothing but
# environment, directory and input, has a time limit and files for its output, and continues if this
# script, or the server, is killed. A request is a file in the server's spool, and a signal that
# does nothing to any other process. Whoever renames the file first has the request: one that was
# withdrawn has not begun, and the plain tool does it; one that was taken is never done again, and
# if its end is not reported it counts as killed.

source "${BASH_SOURCE[0]%/*}/log.sh"
source "${BASH_SOURCE[0]%/*}/stat.sh"

tools_init() {
  tools_dir=''
  tools_number=0
  tools_began=${SECONDS}
  tools_patience=5 # seconds until a server that could take a request counts as hung
  tools_starting=no
  tools_environment=()
  declare -gA tools_requests=() tools_since=()
  if [[ ${LINUS_TOOL_SERVER:-} == /* && ${PROXMOX_TOOLS:-auto} == auto ]]; then
    tools_dir=${LINUS_TOOL_SERVER##*/}
    tools_dir=${LINUS_LOCK_DIR:-/run/linus}/${tools_dir%.pl}
  fi
}

# tools_state: loading, ready or full; failed (within the last ten minutes); none. tools_pid,
# tools_why.
tools_look() {
  local start state up now
  tools_state=none tools_pid='' tools_why=''
  { read -r tools_pid start state up tools_why <"${tools_dir}/state"; } 2>/dev/null || return 0
  if [[ ${state} == failed ]]; then
    read -r now _ </proc/uptime
    if [[ ${up} =~ ^[0-9]+$ ]] && ((${now%.*} - up < 600)); then
      tools_state=failed
    fi
    return 0
  fi
  stat_read "${tools_pid}"
  if [[ -n ${stat_start} && ${stat_start} == "${start}" ]]; then
    tools_state=${state}
  fi
}

# Starts the server beside work that needs no tool yet, for scripts that need several tools.
tools_start() {
  if [[ -z ${tools_dir} ]]; then
    return 0
  fi
  tools_look
  if [[ ${tools_state} != none ]]; then
    return 0
  fi
  tools_began=${SECONDS}
  tools_starting=yes
  local -a launch=(setsid)
  if command -v systemd-run >/dev/null; then
    launch=(systemd-run --quiet --collect --unit="linus-${tools_dir##*/}" --description="Proxmox's tools, loaded once for linus"
      --property=KillMode=process --property=OOMPolicy=continue --property=TimeoutStopSec=10 --)
  fi
  {
    trap '' HUP INT TERM
    exec 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
    # Another script's start is as good. The unit of a server that has ended may be about to go.
    "${launch[@]}" env LC_ALL=C perl "${LINUS_TOOL_SERVER}" "${tools_dir}" "${LINUS_TOOL_SERVER_IDLE:-60}" || printf failed >"${run_dir}/starting"
  } </dev/null >/dev/null 2>&1 &
}

# Waits until a server that is starting serves, or says why it does not.
tools_await() { # tools_state
  tools_look
  while [[ ${tools_state} == @(none|loading) ]] && ((SECONDS - tools_began < 8 * tools_patience)); do
    if [[ ${tools_state} == none ]] && tools_is_late; then
      return 0
    fi
    IFS= read -r -t 0.05 -u "${run_bell}" _ || :
    tools_look
  done
}

# Tells whether a server that was to start, and has not appeared, will not appear.
tools_is_late() {
  ((SECONDS - tools_began >= tools_patience)) || { ((SECONDS > tools_began)) && [[ -e ${run_dir}/starting ]]; }
}

# Tells whether a command is one for the server, and whether there is a server, or is about to be.
tools_can() { # <command...>
  if [[ -z ${tools_dir} || $1 != @(qm|pvesh|pvesm) ]]; then
    return 1
  fi
  tools_look
  while [[ ${tools_state} == none && ${tools_starting} == yes ]] && ! tools_is_late; do
    IFS= read -r -t 0.05 -u "${run_bell}" _ || :
    tools_look
  done
  tools_starting=no
  [[ ${tools_state} == @(loading|ready) && -d ${tools_dir}/spool ]]
}

# Asks for a call, whose output goes into the files of its tag.
tools_ask() { # <tag> <seconds> <seconds from TERM to KILL> <command...>; tools_asked: yes or no
  local -r tag=$1 name=${BASHPID}.$((++tools_number))
  tools_asked=no
  if ((${#tools_environment[@]} == 0)); then
    tools_read_environment || return 0
  fi
  stat_read "${BASHPID}"
  local -ra fields=("${BASHPID}" "${stat_start}" "${run_dir}/${tag}" "${run_bell}" "$2" "$3" "${run_stdin:-/dev/null}" "${PWD}"
    "${run_guard:-}" "${#tools_environment[@]}" "${tools_environment[@]}" "${@:4}")
  if { printf '%s\0' "$((${#fields[@]} + 1))" "${fields[@]}" >"${tools_dir}/spool/${name}"; } 2>/dev/null; then
    tools_requests[${tag}]=${name}
    tools_since[${tag}]=${SECONDS}
    tools_asked=yes
    kill -URG "${tools_pid}" 2>/dev/null || :
  fi
}

# Reads the script's exported variables. It exports all of them when it begins.
tools_read_environment() { # tools_environment
  local name
  local -a names
  compgen -e >"${run_dir}/exported" || return 1
  mapfile -t names <"${run_dir}/exported"
  for name in "${names[@]}"; do
    if [[ -v ${name} ]]; then
      tools_environment+=("${name}=${!name}")
    fi
  done
}

# Tells how the call of a tag stands. tools_seen: alive; ended, with its status in <tag>.rc; or
# untaken: it has not begun and will not, and the plain tool must do it (tools_call: the request's
# fields after the first).
tools_see() { # <tag>
  local pid='' start=''
  tools_seen=ended
  if [[ -s ${run_dir}/$1.rc ]]; then
    return 0
  fi
  { read -r pid start <"${run_dir}/$1.pid"; } 2>/dev/null || :
  if [[ -z ${pid} ]]; then
    tools_await_keeper "$1"
    return 0
  fi
  stat_read "${pid}"
  if [[ -n ${stat_start} && ${stat_start} == "${start}" ]]; then
    tools_seen=alive
  elif [[ ! -s ${run_dir}/$1.rc ]]; then # its keeper was killed
    printf 137 >"${run_dir}/$1.rc"
  fi
}

# Handles a request that nobody has taken yet. If the server has gone, or hangs, the request is
# withdrawn.
tools_await_keeper() { # <tag>
  local -i waited=$((SECONDS - tools_since[$1])) patience=-1
  tools_seen=alive
  tools_look
  case ${tools_state} in
    loading) patience=$((8 * tools_patience)) ;;
    ready | full) patience=${tools_patience} ;;
    *) ;;
  esac
  if ((waited <= patience)); then
    return 0
  fi
  tools_withdraw "$1"
  if [[ ${tools_withdrawn} == yes ]]; then
    tools_seen=untaken
    tools_pass_by
    log_info "the tool server has not taken a call (${tools_state}): the plain tool is started"
  elif ((waited > 2 * tools_patience)) && [[ ! -s ${run_dir}/$1.pid && ! -s ${run_dir}/$1.rc ]]; then
    tools_seen=ended
    printf 137 >"${run_dir}/$1.rc" # the server was killed as it took the request
  fi
}

tools_withdraw() { # <tag>; tools_withdrawn: yes or no, and tools_call
  tools_withdrawn=no
  if [[ -n ${tools_requests[$1]:-} ]] && mv -T -- "${tools_dir}/spool/${tools_requests[$1]}" "${run_dir}/withdrawn" 2>/dev/null; then
    tools_withdrawn=yes
    unset "tools_requests[$1]"
    mapfile -d '' -t tools_call <"${run_dir}/withdrawn"
    tools_call=("${tools_call[@]:1}")
  fi
}

# A server that hangs is killed, so that another takes its place: no call ends with it. If it hung
# while loading, it is not tried again for a while. This script continues without it.
tools_pass_by() {
  tools_look
  if [[ ${tools_state} == @(loading|ready) ]]; then
    log_warn "the tool server (process ${tools_pid}) hangs (${tools_state}): killing it"
    kill -KILL "${tools_pid}" 2>/dev/null || :
    if [[ ${tools_state} == loading ]]; then
      local up
      read -r up _ </proc/uptime
      { printf '0 0 failed %s loading took too long\n' "${up%.*}" >"${tools_dir}/state"; } 2>/dev/null || :
    fi
  fi
  tools_dir=''
}

# Ends the call of a tag.
tools_end() { # <tag>
  local pid='' start=''
  { read -r pid start <"${run_dir}/$1.pid"; } 2>/dev/null || :
  if [[ -n ${pid} ]]; then
    stat_read "${pid}"
    if [[ ${stat_start} == "${start}" ]]; then
      kill -TERM "${pid}" 2>/dev/null || :
    fi
    return 0
  fi
  tools_withdraw "$1"
  if [[ ${tools_withdrawn} == yes ]]; then
    printf 143 >"${run_dir}/$1.rc"
  fi
}
