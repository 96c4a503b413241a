#!/usr/bin/env bats
# lib/cluster.sh: what pmxcfs tells of the cluster. Its nodes are tested with
# lib/probe.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs cluster
  run_init
  export LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc
  mkdir -p "${LINUS_PVE_DIR}"/nodes/{pve,pve2}/{qemu-server,lxc}
  echo '{"nodename":"pve","version":0}' >"${LINUS_PVE_DIR}/.members"
}

config() { # <node> <kind> <id> <text>
  printf '%s\n' "$4" >"${LINUS_PVE_DIR}/nodes/$1/$2/$3.conf"
}

@test "VMs and containers of all nodes, by their configs as they are now" {
  config pve qemu-server 100 $'#name: described\nname: web\nmemory: 512\n\n[PENDING]\nname: other\ntemplate: 1'
  config pve qemu-server 101 $'template: 1\nname: base\nscsi0: x'
  config pve2 lxc 102 $'hostname: ct\nname: none'
  config pve2 qemu-server 103 'lock: create'
  config pve qemu-server vm 'name: no number'
  echo 'name: no config' >"${LINUS_PVE_DIR}/nodes/pve/qemu-server/104.conf.tmp"
  cluster_list_vms
  [[ ${run_rc} -eq 0 ]]
  local list
  list=$(printf '%s\n' "${cluster_vms[@]}" | sort)
  [[ ${list} == $'100 pve qemu-server 0 web\n101 pve qemu-server 1 base\n102 pve2 lxc 0 ct\n103 pve2 qemu-server 0 ' ]]
}

@test "a config that cannot be read holds its ID" {
  ln -s 100.conf "${LINUS_PVE_DIR}/nodes/pve/qemu-server/100.conf"
  cluster_list_vms
  [[ ${run_rc} -eq 0 && ${cluster_vms[*]} == '100 pve qemu-server 0 ' ]]
}

@test "a name of any bytes stays one word of one line" {
  config pve qemu-server 100 $'name: a\x01\x1b[31m\x1f101'
  cluster_list_vms
  [[ ${#cluster_vms[@]} -eq 1 && ${cluster_vms[0]} == '100 pve qemu-server 0 a'* && ${cluster_vms[0]} != *[[:cntrl:]]* ]]
}

@test "where pmxcfs is not mounted there is no list, not an empty one" {
  rm "${LINUS_PVE_DIR}/.members"
  cluster_list_vms
  [[ ${run_rc} -ne 0 && ${run_said} == *'not mounted'* ]]
  cluster_read
  [[ ${cluster_rc} -ne 0 ]]
  LINUS_PVE_DIR=/nonexistent cluster_list_vms
  [[ ${run_rc} -ne 0 ]]
}

@test "five thousand VMs are listed" {
  local -i i
  for ((i = 100; i < 5100; i += 1)); do
    echo "name: vm${i}" >"${LINUS_PVE_DIR}/nodes/pve/qemu-server/${i}.conf"
  done
  cluster_list_vms
  [[ ${#cluster_vms[@]} -eq 5000 ]]
}
