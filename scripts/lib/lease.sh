# shellcheck shell=bash
# What the host knows of a VM of ours beside the VM's own config: a lease, a
# file <vmid>-<job> of one line, written before the VM can exist.
#
# It may end. Then the host itself destroys the VM, after the same proof as every
# destroy: the sweep (lib/sweep.sh) does, which a timer of the host runs every few minutes and
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

source "${BASH_SOURCE[0]%/*}/vm.sh"

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
  if ((lease_ends_date != 0)) && [[ ${lease_boot} != "${lease_boot_now}" ]]; then
    lease_ends_uptime=$((lease_uptime + (lease_ends_date > lease_date ? lease_ends_date - lease_date : 0)))
  fi
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

# Whoever has destroyed the VM ends its lease.
lease_drop() { # <vmid> <job>
  lease_locate "$1" "$2"
  rm -f -- "${lease_file}" "${lease_file}".{new,left}
}

# --- the timer ---

# One timer per host runs the sweep while nobody of ours is there. Its units have files
# and are enabled, so that after a reboot leases end, and network rules come back, though
# no engine speaks to the host. Who announces a lease arms it: one at a time, for who looks
# in the middle of that would stop what another has just started.
lease_arm() { # lease_armed: yes or no
  local -r lock=${LINUS_HOST_DIR:-/var/lib/linus}/timer.lock
  if [[ ${lease_armed:-no} == yes ]]; then
    return 0
  fi
  lease_write_sweep
  if { exec 4>>"${lock}"; } 2>/dev/null; then
    run_lock 60 4
  fi
  lease_arm_timer
  { exec 4>&-; } 2>/dev/null
}

lease_arm_timer() { # lease_armed: yes or no
  lease_write_units
  lease_read_timer
  if [[ ${lease_written} == no || (${lease_armed} == yes && ${lease_enabled} == yes) ]]; then
    return 0
  fi
  # What runs goes by what its units were, and may be transient: such a one cannot be enabled.
  if [[ ${lease_armed} == yes ]]; then
    run_change 30 systemctl stop linus-sweep.timer
  fi
  if [[ ${lease_rewritten} == yes ]]; then # a file that is new is found without
    run_change 30 systemctl daemon-reload
  fi
  run_change 30 systemctl enable --quiet --no-reload linus-sweep.service linus-sweep.timer
  run_change 30 systemctl start linus-sweep.timer
  lease_read_timer
}

# lease_enabled: whether the units' files were there as they are to be, and enabled;
# lease_rewritten: whether there were others; lease_written: no, where they could not be
# written.
lease_write_units() {
  local -r dir=${LINUS_UNIT_DIR:-/etc/systemd/system}
  local service timer
  printf -v service '%s\n' '# Written by linus; "linus host uninstall" removes it.' '[Unit]' \
    'Description=ends leases of VMs of linus that are over' 'After=pve-cluster.service' 'Before=pve-guests.service' \
    '[Service]' "ExecStart=/bin/bash \"${lease_sweeper//%/%%}\"" 'KillMode=mixed' '[Install]' 'WantedBy=multi-user.target'
  printf -v timer '%s\n' '# Written by linus; "linus host uninstall" removes it.' '[Unit]' \
    'Description=ends leases of VMs of linus that are over' '[Timer]' "OnActiveSec=${LINUS_SWEEP_SECONDS:-180}" \
    "OnUnitActiveSec=${LINUS_SWEEP_SECONDS:-180}" 'AccuracySec=1s' '[Install]' 'WantedBy=timers.target'
  lease_enabled=yes
  lease_rewritten=no
  lease_write_unit "${dir}/linus-sweep.service" "${service}" "${dir}/multi-user.target.wants/linus-sweep.service"
  lease_write_unit "${dir}/linus-sweep.timer" "${timer}" "${dir}/timers.target.wants/linus-sweep.timer"
}

lease_write_unit() { # <file> <text> <link that enables it>
  local there=''
  { IFS= read -r -d '' there <"$1" || :; } 2>/dev/null
  if [[ ! -e $3 || ${there} != "$2" ]]; then
    lease_enabled=no
  fi
  if [[ -n ${there} && ${there} != "$2" ]]; then
    lease_rewritten=yes
  fi
  if [[ ${there} != "$2" ]] && ! (
    umask 022
    mkdir -p -- "${1%/*}"
    printf '%s' "$2" >"$1.$$" && mv -f -- "$1.$$" "$1"
  ) 2>/dev/null; then
    lease_written=no
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
      for name in LINUS_HOST_DIR LINUS_LOCK_DIR LINUS_PVE_DIR LINUS_QEMU_DIR LINUS_RESOLV_CONF; do
        if [[ -n ${!name:-} ]]; then
          printf 'export %s=%q\n' "${name}" "${!name}"
        fi
      done
      for name in "${names[@]}"; do
        if [[ ${name} =~ ^(address|checkpoint|clock|egress|fence|json|lease|left|log|quarantine|result|retry|run|stat|tools|vm|volume)_ ]]; then
          declare -f "${name}"
        fi
      done
      printf 'lease_window=%s\nfence_engine=\nlease_run\n' "${lease_window}"
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
