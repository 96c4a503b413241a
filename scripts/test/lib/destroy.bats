#!/usr/bin/env bats
# lib/destroy.sh: the lock that a stop and a destroy are done under, and what is looked at
# again before, between and after them. Its scripts are tested as a whole, too (destroy-vm.bats).

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2317
source "${BATS_TEST_DIRNAME}/../helper/common.bash"
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs destroy
  run_init
}

@test "locks lie in a directory of ours alone, which is made" {
  local dir=${BATS_TEST_TMPDIR}/locks
  stub_program qm 'echo called >>'"${BATS_TEST_TMPDIR}/calls"
  LINUS_LOCK_DIR=${dir} vm_lock 100
  [[ ${vm_locked} == yes && -e ${dir}/linus-vm-100.lock ]]
  local mode
  mode=$(stat -c %a "${dir}")
  [[ ${mode} == 700 ]]
  vm_unlock
  ln -s "${dir}" "${dir}.link"
  mkdir "${dir}.open" "${dir}.group" "${dir}.others"
  chmod 1777 "${dir}.open"
  chmod 0702 "${dir}.others"
  chmod 0770 "${dir}.group"
  : >"${dir}.file"
  mkdir -m 0700 "${dir}.theirs"
  ((EUID != 0)) || chown 65534 "${dir}.theirs"
  local -a wrong=("${dir}.link" "${dir}.open" "${dir}.group" "${dir}.others" "${dir}.file")
  ((EUID != 0)) || wrong+=("${dir}.theirs")
  for dir in "${wrong[@]}"; do
    LINUS_LOCK_DIR=${dir} vm_destroy 100 pve
    [[ ${vm_outcome} == failed && ${vm_reason} == *"could not take a lock in ${dir}"* ]]
    [[ ! -e ${dir}/linus-vm-100.lock ]]
  done
  [[ ! -e ${BATS_TEST_TMPDIR}/calls ]]
}

@test "a lock that cannot be had refuses the destroy" {
  stub_program qm 'echo called >>'"${BATS_TEST_TMPDIR}/calls"
  LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/none/locks vm_destroy 100 pve
  [[ ${vm_outcome} == failed && ${vm_reason} == *'could not take a lock'* && ! -e ${BATS_TEST_TMPDIR}/calls ]]
}

until_awaited() { # <inode>: until somebody waits for the lock on it
  local -r deadline=$((SECONDS + 20))
  until grep -qE -- "-> FLOCK .*:$1 " /proc/locks; do
    ((SECONDS < deadline)) || return 1
    sleep 0.02
  done
}

# The file goes with the lock: what was taken of a file that is gone keeps nobody out.
@test "who waited for a lock whose file went takes the lock of the next one" {
  export LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks
  local next inode
  vm_lock 100
  inode=$(stat -c %i "${vm_lock_file}")
  (
    exec 9>&-
    vm_lock 100
    echo "${vm_locked}" >"${BATS_TEST_TMPDIR}/locked"
  ) 3>&- &
  until_awaited "${inode}"
  rm -f -- "${vm_lock_file}"
  exec {next}>>"${vm_lock_file}"
  flock "${next}"
  exec 9>&-
  inode=$(stat -c %i "${vm_lock_file}")
  until_awaited "${inode}"
  [[ ! -e ${BATS_TEST_TMPDIR}/locked ]]
  exec {next}>&-
  wait "$!"
  [[ $(<"${BATS_TEST_TMPDIR}/locked") == yes ]]
}

# A roll-back destroys under the lock, and lets go of what its script holds: by then the file may be another's.
@test "a lock that was given back is not taken from who has it by then" {
  load_libs power
  export LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks
  vm_lock 100
  vm_unlock
  : >"${vm_lock_file}"
  power_let_go
  [[ -e ${vm_lock_file} ]]
}

@test "a lock whose file cannot be opened is not waited for" {
  export LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks
  mkdir -m 0700 "${LINUS_LOCK_DIR}"
  mkdir "${LINUS_LOCK_DIR}/linus-vm-100.lock"
  vm_check_lock_dir "${LINUS_LOCK_DIR}"
  run_exit_if_stopped() { exit 1; }
  vm_lock 100
  [[ ${vm_locked} == no && ${vm_reason} == *'could not take the lock'* ]]
}

