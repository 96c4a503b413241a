#!/usr/bin/env bats
# volume.sh as a whole, and what the other scripts do about volumes.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031,SC2312
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

volume=33333333-2222-4333-8444-555555555555
disk=local-lvm:vm-300-disk-0

setup() {
  setup_stub
  export VOLUME_UUID=${volume} VOLUME_HOLDER=linus-volume-555555555555 VOLUME_NAME=cache VOLUME_SIZE=20
  export VOLUME_VMID=300 VOLUME_PATH=/srv/cache VM_ID=250
  answer /nodes/pve/tasks '[]'
  guest_says 'linus-volume mounted'
}

guest_says() { # <text> [<exit code>]
  printf '{"exited":1,"exitcode":%s,"out-data":"%s\\n"}\n' "${2:-0}" "$1" >"${PVE_STUB}/guest/volume"
}

add_volume() {
  add_vm 300 "#linus-job=${volume} linus-owner=${owner} linus-vm=300 linus-volume=cache" "name: ${VOLUME_HOLDER}" "unused0: ${disk}" \
    'protection: 1' 'tags: linus' 'memory: 16'
  echo stopped >"${PVE_STUB}/status/300"
  add_our_vm 250 'scsi1: local-lvm:vm-250-cloudinit,media=cdrom' 'ciuser: debian'
}

volume() { # <action> [<argument...>]
  ACTION=$1 run_script volume "${@:2}"
}

attached_to() { # <id> [<options>]
  sed -i "1i scsi2: ${disk},backup=0,serial=linus555555555555${2:-}" "${PVE_STUB}/vm/$1"
}

assert_volume_whole() {
  grep -qx "unused0: ${disk}" "${PVE_STUB}/vm/300" || fail 'the volume is gone'
  refute_called 'qm destroy 300.*'
}

@test "a volume is made: a protected VM holds it that never runs, and not as a drive" {
  LINUS_JOB='' volume create
  assert_status 0
  read_vm_id
  assert_line "LINUS_VOLUME_DISK:local-lvm:vm-${id}-disk-0"
  assert_called "qm create ${id} --name linus-volume-555555555555 --cores 1 --memory 16 --scsihw virtio-scsi-single --scsi0 local-lvm:20 --tags linus --description linus-job=${volume} linus-owner=${owner} linus-vm=${id} linus-volume=cache"
  assert_called "qm set ${id} --delete scsi0 --protection 1"
  refute_called 'qm start .*'
  assert_nothing_left
}

@test "a range of IDs without any is refused, not worked with" {
  VM_ID_RANGE=200-199 volume create
  assert_status 1
  assert_says 'the end of VM_ID_RANGE'
}

@test "a volume on a shared storage says that VMs of all nodes can have it" {
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":107374182400,"type":"rbd","shared":1}'
  volume create
  assert_status 0
  assert_line LINUS_VOLUME_SHARED:true
}

@test "a volume whose holder another node has is attached where its storage is shared, and nowhere else" {
  local shared
  add_volume
  mkdir -p "${LINUS_PVE_DIR}/nodes/other/qemu-server"
  rm "${LINUS_PVE_DIR}/qemu-server/300.conf"
  mv "${PVE_STUB}/vm/300" "${LINUS_PVE_DIR}/nodes/other/qemu-server/300.conf"
  for shared in 0 1; do
    answer /nodes/pve/storage/local-lvm/status "{\"active\":1,\"enabled\":1,\"content\":\"images\",\"avail\":107374182400,\"type\":\"rbd\",\"shared\":${shared}}"
    volume attach
    if ((shared)); then
      assert_status 0
    else
      assert_status 3
      assert_says "is on node 'other', on storage 'local-lvm', which that node does not share with node 'pve'"
      refute_called 'qm set .*'
    fi
  done
}

@test "of two that write at the same time, on two nodes, neither has it mounted" {
  add_volume
  add_vm 260 'name: another'
  # The other's line is there when this one's has landed.
  hook after-set "sed -i '1i scsi5: ${disk}' ${PVE_STUB}/vm/260"
  volume attach
  assert_status 5
  assert_says 'is attached to VM 260'
  assert_called 'qm set 250 --delete scsi2'
  refute_called 'qm guest exec 250 .*mkfs.*'
}

@test "a volume that another node removes as it is attached is not mounted, and taken off again" {
  local removal
  for removal in "sed -i '/^protection: /d' ${PVE_STUB}/vm/300" "rm -f ${PVE_STUB}/vm/300 ${LINUS_PVE_DIR}/qemu-server/300.conf"; do
    add_volume
    : >"${PVE_STUB}/calls"
    hook after-set "${removal}"
    volume attach
    assert_status 5
    assert_says 'is not kept'
    assert_called 'qm set 250 --delete scsi2'
    refute_called 'qm guest exec 250 .*mkfs.*'
  done
}

