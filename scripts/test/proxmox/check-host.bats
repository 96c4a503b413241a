#!/usr/bin/env bats
# check-host.sh as a whole: a process, on a stub of Proxmox.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
  export IMAGE_DIR=${BATS_TEST_TMPDIR}/images/linus
  unset VM_DISK CALLBACK_URL
  answer /nodes/pve/storage '[{"storage":"local","active":1,"content":"iso,vztmpl,backup","avail":53687091200,"type":"dir"},
    {"storage":"local-lvm","active":1,"content":"rootdir,images","avail":107374182400,"type":"lvmthin"}]'
  stub_program id 'echo root'
  free_for_images 20971520
}

free_for_images() { # <KiB>
  stub_program df "printf '%s\\n' 'Filesystem 1024-blocks Used Available Capacity Mounted on' '/dev/root 99 9 $1 9% /'"
}

# A check that warns, its remedy in the line after it.
assert_check_warns() { # <name> <its text>
  [[ ${output} == *"LINUS_CHECK:$1:warn:$2"$'\n'LINUS_REMEDY:?* ]] || fail "check $1 does not warn of '$2' with a remedy"
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
  for name in tools permissions proxmox node storage bridge template space snippets images; do
    assert_says "LINUS_CHECK:${name}:ok:"
  done
  refute_line_like 'LINUS_CHECK:callback:'
  refute_line_like 'LINUS_CHECK:quorum:' # of a single node there is none
  assert_line "LINUS_CHECK:space:ok:free for VMs: 100 GiB on 'local-lvm'"
  assert_line "LINUS_HOSTNAME:${HOSTNAME}"
  assert_line LINUS_PVE_VERSION:8.2.4
  assert_says $'\nLINUS_FACTS:8.2.4 lvmthin '
  assert_line LINUS_VM_NODE:pve
  assert_line LINUS_RESULT:SUCCESS
  refute_called 'qm \(create\|clone\|set\|start\|stop\|destroy\).*'
  assert_nothing_left
}

@test "a missing storage, bridge and template are all told in one run, exit 3" {
  answer /nodes/pve/storage '[{"storage":"local-lvm"},{"storage":"ceph"}]'
  PROXMOX_STORAGE=nope PROXMOX_BRIDGE=vmbr7 VM_TEMPLATE=gone run_script check-host
  assert_status 3
  assert_check_failed storage "storage 'nope' does not exist"
  assert_check_failed bridge "bridge 'vmbr7' does not exist"
  assert_check_failed template "template 'gone' does not exist"
  assert_line "LINUS_ERROR:storage 'nope' does not exist on node 'pve' (storages that take VM disks: local-lvm, ceph)"
}

@test "a missing storage where the others cannot be read is told, too" {
  rm "${PVE_STUB}/answers/nodes_pve_storage"
  PROXMOX_STORAGE=nope run_script check-host
  assert_status 3
  assert_line "LINUS_ERROR:storage 'nope' does not exist on node 'pve'"
}

@test "no template is a warning where none is named, and a failure where one is: both say how to get one" {
  rm "${PVE_STUB}/vm/9000" "${LINUS_PVE_DIR}/qemu-server/9000.conf"
  VM_TEMPLATE='' run_script check-host
  assert_status 0
  assert_says $'LINUS_CHECK:template:warn:node \'pve\' has no template\nLINUS_REMEDY:make one: build-template.sh'
  run_script check-host
  assert_status 3
  assert_check_failed template "template 'agent-template' does not exist on node 'pve' (templates: none)"
  assert_says 'LINUS_REMEDY:make one: build-template.sh'
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
  assert_check_failed quorum 'no quorum'
  refute_line_like 'LINUS_CHECK:node:'
  answer /cluster/status '[{"type":"cluster","quorate":1},{"type":"node","name":"pve","local":1,"online":1}]'
  run_script check-host
  assert_status 0
  assert_line 'LINUS_CHECK:quorum:ok:the cluster has quorum'
}

@test "who is not root is told, and so is a directory that cannot be written to" {
  stub_program id 'echo ada'
  run_script check-host
  assert_status 3
  assert_check_failed permissions 'logged in as ada'
  stub_program id 'echo root'
  touch "${BATS_TEST_TMPDIR}/file"
  LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/file/linus run_script check-host
  assert_status 3
  assert_check_failed permissions "${BATS_TEST_TMPDIR}/file on ${HOSTNAME} is not a writable directory"
}

@test "less space than is to stay free is a failure" {
  answer /nodes/pve/storage '[{"storage":"local-lvm","active":1,"content":"images","avail":"3221225472"}]'
  run_script check-host
  assert_check_failed space "storage 'local-lvm' on node 'pve' has 3 GiB free, and 5 GiB are to stay free"
}

@test "little space is a warning: where the template lies, not elsewhere, and of the host's own for images" {
  answer /nodes/pve/storage '[{"storage":"local-lvm","active":1,"content":"images","avail":"8589934592"},{"storage":"fast","active":1,"content":"images","avail":32212254720}]'
  free_for_images 1048576
  run_script check-host
  assert_status 0
  assert_check_warns space "free for VMs: 8 GiB on 'local-lvm'; one VM's disk may grow to 20 GiB"
  assert_check_warns images "1 GiB free in ${IMAGE_DIR} for cloud images"
  sed -i 's/local-lvm:/fast:/' "${PVE_STUB}/vm/9000"
  run_script check-host
  assert_line "LINUS_CHECK:space:ok:free for VMs: 30 GiB on 'fast'"
  VM_DISK=50 run_script check-host
  assert_check_warns space "free for VMs: 30 GiB on 'fast'; one VM's disk may grow to 50 GiB"
}

@test "a template on a storage that is not active is a failure" {
  answer /nodes/pve/storage '[{"storage":"local-lvm","active":1,"content":"images","avail":53687091200},{"storage":"nas","active":0,"content":"images"}]'
  sed -i 's/local-lvm:base/nas:base/' "${PVE_STUB}/vm/9000"
  run_script check-host
  assert_status 3
  assert_check_failed space "storage 'nas' on node 'pve', where the template lies, is not active"
}

@test "snippets are told of, and never missed" {
  run_script check-host
  assert_line 'LINUS_CHECK:snippets:ok:no storage takes any; none are needed'
  answer /nodes/pve/storage '[{"storage":"local-lvm","active":1,"content":"images","avail":53687091200},{"storage":"local","active":1,"content":"iso,snippets"}]'
  run_script check-host
  assert_line 'LINUS_CHECK:snippets:ok:on local; none are needed'
}

@test "callbacks: what answers is ok, what does not a warning that says jobs run all the same" {
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program curl 'echo "$*" >>"${PVE_STUB}/fetched"'
  CALLBACK_URL=http://10.0.0.9:8765 run_script check-host
  assert_status 0
  assert_line "LINUS_CHECK:callback:ok:http://10.0.0.9:8765 is reached from ${HOSTNAME}"
  [[ $(<"${PVE_STUB}/fetched") == *' -- http://10.0.0.9:8765/health' ]] || fail "asked: $(<"${PVE_STUB}/fetched")"
  stub_program curl 'echo "curl: (7) Failed to connect" >&2; exit 7'
  CALLBACK_URL=http://10.0.0.9:8765 run_script check-host
  assert_status 0
  assert_check_warns callback "http://10.0.0.9:8765 is not reached from ${HOSTNAME}: curl: (7) Failed to connect"
  assert_says 'jobs run all the same'
  CALLBACK_URL='http://x y' run_script check-host
  assert_status 1
  assert_says 'LINUS_ERROR:CALLBACK_URL='
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
