# shellcheck shell=bash
# What the host knows of a VM of linus besides the VM's own config: a lease, a file <vmid>-<job>,
# written before the VM can exist. Its last line counts, because changes are appended: a line is
# written whole or not at all.
#
# A lease may end. Then the host itself destroys the VM, after the same proof as every destroy. The
# sweep (lib/sweep.sh) does that; a timer of the host runs it every few minutes, and so does every
# script of linus on its way.
#
# A lease also proves what a killed worker of Proxmox left. Such a config has a lock and nothing
# else, because Proxmox writes the description later, and drops it before the config goes.
# lease_lock is the lock that a worker for linus would leave now: clone, create, destroyed; or none,
# when the config speaks for itself.
#
# Leases lie in LINUS_HOST_DIR (/var/lib/linus)/leases. Times are in seconds: since boot while the
# boot is the same, so that no change of date ends a lease, and by the date after a reboot. An end
# of 0 is never.

source "${BASH_SOURCE[0]%/*}/vm.sh"

# How long after a lease was written its create can still be at work and write the config: six tries
# of half an hour. The lease that proves a VM is written again before a destroy (vm_destroy_locked).
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
  lease_lines=() lease_cut=no
  { mapfile lease_lines <"${lease_file}"; } 2>/dev/null || :
  if ((${#lease_lines[@]} > 0)) && [[ ${lease_lines[-1]} != *$'\n' ]]; then
    unset 'lease_lines[-1]'
    lease_cut=yes
  fi
  if ((${#lease_lines[@]} > 0)) && read -r lease_lock lease_name lease_owner lease_node lease_storages lease_made lease_boot \
    lease_pid lease_start lease_ends_uptime lease_ends_date <<<"${lease_lines[-1]}" \
    && [[ ${lease_made} =~ ^[0-9]+$ && ${lease_ends_uptime} =~ ^[0-9]+$ && ${lease_ends_date} =~ ^[0-9]+$ ]]; then
    lease_found=yes
  fi
}

lease_find() { # <vmid>; lease_jobs: the jobs that have a lease of it, separated by blanks
  local file
  lease_jobs=''
  for file in "${LINUS_HOST_DIR:-/var/lib/linus}/leases/$1"-*; do
    if [[ ${file##*/} =~ ^[0-9]+-([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$ ]]; then
      lease_jobs+="${lease_jobs:+ }${BASH_REMATCH[1]}"
    fi
  done
}

# Saves the lease as lease_load has just read it, with what has changed since.
lease_save() { # lease_saved: yes or no
  local -r line="${lease_lock} ${lease_name} ${lease_owner} ${lease_node} ${lease_storages} ${lease_made} ${lease_boot} ${lease_pid} ${lease_start} ${lease_ends_uptime} ${lease_ends_date}"
  lease_saved=no
  if (
    umask 077
    [[ -d ${lease_file%/*} ]] || mkdir -p -- "${lease_file%/*}"
    if ((${#lease_lines[@]} < 16)) && [[ ${lease_cut} == no ]]; then
      printf '%s\n' "${line}" >>"${lease_file}"
    else
      printf '%s\n' "${line}" >"${lease_file}.new" \
        && mv -f -- "${lease_file}.new" "${lease_file}"
    fi
  ) 2>/dev/null; then
    lease_saved=yes
    lease_lines+=("${line}"$'\n') lease_cut=no
  fi
}

# Notes what is about to happen to the VM, before it can: a worker that is killed from here on
# leaves this lock. The lease keeps its end, if any, unless one is given.
lease_announce() { # <vmid> <node> <lock> <storages, separated by blanks> [<seconds until its end>]
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
  if ((${5:-0} > 0)); then
    lease_ends_uptime=$((lease_uptime + $5))
    lease_ends_date=$((lease_date + $5))
  fi
  lease_save
  lease_arm
}

# Sets the end of the lease just read, in seconds from when its clock was read.
lease_set_end() { # <seconds>
  lease_ends_uptime=$((lease_uptime + $1))
  lease_ends_date=$((lease_date + $1))
  lease_cut=yes # rewritten, because an older engine's scripts go by the first line
  lease_save
}

# The create has landed, so the config speaks for itself.
lease_settle() { # <vmid>
  lease_load "$1" "${vm_job}"
  if [[ ${lease_found} == yes && ${lease_ends_date} != 0 ]]; then
    lease_lock=none
    lease_save
  else
    lease_drop "$1" "${vm_job}"
  fi
}

# Removes the lease of a VM that was destroyed.
lease_drop() { # <vmid> <job>
  lease_locate "$1" "$2"
  rm -f -- "${lease_file}" "${lease_file}".{new,left}
}

# --- the timer ---

# One timer per host runs the sweep while no script of linus is there. Its units have files and are
# enabled, so that after a reboot leases end, and network rules come back, even if no engine
# connects to the host. A script that announces a lease arms the timer. They do it one at a time,
# because a script that looks while another arms it would stop what that one has just started.
#
# A timer seen to be armed is trusted for a minute, by scripts that are not newer than the one that
# saw it: a file armed of one line, boot, seconds since boot, the edition.
lease_arm() { # lease_armed: yes or no
  local -r lock=${LINUS_HOST_DIR:-/var/lib/linus}/timer.lock note=${LINUS_HOST_DIR:-/var/lib/linus}/armed
  local boot='' uptime='' edition='' lease_date lease_uptime lease_boot_now
  if [[ ${lease_armed:-no} == yes ]]; then
    return 0
  fi
  lease_locate_units
  lease_read_clock
  if [[ -O ${note} && -f ${note} && ! -L ${note} && -e ${lease_sweeper} && -e ${lease_links[0]} && -e ${lease_links[1]} ]] \
    && { read -r boot uptime edition <"${note}"; } 2>/dev/null \
    && [[ ${boot} == "${lease_boot_now}" && ${uptime} =~ ^(0|[1-9][0-9]{0,11})$ && ! ${edition} < ${lease_edition} ]] \
    && ((uptime <= lease_uptime && lease_uptime < uptime + 60)); then
    lease_armed=yes
    return 0
  fi
  lease_write_sweep
  if { exec 4>>"${lock}"; } 2>/dev/null; then
    run_lock 60 4
  fi
  lease_arm_timer
  { exec 4>&-; } 2>/dev/null
  if [[ ${lease_armed} == yes && ${lease_written} == yes ]]; then
    (umask 077 && printf '%s\n' "${lease_boot_now} ${lease_uptime} ${lease_there}" >"${note}") 2>/dev/null || :
  fi
}

lease_locate_units() { # lease_sweeper, lease_links, lease_edition
  lease_edition=''
  if [[ ${LINUS_EDITION:-} =~ ^[0-9A-Za-z.~-]{0,100}$ ]]; then
    lease_edition=${LINUS_EDITION:-}
  fi
  lease_sweeper=${LINUS_HOST_DIR:-/var/lib/linus}/sweep.sh
  lease_links=("${LINUS_UNIT_DIR:-/etc/systemd/system}"/{multi-user.target.wants/linus-sweep.service,timers.target.wants/linus-sweep.timer})
}

lease_arm_timer() { # lease_armed: yes or no
  lease_write_units
  lease_read_timer
  if [[ ${lease_written} == no || (${lease_armed} == yes && ${lease_enabled} == yes) ]]; then
    return 0
  fi
  # A running timer goes by the units it was started from, and may be transient. A transient one
  # cannot be enabled.
  if [[ ${lease_armed} == yes ]]; then
    run_change 30 systemctl stop linus-sweep.timer
  fi
  if [[ ${lease_rewritten} == yes ]]; then # a new file is found without
    run_change 30 systemctl daemon-reload
  fi
  run_change 30 systemctl enable --quiet --no-reload linus-sweep.service linus-sweep.timer
  run_change 30 systemctl start linus-sweep.timer
  lease_read_timer
}

# lease_enabled: whether the units' files were there as they should be, and enabled;
# lease_rewritten: whether there were different ones; lease_written: no, if they could not be
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
  lease_write_unit "${dir}/linus-sweep.service" "${service}" "${lease_links[0]}"
  lease_write_unit "${dir}/linus-sweep.timer" "${timer}" "${lease_links[1]}"
}

lease_write_unit() { # <file> <text> <link that enables it>
  local there=''
  { IFS= read -r -d '' there <"$1" || :; } 2>/dev/null
  if [[ -n ${there} && ${lease_there} > ${lease_edition} ]]; then
    there=$2 # a newer engine's unit stays
  fi
  if [[ ! -e $3 || ${there} != "$2" ]]; then
    lease_enabled=no
  fi
  if [[ -n ${there} && ${there} != "$2" ]]; then
    lease_rewritten=yes
  fi
  if [[ ${there} != "$2" ]] && ! (
    umask 022
    [[ -d ${1%/*} ]] || mkdir -p -- "${1%/*}"
    printf '%s' "$2" >"$1.$$" && mv -f -- "$1.$$" "$1"
  ) 2>/dev/null; then
    lease_written=no
  fi
}

lease_read_timer() { # lease_armed: yes or no
  run_read 30 run_alone systemctl is-active linus-sweep.timer
  lease_armed=no
  if [[ ${run_out} == active ]]; then
    lease_armed=yes
  fi
}

# The timer's program is made of the functions of this script, whose file may be gone or newer when
# the timer runs. A newer engine's program replaces an older one's, not the other way round: an
# engine passes its edition, a text that sorts as versions do, and a script run by hand has none. A
# sweep under way keeps reading its own file.
lease_write_sweep() { # lease_written: yes or no; lease_there: the edition of the program that is there then
  local text='' line=''
  lease_written=yes
  { IFS= read -r -d '' text <"${lease_sweeper}" || :; } 2>/dev/null
  line=${text%%$'\n'*}
  lease_there=${line#'# edition '}
  if [[ ${line} == '# edition '* && ${lease_there} > ${lease_edition} ]]; then
    return 0
  fi
  lease_there=${lease_edition}
  line=$(lease_print_sweep)
  if [[ ${text} == "${line}"$'\n' ]]; then
    return 0
  fi
  lease_written=no
  if (
    umask 077
    [[ -d ${lease_sweeper%/*} ]] || mkdir -p -- "${lease_sweeper%/*}"
    printf '%s\n' "${line}" >"${lease_sweeper}.$$" && mv -f -- "${lease_sweeper}.$$" "${lease_sweeper}"
  ) 2>/dev/null; then
    lease_written=yes
  fi
}

lease_print_sweep() {
  local name
  local -a names ours=()
  printf '# edition %s\n# Ends leases of VMs that are over. linus-sweep.timer runs it; the scripts that arm the timer write it.\n' "${lease_edition}"
  for name in LINUS_HOST_DIR LINUS_LOCK_DIR LINUS_PVE_DIR LINUS_QEMU_DIR LINUS_RESOLV_CONF; do
    if [[ -n ${!name:-} ]]; then
      printf 'export %s=%q\n' "${name}" "${!name}"
    fi
  done
  mapfile -t names < <(compgen -A function)
  for name in "${names[@]}"; do
    if [[ ${name} =~ ^(address|checkpoint|clock|cluster|egress|fence|json|lease|left|log|quarantine|result|retry|run|stat|tools|vm|volume)_ ]]; then
      ours+=("${name}")
    fi
  done
  declare -f "${ours[@]}"
  printf 'json_reader=%q\nlease_window=%s\nfence_engine=\nlease_run\n' "${json_reader}" "${lease_window}"
}

# --- what a lease proves ---

# Tells whether the config just read (lib/vm.sh) is what a worker of Proxmox leaves that did for the
# VM meant what its lease announced.
lease_match() { # <vmid>; lease_matches: yes or no
  local key
  local -a times
  lease_matches=no
  lease_load "$1" "${vm_job}"
  if [[ ${lease_found} != yes || ${lease_lock} == none || ${vm_state} != present ||
    ${lease_owner} != "${vm_owner}" || ${lease_name} != "${vm_name}" ]]; then
    return 0
  fi
  # Proxmox begins a clone with this description and a lock.
  if [[ -n ${vm_config[description]:-} && ${vm_config[description]} != 'qmclone temporary file' ]]; then
    return 0
  fi
  for key in "${!vm_config[@]}"; do
    if [[ ${key} != lock && ${key} != description ]]; then
      return 0
    fi
  done
  # There is no lock if a destroy of linus broke it and was killed then.
  if [[ ${vm_config[lock]:-${lease_lock}} != "${lease_lock}" && ${vm_config[lock]} != destroyed ]]; then
    return 0
  fi
  run_read 10 run_alone stat -Lc %Y -- "${LINUS_PVE_DIR:-/etc/pve}/qemu-server/$1.conf" "${lease_file}"
  mapfile -t times <<<"${run_out}"
  if ((${times[0]:-0} >= lease_made - 1 && ${times[0]:-0} <= ${times[1]:-0} + lease_window)); then
    lease_matches=yes
  fi
}

# Tells whether such a config may be destroyed. lease_proof: yes; busy (something is still at work
# on it); no.
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
