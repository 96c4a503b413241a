#!/usr/bin/env bats
# list-nodes.sh as a whole: a process, on a stub of Proxmox.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
  echo '{"nodename":"pve","version":3,"cluster":{"name":"c","version":2,"nodes":2,"quorate":1},
    "nodelist":{"pve":{"id":1,"online":1,"ip":"10.0.0.1"},"pve2":{"id":2,"online":0,"ip":"fd00::2"}}}' >"${LINUS_PVE_DIR}/.members"
  answer /cluster/resources '[
    {"type":"node","node":"pve","maxmem":34359738368,"mem":"4294967296","hastate":"maintenance"},
    {"type":"node","node":"pve2","status":"offline"},
    {"type":"storage","node":"pve","storage":"local-lvm","status":"available","shared":0},
    {"type":"storage","node":"pve2","storage":"nfs","status":"unknown","shared":1},
    {"type":"lxc","vmid":100,"node":"pve","status":"stopped"},
    {"type":"qemu","vmid":"101","node":"pve","status":"running","maxmem":1},
    {"type":"qemu","vmid":9000,"node":"pve","template":1}]'
  echo 'memory: 4096' >>"${PVE_STUB}/vm/101"
  printf '[snap]\nmemory: 1\n' >>"${PVE_STUB}/vm/101"
  mkdir -p "${LINUS_PVE_DIR}"/nodes/pve2/qemu-server
  printf '#linus-job=%s linus-owner=%s linus-template=1\nname: shared\nscsi0: nfs:9001/base-9001-disk-0.qcow2\ntemplate: 1\nmemory: 512\n' \
    "${job}" "${owner}" >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/9001.conf"
  echo 'memory: current=1024' >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/300.conf"
  printf 'pve2 ssh-rsa AAAAB3NzaC1yc2E=' >"${LINUS_PVE_DIR}/nodes/pve2/ssh_known_hosts"
  printf 'else ssh-rsa AAAAB3NzaC1yc2E=\npve ssh-rsa AAAA;id\n' >"${LINUS_PVE_DIR}/nodes/pve/ssh_known_hosts"
}

@test "tells the nodes with their memory, VMs, storages, templates and keys, by one start of a tool" {
  local -a calls
  run_script list-nodes
  assert_status 0
  assert_line LINUS_VM_NODE:pve
  assert_line LINUS_QUORUM:yes
  assert_line 'LINUS_NODE:name=pve online=1 ip=10.0.0.1 memory=32768 used=4096 ha=maintenance'
  assert_line 'LINUS_NODE:name=pve2 online=0 ip=fd00::2 memory= used= ha='
  assert_line 'LINUS_NODE_KEY:pve2 ssh-rsa AAAAB3NzaC1yc2E='
  refute_line_like 'LINUS_NODE_KEY:pve '
  refute_line_like LINUS_NODE_KEY:else
  assert_line 'LINUS_NODE_STORAGE:pve local-lvm active local'
  assert_line 'LINUS_NODE_STORAGE:pve2 nfs inactive shared'
  assert_line 'LINUS_NODE_VMS:pve 101:4096:running 100:512:stopped'
  assert_line 'LINUS_NODE_VMS:pve2 300:1024:unknown'
  assert_says 'LINUS_NODE_TEMPLATE:pve 9000 agent-template - '
  assert_says "LINUS_NODE_TEMPLATE:pve2 9001 shared ${job} "
  [[ ${output:?} == *"NODE_TEMPLATE:pve "*" local"*"NODE_TEMPLATE:pve2 "*" shared"* ]]
  mapfile -t calls <"${PVE_STUB}/calls"
  [[ ${#calls[@]} -eq 1 ]]
}

@test "a template says what its build has installed, unless it is a copy of that one" {
  local said
  for said in '' 'base,node,claude' 'base;id' none; do
    printf '#linus-job=%s linus-owner=%s linus-vm=9001 linus-template=1 linus-has=%s\nname: shared\ntemplate: 1\n' "${job}" "${owner}" "${said}" \
      >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/9001.conf"
    sed 's/name: shared/name: copy/' "${LINUS_PVE_DIR}/nodes/pve2/qemu-server/9001.conf" >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/9002.conf"
    run_script list-nodes
    said=${said%;*}
    [[ ${output:?} == *"NODE_TEMPLATE:pve2 9001 shared ${job} "*" local ${said:--}"$'\n'* ]] || fail "no ${said}" "${output}"
    [[ ${output} == *"NODE_TEMPLATE:pve2 9002 copy ${job} "*" local -"$'\n'* ]] || fail 'a copy says what it has' "${output}"
  done
}

@test "a template's sum changes with its config, and not with its lock" {
  local first
  run_script list-nodes
  first=$(grep '^LINUS_NODE_TEMPLATE:pve 9000 ' <<<"${output:?}")
  echo 'lock: backup' >>"${PVE_STUB}/vm/9000"
  run_script list-nodes
  assert_line "${first}"
  echo 'cores: 4' >>"${PVE_STUB}/vm/9000"
  run_script list-nodes
  refute_line_like "${first}"
}

@test "a host without a cluster is the one node" {
  echo '{"nodename":"pve","version":0}' >"${LINUS_PVE_DIR}/.members"
  run_script list-nodes
  assert_status 0
  assert_line LINUS_QUORUM:none
  assert_line 'LINUS_NODE:name=pve online=1 ip= memory=32768 used=4096 ha=maintenance'
  refute_line_like LINUS_NODE:name=pve2
}

@test "a thousand VMs are told in lines that can be read" {
  local -i i
  for ((i = 1000; i < 2000; i += 1)); do
    echo 'memory: 2048' >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/${i}.conf"
  done
  run_script list-nodes
  assert_status 0
  local -a lines vms
  local found
  found=$(grep '^LINUS_NODE_VMS:pve2 ' <<<"${output:?}")
  mapfile -t lines <<<"${found}"
  [[ ${#lines[@]} -eq 3 ]]
  found=$(grep -o ' 1[0-9][0-9][0-9]:2048:unknown' <<<"${output}")
  mapfile -t vms <<<"${found}"
  [[ ${#vms[@]} -eq 1000 ]]
}

@test "what Proxmox does not tell is a failure, not an empty cluster" {
  answer /cluster/resources '{"error":"no list"}'
  run_script list-nodes
  assert_status 3
  assert_says LINUS_ERROR:could
  rm "${LINUS_PVE_DIR}/.members"
  run_script list-nodes
  assert_status 3
  assert_says LINUS_REMEDY:
}
