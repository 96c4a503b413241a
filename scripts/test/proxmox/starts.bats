#!/usr/bin/env bats
# How often create-vm.sh, destroy-vm.sh and a suspend and resume start a tool of Proxmox, each of which
# takes most of a second: counted over whole scripts.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
  check_file
}

setup() {
  setup_stub
  export LINUS_LEASE_SECONDS=1000
}

# Since the last look these were started, by tool and verb, in whatever order.
assert_starts() { # <"tool verb"...>
  local want have
  want=$(printf '%s\n' "$@" | sort)
  have=$({ sed -E "${seen:+1,${seen}d;}"'s/\x1f/ /g; s/^(qm guest [a-z]+|[a-z]+ [a-z]+).*/\1/' "${PVE_STUB}/argv" || :; } | sort)
  [[ ${have} == "${want}" ]] || fail "started:" "${have}"
  look_from_here
}

look_from_here() {
  seen=$(wc -l <"${PVE_STUB}/argv")
}

destroys_with_three() {
  read_vm_id
  VM_ID=${id} run_script destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
  assert_starts 'qm stop' 'qm destroy' 'pvesm list'
}

@test "a linked clone takes eight starts, a second one within a minute seven, a destroy three" {
  run_script create-vm
  assert_status 0
  assert_line "LINUS_VM_HOST_KEY:${host_key}"
  assert_starts 'pvesm list' 'pvesh get' 'qm clone' 'qm set' 'qm resize' 'qm start' 'qm guest cmd' 'qm guest exec'
  destroys_with_three
  VM_NAME=second run_script create-vm
  assert_status 0
  assert_starts 'pvesm list' 'qm clone' 'qm set' 'qm resize' 'qm start' 'qm guest cmd' 'qm guest exec'
}

@test "a restored VM takes eight starts, a second one within a minute seven, until it can be worked in" {
  run_script create-vm
  read_vm_id
  sed -i "1a meta: creation-qemu=8.1.5,ctime=1700000000" "${PVE_STUB}/vm/${id}"
  VM_ID=${id} run_script checkpoint-vm
  assert_status 0
  rm -r "${LINUS_HOST_DIR}/checked"
  look_from_here
  VM_NAME=second LINUS_JOB=22222222-2222-4333-8444-555555555555 VM_CHECKPOINT=${id} run_script create-vm
  assert_status 0
  assert_starts 'kvm --version ' 'pvesm list' 'pvesh get' 'qm clone' 'qm set' 'qm start' 'qm guest exec' 'qm set' 'qm guest exec'
  VM_NAME=third LINUS_JOB=33333333-2222-4333-8444-555555555555 VM_CHECKPOINT=${id} run_script create-vm
  assert_status 0
  assert_starts 'kvm --version ' 'pvesm list' 'qm clone' 'qm set' 'qm start' 'qm guest exec' 'qm set' 'qm guest exec'
}

@test "where the disk has its size and the address was given, two fewer" {
  VM_IP_CONFIG=127.0.0.1/8 VM_DISK=5 run_script create-vm
  assert_status 0
  sed -i 's/size=3G/size=5G/' "${PVE_STUB}/vm/9000"
  read_vm_id
  VM_ID=${id} run_script destroy-vm
  look_from_here
  VM_IP_CONFIG=127.0.0.1/8 VM_DISK=5 run_script create-vm
  assert_status 0
  assert_starts 'pvesm list' 'qm clone' 'qm set' 'qm start' 'qm guest exec'
  destroys_with_three
}

@test "a VM from an image takes seven starts, its destroy three" {
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  export VM_TEMPLATE='' VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk.img VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *}
  export IMAGE_DIR=${BATS_TEST_TMPDIR}/images
  stub_program qemu-img 'echo "{\"virtual-size\": 2147483648}"'
  guest_interfaces '{"name":"e","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]}'
  run_script create-vm
  assert_status 0
  assert_starts 'pvesm list' 'pvesh get' 'qm create' 'qm resize' 'qm start' 'qm guest cmd' 'qm guest exec'
  destroys_with_three
}

