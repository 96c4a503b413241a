# shellcheck shell=bash
# shellcheck disable=SC2310 # lease_has_systemd answers with its status and changes nothing
# What the host knows of a VM of ours beside the VM's own config: a lease, a
# file <vmid>-<job> of one line, written before the VM can exist.
#
# It may end. Then the host itself destroys the VM, after the same proof as
# every destroy: by a timer of its own while nobody of ours is there any more,
# or, where a reboot lost the timer, by the next script of ours (lease_sweep).
#
# It also proves what a killed worker of Proxmox left. Such a config has a lock
# and nothing else, for Proxmox writes the description later, and drops it
# before the config goes. lease_lock is the lock that a worker of ours would
# leave now: clone, create, destroyed; or none, when the config speaks for itself.
#
# Where: LINUS_HOST_DIR (/var/lib/linus)/leases. Times are in seconds: since
# boot while the boot is the same, so that no change of date ends a lease, and
# by the date after a reboot. An end of 0 is never.

# How long after a lease was written its create can still be at work: six tries
# of half an hour.
lease_window=10800

lease_read_clock() { # lease_date, lease_uptime, lease_boot_now
  local up
  printf -v lease_date '%(%s)T' -1
  read -r up _ </proc/uptime
  lease_uptime=${up%.*}
  read -r lease_boot_now </proc/sys/kernel/random/boot_id
}

lease_locate() { # <vmid> <job>; lease_file
  lease_file=${LINUS_HOST_DIR:-/var/lib/linus}/leases/$1-$2
}

lease_load() { # <vmid> <job>; lease_found: yes or no, and the lease's fields
  lease_locate "$1" "$2"
  lease_found=no
  if { read -r lease_lock lease_name lease_owner lease_node lease_storages lease_made lease_boot \
    lease_pid lease_start lease_ends_uptime lease_ends_date <"${lease_file}"; } 2>/dev/null \
    && [[ ${lease_made} =~ ^[0-9]+$ && ${lease_ends_uptime} =~ ^[0-9]+$ && ${lease_ends_date} =~ ^[0-9]+$ ]]; then
    lease_found=yes
  fi
}

