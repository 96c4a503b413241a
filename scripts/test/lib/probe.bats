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

@test "without a wish the node is the host's own" {
  pvesh_says '[{"type":"cluster","name":"c","quorate":1},{"type":"node","name":"b","local":0,"online":1},{"type":"node","name":"a","local":1,"online":1}]'
  probe_cluster ''
  [[ -z ${probe_kind} && ${probe_node} == a ]]
}

@test "a host that answers nothing useful is not taken for a sound one" {
  pvesh_says 'ipcc_send_rec[1] failed: Connection refused'
  probe_cluster ''
  [[ ${probe_kind} == config && -n ${probe_remedy} ]]
  pvesh_says '[]'
  probe_cluster ''
  [[ ${probe_kind} == config ]]
}

@test "an open vSwitch is a bridge, a card is not" {
  pvesh_says '[{"iface":"vmbr3","type":"OVSBridge"},{"iface":"eno1","type":"eth"}]'
  probe_node=pve
  probe_start st
  probe_bridge vmbr3
  [[ -z ${probe_kind} ]]
  probe_bridge eno1
  [[ ${probe_kind} == config && ${probe_text} == *'(bridges: vmbr3)' ]]
}

@test "a name that stands for two templates is refused with both IDs" {
  pvesh_says '[{"vmid":900,"name":"t","template":1},{"vmid":901,"name":"t","template":"1"},{"vmid":902,"name":"t"}]'
  probe_node=pve
  probe_start st
  probe_template t
  [[ ${probe_kind} == config && ${probe_text} == *'900 901' ]]
}