@test "a suspend takes one start, a resume three" {
  add_our_vm 250 'ciuser: worker' 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' 'ipconfig0: ip=dhcp'
  VM_ID=250 ACTION=suspend run_script power-vm
  assert_status 0
  assert_starts 'qm suspend'
  VM_ID=250 ACTION=resume run_script power-vm
  assert_status 0
  assert_line "LINUS_VM_HOST_KEY:${host_key}"
  assert_starts 'qm start' 'qm guest exec' 'qm guest cmd'
}

@test "qm is asked for a status where a start or a stop is in doubt, and only there" {
  add_our_vm 205
  fault stop 0 skip ''
  VM_ID=205 run_script destroy-vm
  assert_status 5
  assert_says 'did not stop it (status running)'
  assert_starts 'qm stop' 'qm status'
  # A host that does not show its machines.
  rm -r "${LINUS_QEMU_DIR}"
  VM_ID=205 run_script destroy-vm
  assert_status 0
  assert_starts 'qm stop' 'qm status' 'qm destroy' 'pvesm list'
}

# --- programs of any kind ---

# As run_script, of the script in one piece, as a host gets it: its own lines start no dirname.
count_programs() { # <name>; programs: how many it started
  gcc -shared -fPIC -o "${BATS_TEST_TMPDIR}/programs.so" "${scripts_dir}/test/helper/programs.c" -ldl
  rm -f "${BATS_TEST_TMPDIR}/programs"
  LD_PRELOAD=${BATS_TEST_TMPDIR}/programs.so PROGRAMS=${BATS_TEST_TMPDIR}/programs run_script "$1"
  assert_status 0
  programs=$(grep -vc '^dirname ' "${BATS_TEST_TMPDIR}/programs")
}

assert_programs() { # <at most>
  ((programs <= $1)) || fail "${programs} programs, expected $1 at most" "$(<"${BATS_TEST_TMPDIR}/programs")"
}

# Tools and their timeout count, so that a tool server makes it fewer.
@test "a create starts 40 programs at most, the first of a host, another within a minute 24, a destroy 18" {
  local programs
  count_programs create-vm
  assert_programs 40
  read_vm_id
  VM_NAME=second LINUS_JOB=22222222-2222-4333-8444-555555555555 count_programs create-vm
  assert_programs 24
  ((programs > 12)) || fail 'they are not counted'
  VM_ID=${id} count_programs destroy-vm
  assert_line LINUS_VM_OUTCOME:destroyed
  assert_programs 18
}

# --- what was checked a moment ago ---

note_file() { # note: the one there is
  note=$(find "${LINUS_HOST_DIR}/checked" -type f)
}

@test "what a check found is kept by storage and bridge, for root alone; a create that fails takes it away" {
  local note mode
  run_script create-vm
  assert_status 0
  note_file
  [[ ${note} == */checked/pve:local-lvm:vmbr0 ]] || fail "${note}"
  mode=$(stat -c %a "${note}" "${note%/*}")
  [[ ${mode} == $'600\n700' ]] || fail "${mode}"
  fault start 255 skip 'no memory'
  VM_NAME=second run_script create-vm
  assert_status 5
  refute_called 'pvesh get /nodes/pve/network.*'
  note_file
  [[ -z ${note} ]] || fail 'it is still there'
  assert_called_times 1 'pvesh get /nodes/pve/storage/.*'
  VM_NAME=third run_script create-vm
  assert_status 0
  assert_called_times 2 'pvesh get /nodes/pve/storage/.*'
  answer /nodes/pve/storage/other/status '{"active":0,"enabled":1,"content":"images","avail":1,"type":"dir"}'
  PROXMOX_STORAGE=other VM_NAME=fourth run_script create-vm
  assert_status 3
  assert_says "storage 'other' on node 'pve' is not active"
  note_file
  [[ ${note} == */pve:local-lvm:vmbr0 ]] || fail "a check that failed was kept, or another's taken: ${note}"
}