lease_find() { # <vmid>; lease_jobs: the jobs that have a lease of it, parted by blanks
  local file
  lease_jobs=''
  for file in "${LINUS_HOST_DIR:-/var/lib/linus}/leases/$1"-*; do
    if [[ ${file##*/} =~ ^[0-9]+-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$ ]]; then
      lease_jobs+="${lease_jobs:+ }${BASH_REMATCH[1]}"
    fi
  done
}

lease_save() { # lease_saved: yes or no
  lease_saved=no
  if (
    umask 077
    mkdir -p -- "${lease_file%/*}"
    printf '%s\n' "${lease_lock} ${lease_name} ${lease_owner} ${lease_node} ${lease_storages} ${lease_made} ${lease_boot} ${lease_pid} ${lease_start} ${lease_ends_uptime} ${lease_ends_date}" >"${lease_file}.new" \
      && mv -f -- "${lease_file}.new" "${lease_file}"
  ) 2>/dev/null; then
    lease_saved=yes
  fi
}

# Says what is about to happen to the VM, before it can: a worker of ours that
# is killed from here on leaves this lock. The lease's end, if any, stays.
lease_announce() { # <vmid> <node> <lock> <storages, parted by blanks>
  lease_load "$1" "${vm_job}"
  if [[ ${lease_found} != yes ]]; then
    lease_ends_uptime=0
    lease_ends_date=0
  fi
  lease_read_clock
  stat_read "$$"
  lease_lock=$3 lease_name=${vm_name} lease_owner=${vm_owner} lease_node=$2 lease_storages=${4//[[:space:]]/,}
  lease_storages=${lease_storages:--} lease_made=${lease_date} lease_boot=${lease_boot_now} lease_pid=$$ lease_start=${stat_start}
  lease_save
}

# The lease just announced ends in so many seconds.
lease_set_end() { # <vmid> <seconds>
  lease_ends_uptime=$((lease_uptime + $2))
  lease_ends_date=$((lease_date + $2))
  lease_save
  lease_arm "$1" "$2"
}

# The create has landed: the config speaks for itself.
lease_settle() { # <vmid>
  lease_load "$1" "${vm_job}"
  if [[ ${lease_found} == yes && ${lease_ends_date} != 0 ]]; then
    lease_lock=none
    lease_save
  else
    lease_drop "$1" "${vm_job}"
  fi
}

# Starts what ends the lease. It is a script of its own, made of the functions
# of this one: the file this one runs from may be gone or newer by then.
lease_arm() { # <vmid> <seconds>
  local name
  {
    printf '# Destroys VM %s (job %s) when its lease ends, if it proves to be ours.\n' "$1" "${vm_job}"
    for name in PATH LINUS_HOST_DIR LINUS_LOCK_DIR LINUS_PVE_DIR PVELAB_DIR; do
      if [[ -n ${!name:-} ]]; then
        printf 'export %s=%q\n' "${name}" "${!name}"
      fi
    done
    declare -f
    printf 'lease_window=%s\nlease_run %s %s\n' "${lease_window}" "$1" "${vm_job}"
  } >"${lease_file}.sh"
  if lease_has_systemd; then
    run_change 30 systemd-run --quiet --collect "--unit=linus-lease-$1-${vm_job}" "--on-active=$2" \
      "--description=end of the lease of VM $1" -- bash "${lease_file}.sh"
    if ((run_rc == 0)); then
      return 0
    fi
  fi
  # No child of this script, which would be waited for with the others.
  (
    env -u LINUS_STOP --default-signal setsid bash "${lease_file}.sh" </dev/null >/dev/null 2>&1 8>&- 9>&- &
    stat_read "$!"
    printf '%s %s\n' "$!" "${stat_start}" >"${lease_file}.pid"
  )
}

lease_has_systemd() {
  [[ -d ${LINUS_SYSTEMD_DIR:-/run/systemd/system} ]] && command -v systemd-run >/dev/null
}

# Whoever has destroyed the VM ends its lease. The file is what counts: a timer
# that finds it gone does nothing.
lease_drop() { # <vmid> <job>
  local pid start
  lease_locate "$1" "$2"
  local -r file=${lease_file}
  rm -f -- "${file}"
  if [[ -e ${file}.sh && ${lease_is_timer:-no} == no ]]; then
    if { read -r pid start <"${file}.pid"; } 2>/dev/null; then
      stat_read "${pid}"
      if [[ -n ${start} && ${stat_start} == "${start}" ]]; then
        kill -TERM -- "-${pid}" 2>/dev/null || :
      fi
    elif lease_has_systemd; then
      run_change 30 systemctl stop "linus-lease-$1-$2.timer" "linus-lease-$1-$2.service"
    fi
  fi
  rm -f -- "${file}.sh" "${file}.pid" "${file}.new" "${file}.left"
}

# --- what a lease proves ---

# Whether the config just read (lib/vm.sh) is what a worker of Proxmox leaves
# that did for the VM meant what its lease announced.
lease_match() { # <vmid>; lease_matches: yes or no
  local key written
  lease_matches=no
  lease_load "$1" "${vm_job}"
  if [[ ${lease_found} != yes || ${lease_lock} == none || ${vm_state} != present ||
    ${lease_owner} != "${vm_owner}" || ${lease_name} != "${vm_name}" ]]; then
    return 0
  fi
  # Proxmox begins a clone with this description, and a lock.
  if [[ -n ${vm_config[description]:-} && ${vm_config[description]} != 'qmclone temporary file' ]]; then
    return 0
  fi
  for key in "${!vm_config[@]}"; do
    if [[ ${key} != lock && ${key} != description ]]; then
      return 0
    fi
  done
  # No lock: a destroy of ours has broken it, and was killed then.
  if [[ ${vm_config[lock]:-${lease_lock}} != "${lease_lock}" && ${vm_config[lock]} != destroyed ]]; then
    return 0
  fi
  run_read 10 stat -Lc %Y -- "${LINUS_PVE_DIR:-/etc/pve}/qemu-server/$1.conf"
  written=${run_out:-0}
  if ((written >= lease_made - 1 && written <= lease_made + lease_window)); then
    lease_matches=yes
  fi
}

# Whether such a config may be destroyed. lease_proof: yes; busy (somebody is still
# at work on it); no.
lease_prove() { # <vmid> <node>
  lease_proof=no
  lease_match "$1"
  if [[ ${lease_matches} != yes ]]; then
    return 0
  fi
  lease_proof=busy
  lease_read_writer
  if [[ ${lease_writer} == alive && ${lease_pid} != "$$" ]]; then
    vm_reason="the run that makes or destroys it (process ${lease_pid}) is still at work"
    return 0
  fi
  vm_find_tasks "$1" "$2"
  if [[ ${vm_busy} == yes ]]; then
    vm_reason='a task of Proxmox is still at work on it'
    return 0
  fi
  lease_proof=yes
}

lease_read_writer() { # lease_writer: alive or gone
  stat_read "${lease_pid}"
  lease_writer=gone
  if [[ -n ${stat_start} && ${stat_start} == "${lease_start}" ]]; then
    lease_writer=alive
  fi
}

# --- the end ---

lease_read_end() { # lease_over: yes or no
  lease_read_clock
  lease_over=no
  if ((lease_ends_date == 0)); then
    return 0
  fi
  if [[ ${lease_boot} == "${lease_boot_now}" ]]; then
    if ((lease_uptime >= lease_ends_uptime)); then
      lease_over=yes
    fi
  elif ((lease_date >= lease_ends_date)); then
    lease_over=yes
  fi
}

# Destroys the lease's VM. One that is left alone keeps its lease: it is told of,
# and looked at again, until it is gone or somebody lets go of it.
lease_end() { # <vmid> <job>, as lease_load has read it
  local vm_job=$2 vm_owner=${lease_owner} vm_name=${lease_name}
  log_info "the lease of VM $1 (${vm_name}) is over, or its run was killed: destroying it"
  vm_destroy "$1" "${lease_node}"
  case ${vm_outcome} in
    refused)
      log_warn "VM $1 is left alone: ${vm_reason}"
      left_note "$1" "$2" "${vm_reason}"
      ;;
    failed) log_warn "VM $1 could not be destroyed yet: ${vm_reason}" ;;
    *) log_info "VM $1: ${vm_outcome}" ;;
  esac
}

# The timer's program: ends when the lease is gone, by itself or by others.
lease_run() { # <vmid> <job>
  set -Eeuo pipefail
  shopt -s inherit_errexit
  export LC_ALL=C
  local wait next_try=0
  lease_is_timer=yes
  trap run_clean EXIT
  trap 'exit 143' HUP INT TERM
  while :; do
    lease_load "$1" "$2"
    if [[ ${lease_found} != yes ]]; then
      return 0
    fi
    lease_read_end
    if [[ ${lease_over} == yes ]] && ((lease_uptime >= next_try)); then
      next_try=$((lease_uptime + 600))
      run_init
      lease_end "$1" "$2"
      run_clean
    else
      wait=$((lease_ends_uptime - lease_uptime))
      sleep "$((wait < 1 || wait > 30 ? 30 : wait))"
    fi
  done
}

# Ends what is over and clears up after runs that were killed. At most two VMs
# a sweep, one sweep at a time: the script has other work to do.
lease_sweep() {
  local file looks=0 i
  local -r dir=${LINUS_HOST_DIR:-/var/lib/linus}/leases
  local -r form='^([0-9]+)-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$'
  local -ra files=("${dir}"/*)
  if [[ ! -e ${files[0]} ]] || ! { exec 7>>"${dir}/.sweep"; } 2>/dev/null; then
    return 0
  fi
  if flock -n 7; then
    # From another place each time, so that one that fails does not keep the rest waiting.
    local -r offset=$((RANDOM % ${#files[@]}))
    for ((i = 0; i < ${#files[@]} && looks < 2; i += 1)); do
      file=${files[(i + offset) % ${#files[@]}]##*/}
      if [[ ${file} =~ ${form} ]]; then
        lease_look "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
        looks=$((looks + lease_looked))
      fi
    done
  fi
  exec 7>&-
}

lease_look() { # <vmid> <job>; lease_looked: 1 when Proxmox was asked
  lease_looked=0
  lease_load "$1" "$2"
  left_rests "$1" "$2"
  if [[ ${lease_found} != yes || ${left_resting} == yes ]]; then
    return 0
  fi
  lease_read_end
  lease_read_writer
  if [[ ${lease_over} == yes ]]; then
    lease_looked=1
    lease_end "$1" "$2"
  elif [[ ${lease_lock} != none && ${lease_writer} == gone ]]; then
    lease_looked=1
    lease_finish "$1" "$2"
  fi
}

# A run was killed between announcing its work and seeing it done.
lease_finish() { # <vmid> <job>, as lease_load has read it
  local vm_job=$2 vm_owner=${lease_owner} vm_name=${lease_name}
  vm_read "$1"
  vm_prove
  if [[ ${vm_state} == unknown ]]; then
    return 0
  elif [[ ${vm_state} == absent ]]; then
    # Its create may still be at work: the killed script's commands go on.
    if [[ ${lease_boot} != "${lease_boot_now}" ]] || ((lease_date > lease_made + lease_window)); then
      lease_drop "$1" "$2"
    fi
  elif [[ -z ${vm_doubt} ]]; then
    lease_settle "$1"
  else
    lease_prove "$1" "${lease_node}"
    case ${lease_proof} in
      yes) lease_end "$1" "$2" ;;
      busy) log_info "VM $1: ${vm_reason}" ;;
      *)
        left_judge
        if [[ ${left_whose} == another ]]; then
          lease_drop "$1" "$2"
        else
          log_warn "VM $1 is left alone: ${vm_doubt}"
          left_note "$1" "$2" "${vm_doubt}"
        fi
        ;;
    esac
  fi
}
