# shellcheck shell=bash
# VM vm_id with its memory on the disk: how it is saved, how it comes back, and what a worker of
# Proxmox that was killed on the way has left. vm_config and vm_status are the VM's; the caller
# holds its lock.
#
# `qm suspend --todisk` writes `lock: suspending` and the volume vmstate into the config, saves,
# ends QEMU and writes `lock: suspended`. `qm start` loads the state, frees it and removes the lock.
# A state must be loaded at most once: a state that stays behind would give a later start an old
# memory beside newer disks.

source "${BASH_SOURCE[0]%/*}/boot.sh"

# Finds what a killed worker has left: a state that is incomplete, or already loaded. suspend_half:
# yes or no.
suspend_find_half() {
  local -r lock=${vm_config[lock]:-}
  suspend_half=no
  if [[ ${lock} == suspending ||
    (${vm_status} == running && (${lock} == suspended || (-z ${lock} && -n ${vm_config[vmstate]:-}))) ]]; then
    suspend_half=yes
  fi
}

# Removes that state, if no task is at work on the VM any more. A machine whose state was being
# saved may have been paused for it.
suspend_clear_half() { # <node>
  vm_find_tasks "${vm_id}" "$1"
  if [[ ${vm_busy} == yes ]]; then
    result_fail vm "VM ${vm_id} on node '$1' is being suspended or resumed: VM is locked (${vm_config[lock]:-})" 'wait for it to end, then try again'
  fi
  log_warn "VM ${vm_id} was left in the middle of a suspend or a resume (lock ${vm_config[lock]:-none}): letting go of its state"
  if [[ ${vm_config[lock]:-} == suspending ]]; then
    run_change 60 qm unlock "${vm_id}"
  fi
  if [[ -n ${vm_config[vmstate]:-} ]]; then
    retry_change suspend_state_is_gone 300 qm set "${vm_id}" --delete vmstate
  fi
  if [[ ${vm_status} == running ]]; then
    run_change 60 qm resume "${vm_id}"
  fi
}

suspend_state_is_gone() {
  vm_read "${vm_id}"
  if [[ ${vm_state} == present && -z ${vm_config[vmstate]:-} ]]; then
    retry_landed=yes
  fi
}

suspend_has_landed() {
  vm_read "${vm_id}"
  vm_expect_status "${vm_id}" stopped
  # QEMU was told to end, and takes a moment.
  local -r deadline=$((SECONDS + 15))
  while [[ ${vm_config[lock]:-} == suspended && ${vm_status} == running ]] && ((SECONDS < deadline)); do
    run_pause 1
    vm_expect_status "${vm_id}" stopped
  done
  vm_find_suspended "${vm_status}"
  if [[ ${vm_suspended} == yes && ${vm_config[lock]:-} == suspended ]]; then
    retry_landed=yes
  fi
}

# If a try has left its lock, another try would only meet that lock.
suspend_give_up() {
  vm_read "${vm_id}"
  if [[ ${vm_config[lock]:-} == suspending ]]; then
    retry_landed=hopeless
  fi
}

# Ends the script with why the VM could not be suspended (run_said). The VM keeps running, so the
# lock with which Proxmox marks the suspend is of no use any more.
suspend_fail() { # <node>
  local -r said=${run_said:-nothing}
  vm_read "${vm_id}"
  vm_read_status "${vm_id}"
  suspend_find_half
  if [[ ${suspend_half} == yes ]]; then
    suspend_clear_half "$1"
    vm_read_status "${vm_id}"
  fi
  local -r failure="could not suspend VM ${vm_id} on node '$1': Proxmox answered: ${said} (status: ${vm_status})"
  case ${said} in
    *'HA managed'*)
      result_fail config "${failure}" "stop it instead, or take it out of the HA manager: ha-manager remove vm:${vm_id}"
      ;;
    *'passed-through PCI'* | *'Cannot live-migrate'*)
      result_fail config "${failure}" 'stop it instead: what that device holds cannot be saved'
      ;;
    *) ;;
  esac
  run_said=${said}
  retry_fail "${failure}" 'look whether its storage has room for twice its memory and 500 MB (pvesm status), and at the task log of the node'
}

# --- resume ---

# Resumes a VM from its state, and leaves nothing of that in its config.
suspend_resume() { # <node>
  egress_prepare "${vm_id}"
  retry_change start_has_landed 420 qm start "${vm_id}"
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not resume VM ${vm_id} on node '$1': Proxmox answered: ${run_said:-nothing} (status: ${vm_status}); its state is as it was" \
      'check that the node has the memory free; the state can be given up, and the VM started anew, after: qm set ID --delete vmstate'
  fi
  vm_read "${vm_id}"
  suspend_find_half
  if [[ ${suspend_half} == yes ]]; then
    suspend_clear_half "$1"
  fi
}

# Sets the guest's clock, which is at the time of the suspend, through the agent. The time that the
# guest reports afterwards must be the host's. The same call has the guest ask for its address
# again, and returns its host key (guest_host_key).
suspend_set_clock() { # <node>
  local -r deadline=$((SECONDS + VM_READY_TIMEOUT))
  local behind='' tries=0 lateness=0 # how late the time arrives, on a host that is very busy
  guest_agent=no
  read_network
  while :; do
    suspend_ask_clock "$((EPOCHSECONDS + lateness))"
    if [[ -n ${guest_time} ]]; then
      behind=$((EPOCHSECONDS - guest_time))
      if ((${behind#-} <= 10)); then
        log_info "the guest's clock is set"
        return 0
      fi
      ((tries += 1))
      if ((${behind#-} <= 60)); then
        lateness=$((lateness + behind))
      fi
    fi
    if ((tries >= 3 || SECONDS >= deadline)); then
      break
    fi
    run_pause 1
  done
  if [[ -n ${behind} ]]; then
    result_fail vm "the clock of VM ${vm_id} on node '$1' could not be set: it is ${behind} s behind" 'set it in the guest (date -s), or have its agent run commands as root'
  fi
  fail_without_agent "${VM_READY_TIMEOUT}" "${run_said}"
}

suspend_ask_clock() { # <the time>; guest_time: the guest's time, empty if it does not tell
  local -r form='^([0-9]{9,11}) (linus-host-key ((ssh-ed25519|ecdsa-sha2-nistp(256|384|521)|ssh-rsa) [A-Za-z0-9+/]+=*))?'
  # shellcheck disable=SC2016 # the guest's variables
  guest_exec "${vm_id}" 20 sh -c 'off=$(($1 - $(date +%s)))
    [ "${off#-}" -le 2 ] || date -u -s "@$1" >/dev/null 2>&1
    date +%s
    '"${guest_tell_key}"'
    for card in /sys/class/net/*; do
      [ "$(cat "$card/address")" != "$2" ] || timeout 5 networkctl renew "${card##*/}"
    done >/dev/null 2>&1 </dev/null &
    exit 0' sh "$1" "${vm_mac,,}"
  guest_time='' guest_host_key=''
  if [[ ${guest_exit} == 0 && "${guest_out:0:4096} " =~ ${form} ]]; then
    guest_time=$((10#${BASH_REMATCH[1]}))
    guest_host_key=${BASH_REMATCH[3]:-}
  fi
}

# The guest was ready when it was suspended, and has its host key. What answers at its address must
# be that guest.
suspend_verify_ready() {
  wait_for_banner "$((SECONDS + VM_READY_TIMEOUT))"
  check_place
  pin_host_key
}
