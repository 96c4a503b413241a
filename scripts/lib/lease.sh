# shellcheck shell=bash
# What the host knows of a VM of ours beside the VM's own config: a lease, a
# file <vmid>-<job> of one line, written before the VM can exist.
#
# It may end. Then the host itself destroys the VM, after the same proof as every
# destroy: the sweep does, which a timer of the host runs every few minutes and
# every script of ours that comes by.
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
  lease_arm
}

# The lease just announced ends in so many seconds.
lease_set_end() { # <seconds>
  lease_ends_uptime=$((lease_uptime + $1))
  lease_ends_date=$((lease_date + $1))
  lease_save
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

# Whoever has destroyed the VM ends its lease. Earlier versions gave each a timer
# with a script and a pid of its own: it finds the lease gone, and ends.
lease_drop() { # <vmid> <job>
  lease_locate "$1" "$2"
  rm -f -- "${lease_file}" "${lease_file}".{new,left,sh,pid}
}

# --- the timer ---

# One timer per host runs the sweep while nobody of ours is there. Who announces
# a lease arms it; after a reboot, the next script that finds leases does.
lease_arm() { # lease_armed: yes or no
  if [[ ${lease_armed:-no} == yes ]]; then
    return 0
  fi
  lease_write_sweep
  lease_read_timer
  if [[ ${lease_armed} == no && ${lease_written} == yes ]]; then
    run_change 30 systemd-run --quiet --collect --unit=linus-sweep --property=KillMode=mixed \
      --on-active="${LINUS_SWEEP_SECONDS:-180}" --on-unit-active="${LINUS_SWEEP_SECONDS:-180}" --timer-property=AccuracySec=1s \
      --description='ends leases of VMs of linus that are over' -- bash "${lease_sweeper}"
    lease_read_timer # another script may have been first
  fi
}

lease_read_timer() { # lease_armed: yes or no
  run_read 30 systemctl is-active linus-sweep.timer
  lease_armed=no
  if [[ ${run_out} == active ]]; then
    lease_armed=yes
  fi
}

# The timer's program is made of the functions of this one, whose file may be gone
# or newer by then. A newer one's takes its place; a sweep under way reads on in
# its own.
lease_write_sweep() { # lease_sweeper; lease_written: yes or no
  local name
  local -a names
  mapfile -t names < <(declare -F)
  local -ra names=("${names[@]#declare -f }")
  lease_sweeper=${LINUS_HOST_DIR:-/var/lib/linus}/sweep.sh
  lease_written=no
  if (
    umask 077
    mkdir -p -- "${lease_sweeper%/*}"
    {
      printf '# Ends leases of VMs that are over. linus-sweep.timer runs it; the scripts that arm the timer write it.\n'
      for name in LINUS_HOST_DIR LINUS_LOCK_DIR LINUS_PVE_DIR; do
        if [[ -n ${!name:-} ]]; then
          printf 'export %s=%q\n' "${name}" "${!name}"
        fi
      done
      for name in "${names[@]}"; do
        if [[ ${name} =~ ^(address|json|lease|left|log|quarantine|result|retry|run|stat|vm)_ ]]; then
          declare -f "${name}"
        fi
      done
      printf 'lease_window=%s\nlease_run\n' "${lease_window}"
    } >"${lease_sweeper}.$$"
    if cmp -s -- "${lease_sweeper}.$$" "${lease_sweeper}"; then
      rm -f -- "${lease_sweeper}.$$"
    else
      mv -f -- "${lease_sweeper}.$$" "${lease_sweeper}"
    fi
  ) 2>/dev/null; then
    lease_written=yes
  fi
}

# The timer's program.
lease_run() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  export LC_ALL=C
  trap run_clean EXIT
  run_init
  trap 'run_stop=143' HUP INT TERM
  lease_armed=yes
  lease_sweep
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
  lease_arm
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
