#!/usr/bin/env bats
# lib/probe.sh: judgements that need more than the whole-script tests show.

# shellcheck disable=SC2154 # the library's globals
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs probe
  run_init
}

pvesh_says() { # <JSON>: to every question
  printf '%s\n' "$1" >"${BATS_TEST_TMPDIR}/answer"
  stub_program pvesh "cat ${BATS_TEST_TMPDIR}/answer"
}

pmxcfs_says() { # <text of .members>
  export LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc
  mkdir -p "${LINUS_PVE_DIR}/nodes"
  printf '%s\n' "$1" >"${LINUS_PVE_DIR}/.members"
}

@test "without a wish the node is the host's own" {
  pmxcfs_says '{"nodename":"a","version":4,"cluster":{"name":"c","version":2,"nodes":2,"quorate":1},"nodelist":{"b":{"id":2,"online":1,"ip":"10.0.0.2"},"a":{"id":1,"online":1}}}'
  probe_cluster ''
  [[ -z ${probe_kind} && ${probe_node} == a && ${probe_quorum} == yes ]]
  pmxcfs_says '{"nodename":"a","version":0}'
  probe_cluster ''
  [[ -z ${probe_kind} && ${probe_node} == a && ${probe_quorum} == none ]]
}

@test "a host that answers nothing useful is not taken for a sound one" {
  local text
  for text in 'no JSON' '[]' '{}' '{"nodename":"a","nodelist":[]}' '{"nodename":"../a"}'; do
    pmxcfs_says "${text}"
    probe_cluster ''
    [[ ${probe_kind} == config && -n ${probe_remedy} ]]
  done
  LINUS_PVE_DIR=/nonexistent probe_cluster ''
  [[ ${probe_kind} == config ]]
  pmxcfs_says '{"nodename":"a","cluster":{"quorate":1},"nodelist":{"a":{"online":0}}}'
  probe_cluster ''
  [[ ${probe_kind} == offline ]]
  pmxcfs_says '{"nodename":"a","cluster":{"name":"c"},"nodelist":{"a":{"online":1}}}'
  probe_cluster ''
  [[ ${probe_kind} == config && ${probe_text} == *'no quorum'* ]]
}

@test "an open vSwitch is a bridge, a card is not" {
  pvesh_says '[{"iface":"vmbr3","type":"OVSBridge"},{"iface":"eno1","type":"eth"}]'
  stub_program ip 'exit 1'
  probe_node=pve
  probe_bridge vmbr3
  [[ -z ${probe_kind} ]]
  probe_bridge eno1
  [[ ${probe_kind} == config && ${probe_text} == *'(bridges: vmbr3)' ]]
}

@test "a name that stands for two templates is refused with both IDs" {
  pmxcfs_says '{"nodename":"pve","version":0}'
  mkdir -p "${LINUS_PVE_DIR}"/nodes/{pve,pve2}/{qemu-server,lxc}
  local id
  for id in pve/qemu-server/900 pve/qemu-server/901 pve2/qemu-server/903; do
    printf 'name: t\ntemplate: 1\n' >"${LINUS_PVE_DIR}/nodes/${id}.conf"
  done
  echo 'name: t' >"${LINUS_PVE_DIR}/nodes/pve/qemu-server/902.conf"
  printf 'hostname: t\ntemplate: 1\n' >"${LINUS_PVE_DIR}/nodes/pve/lxc/904.conf"
  probe_node=pve
  cluster_list_vms
  probe_template t
  [[ ${probe_kind} == config && ${probe_text} == *'900 901' ]]
  probe_template 904
  [[ ${probe_kind} == config && ${probe_text} == *'does not exist'*'(templates: t (900), t (901))' ]]
}
