#!/usr/bin/env bats
# show-vm.sh as a whole: a process, on a stub of Proxmox.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
  export VM_ID=201
}

assert_vm_status() { # <status>
  assert_status 0
  assert_line "LINUS_VM_STATUS:$1"
  assert_line LINUS_RESULT:SUCCESS
  assert_nothing_left
}

@test "a VM of ours that runs, stands, or is paused" {
  local state
  add_our_vm 201
  for state in running stopped paused; do
    echo "${state}" >"${PVE_STUB}/status/201"
    run_script show-vm
    assert_vm_status "${state}"
  done
  refute_called 'qm \(start\|stop\|set\|destroy\|unlock\).*'
}

@test "a VM with its memory on the disk is suspended, and one on its way there or back runs" {
  add_our_vm 201 'lock: suspended' 'vmstate: local-lvm:vm-201-state-suspend-2026-11-22'
  echo stopped >"${PVE_STUB}/status/201"
  run_script show-vm
  assert_vm_status suspended
  echo running >"${PVE_STUB}/status/201"
  run_script show-vm
  assert_vm_status running
  sed -i 's/^lock: .*/lock: suspending/' "${PVE_STUB}/vm/201"
  run_script show-vm
  assert_vm_status running
  echo stopped >"${PVE_STUB}/status/201"
  run_script show-vm
  assert_vm_status stopped
}

@test "no VM of that ID is gone" {
  run_script show-vm
  assert_vm_status gone
}

@test "a VM whose proof is not whole is left alone: name, job, owner, a template, no mark, no tag" {
  local line
  for line in 'name: web' "#linus-job=${owner} linus-owner=${owner}" \
    "#linus-job=${job} linus-owner=${job}" 'template: 1' '#mine' 'tags: mine'; do
    add_our_vm 201
    sed -i -e "/^${line%%:*}: /d" -e "/^${line::1}linus/d" "${PVE_STUB}/vm/201"
    printf '%s\n' "${line}" >>"${PVE_STUB}/vm/201"
    run_script show-vm
    assert_vm_status left_alone
    assert_says 'LINUS_WARNING:VM 201 is not proven to be'
  done
}

@test "the VM of that ID is another" {
  add_vm 201 'name: web' 'memory: 512' "description: linus-job%3D${owner} linus-owner%3D${owner}" 'tags: linus'
  run_script show-vm
  assert_vm_status foreign
  assert_says 'LINUS_WARNING:VM 201 is not'
}

@test "a VM that another node has is not gone" {
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"
  : >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/201.conf"
  run_script show-vm
  assert_vm_status moved
  printf '%s\n' 'name: web' 'memory: 512' >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/201.conf"
  run_script show-vm
  assert_vm_status foreign
}

@test "a VM that goes between two looks is gone" {
  add_our_vm 201
  # shellcheck disable=SC2016 # the hook's variables
  hook status 'rm -f "${PVE_STUB}/vm/$2"'
  run_script show-vm
  assert_vm_status gone
}

@test "a Proxmox that does not say is an error: nothing is gone for it" {
  add_our_vm 201
  spoil_config 201
  run_script show-vm
  assert_status 5
  assert_says 'Too many levels'
  refute_line_like LINUS_VM_STATUS
  add_our_vm 201
  for _ in 1 2; do fault status 255 skip 'got timeout'; done
  run_script show-vm
  assert_status 5
  refute_line_like LINUS_VM_STATUS
  rm "${PVE_STUB}/vm/201"
  local gone
  for gone in qemu-server .members; do
    rm -r "${LINUS_PVE_DIR:?}/${gone}"
    run_script show-vm
    assert_status 5
    refute_line_like LINUS_VM_STATUS
  done
}

boot_is() { # <what the guest has for its boot>
  printf '{"exitcode":0,"exited":1,"out-data":"%s\\n"}\n' "$1" >"${PVE_STUB}/guest/boot-id"
}

@test "asked to, it asks the guest of a VM that runs for its address and its boot" {
  local -r boot=0f4a6f5e-1b7e-4c86-9f6b-2d4f8f0a4b11
  add_our_vm 201 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0'
  echo running >"${PVE_STUB}/status/201"
  guest_interfaces '{"name":"eth0","hardware-address":"bc:24:11:aa:aa:aa","ip-addresses":[{"ip-address":"192.0.2.77","ip-address-type":"ipv4"}]}'
  boot_is "${boot}"
  run_script show-vm
  assert_vm_status running
  refute_line_like 'LINUS_VM_\(IP\|BOOT_ID\)'
  refute_called 'qm guest .*'
  LOOK_INSIDE=true run_script show-vm
  assert_vm_status running
  assert_line LINUS_VM_IP:192.0.2.77
  assert_line "LINUS_VM_BOOT_ID:${boot}"
  assert_nothing_left
}

@test "a guest that says nothing, or nonsense, says neither address nor boot" {
  add_our_vm 201 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0'
  echo running >"${PVE_STUB}/status/201"
  rm -f "${PVE_STUB}/guest/interfaces"
  LOOK_INSIDE=true run_script show-vm
  assert_vm_status running
  refute_line_like 'LINUS_VM_\(IP\|BOOT_ID\)'
  guest_interfaces '"eth0"'
  boot_is 'LINUS_VM_STATUS:gone'
  LOOK_INSIDE=true run_script show-vm
  assert_vm_status running
  refute_line_like 'LINUS_VM_\(IP\|BOOT_ID\)'
}

