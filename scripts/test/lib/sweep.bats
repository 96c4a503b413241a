#!/usr/bin/env bats
# lib/sweep.sh: whose lease is over, or whose run was killed, and what becomes of the VM. What is
# looked at before a destroy is tested in destroy.bats.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2317
source "${BATS_TEST_DIRNAME}/../helper/common.bash"
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs sweep
  run_init
  setup_proxmox
  lease=${LINUS_HOST_DIR}/leases/205-${job}
}

# VM 205 of ours, whose run is at work, or with none was seen to its end.
leave() { # <lock announced> [<line of its config...>]
  lease_announce 205 pve "$1" local-lvm 1000
  add_our_vm 205 "${@:2}"
}

over() { # its lease is
  lease_load 205 "${job}"
  lease_read_clock
  lease_set_end 0
}

killed() { # [<seconds ago>]: the run that announced the lease
  lease_load 205 "${job}"
  lease_pid=$$ lease_start=1 lease_cut=yes # another process's start
  lease_made=$((lease_made - ${1:-0}))
  lease_save
}

config_is() { # <line...>
  printf '%s\n' "$@" >"${PVE_STUB}/vm/205"
}

# What the stub was called for, but for questions.
changes_are() { # <command line...>
  local changes wanted=''
  changes=$(grep -vE '^(pvesh get|pvesm list|qm status) ' "${PVE_STUB}/calls") || :
  (($# == 0)) || wanted=$(printf '%s\n' "$@")
  [[ ${changes} == "${wanted}" ]] || fail "${changes}"
}

lease_says() { # <lock>, in its last line
  local -a lines
  mapfile -t lines <"${lease}"
  [[ ${lines[-1]} == "$1 "* ]] || fail "${lines[@]}"
}

leaves() { # the VM and its lease, untouched
  lease_sweep
  changes_are
  [[ -e ${PVE_STUB}/vm/205 && -e ${lease} ]] || fail "${lease}"
}

@test "a VM is destroyed when its lease is over, and not before" {
  leave none
  leaves
  over
  lease_sweep
  changes_are 'qm stop 205' 'qm destroy 205 --purge 1'
  [[ ! -e ${PVE_STUB}/vm/205 && ! -e ${lease} ]]
}

@test "a lease in its time says nothing of a VM that is not proven, and one without its fields ends none" {
  local armed=no
  lease_arm() { armed=yes; }
  lease_sweep # there is none
  [[ ${armed} == no ]]
  leave none
  killed
  sed -i '/^tags/d' "${PVE_STUB}/vm/205"
  lease_announce 206 pve none local-lvm 1000
  lease_load 206 "${job}"
  lease_read_clock
  lease_set_end 0
  add_our_vm 206
  lease_sweep
  [[ ${armed} == yes && ! -e ${PVE_STUB}/vm/206 && -e ${PVE_STUB}/vm/205 && -e ${lease} && ! -e ${lease}.left ]]
  sed -i '$a tags: linus' "${PVE_STUB}/vm/205"
  over # what was read of it is here
  echo nonsense >"${lease}"
  : >"${PVE_STUB}/calls"
  leaves
}

@test "a lease ends by the time that the host has been up, after a reboot by its clock, and one without an end never" {
  lease_read_clock
  local -r up=${lease_uptime} date=${lease_date} boot=${lease_boot_now}
  ends() { # <yes or no> <boot> <by the time up> <by the clock>
    lease_boot=$2 lease_ends_uptime=$3 lease_ends_date=$4
    lease_read_end
    [[ ${lease_over} == "$1" ]] || fail "$*: ${lease_over}"
  }
  ends no "${boot}" 0 0
  ends yes "${boot}" "${up}" $((date + 1000)) # the clock was set back
  ends no "${boot}" $((up + 1000)) $((date - 1000))
  ends yes another $((up + 1000)) "${date}"
  ends no another 0 $((date + 1000))
}

@test "a run that is at work is left to it, and one that was killed when all was there needs nothing" {
  leave clone
  leaves
  lease_says clone
  killed
  leaves
  lease_says none
  lease_sweep # and its lease is over in its time
  changes_are
}

@test "what a killed run had not seen to its end is proven by its lease and destroyed, unless something is at work on it" {
  leave clone
  killed
  config_is 'lock: clone'
  answer /nodes/pve/tasks '[{"upid":"nonsense"}]'
  leaves
  answer /nodes/pve/tasks '[]'
  lease_sweep
  [[ ! -e ${PVE_STUB}/vm/205 && ! -e ${lease} ]] || fail "$(<"${PVE_STUB}/calls")"
}

@test "a killed run's lease goes where the ID is another's, and where nobody knows, the VM is left alone and told of" {
  leave clone
  killed
  config_is '#theirs' 'name: web' 'scsi0: local-lvm:vm-205-disk-0'
  lease_sweep
  changes_are
  [[ -e ${PVE_STUB}/vm/205 && ! -e ${lease} ]]
  leave clone
  killed
  config_is '#theirs' 'name: ours' 'scsi0: local-lvm:vm-205-disk-0'
  leaves
  [[ $(<"${lease}.left") == *'does not carry linus-job='* ]] || fail "$(<"${lease}.left")"
  config_is 'lock: clone' # it is not looked at again that soon
  leaves
}

@test "what an unfinished destroy left that no lease proves is left alone, and how it is removed is told" {
  leave destroyed
  killed
  config_is 'lock: destroyed'
  touch -d '2 days ago' "${PVE_STUB}/vm/205" # another's, of before
  leaves
  [[ $(<"${lease}.left") == *"it carries only the lock 'destroyed'"*'qm unlock 205; qm destroy 205 --purge 1'* ]] || fail "$(<"${lease}.left")"
  local line
  for line in '' $'name: ours\nlock: backup' $'#theirs\nlock: backup'; do
    rm "${lease}.left"
    config_is "${line}"
    touch -d '2 days ago' "${PVE_STUB}/vm/205"
    leaves
    [[ $(<"${lease}.left") != *'only the lock'* ]] || fail "$(<"${lease}.left")"
  done
}

@test "a config that cannot be read, or is elsewhere, decides nothing" {
  leave clone
  killed
  spoil_config 205
  leaves
  [[ ! -e ${lease}.left ]]
}

@test "where there is no VM, a killed run's commands may still make it for a while, and after a reboot none does" {
  leave clone
  rm "${PVE_STUB}/vm/205" "${LINUS_PVE_DIR}/qemu-server/205.conf"
  killed
  lease_sweep
  [[ -e ${lease} ]]
  killed $((lease_window + 1))
  lease_sweep
  [[ ! -e ${lease} ]]
  lease_announce 205 pve clone local-lvm 1000
  killed
  lease_boot=another lease_cut=yes
  lease_save
  lease_sweep
  [[ ! -e ${lease} ]]
  changes_are
}

@test "a template and a volume that a killed run had made are what they are" {
  leave clone 'template: 1'
  sed -i '1s/$/ linus-template=1/' "${PVE_STUB}/vm/205"
  killed
  leaves
  lease_says none
  [[ ! -e ${lease}.left ]]
  sed -i '1s/ linus-template=1/ linus-volume=data/; /^template/d' "${PVE_STUB}/vm/205"
  lease_announce 205 pve clone local-lvm
  killed
  leaves
  lease_says none
  [[ ! -e ${lease}.left ]]
  # Half of what makes a template is none.
  sed -i '1s/ linus-volume=data/ linus-template=1/' "${PVE_STUB}/vm/205"
  lease_announce 205 pve clone local-lvm 1000
  killed
  leaves
  lease_says none
  sed -i '1s/ linus-template=1//; $a template: 1' "${PVE_STUB}/vm/205"
  lease_announce 205 pve clone local-lvm 1000
  killed
  leaves
  [[ $(<"${lease}.left") == *'it is a template'* ]] || fail "$(<"${lease}.left")"
}

@test "a VM that is a template by now has no lease, and what is not proven keeps one and is told of" {
  leave none 'template: 1'
  sed -i '1s/$/ linus-template=1/' "${PVE_STUB}/vm/205"
  over
  lease_sweep
  changes_are
  [[ -e ${PVE_STUB}/vm/205 && ! -e ${lease} ]]
  lease_announce 205 pve none local-lvm 1000
  sed -i '/^tags/d; /^template/d; 1s/ linus-template=1//' "${PVE_STUB}/vm/205"
  over
  leaves
  [[ $(<"${lease}.left") == *"does not carry the tag 'linus'"* ]]
  : >"${PVE_STUB}/calls"
  lease_sweep
  [[ ! -s ${PVE_STUB}/calls ]] || fail "$(<"${PVE_STUB}/calls")"
}

@test "a destroy that fails is tried again by the next sweep" {
  leave none
  over
  fault destroy 255 skip 'no'
  lease_sweep
  [[ -e ${PVE_STUB}/vm/205 && -e ${lease} && ! -e ${lease}.left ]]
  lease_sweep
  [[ ! -e ${PVE_STUB}/vm/205 && ! -e ${lease} ]] || fail "$(<"${PVE_STUB}/calls")"
}

@test "a sweep ends two at most, one sweep is at work at a time, and what is no lease is not looked at" {
  leave none
  over
  local id other
  for id in 206 207; do
    lease_announce "${id}" pve none local-lvm 1000
    lease_load "${id}" "${job}"
    lease_read_clock
    lease_set_end 0
    add_our_vm "${id}"
  done
  cp "${lease}" "${LINUS_HOST_DIR}/leases/205-${job}.new"
  cp "${lease}" "${LINUS_HOST_DIR}/leases/x205-${job}"
  exec {other}>>"${LINUS_HOST_DIR}/leases/.sweep"
  flock "${other}"
  lease_sweep
  changes_are
  exec {other}>&-
  lease_sweep
  local -a gone=()
  for id in 205 206 207; do [[ -e ${PVE_STUB}/vm/${id} ]] || gone+=("${id}"); done
  [[ ${#gone[@]} -eq 2 ]] || fail "${gone[*]}"
  lease_sweep
  [[ ! -e ${PVE_STUB}/vm/205 && ! -e ${PVE_STUB}/vm/206 && ! -e ${PVE_STUB}/vm/207 && -e ${LINUS_HOST_DIR}/leases/x205-${job} ]]
}
