#!/usr/bin/env bats
# uninstall.sh as a whole: a process, on a stub of Proxmox that keeps state.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
  export LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks IMAGE_DIR=${BATS_TEST_TMPDIR}/images LINUS_SCRIPT_DIR=${BATS_TEST_TMPDIR}/scripts
  mkdir -p "${IMAGE_DIR}" "${LINUS_SCRIPT_DIR}/operations/one" "${LINUS_PVE_DIR}/priv/linus"
  : >"${IMAGE_DIR}/debian-12.qcow2"
  : >"${IMAGE_DIR}/custom-0123456789abcdef.raw"
  : >"${LINUS_SCRIPT_DIR}/create-vm-0123456789ab.sh"
  : >"${LINUS_SCRIPT_DIR}/tool-server-0123456789ab.pl"
  : >"${LINUS_SCRIPT_DIR}/notes-of-mine.sh"
  : >"${LINUS_PVE_DIR}/priv/linus/fence-${job}"
}

@test "what linus keeps on a node goes: timer, rules, directories, fences; what is others' stays" {
  add_our_vm 205 'net0: virtio=BC:24:11:00:00:05,bridge=vmbr0'
  sed -i 's/^#linus-job.*/& linus-egress=none/' "${PVE_STUB}/vm/205"
  mkdir -p "${LINUS_HOST_DIR}/leases"
  printf 'none %s %s pve local-lvm 1 boot 999999 7 0 0\n' "${VM_NAME}" "${owner}" >"${LINUS_HOST_DIR}/leases/205-${job}"
  run_script list-vms # arms the timer, and makes the rules
  [[ -e ${LINUS_UNIT_DIR}/linus-sweep.timer && -e ${PVE_STUB}/nft ]] || fail 'there is nothing to remove'

  run_script uninstall
  assert_status 5
  assert_says "has VMs of linus: 205 (${VM_NAME})"
  LEAVE_VMS=true run_script uninstall --dry-run
  assert_status 0
  assert_line "LINUS_STAYS:VM 205 (${VM_NAME})"
  local -i planned removed
  planned=$(grep -c '^LINUS_PLAN:' <<<"${output}")
  ((planned == 8)) || fail "${planned} things are planned"
  [[ -e ${LINUS_UNIT_DIR}/linus-sweep.timer && -e ${PVE_STUB}/nft && -d ${LINUS_HOST_DIR} && -d ${LINUS_LOCK_DIR} ]] || fail 'a dry run removed something'

  LEAVE_VMS=true run_script uninstall
  assert_status 0
  removed=$(grep -c '^LINUS_REMOVED:' <<<"${output}")
  ((removed == planned)) || fail "${removed} things are removed"
  [[ ! -e ${PVE_STUB}/nft && ! -e ${LINUS_HOST_DIR} && ! -e ${LINUS_LOCK_DIR} && ! -e ${IMAGE_DIR} && ! -e ${LINUS_PVE_DIR}/priv/linus ]] || fail 'something stayed'
  local left
  left=$(cd "${LINUS_SCRIPT_DIR}" && find . -mindepth 1)
  [[ ${left} == ./notes-of-mine.sh ]] || fail "in the scripts' directory: ${left}"
  left=$(find "${LINUS_UNIT_DIR}" -name 'linus*')
  [[ -z ${left} ]] || fail "units: ${left}"
  refute_called 'qm \(stop\|destroy\|set\).*'
  [[ -e ${PVE_STUB}/vm/205 ]]

  run_script uninstall # VMs that were left are still ours by their notes
  assert_status 5
  rm "${PVE_STUB}/vm/205" "${LINUS_PVE_DIR}/nodes/pve/qemu-server/205.conf"
  run_script uninstall
  assert_status 0
  refute_line_like LINUS_REMOVED
}

@test "a tool server is no work under way, and is ended" {
  systemd-run --quiet --collect --unit=linus-tool-server-0123456789ab --property=KillMode=process -- /bin/sleep 1000
  run_script uninstall --dry-run
  assert_status 0
  assert_says 'LINUS_PLAN:linus-tool-server-0123456789ab.service'
  run_script uninstall
  assert_status 0
  assert_says 'LINUS_REMOVED:linus-tool-server-0123456789ab.service'
  run systemctl is-active linus-tool-server-0123456789ab.service
  [[ ${output} == inactive ]]
}