@test "an address at which another card answers is not the VM's, whatever its guest says" {
  add_our_vm 201 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0'
  echo running >"${PVE_STUB}/status/201"
  guest_interfaces '{"name":"eth0","hardware-address":"bc:24:11:aa:aa:aa","ip-addresses":[{"ip-address":"192.0.2.77","ip-address-type":"ipv4"}]}'
  echo '192.0.2.77 dev vmbr0 lladdr bc:24:11:bb:bb:bb REACHABLE' >"${PVE_STUB}/neighbours"
  boot_is 0f4a6f5e-1b7e-4c86-9f6b-2d4f8f0a4b11
  LOOK_INSIDE=true run_script show-vm
  assert_vm_status running
  assert_line LINUS_VM_BOOT_ID:0f4a6f5e-1b7e-4c86-9f6b-2d4f8f0a4b11
  refute_line_like LINUS_VM_IP
}

@test "the guest of a VM that does not run, or is not proven, is not asked" {
  add_our_vm 201 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0'
  echo stopped >"${PVE_STUB}/status/201"
  LOOK_INSIDE=true run_script show-vm
  assert_vm_status stopped
  add_vm 201 'name: web' 'memory: 512' "description: linus-job%3D${owner} linus-owner%3D${owner}" 'tags: linus'
  LOOK_INSIDE=true run_script show-vm
  assert_vm_status foreign
  refute_called 'qm guest .*'
}

# A config with snapshots, as Proxmox writes it.
add_snapshots() {
  add_our_vm 201 'parent: second'
  sed -i 's/local-lvm:vm-disk-0/local-lvm:vm-201-disk-0/' "${PVE_STUB}/vm/201"
  cat >>"${PVE_STUB}/vm/201" <<'CONF'

[PENDING]
memory: 4096

[first]
#before the work
boot: order=scsi0
scsi0: local-lvm:vm-201-disk-0,size=10G
scsi1: local-lvm:vm-201-cloudinit,media=cdrom
snaptime: 1790000000

[second]
parent: first
scsi0: local-lvm:vm-201-disk-0,size=10G
scsi2: tank:base-9000-disk-1/vm-201-disk-1,size=1G
snaptime: 1790000060
vmstate: local-lvm:vm-201-state-second

[third]
parent: second
snapstate: delete
snaptime: 1790000120
scsi0: files:201/vm-201-disk-0.qcow2,size=10G

[special:cloudinit]
scsi0: local-lvm:vm-201-disk-0
CONF
}

@test "snapshots are listed, oldest first, with the sizes that their storages tell" {
  local tool lines
  add_snapshots
  printf '%s\n' 'lvmthin: local-lvm' $'\tthinpool data' $'\tvgname pve' '' 'zfspool: tank' $'\tpool tank/vms' 'dir: files' $'\tpath /x' >"${LINUS_PVE_DIR}/storage.cfg"
  printf '%s\n' 'Volid                          Format  Type      Size VMID' 'local-lvm:vm-201-disk-0 raw images 10737418240 201' \
    'local-lvm:vm-201-state-second raw images 4819255296 201' >"${PVE_STUB}/volumes"
  stub_program lvs 'printf "%s\n" "  data 1000 9.00" "  vm-201-disk-0 10737418240 50.00" "  snap_vm-201-disk-0_first 10737418240 10.00" "  snap_vm-201-disk-0_second 10737418240 25.50"'
  stub_program zfs 'printf "%s\t%s\n" tank/vms/vm-201-disk-1@second 4096'
  SHOW_SNAPSHOTS=true run_script show-vm
  assert_vm_status running
  lines=$(grep ^LINUS_SNAPSHOT: <<<"${output}" || :)
  [[ ${lines} == 'LINUS_SNAPSHOT:name=first time=1790000000 memory=no disk_bytes=1073741800 current=no whole=yes
LINUS_SNAPSHOT:name=second time=1790000060 parent=first memory=yes memory_bytes=4819255296 disk_bytes=2738045686 current=yes whole=yes
LINUS_SNAPSHOT:name=third time=1790000120 parent=second memory=no current=no whole=no' ]] || fail "${output}"
  assert_called_times 1 'pvesm list.*'
  refute_called 'pvesh .*'
  # Nobody tells: the storages are of another kind, or their tools fail.
  for tool in lvs zfs pvesm; do
    stub_program "${tool}" 'exit 1'
  done
  SHOW_SNAPSHOTS=true run_script show-vm
  assert_vm_status running
  assert_line 'LINUS_SNAPSHOT:name=second time=1790000060 parent=first memory=yes current=yes whole=yes'
  run_script show-vm
  refute_line_like LINUS_SNAPSHOT
}

@test "the snapshots of a VM that is not proven, or is another by now, are not listed" {
  add_snapshots
  VM_NAME=another SHOW_SNAPSHOTS=true run_script show-vm
  assert_vm_status left_alone
  refute_line_like LINUS_SNAPSHOT
  # shellcheck disable=SC2016 # the hook's own variables
  hook status 'sed -i "s/linus-job=[^ ]*/linus-job=aaaaaaaa-2222-4333-8444-555555555555/" "${PVE_STUB}/vm/201"'
  SHOW_SNAPSHOTS=true run_script show-vm
  assert_status 5
  assert_says "its config is another VM's now"
  refute_line_like LINUS_SNAPSHOT
}

@test "a bad input or an argument is exit 1" {
  VM_ID=99 run_script show-vm
  assert_status 1
  LINUS_JOB=x run_script show-vm
  assert_status 1
  LOOK_INSIDE=maybe run_script show-vm
  assert_status 1
  SHOW_SNAPSHOTS=maybe run_script show-vm
  assert_status 1
  run_script show-vm --all
  assert_status 1
}