# --- what is looked at, on a stub of Proxmox ---

setup_vm() { # <line of the config...>: VM 205 of ours, with a lease
  setup_proxmox
  lease_announce 205 pve none local-lvm 1000
  lease_lock=none lease_storages=''
  add_our_vm 205 "$@"
}

outcome_is() { # <outcome> <part of the reason, or empty>
  [[ ${vm_outcome} == "$1" && ${vm_reason} == *"$2"* ]] || fail "${vm_outcome}: ${vm_reason}"
}

# What the stub was called for, but for questions.
changes_are() { # <command line...>
  local changes wanted=''
  changes=$(grep -vE '^(pvesh get|pvesm list|qm status) ' "${PVE_STUB}/calls") || :
  (($# == 0)) || wanted=$(printf '%s\n' "$@")
  [[ ${changes} == "${wanted}" ]] || fail "${changes}"
}

volumes_of_205() { # the storage has one that no config names; pvesm frees it
  printf '%s\n' 'Volid Format Type Size VMID' 'local-lvm:vm-205-disk-3 raw images 4194304 205' >"${PVE_STUB}/volumes"
  # shellcheck disable=SC2016 # the hook's own variable
  hook free 'rm "${PVE_STUB}/volumes"'
}

@test "a VM proven ours is stopped and destroyed, and nothing else; then its lease goes" {
  setup_vm
  vm_destroy 205 pve
  outcome_is destroyed ''
  changes_are 'qm stop 205' 'qm destroy 205 --purge 1'
  assert_called_times 1 'pvesm list.*'
  [[ ! -e ${PVE_STUB}/vm/205 && ! -e ${LINUS_HOST_DIR}/leases/205-${job} && ! -e ${LINUS_HOST_DIR}/quarantine ]]
  [[ ${vm_locked} == no && ! -e ${LINUS_LOCK_DIR}/linus-vm-205.lock ]]
  vm_destroy 205 pve
  outcome_is gone ''
}

@test "the VM of an engine that others have taken for dead is left alone" {
  setup_vm
  fence_engine=${job}
  mkdir -p "${LINUS_PVE_DIR}/priv/linus"
  : >"${LINUS_PVE_DIR}/priv/linus/fence-${job}"
  vm_destroy 205 pve
  outcome_is fenced ''
  changes_are
  [[ ${vm_locked} == no && -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
}

@test "what is not proven is left alone, and keeps its lease" {
  setup_vm
  sed -i '/^tags/d' "${PVE_STUB}/vm/205"
  vm_destroy 205 pve
  outcome_is refused "it does not carry the tag 'linus'"
  changes_are
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
}

@test "a config that cannot be read is not gone, and is left alone" {
  setup_vm
  spoil_config 205
  vm_destroy 205 pve
  outcome_is failed 'the config of VM 205 could not be read'
  changes_are
}

@test "a stop, and a destroy, count when they are seen" {
  setup_vm
  fault stop 0 skip ''
  vm_destroy 205 pve
  outcome_is failed 'qm stop 205 did not stop it (status running)'
  changes_are 'qm stop 205'
  fault destroy 0 skip ''
  vm_destroy 205 pve
  outcome_is failed 'qm destroy 205 did not remove it'
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
}

@test "a VM that changes hands as it is stopped is not touched again" {
  setup_vm 'scsi3: local-lvm:vm-300-disk-0,size=1G'
  take_during after-stop 1 205
  vm_destroy 205 pve
  outcome_is refused 'does not carry linus-job='
  changes_are 'qm stop 205'
}

@test "no further try is made of a stop, or a destroy, when the VM has changed hands" {
  local verb
  for verb in stop destroy; do
    rm -rf "${BATS_TEST_TMPDIR:?}"/{pve,etc,bin,qemu-server,host}
    setup_vm
    fault "${verb}" 255 skip 'got timeout'
    take_during "${verb}" 1 205
    vm_destroy 205 pve
    outcome_is refused 'does not carry linus-job='
    assert_called_times 1 "qm ${verb} .*"
    [[ -e ${PVE_STUB}/vm/205 ]]
  done
}

@test "a VM that somebody has protected, before or as it is stopped, stays protected" {
  setup_vm 'protection: 1' 'scsi3: local-lvm:vm-205-disk-3,serial=linus0123456789ab'
  vm_destroy 205 pve
  outcome_is refused 'it is protected'
  changes_are
  add_our_vm 205
  # shellcheck disable=SC2016 # the hook's own variable
  hook stop 'echo "protection: 1" >>"${PVE_STUB}/vm/205"'
  vm_destroy 205 pve
  outcome_is refused 'it is protected'
  changes_are 'qm stop 205'
}

# VM 205, cloned of a protected template and not configured yet.
setup_protected_clone() {
  setup_vm 'protection: 1'
  sed -i 's/^#linus-job.*/& linus-state=cloning/' "${PVE_STUB}/vm/205"
}

@test "the protection that a clone has of its template goes, and is seen to be gone" {
  setup_protected_clone
  fault set 0 skip ''
  vm_destroy 205 pve
  outcome_is failed 'did not take its protection off'
  changes_are 'qm stop 205' 'qm set 205 --protection 0'
  # shellcheck disable=SC2016 # the hook's own variable
  change_during after-set 2 'ln -sf 205.conf "${LINUS_PVE_DIR}/qemu-server/205.conf"' # it cannot be read
  : >"${PVE_STUB}/hook-after-set.calls"
  echo >>"${PVE_STUB}/hook-after-set.calls"
  vm_destroy 205 pve
  outcome_is failed 'did not take its protection off'
  ln -sf ../../../../pve/vm/205 "${LINUS_PVE_DIR}/qemu-server/205.conf"
  sed -i 's/^protection: 0/protection: 1/' "${PVE_STUB}/vm/205"
  refute_called 'qm destroy.*'
  vm_destroy 205 pve
  outcome_is destroyed ''
}

@test "a VM that changes hands as its protection goes is not destroyed" {
  setup_protected_clone
  take_during after-set 1 205
  vm_destroy 205 pve
  outcome_is refused 'does not carry linus-job='
  refute_called 'qm destroy.*'
}

# VM 205 with a disk that is volume 300's.
setup_with_volume() {
  setup_vm 'scsi3: local-lvm:vm-300-disk-0,size=1G'
}

@test "a volume is taken off, again where Proxmox was busy, before the VM is destroyed" {
  setup_with_volume
  fault set 255 skip 'got timeout'
  vm_destroy 205 pve
  outcome_is destroyed ''
  changes_are 'qm stop 205' 'qm set 205 --delete scsi3' 'qm set 205 --delete scsi3' 'qm destroy 205 --purge 1'
}

@test "a volume that stays, or may, keeps the VM from being destroyed" {
  setup_with_volume
  fault set 0 skip ''
  vm_destroy 205 pve
  outcome_is failed 'its volumes (scsi3) could not be taken off it'
  # shellcheck disable=SC2016 # the hook's own variable
  change_during after-set 1 'ln -sf 205.conf "${LINUS_PVE_DIR}/qemu-server/205.conf"' # it cannot be read
  vm_destroy 205 pve
  outcome_is failed 'its volumes (unknown) could not be taken off it'
  refute_called 'qm destroy.*'
}

@test "a VM that changes hands as its volumes are taken off is not destroyed" {
  setup_with_volume
  take_during after-set 1 205
  vm_destroy 205 pve
  outcome_is refused 'does not carry linus-job='
  refute_called 'qm destroy.*'
}

@test "no further try to take volumes off is made where its disks, or its owner, have changed" {
  setup_with_volume
  fault set 255 skip 'got timeout'
  # shellcheck disable=SC2016 # the hook's own variable
  change_during set 1 'echo "scsi4: local-lvm:vm-301-disk-0,size=1G" >>"${PVE_STUB}/vm/205"'
  vm_destroy 205 pve
  outcome_is failed 'its disks have changed meanwhile'
  fault set 255 skip 'got timeout'
  # shellcheck disable=SC2016 # the hook's own variable
  change_during set 2 'sed -i -e "s/^#linus-job=/&0/" -e /^scsi4/d "${PVE_STUB}/vm/205"'
  vm_destroy 205 pve
  outcome_is refused 'does not carry linus-job='
  assert_called_times 2 'qm set.*'
  refute_called 'qm destroy.*'
}

@test "a lock is broken where no task is at work on the VM, and there alone" {
  setup_vm 'lock: clone'
  local start
  start=$(cut -d' ' -f22 "/proc/$$/stat")
  answer /nodes/pve/tasks "[{\"upid\":\"$(printf 'UPID:pve:%08X:%08X:0000:qmdestroy:205:root@pam:' "$$" "${start}")\"}]"
  fault stop 255 skip 'no'
  vm_destroy 205 pve
  outcome_is failed ''
  changes_are 'qm stop 205'
  answer /nodes/pve/tasks '[]'
  vm_destroy 205 pve
  outcome_is destroyed ''
  assert_called_times 1 'qm unlock 205'
}

@test "a VM that changes hands as its lock is broken is not touched again" {
  setup_vm 'lock: clone'
  take_during after-unlock 1 205
  vm_destroy 205 pve
  outcome_is refused 'does not carry linus-job='
  changes_are 'qm unlock 205'
  # The same of a lock that comes later.
  local step
  for step in stop set; do
    rm -rf "${BATS_TEST_TMPDIR:?}"/{pve,etc,bin,qemu-server,host}
    setup_vm 'scsi3: local-lvm:vm-300-disk-0,size=1G'
    # shellcheck disable=SC2016 # the hook's own variable
    change_during "after-${step}" 1 'echo "lock: backup" >>"${PVE_STUB}/vm/205"'
    take_during after-unlock 1 205
    vm_destroy 205 pve
    outcome_is refused 'does not carry linus-job='
    mapfile -t calls <"${PVE_STUB}/calls"
    [[ ${calls[-1]} == 'qm unlock 205' ]] || fail "${calls[*]}"
    [[ ${step} != stop ]] || refute_called 'qm set.*'
  done
  rm -rf "${BATS_TEST_TMPDIR:?}"/{pve,etc,bin,qemu-server,host}
  setup_protected_clone
  # shellcheck disable=SC2016 # the hook's own variable
  change_during after-stop 1 'echo "lock: clone" >>"${PVE_STUB}/vm/205"'
  take_during after-unlock 1 205
  vm_destroy 205 pve
  outcome_is refused 'does not carry linus-job='
  changes_are 'qm stop 205' 'qm unlock 205'
}

@test "the lock of a VM that is another's by the next try stays" {
  setup_vm
  fault stop 255 skip 'got timeout'
  # shellcheck disable=SC2016 # the hook's own variable
  change_during stop 1 'sed -i -e "s/^#linus-job=/&0/" "${PVE_STUB}/vm/205"; echo "lock: backup" >>"${PVE_STUB}/vm/205"'
  vm_destroy 205 pve
  outcome_is refused 'does not carry linus-job='
  changes_are 'qm stop 205'
}

# VM 205, or what is there of it, when its clone was killed.
setup_killed_clone() { # <lock of the lease> <text of the config>
  setup_proxmox
  lease_announce 205 pve "$1" local-lvm
  lease_lock=none lease_storages=''
  add_vm 205 "$2"
  echo stopped >"${PVE_STUB}/status/205"
  volumes_of_205
}

@test "volumes of a create that was killed are removed where its lease announced them" {
  local text
  for text in 'lock: clone' "#linus-job=${job} linus-owner=${owner} linus-vm=205 linus-state=cloning"$'\nlock: clone\nname: ours\nscsi0: local-lvm:vm-205-disk-0'; do
    rm -rf "${BATS_TEST_TMPDIR:?}"/{pve,etc,bin,qemu-server,host}
    setup_killed_clone clone "${text}"
    # shellcheck disable=SC2016 # the hook's own variable
    hook destroy 'cat "${LINUS_HOST_DIR}"/leases/205-* >"${PVE_STUB}/lease"'
    vm_destroy 205 pve
    outcome_is destroyed ''
    assert_called_times 1 'pvesm free local-lvm:vm-205-disk-3'
    assert_called_times 2 'pvesm list local-lvm --vmid 205' # before and after that
    [[ -z ${vm_leftovers} && ! -e ${LINUS_HOST_DIR}/quarantine ]]
    # What the lease proves it proves to the end; a config that speaks for itself will not.
    [[ ${text} != lock:* || $(<"${PVE_STUB}/lease") != *destroyed* ]] || fail "$(<"${PVE_STUB}/lease")"
  done
}

# Whose host was off meanwhile, or another kept user.cfg locked: the unlock, and each try of the destroy,
# write the config anew.
@test "what a destroy left that was killed long ago is destroyed, and its proof lasts over a try that fails" {
  setup_killed_clone destroyed 'lock: destroyed'
  local -r then=$((EPOCHSECONDS - 4 * 3600))
  sed -i -E "s/^(([^ ]+ ){5})[0-9]+/\1${then}/" "${LINUS_HOST_DIR}/leases/205-${job}"
  touch -d "@$((then + 5))" "${PVE_STUB}/vm/205" "${LINUS_HOST_DIR}/leases/205-${job}"
  fault destroy 4 skip 'access permissions cleanup failed'
  # shellcheck disable=SC2016 # the hook's own variable
  change_during destroy 1 'echo "lock: destroyed" >>"${PVE_STUB}/vm/205"'
  vm_destroy 205 pve
  outcome_is failed 'access permissions cleanup failed'
  vm_destroy 205 pve
  outcome_is destroyed ''
}

@test "volumes that no config names stay, and are told, where no create was killed" {
  local pair
  for pair in 'none/lock: clone' 'destroyed/lock: destroyed' 'clone/lock: create' '/lock: clone' 'clone/memory: 512'; do
    rm -rf "${BATS_TEST_TMPDIR:?}"/{pve,etc,bin,qemu-server,host}
    setup_killed_clone "${pair%%/*}" "#linus-job=${job} linus-owner=${owner} linus-vm=205 linus-state=cloning"$'\n'"${pair#*/}"$'\nname: ours\nscsi0: local-lvm:vm-205-disk-0'
    if [[ ${pair} == /* ]]; then # it has none; the one read before was another's
      rm "${LINUS_HOST_DIR}/leases/205-${job}"
      lease_lock=clone lease_storages=local-lvm
    fi
    vm_destroy 205 pve
    outcome_is destroyed ''
    refute_called 'pvesm free.*'
    [[ ${vm_leftovers} == local-lvm:vm-205-disk-3 && -e ${LINUS_HOST_DIR}/quarantine/205 ]] || fail "${pair}: ${vm_leftovers}"
  done
}

@test "volumes on a storage that does not answer are not said to be left, nor gone" {
  setup_vm 'scsi1: local-lvm:vm-205-disk-1,size=1G'
  volumes_of_205
  fault list 1 'do' 'it is down'
  vm_destroy 205 pve
  outcome_is destroyed ''
  [[ -z ${vm_leftovers} && ${vm_unseen} == *local-lvm:vm-205-disk-1* ]]
}

@test "a template whose linked clones read its disk stays, and they are named" {
  setup_vm 'template: 1'
  vm_kind=template
  sed -i -e 's/^#linus-job.*/& linus-template=1/' -e 's/^scsi0: .*/scsi0: local:205\/base-205-disk-0.qcow2,size=1G/' "${PVE_STUB}/vm/205"
  add_vm 300 'name: one' 'scsi0: other:205/base-205-disk-0.qcow2/300/vm-300-disk-0.qcow2,size=1G' # of another storage
  add_vm 301 'name: two' 'scsi0: local:301/vm-301-disk-0.qcow2,size=1G'
  vm_check_before_destroy 205 pve
  vm_find_clones 205
  [[ -z ${vm_doubt} && -z ${vm_clones} ]] || fail "${vm_doubt}: ${vm_clones}"
  add_vm 302 'name: three' 'scsi0: local:205/base-205-disk-0.qcow2/302/vm-302-disk-0.qcow2,size=1G'
  vm_destroy 205 pve
  outcome_is failed 'linked clones read its disk: 302 (three)'
  changes_are
}

# What holds a volume, 300.
setup_holder() {
  setup_proxmox
  vm_kind=volume
  add_our_vm 300 'unused0: local-lvm:vm-300-disk-0' 'protection: 1'
  sed -i -e 's/^#linus-job.*/& linus-volume=data/' -e '/^scsi0/d' "${PVE_STUB}/vm/300"
  echo stopped >"${PVE_STUB}/status/300"
}

@test "a volume is destroyed where no VM has it, and it is known that none has" {
  setup_holder
  stub_program grep 'exit 2'
  vm_destroy 300 pve
  outcome_is failed 'which VMs have the volume could not be read'
  rm "${BATS_TEST_TMPDIR}/bin/grep"
  add_our_vm 205 'scsi3: local-lvm:vm-300-disk-0,size=1G'
  vm_destroy 300 pve
  outcome_is refused 'the volume is attached to VM 205'
  changes_are
  sed -i '/^protection/d' "${PVE_STUB}/vm/300"
  dry_run=yes vm_check_before_destroy 300 pve
  changes_are
  vm_destroy 300 pve
  changes_are 'qm set 300 --protection 1'
  sed -i '/^scsi3/d' "${PVE_STUB}/vm/205"
  vm_destroy 300 pve
  outcome_is destroyed ''
}

@test "a volume that somebody moved to a disk of the VM's own keeps it" {
  setup_vm 'scsi3: local-lvm:vm-205-disk-3,serial=linus0123456789ab,size=1G'
  vm_destroy 205 pve
  outcome_is refused 'it has a volume on a disk of its own (scsi3)'
  changes_are
}

@test "a roll-back tells what stays, and what an operator may do of a lock alone" {
  setup_proxmox
  local text output
  for text in 'lock: clone' 'memory: 512' $'#precious\nlock: clone'; do
    add_vm 205 "${text}"
    output=$(vm_undo 205 pve 2>/dev/null)
    [[ ${output} == *"LINUS_WARNING:VM 205 on node 'pve' is left alone"* || ${text} == memory* ]] || fail "${text}: ${output}"
    [[ ${output} == *'carries only the lock'* && ${text} == lock* || ${output} != *'carries only the lock'* && ${text} != lock* ]] || fail "${text}: ${output}"
  done
  add_our_vm 205
  sed -i -e '/^#/d' "${PVE_STUB}/vm/205"
  output=$(vm_undo 205 pve 2>/dev/null)
  [[ ${output} == *'is left alone'* && ${output} != *'carries only the lock'* ]] || fail "${output}"
  add_our_vm 205
  output=$(vm_undo 205 pve 2>/dev/null)
  [[ -z ${output} ]] || fail "${output}"
}

@test "a VM that moves or goes while all configs are read neither hides its volume nor fails" {
  setup_holder
  add_our_vm 205 'scsi3: local-lvm:vm-300-disk-0,size=1G'
  local -r config=${LINUS_PVE_DIR}/qemu-server/205.conf moved=${BATS_TEST_TMPDIR}/moved
  # shellcheck disable=SC2016 # the stub's
  stub_program grep '/usr/bin/grep "$@"
    rc=$?
    mv -f -- '"${moved} ${config}"' || rm -f -- '"${config}"'
    exit "${rc}"'
  mv -- "${config}" "${moved}"
  ln -s nowhere "${config}" # it is listed, and gone when it is opened
  vm_check_before_destroy 300 pve
  [[ ${vm_doubt} == 'the volume is attached to VM 205' ]] || fail "moved: ${vm_doubt}"
  ln -s nowhere "${config}"
  vm_check_before_destroy 300 pve
  [[ -z ${vm_doubt} ]] || fail "gone: ${vm_doubt}"
}