@test "a volume that another node attaches as it is removed stays, and protected" {
  add_volume
  # shellcheck disable=SC2016 # the hook's own variables
  change_during after-set 1 'sed -i "1i scsi5: '"${disk}"'" "${PVE_STUB}/vm/250"'
  VM_ID=300 VM_NAME=${VOLUME_HOLDER} LINUS_JOB=${volume} VM_KIND=volume run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  assert_says 'the volume is attached to VM 250'
  assert_volume_whole
  grep -qx 'protection: 1' "${PVE_STUB}/vm/300" || fail 'its protection is gone' "$(<"${PVE_STUB}/vm/300")"
}

@test "what a create leaves that fails is removed, and only that" {
  fault set 255 skip 'no such luck'
  volume create
  assert_status 5
  assert_no_vm_of_ours
  assert_foreign_untouched
  assert_nothing_left
}

@test "a volume is attached to a running VM and mounted there, and a second time nothing is done" {
  add_volume
  volume attach
  assert_status 0
  assert_line LINUS_VOLUME_FORMATTED:true
  assert_called "qm set 250 --scsi2 ${disk},backup=0,discard=on,serial=linus555555555555"
  : >"${PVE_STUB}/calls"
  volume attach
  assert_status 0
  refute_called 'qm set .*'
}

@test "what somebody attaches, or takes off and replaces, meanwhile is not replaced or taken off" {
  local theirs='local-lvm:vm-250-disk-7,size=1G'
  add_volume
  # shellcheck disable=SC2016 # the hook's own variables
  change_during set 1 'sed -i "1i scsi2: '"${theirs}"'" "${PVE_STUB}/vm/250"'
  volume attach
  assert_status 0
  grep -qx "scsi2: ${theirs}" "${PVE_STUB}/vm/250" || fail 'the disk of somebody else was replaced' "$(<"${PVE_STUB}/vm/250")"
  grep -q "^scsi3: ${disk}," "${PVE_STUB}/vm/250" || fail 'the volume is not attached' "$(<"${PVE_STUB}/vm/250")"
  rm "${PVE_STUB}/hook-set.calls"
  # shellcheck disable=SC2016 # the hook's own variables
  change_during set 1 'sed -i -e "s|^scsi3: .*|scsi3: '"${theirs}"'|" "${PVE_STUB}/vm/250"'
  guest_says 'linus-volume unmounted'
  volume detach
  grep -qx "scsi3: ${theirs}" "${PVE_STUB}/vm/250" || fail 'the disk of somebody else was taken off' "$(<"${PVE_STUB}/vm/250")"
}

@test "a disk that takes a volume's place as its VM is destroyed is not taken off as it" {
  local theirs='local-lvm:vm-777-disk-0,size=1G'
  add_volume
  attached_to 250
  # shellcheck disable=SC2016 # the hook's own variables
  change_during set 1 'sed -i -e "s|^scsi2: .*|scsi5: '"${theirs}"'|" "${PVE_STUB}/vm/250"'
  run_script destroy-vm
  assert_status 5
  assert_says 'its disks have changed meanwhile'
  grep -qx "scsi5: ${theirs}" "${PVE_STUB}/vm/250" || fail "$(<"${PVE_STUB}/vm/250")"
  refute_called 'qm destroy .*'
}

@test "one that is only read says so to Proxmox" {
  add_volume
  VOLUME_MODE=ro volume attach
  assert_called "qm set 250 --scsi2 ${disk},backup=0,discard=on,serial=linus555555555555,ro=1"
}