@test "a note that is old, of another boot, another's, a link or unreadable says nothing" {
  local note boot up text
  boot=$(</proc/sys/kernel/random/boot_id)
  run_script create-vm
  assert_status 0
  note_file
  read -r up _ </proc/uptime
  up=${up%.*}
  for text in "${boot} $((up - 61)) lvmthin" "${boot} $((up + 100)) lvmthin" "other-boot ${up} lvmthin" "${boot} 08 lvmthin" "${boot} ${up}" \
    "${boot} a[\$(touch ${BATS_TEST_TMPDIR}/ran)] lvmthin" "${boot} ${up} ../x" link theirs directory; do
    rm -rf "${note}" "${PVE_STUB}/calls"
    case ${text} in
      link) printf '%s\n' "${boot} ${up} lvmthin" >"${note}.target" && ln -s "${note}.target" "${note}" ;;
      theirs)
        printf '%s\n' "${boot} ${up} lvmthin" >"${note}"
        ((EUID == 0)) && chown 65534 "${note}"
        ;;
      directory) mkdir "${note}" ;;
      *) printf '%s\n' "${text}" >"${note}" ;;
    esac
    fault clone 255 skip 'seen enough'
    VM_NAME=another run_script create-vm
    assert_status 5
    assert_says 'seen enough'
    [[ ${text}${EUID} == theirs[1-9]* ]] || called 'pvesh get /nodes/pve/storage/.*' || fail "believed: ${text}"
  done
  [[ ! -e ${BATS_TEST_TMPDIR}/ran ]]
}

@test "node, quorum, names, IDs, template and volumes are looked at each time" {
  run_script create-vm
  assert_status 0
  printf '%s\n' 'Volid Format Type Size VMID' 'local-lvm:vm-205-disk-0 raw images 4194304 205' >"${PVE_STUB}/volumes"
  VM_NAME=second VM_ID_RANGE=205-205 run_script create-vm
  assert_status 3
  assert_says 'no VM ID is free'
  rm "${PVE_STUB}/volumes"
  run_script create-vm # so that all is noted again
  assert_status 5
  assert_says 'VM already exists'
  echo 'hostname: taken' >"${LINUS_PVE_DIR}/nodes/pve/lxc/150.conf"
  VM_NAME=taken run_script create-vm
  assert_status 5
  assert_says "VM already exists: 'taken' is VM 150 on node 'pve'"
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"
  : >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/206.conf"
  VM_NAME=second VM_ID_RANGE=206-206 run_script create-vm
  assert_status 3
  VM_NAME=second run_script create-vm
  assert_status 0
  answer /cluster/status '[{"type":"cluster","quorate":0},{"type":"node","name":"pve","local":1,"online":1}]'
  VM_NAME=third run_script create-vm
  assert_status 3
  assert_says 'no quorum'
}

@test "a storage that cannot be listed makes no VM, however well it was a moment ago" {
  run_script create-vm
  assert_status 0
  fault list 255 skip "storage 'local-lvm' is not online"
  VM_NAME=second run_script create-vm
  assert_status 3
  assert_says "could not read the volumes on storage 'local-lvm' of node 'pve': storage 'local-lvm' is not online"
  assert_called_times 1 'qm clone .*'
}

# --- when a guest is asked ---

@test "a guest is not asked before its card has sent something" {
  export LINUS_NET_DIR=${BATS_TEST_TMPDIR}/net
  # shellcheck disable=SC2016 # the stubs' own variables
  hook start 'for id in {200..299}; do mkdir -p "${LINUS_NET_DIR}/tap${id}i0/statistics"; echo 0 >"${LINUS_NET_DIR}/tap${id}i0/statistics/rx_packets"; done'
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program sleep '
    echo "sleep $*" >>"${PVE_STUB}/calls"
    [[ $(grep -c "^sleep 0.25" "${PVE_STUB}/calls") -lt 3 ]] || for counter in "${LINUS_NET_DIR}"/*/statistics/rx_packets; do echo 7 >"${counter}"; done'
  run_script create-vm
  assert_status 0
  run grep -E '^sleep 0.25|network-get-interfaces' "${PVE_STUB}/calls"
  [[ ${output} == $'sleep 0.25\nsleep 0.25\nsleep 0.25\nqm guest cmd '* ]] || fail "${output}"
}