@test "nothing is removed while work of linus is under way" {
  local kind
  for kind in create save; do
    systemd-run --quiet --collect --unit="linus-${kind}-${job}" --property=KillMode=process -- /bin/sleep 1000
    run_script uninstall
    assert_status 5
    assert_says "linus-${kind}-${job}.service"
  done
  assert_says "work of linus is under way on ${HOSTNAME}: linus-"
  [[ -e ${IMAGE_DIR}/debian-12.qcow2 ]]
}

@test "nothing is removed where it cannot be read whether there is a VM, or work, of linus" {
  add_our_vm 205
  printf 'args: %070000d\n' 0 >>"${PVE_STUB}/vm/205" # longer than is read
  run_script uninstall
  assert_status 3
  assert_says 'whether VM 205'
  rm "${PVE_STUB}/vm/205" "${LINUS_PVE_DIR}/qemu-server/205.conf"
  stub_program systemctl 'echo "Failed to connect to bus" >&2; exit 1'
  run_script uninstall
  assert_status 5
  assert_says 'Failed to connect to bus'
  refute_line_like LINUS_REMOVED
  [[ -e ${IMAGE_DIR}/debian-12.qcow2 ]]
}

@test "a directory of linus that is a link, or another user's, is not removed, nor what is in it" {
  local dir theirs
  for dir in "${LINUS_HOST_DIR}" "${LINUS_SCRIPT_DIR}/operations" "${LINUS_LOCK_DIR}" "${IMAGE_DIR}" "${LINUS_PVE_DIR}/priv/linus" "${LINUS_SCRIPT_DIR}"; do
    theirs=${BATS_TEST_TMPDIR}/theirs
    rm -rf "${dir}" "${theirs}"
    mkdir -p "${theirs}"
    : >"${theirs}/debian-12.qcow2"
    : >"${theirs}/create-vm-0123456789ab.sh"
    : >"${theirs}/fence-${job}"
    ln -s "${theirs}" "${dir}"
    run_script uninstall
    assert_status 0
    [[ -L ${dir} && -e ${theirs}/debian-12.qcow2 && -e ${theirs}/create-vm-0123456789ab.sh && -e ${theirs}/fence-${job} ]] || fail "followed ${dir}"
    rm "${dir}"
    if ((EUID == 0)); then
      mv "${theirs}" "${dir}"
      chown 65534 "${dir}"
      run_script uninstall
      assert_status 0
      [[ -e ${dir}/debian-12.qcow2 && -e ${dir}/create-vm-0123456789ab.sh && -e ${dir}/fence-${job} ]] || fail "removed ${dir}, which is not root's"
      rm -rf "${dir}"
    fi
  done
}

@test "a volume and a checkpoint keep it as a VM does, and a template stays" {
  add_our_vm 205 'template: 1'
  sed -i '1s/$/ linus-template=1/' "${PVE_STUB}/vm/205"
  run_script uninstall --dry-run
  assert_status 0
  assert_line "LINUS_STAYS:template 205 (${VM_NAME})"
  sed -i '1s/ linus-template=1/ linus-checkpoint=9000/' "${PVE_STUB}/vm/205"
  run_script uninstall
  assert_status 5
  assert_says "has VMs of linus: checkpoint 205 (${VM_NAME})"
  sed -i '/^template/d' "${PVE_STUB}/vm/205" # it is still being made
  run_script uninstall
  assert_status 5
  assert_says "has VMs of linus: 205 (${VM_NAME})"
  sed -i '1s/ linus-checkpoint=9000/ linus-volume=data/' "${PVE_STUB}/vm/205"
  run_script uninstall
  assert_status 5
  assert_says "has VMs of linus: volume 205 (${VM_NAME})"
  [[ -e ${IMAGE_DIR}/debian-12.qcow2 ]]
}

@test "units without files, and rules that the kernel keeps, are seen" {
  local -r list="[[ \$1 != list ]] || { printf 'table bridge linus { }\\n'; exit 0; }"
  stub_program nft "${list}; echo 'Device or resource busy' >&2; exit 1"
  run_script uninstall
  assert_status 5
  assert_says 'the network rules on'
  assert_says 'Device or resource busy'
  stub_program nft 'exit 1'
  mkdir -p "${LINUS_UNIT_DIR}"
  : >"${LINUS_UNIT_DIR}/linus-sweep.service"
  run_script uninstall --dry-run
  assert_status 0
  assert_says 'LINUS_PLAN:linus-sweep.timer and'
  run_script uninstall
  assert_status 0
  [[ ! -e ${LINUS_UNIT_DIR}/linus-sweep.service ]]
}