@test "two writers, or a reader beside one, are refused, whatever node has the other; readers are not" {
  local mode theirs
  for mode in rw/ rw/,ro=1 ro/; do
    add_volume
    theirs=${mode#*/}
    add_vm 260 'name: another'
    attached_to 260 "${theirs}"
    VOLUME_MODE=${mode%%/*} volume attach
    assert_status 5
    assert_says 'is attached to VM 260'
    refute_called 'qm set .*'
  done
  add_volume
  add_vm 260 'name: another'
  attached_to 260 ,ro=1
  VOLUME_MODE=ro volume attach
  assert_status 0
}

@test "what is not proven is not touched: another's volume, another's VM, a VM for a volume" {
  add_volume
  VOLUME_UUID=${job} volume attach
  assert_status 5
  LINUS_JOB=${volume} volume attach
  assert_status 5
  VOLUME_VMID=250 VOLUME_HOLDER=${VM_NAME} VOLUME_UUID=${job} volume attach
  assert_status 5
  assert_says 'does not carry linus-volume='
  VM_ID=300 VM_NAME=${VOLUME_HOLDER} LINUS_JOB=${volume} volume attach
  assert_status 5
  assert_says 'it holds a volume'
  refute_called 'qm set .*'
}

@test "what cannot be mounted is taken off again" {
  add_volume
  guest_says 'linus-volume what is on its disk is not ours (UUID none): it is left as it is' 9
  volume attach
  assert_status 5
  assert_says 'is not ours'
  assert_called 'qm set 250 --delete scsi2'
  ! grep -q "${disk}" "${PVE_STUB}/vm/250" || fail 'it is still attached'
}

@test "where each disk has a controller of its own, the volume's has a thread" {
  add_volume
  sed -i '1i scsihw: virtio-scsi-single' "${PVE_STUB}/vm/250"
  volume attach
  assert_called "qm set 250 --scsi2 ${disk},backup=0,discard=on,serial=linus555555555555,iothread=1"
}

@test "a VM that cannot note it for its boots has it, and the log says so" {
  add_volume
  guest_says 'linus-volume untold: read-only file system\nlinus-volume mounted'
  volume attach
  assert_status 0
  [[ ${log} == *'does not mount volume 300 when it boots'* ]] || fail 'the log does not say so'
}

@test "a volume that its holder has as a drive, by hand, is given to no VM" {
  add_volume
  sed -i 's/^unused0: /scsi4: /' "${PVE_STUB}/vm/300"
  volume attach
  assert_status 5
  assert_says 'is a drive of its holder (scsi4)'
  assert_says 'qm set 300 --delete scsi4'
  refute_called 'qm set .*'
}

@test "a volume whose holder is gone is taken off by its serial number" {
  add_volume
  attached_to 250
  rm "${PVE_STUB}/vm/300" "${LINUS_PVE_DIR}/qemu-server/300.conf"
  guest_says 'linus-volume unmounted'
  volume detach
  assert_status 0
  assert_called 'qm set 250 --delete scsi2'
  : >"${PVE_STUB}/calls"
  volume attach
  assert_status 5
  assert_says 'its config could not be read'
  refute_called 'qm set .*'
}

@test "a VM that has a volume on a disk of its own, by hand, is not destroyed with it" {
  add_volume
  sed -i "1i scsi2: other:250/vm-250-disk-1.raw,backup=0,serial=linus555555555555\nunused0: ${disk}" "${PVE_STUB}/vm/250" # qm disk move
  local action
  for action in attach detach; do
    volume "${action}"
    assert_status 5
    assert_says 'somebody has moved it to a disk of VM 250'
    assert_says '(scsi2: other:250/vm-250-disk-1.raw)'
  done
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:refused
  assert_says 'qm disk move 250 scsi2 --target-vmid ID'
  refute_called 'qm \(set\|stop\|destroy\) .*'
  sed -i '/^scsi2: /d' "${PVE_STUB}/vm/250"
  run_script destroy-vm
  assert_status 0
  assert_volume_whole
}

@test "a snapshot that was taken by hand with a volume does not keep it, and is not reverted to" {
  add_volume
  attached_to 250
  printf '%s\n' '[before]' "scsi2: ${disk},serial=linus555555555555" 'snaptime: 1' >>"${PVE_STUB}/vm/250"
  guest_says 'linus-volume unmounted'
  hook after-set "sed -i '\$a scsi2: ${disk},serial=linus555555555555' ${PVE_STUB}/vm/250" # the stub takes the snapshot's, too
  volume detach
  assert_status 0
  ACTION=revert SNAPSHOT=before run_script power-vm
  assert_status 5
  assert_says 'its snapshot before has volumes in it (scsi2)'
  refute_called 'qm rollback .*'
}

@test "a volume that a VM would have after its restart is taken off it" {
  add_volume
  printf '%s\n' '[PENDING]' "scsi2: ${disk},serial=linus555555555555" >>"${PVE_STUB}/vm/250"
  guest_says 'linus-volume unmounted'
  volume detach
  assert_status 0
  assert_called 'qm set 250 --delete scsi2'
}

@test "a volume is not taken off a VM whose memory has it mounted" {
  add_volume
  attached_to 250
  sed -i -e '1i lock: suspended' -e '1i vmstate: local-lvm:vm-250-state-suspend' "${PVE_STUB}/vm/250"
  echo stopped >"${PVE_STUB}/status/250"
  rm "${LINUS_QEMU_DIR}/250.pid"
  local action
  for action in detach attach; do
    volume "${action}"
    assert_status 5
    assert_says 'is suspended'
    assert_says 'resume it first'
  done
  refute_called 'qm set .*'
}

@test "a disk that does not show in the config was not attached, whatever qm says" {
  add_volume
  fault set 0 skip ''
  volume attach
  assert_status 5
  assert_says 'could not be attached'
}

@test "a volume is unmounted before it is taken off; one that is busy stays, and one that is off is off" {
  add_volume
  attached_to 250
  guest_says 'linus-volume busy: target is busy' 9
  volume detach
  assert_status 5
  assert_says 'target is busy'
  refute_called 'qm set .*'
  guest_says 'linus-volume unmounted'
  volume detach
  assert_status 0
  assert_called 'qm set 250 --delete scsi2'
  : >"${PVE_STUB}/calls"
  volume detach
  assert_status 0
  refute_called 'qm set .*'
  assert_volume_whole
}

@test "a VM is destroyed without its volumes: they are taken off first, and seen to be" {
  add_volume
  attached_to 250
  run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  grep -E '^qm (stop|set|destroy) ' "${PVE_STUB}/calls" | cut -d' ' -f2,4- >"${BATS_TEST_TMPDIR}/order"
  [[ $(<"${BATS_TEST_TMPDIR}/order") == $'stop\nset --delete scsi2\ndestroy --purge 1' ]] || fail "$(<"${BATS_TEST_TMPDIR}/order")"
  assert_volume_whole
}

@test "a VM is not destroyed while a volume cannot be taken off it" {
  add_volume
  attached_to 250
  fault set 0 skip ''
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:failed
  assert_says 'could not be taken off it'
  refute_called 'qm destroy .*'
  run_script destroy-vm
  assert_status 0
  assert_volume_whole
}

@test "a volume is removed as what it is, and while no VM has it" {
  add_volume
  attached_to 250
  local -rx VM_ID=300 VM_NAME=${VOLUME_HOLDER} LINUS_JOB=${volume}
  run_script destroy-vm
  assert_status 5
  assert_says 'it holds a volume'
  VM_KIND=volume run_script destroy-vm
  assert_status 5
  assert_says 'the volume is attached to VM 250'
  assert_line LINUS_VM_OUTCOME:refused
  assert_says 'take it off there first'
  assert_volume_whole
  sed -i "s/^unused0: /virtio3: /" "${PVE_STUB}/vm/300" # by hand
  VM_KIND=volume run_script destroy-vm
  assert_says 'the volume is attached to VM 250'
  refute_called 'qm destroy 300.*'
  sed -i '/^scsi2: /d' "${PVE_STUB}/vm/250"
  VM_KIND=volume run_script destroy-vm
  assert_status 0
  assert_called 'qm set 300 --protection 0'
  assert_called 'qm destroy 300 --purge 1'
  [[ -e ${PVE_STUB}/vm/250 ]] || fail 'the VM went, too'
}

@test "a volume is not removed while which VMs have it cannot be read" {
  add_volume
  local -rx VM_ID=300 VM_NAME=${VOLUME_HOLDER} LINUS_JOB=${volume} VM_KIND=volume
  spoil_config 101
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:failed
  assert_says 'which VMs have the volume could not be read'
  assert_volume_whole
}

@test "a VM that changes hands as its volumes are taken off is not destroyed" {
  add_volume
  attached_to 250
  take_during after-set 1
  run_script destroy-vm
  assert_status 5
  assert_called 'qm set 250 --delete scsi2'
  refute_called 'qm destroy .*'
  assert_says 'does not carry linus-job'
}

@test "a VM that changes hands as it is stopped keeps its disks" {
  add_volume
  attached_to 250
  take_during after-stop 1
  run_script destroy-vm
  assert_status 5
  assert_called 'qm stop 250'
  refute_called 'qm (set|destroy) .*'
  assert_says 'does not carry linus-job'
}

@test "a VM that changes hands as a volume is attached to it is not changed again" {
  add_volume
  take_during after-set 1
  volume attach
  assert_status 5
  assert_called_times 1 'qm set 250 .*'
  refute_called 'qm guest exec .*'
}

@test "nothing is attached or taken off while who holds the volume, or has it, cannot be read" {
  local spoilt action
  guest_says 'linus-volume unmounted'
  for spoilt in 300 101; do
    for action in attach detach; do
      add_volume
      [[ ${action} == attach ]] || attached_to 250
      spoil_config "${spoilt}"
      volume "${action}"
      [[ ${status} == @(3|5) ]] || fail "${action} with ${spoilt} spoilt"
      refute_called 'qm \(set\|guest\) .*'
      ln -sf "../../../../pve/vm/101" "${LINUS_PVE_DIR}/qemu-server/101.conf"
    done
  done
}

@test "volumes are listed as volumes, and not as VMs" {
  add_volume
  answer /nodes/pve/qemu '[{"vmid":250,"name":"linus-job-11111111","status":"running"},{"vmid":300,"name":"linus-volume-555555555555","status":"stopped"}]'
  run_script list-vms
  assert_says 'LINUS_VM:id=250 '
  refute_line_like 'LINUS_VM:id=300 '
  VM_KIND=volume run_script list-vms
  assert_line "LINUS_VM:id=300 node=pve name=linus-volume-555555555555 status=stopped job=${volume} owner=${owner}"
  refute_line_like 'LINUS_VM:id=250 '
}

@test "a VM with volumes is neither snapshotted nor reverted nor forked, nor made a checkpoint" {
  add_volume
  attached_to 250
  local action
  for action in snapshot revert fork; do
    ACTION=${action} SNAPSHOT=before run_script power-vm
    assert_status 5
    assert_says 'it has volumes (scsi2)'
  done
  sed -i 's/:vm-disk-0/:vm-250-disk-0/' "${PVE_STUB}/vm/250"
  TEMPLATE_NAME=setup LINUS_BUILD=33333333-2222-4333-8444-555555555555 run_script save-vm
  assert_status 3
  assert_says 'has scsi2'
  run_script checkpoint-vm
  assert_status 3
  assert_says 'has volumes (scsi2)'
  refute_called 'qm \(set\|snapshot\|rollback\|template\) .*'
}

@test "what holds a volume is shown as proven, without a warning" {
  add_volume
  VM_ID=300 VM_NAME=${VOLUME_HOLDER} LINUS_JOB=${volume} run_script show-vm
  assert_status 0
  assert_line LINUS_VM_STATUS:stopped
  refute_line_like LINUS_WARNING
}

@test "the host is not cleared while it has volumes" {
  add_volume
  rm "${PVE_STUB}/vm/250" "${LINUS_PVE_DIR}/qemu-server/250.conf"
  run_script uninstall
  assert_status 5
  assert_line 'LINUS_STAYS:volume 300 (linus-volume-555555555555)'
}

@test "a dry run tells the commands and changes nothing" {
  volume create --dry-run
  assert_status 0
  assert_says '--scsi0'
  add_volume
  volume attach --dry-run
  assert_status 0
  assert_says "qm set 250 --scsi2 ${disk}"
  attached_to 250
  volume detach --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm set 250 --delete scsi2'
  refute_called 'qm \(set\|create\|guest\) .*'
}

@test "a volume that does not read back as it is to be is not given out, and goes" {
  local change
  for change in '/^protection/d' 's/^unused0:/scsi0:/' '/^unused0:/d' 's/linus-owner=/&0/'; do
    rm -f "${PVE_STUB}"/hook-*
    # shellcheck disable=SC2016 # the hook's own variables
    hook after-set '[[ "$*" != *--protection* ]] || sed -i "'"${change}"'" "${PVE_STUB}/vm/$2"'
    LINUS_JOB='' volume create
    assert_status 5
    assert_says 'could not be put aside'
    refute_line_like LINUS_VOLUME_DISK
    rm -f "${PVE_STUB}"/vm/2[0-4]* "${PVE_STUB}"/status/2[0-4]* "${LINUS_PVE_DIR}"/qemu-server/2[0-4]*
  done
}

@test "nothing is attached to a VM that is off, nor as another than it is, nor where there is no disk" {
  add_volume
  attached_to 250 ,ro=1
  volume attach
  assert_status 5
  assert_says "is attached to VM 250 on node 'pve' as ro"
  sed -i '/^scsi2/d' "${PVE_STUB}/vm/250"
  echo stopped >"${PVE_STUB}/status/250"
  rm -f "${LINUS_QEMU_DIR}/250.pid"
  volume attach
  assert_status 5
  assert_says 'does not run (status: stopped)'
  sed -i '/^unused0/d' "${PVE_STUB}/vm/300"
  volume attach
  assert_status 5
  assert_says 'has lost its disk'
  refute_called 'qm set .*'
}

@test "a drive that stays is not said to be taken off" {
  add_volume
  attached_to 250
  guest_says 'linus-volume unmounted'
  fault set 255 skip 'no'
  volume detach
  assert_status 5
  grep -q '^scsi2:' "${PVE_STUB}/vm/250"
}
