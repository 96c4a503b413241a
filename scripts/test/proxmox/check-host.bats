#!/usr/bin/env bats
# check-host.sh as a whole: a process, on a stub of Proxmox.

# shellcheck source=../helper/common.bash
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
}

# A check that failed, its remedy in the line after it.
assert_check_failed() { # <name> <part of its text>
  local line remedy=''
  while IFS= read -r line; do
    if [[ ${line} == "LINUS_CHECK:$1:fail:"*"$2"* ]]; then
      IFS= read -r remedy
    fi
  done <<<"${output}"
  [[ ${remedy} == LINUS_REMEDY:* ]] || fail "no failed check $1 saying '$2' with a remedy"
  assert_line LINUS_RESULT:FAILURE
}

@test "a sound host: every check ok, with host, version and node" {
  run_script check-host
  assert_status 0
  local name
  for name in tools proxmox node storage bridge template; do
    assert_says "LINUS_CHECK:${name}:ok:"
  done
  assert_line "LINUS_HOSTNAME:${HOSTNAME}"
  assert_line LINUS_PVE_VERSION:8.2.4
  assert_line LINUS_VM_NODE:pve
  assert_line LINUS_RESULT:SUCCESS
  refute_called 'qm \(create\|clone\|set\|start\|stop\|destroy\).*'
  assert_nothing_left
}

@test "a missing storage, bridge and template are all told in one run, exit 3" {
  PROXMOX_STORAGE=nope PROXMOX_BRIDGE=vmbr7 VM_TEMPLATE=gone run_script check-host
  assert_status 3
  assert_check_failed storage "storage 'nope' does not exist"
  assert_check_failed bridge "bridge 'vmbr7' does not exist"
  assert_check_failed template "template 'gone' does not exist"
  assert_line "LINUS_ERROR:storage 'nope' does not exist on node 'pve'"
}

@test "no template is a warning where none is named, and a failure where one is: both say how to get one" {
  answer /nodes/pve/qemu '[{"vmid":101,"name":"other","status":"running"}]'
  VM_TEMPLATE='' run_script check-host
  assert_status 0
  assert_says $'LINUS_CHECK:template:warn:node \'pve\' has no template\nLINUS_REMEDY:make one: linus template build'
  run_script check-host
  assert_status 3
  assert_check_failed template "template 'agent-template' does not exist on node 'pve' (templates: none)"
  assert_says 'LINUS_REMEDY:make one: linus template build'
}

@test "templates are told where none is named" {
  VM_TEMPLATE='' run_script check-host
  assert_status 0
  assert_line 'LINUS_CHECK:template:ok:templates: agent-template (9000)'
  VM_TEMPLATE=gone run_script check-host
  assert_check_failed template '(templates: agent-template (9000))'
}

@test "a missing tool is exit 2 and names it" {
  rm "${BATS_TEST_TMPDIR}/bin/qm"
  run_script check-host
  assert_status 2
  assert_check_failed tools qm
}

@test "an offline node is exit 4, no quorum exit 3" {
  answer /cluster/status '[{"type":"node","name":"pve","local":1,"online":1},{"type":"node","name":"pve2","local":0,"online":0}]'
  PROXMOX_NODE=pve2 run_script check-host
  assert_status 4
  refute_called 'pvesh get /nodes/pve2/.*'
  assert_check_failed node offline
  answer /cluster/status '[{"type":"cluster","quorate":"0"},{"type":"node","name":"pve","local":1,"online":1}]'
  run_script check-host
  assert_status 3
  assert_check_failed node quorum
}

@test "Proxmox 7 is too old, one newer than known is a warning only" {
  echo 'pve-manager/7.4-3/9002ab8a (running kernel: 5.15)' >"${PVE_STUB}/version"
  run_script check-host
  assert_status 3
  assert_check_failed proxmox 'too old'
  assert_line LINUS_PVE_VERSION:7.4-3
  echo 'pve-manager/10.0.1/abc' >"${PVE_STUB}/version"
  run_script check-host
  assert_status 0
  assert_says 'LINUS_CHECK:proxmox:warn:'
}

@test "numbers as strings and strings as numbers are read alike" {
  answer /nodes/pve/storage/local-lvm/status '{"active":"1","enabled":"1","content":"images,rootdir","avail":"107374182400","type":"dir"}'
  answer /cluster/status '[{"type":"node","name":"pve","local":"1","online":"1"}]'
  run_script check-host
  assert_status 0
}

@test "a bad input is exit 1, by name" {
  PROXMOX_BRIDGE='vmbr0;x' run_script check-host
  assert_status 1
  assert_says "LINUS_ERROR:PROXMOX_BRIDGE='vmbr0;x' is not valid"
}
