#!/usr/bin/env bats
# lib/lease.sh: what a lease proves of a config that a killed worker of Proxmox
# left. When leases end is tested with create-vm.sh and destroy-vm.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2312,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs lease
  run_init
  lease_arm() { :; } # it is tested with scripts, on a host of its own
  vm_job=11111111-2222-4333-8444-555555555555
  vm_owner=99999999-2222-4333-8444-555555555555
  vm_name=ours
  export LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc
  conf=${LINUS_PVE_DIR}/qemu-server/100.conf
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve/qemu-server"
  ln -s nodes/pve/qemu-server "${LINUS_PVE_DIR}/qemu-server"
  echo '{"nodename":"pve","version":0}' >"${LINUS_PVE_DIR}/.members"
}

# A lease that says what is done to VM 100, and the config its worker left.
leave() { # <lock announced> [<line of the config...>]
  lease_announce 100 pve "$1" local-lvm
  : >"${conf}"
  (($# == 1)) || printf '%s\n' "${@:2}" >"${conf}"
}

proves() { # <yes or no> <of what>
  vm_read 100
  lease_match 100
  if [[ ${lease_matches} != "$1" ]]; then
    echo "$2: ${lease_matches}" >&2
    return 1
  fi
}

@test "what a worker of ours leaves that was killed is proven by its lease" {
  local lock
  for lock in clone create destroyed; do
    leave "${lock}" "lock: ${lock}"
    proves yes "${lock}"
  done
  leave clone '#qmclone temporary file' 'lock: clone'
  proves yes 'a clone that has just begun'
  leave clone 'lock: destroyed'
  proves yes 'a clone whose destroy was killed'
  leave destroyed
  proves yes 'a destroy whose lock was broken'
}

@test "a lease proves nothing of a config that is another's, or not of its time" {
  leave clone 'lock: clone' 'name: web'
  proves no 'a config with a name'
  leave clone 'lock: clone' 'scsi0: local-lvm:vm-100-disk-0'
  proves no 'a config with a disk'
  leave clone '#precious' 'lock: clone'
  proves no 'a config with a description'
  leave clone '#qmclone temporary file of mine' 'lock: clone'
  proves no 'a config with more of a description'
  leave clone '<<<<' 'lock: clone'
  proves no 'a config with a line that is not of Proxmox'
  leave clone 'lock: backup'
  proves no 'another lock'
  leave clone 'lock: create'
  proves no 'the lock of other work'
  leave none 'lock: none'
  proves no 'a lease of a VM that speaks for itself'
  leave clone 'lock: clone'
  touch -d "@$((lease_made - 60))" "${conf}"
  proves no 'a config older than its lease'
  touch -d "@$((lease_made + lease_window + 60))" "${conf}"
  proves no 'a config much younger than its lease'
  touch -d "@$((lease_made + lease_window - 60))" "${conf}"
  proves yes 'a config of the last try'
  rm "${conf}"
  proves no 'no config'
}

@test "a lease that is announced again after a reboot ends when it would have" {
  lease_announce 100 pve clone local-lvm
  lease_set_end 1000
  lease_settle 100
  lease_read_clock
  # That boot had lasted for a year; 400 s of the lease were left at its end.
  lease_boot=another lease_ends_uptime=31536000 lease_ends_date=$((lease_date + 400))
  lease_save
  lease_announce 100 pve destroyed local-lvm
  lease_load 100 "${vm_job}"
  [[ ${lease_boot} == "${lease_boot_now}" ]]
  ((lease_ends_uptime - lease_uptime >= 390 && lease_ends_uptime - lease_uptime <= 400))
  # One that was over long ago is over.
  lease_boot=another lease_ends_uptime=31536000 lease_ends_date=1
  lease_save
  lease_announce 100 pve destroyed local-lvm
  lease_load 100 "${vm_job}"
  [[ ${lease_found} == yes ]]
  ((lease_ends_uptime == lease_uptime))
  # One without end has none.
  lease_boot=another lease_ends_uptime=0 lease_ends_date=0
  lease_save
  lease_announce 100 pve destroyed local-lvm
  lease_load 100 "${vm_job}"
  ((lease_ends_uptime == 0 && lease_ends_date == 0))
}

@test "the last whole line of a lease counts, and it does not grow without end" {
  local -i i
  lease_announce 100 pve clone 'local-lvm local' 1000
  lease_settle 100
  lease_load 100 "${vm_job}"
  [[ ${lease_lock}/${lease_storages} == none/local-lvm,local && ${#lease_lines[@]} -eq 2 ]]
  ((lease_ends_uptime == lease_uptime + 1000))
  lease_announce 100 pve destroyed local-lvm
  printf 'none ours %s pve local 1 b 1 1 1 1' "${vm_owner}" >>"${lease_file}" # a line that was cut
  lease_load 100 "${vm_job}"
  [[ ${lease_found}/${lease_lock} == yes/destroyed ]]
  lease_settle 100
  lease_load 100 "${vm_job}"
  [[ ${lease_found}/${lease_lock} == yes/none && ${lease_cut} == no ]]
  for ((i = 0; i < 40; i += 1)); do
    lease_announce 100 pve destroyed local-lvm
  done
  lease_load 100 "${vm_job}"
  [[ ${lease_found}/${lease_lock} == yes/destroyed && ${#lease_lines[@]} -le 16 ]]
  printf 'clone ours' >"${lease_file}"
  lease_load 100 "${vm_job}"
  [[ ${lease_found} == no ]]
  ln -sf /dev/full "${lease_file}"
  lease_lines=() lease_cut=no
  lease_save
  [[ ${lease_saved} == no ]]
}

@test "a lease is of one VM, job, name and owner" {
  leave clone 'lock: clone'
  proves yes 'as announced'
  vm_name=other
  proves no 'another name'
  vm_name=ours vm_owner=88888888-2222-4333-8444-555555555555
  proves no 'another owner'
  vm_owner=99999999-2222-4333-8444-555555555555 vm_job=88888888-2222-4333-8444-555555555555
  proves no 'another job'
  vm_job=11111111-2222-4333-8444-555555555555
  mv "${conf}" "${conf%/*}/101.conf"
  vm_read 101
  lease_match 101
  [[ ${lease_matches} == no ]]
}
