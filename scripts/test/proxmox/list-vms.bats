#!/usr/bin/env bats
# list-vms.sh as a whole: a process, on a stub of Proxmox.

# shellcheck source=../helper/common.bash
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
  answer /nodes/pve/qemu/201/config "{\"description\":\"linus-job=${job} linus-owner=${owner}\\n\"}"
  answer /nodes/pve/qemu/202/config "{\"description\":\"linus-job=${job} linus-owner=${owner} linus-state=cloning\"}"
  answer /nodes/pve/qemu/203/config "{\"description\":\"note\\nlinus-job=${job} linus-owner=${other_owner}\\nLINUS_VM:forged\"}"
  answer /nodes/pve/qemu/205/config '{"description":"somebody wrote linus here"}'
}

@test "lists what carries the marker, and asks only about what can" {
  run_script list-vms
  assert_status 0
  assert_line "LINUS_VM:id=201 node=pve name=linus-job-1 status=running job=${job} owner=${owner}"
  assert_line "LINUS_VM:id=202 node=pve name=linus-job-2 status=stopped job=${job} owner=${owner}"
  assert_line "LINUS_VM:id=203 node=pve name=theirs status=stopped job=${job} owner=${other_owner}"
  refute_line_like LINUS_VM:id=205
  refute_line_like LINUS_VM:forged
  assert_line LINUS_RESULT:SUCCESS
  refute_called 'pvesh get /nodes/pve/qemu/\(101\|204\|9000\)/config.*'
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

@test "a VM that goes while it is listed is none, and no warning" {
  rm "${PVE_STUB}/answers/nodes_pve_qemu_201_config"
  run_script list-vms
  assert_status 0
  refute_line_like LINUS_WARNING
  refute_line_like LINUS_VM:id=201
  assert_says LINUS_VM:id=202
}

@test "a VM whose config cannot be read is a warning, not a failure" {
  answer /nodes/pve/qemu/201/config 'proxy handler failed'
  run_script list-vms
  assert_status 0
  assert_says "LINUS_WARNING:VM 201 on node 'pve' did not show its config"
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

@test "a bad owner or an argument is exit 1" {
  LINUS_OWNER=x run_script list-vms
  assert_status 1
  run_script list-vms --all
  assert_status 1
  assert_says "unknown argument '--all'"
}
