#!/usr/bin/env bats
# list-vms.sh as a whole: a process, on a stub of Proxmox.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

other_owner=88888888-2222-4333-8444-555555555555

setup() {
  setup_stub
  unset LINUS_OWNER
  answer /nodes/pve/qemu '[{"vmid":101,"name":"other","status":"running"},
    {"vmid":"201","name":"linus-job-1","status":"running","tags":"linus"},
    {"vmid":202,"name":"linus-job-2","status":"stopped"},
    {"vmid":203,"name":"theirs","status":"stopped","tags":"a;linus;z"},
    {"vmid":204,"name":"web","status":"running","tags":"linus-like"},
    {"vmid":205,"name":"linus-by-hand","status":"running","tags":"linus"},
    {"vmid":9000,"name":"linus-template","status":"stopped","tags":"linus","template":1}]'
  add_vm 201 "#linus-job=${job} linus-owner=${owner} linus-vm=201"
  add_vm 202 "#linus-job=${job} linus-owner=${owner} linus-vm=202 linus-state=cloning"
  add_vm 203 '#note' "#linus-job=${job} linus-owner=${other_owner} linus-vm=203%0ALINUS_VM%3Aforged"
  add_vm 205 '#somebody wrote linus here'
}

@test "lists what carries the marker" {
  run_script list-vms
  assert_status 0
  assert_line "LINUS_VM:id=201 node=pve name=linus-job-1 status=running job=${job} owner=${owner}"
  assert_line "LINUS_VM:id=202 node=pve name=linus-job-2 status=stopped job=${job} owner=${owner}"
  assert_line "LINUS_VM:id=203 node=pve name=theirs status=stopped job=${job} owner=${other_owner}"
  refute_line_like LINUS_VM:id=205
  refute_line_like LINUS_VM:forged
  assert_line LINUS_RESULT:SUCCESS
  refute_line_like LINUS_WARNING
}

@test "the VMs of other nodes are listed, too" {
  answer /nodes '[{"node":"pve","status":"online"},{"node":"pve2","status":"online"}]'
  answer /nodes/pve2/qemu '[{"vmid":301,"name":"linus-far","status":"running"},{"vmid":201,"name":"linus-moved","status":"running"}]'
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"
  echo "#linus-job=${job} linus-owner=${owner} linus-vm=301" >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/301.conf"
  run_script list-vms
  assert_status 0
  assert_line "LINUS_VM:id=301 node=pve2 name=linus-far status=running job=${job} owner=${owner}"
  refute_line_like LINUS_VM:id=201\ node=pve2
}

@test "what a destroy left that failed late is listed by its lease" {
  local start
  start=$(cut -d' ' -f22 "/proc/$$/stat")
  mkdir -p "${LINUS_HOST_DIR}/leases"
  # Its writer is this process, so that nobody finishes its work.
  printf 'destroyed %s %s pve local-lvm %(%s)T %s %s %s 0 0\n' linus-mine "${owner}" -1 "$(</proc/sys/kernel/random/boot_id)" \
    "$$" "${start}" >"${LINUS_HOST_DIR}/leases/206-${job}"
  add_vm 206 'lock: destroyed'
  answer /nodes/pve/qemu '[{"vmid":206,"name":"VM 206","status":"stopped"}]'
  run_script list-vms
  assert_status 0
  assert_line "LINUS_VM:id=206 node=pve name=linus-mine status=stopped job=${job} owner=${owner}"
  LINUS_OWNER=${other_owner} run_script list-vms
  refute_line_like LINUS_VM:
  # Nor is it a volume, as one that is being made looks the same.
  VM_KIND=volume run_script list-vms
  assert_status 0
  refute_line_like LINUS_VM:
  # One nobody knows of is nobody's of ours.
  rm -r "${LINUS_HOST_DIR}/leases"
  run_script list-vms
  refute_line_like LINUS_VM:
}

@test "with LINUS_OWNER only that installation's" {
  LINUS_OWNER=${other_owner} run_script list-vms
  assert_status 0
  assert_says LINUS_VM:id=203
  refute_line_like LINUS_VM:id=201
}

@test "an offline node is not asked and is a warning; the others are listed" {
  answer /nodes '[{"node":"pve2","status":"offline"},{"node":"pve","status":"online"}]'
  run_script list-vms
  assert_status 0
  assert_line "LINUS_WARNING:node 'pve2' is offline: its VMs are not in this list"
  assert_says LINUS_VM:id=201
  refute_called 'pvesh get /nodes/pve2.*'
}

@test "a copy of a VM of ours, under an ID of its own, is not listed, nor what names no ID" {
  sed -i '1s/linus-vm=202/linus-vm=201/' "${PVE_STUB}/vm/202"
  sed -i 's/linus-vm=203//' "${PVE_STUB}/vm/203"
  run_script list-vms
  assert_status 0
  assert_says LINUS_VM:id=201
  refute_line_like LINUS_VM:id=202
  refute_line_like LINUS_VM:id=203
  refute_line_like LINUS_WARNING
}

@test "a VM that goes while it is listed is none, and no warning" {
  rm "${PVE_STUB}/vm/201"
  run_script list-vms
  assert_status 0
  refute_line_like LINUS_WARNING
  refute_line_like LINUS_VM:id=201
  assert_says LINUS_VM:id=202
}

@test "a VM whose config cannot be read is a warning, not a failure" {
  spoil_config 201
  run_script list-vms
  assert_status 0
  assert_says "LINUS_WARNING:the config of VM 201 on node 'pve' could not be read"
  assert_says LINUS_VM:id=202
}

@test "a Proxmox that does not answer, or not in JSON, is exit 3" {
  answer /nodes 'proxy handler failed'
  run_script list-vms
  assert_status 3
  rm "${PVE_STUB}/answers/nodes"
  run_script list-vms
  assert_status 3
  assert_says LINUS_REMEDY
}

@test "a read that has no answer in time is made again, and is then a time-out, not the configuration" {
  fault get 124 skip ''
  fault get 124 skip ''
  run_script list-vms
  assert_status 0
  assert_says LINUS_VM:id=201
  for _ in 1 2 3; do fault get 124 skip ''; done
  run_script list-vms
  assert_status 6
  assert_says 'LINUS_ERROR:could not list the nodes on'
  assert_says 'no answer in time'
}

@test "a bad owner or an argument is exit 1" {
  LINUS_OWNER=x run_script list-vms
  assert_status 1
  run_script list-vms --all
  assert_status 1
  assert_says "unknown argument '--all'"
}
