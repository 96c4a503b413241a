#!/usr/bin/env bats
# lib/mount.sh: its programs, run as the guest's sh runs them, in a guest of stubs whose disk
# is a file.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2312,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

uuid=33333333-2222-4333-8444-555555555555

setup() {
  load_libs mount log result
  run_init
  root=${BATS_TEST_TMPDIR}/guest
  mkdir -p "${root}/etc"
  vm_id=250 probe_node=pve volume_serial=linus555555555555 volume_plugged=yes dry_run=no
  VOLUME_VMID=300 VOLUME_UUID=${uuid} VOLUME_PATH=${root}/srv/cache VOLUME_MODE=rw VOLUME_FORMATTED=false VM_SSH_USER=worker
  declare -gA vm_config=()
  : >"${root}/calls"
  echo "/dev/sdx ${volume_serial}" >"${root}/disks"
  guest_exec() { # <vmid> <seconds> sh -c <program> <argument...>
    guest_exit=0
    guest_out=$(sh -c "${5//\/etc/${root}/etc}" "${@:6}" 2>"${root}/stderr") || guest_exit=$?
    run_said=$(<"${root}/stderr")
  }
  stub lsblk "cat ${root}/disks"
  stub sleep ':'
  # The UUID that is on the disk, if there is one; what else is, and does not have one.
  stub blkid "[ ! -e ${root}/blkid-fails ] || exit 4; cat ${root}/uuid 2>/dev/null || exit 2"
  stub wipefs "[ ! -e ${root}/wipefs-fails ] || exit 1; cat ${root}/signature 2>/dev/null || :"
  stub mkfs.ext4 "[ ! -e ${root}/mkfs-fails ] || exit 1; echo \"\${4}\" >${root}/uuid"
  stub mount "[ ! -e ${root}/mount-fails ] || { echo 'wrong fs type'; exit 32; }; echo \"\$5\" >${root}/mounted"
  stub umount "rm ${root}/mounted"
  stub chown ':'
  stub sync ':'
  stub findmnt "[ ! -e ${root}/not-seen ] || exit 1; [ -e ${root}/mounted ] || exit 1; case \"\$*\" in *TARGET*) echo ${VOLUME_PATH} ;; *) cat ${root}/mounted ;; esac"
}

stub() { # <name> <body>
  stub_program "$1" "echo \"$1 \$*\" >>${root}/calls
$2"
}

mounts() {
  status=0
  output=$(mount_volume 2>&1) || status=$?
}

refuses() { # <what it says>
  mounts
  if [[ ${status} -eq 0 || ${output} != *"$1"* ]] || grep -qE '^(mount|chown) ' "${root}/calls"; then
    printf '%s\n' "no refusal: $1" "${output}" "$(<"${root}/calls")" >&2
    return 1
  fi
}

refute_called() { # <program...>
  if grep -E "^($1) " "${root}/calls"; then
    return 1
  fi
}

@test "a disk on which nothing is gets its filesystem, once, and is mounted now and at each boot" {
  mounts
  [[ ${status} -eq 0 && ${output} == *LINUS_VOLUME_FORMATTED:true* ]]
  grep -qx "mkfs.ext4 -q -F -U ${uuid} -L linus-5555555555 -E lazy_itable_init=1 /dev/sdx" "${root}/calls"
  grep -qx "mount -t ext4 -o rw /dev/sdx ${VOLUME_PATH}" "${root}/calls"
  grep -qx "chown worker: ${VOLUME_PATH}" "${root}/calls"
  # A power cut takes no filesystem that was told of: one would never be made again.
  [[ $(grep -E '^(mkfs.ext4|mount|chown|sync -f) ' "${root}/calls" | tail -n 1) == "sync -f ${VOLUME_PATH}" ]]
  [[ $(<"${root}/etc/fstab") == "UUID=${uuid} ${VOLUME_PATH} ext4 rw,nofail,x-linus-volume 0 0" ]]
  : >"${root}/calls"
  mounts
  [[ ${status} -eq 0 ]]
  refute_called 'mkfs.ext4|mount|chown'
  # And again in another VM.
  rm "${root}/mounted" "${root}/etc/fstab"
  mounts
  [[ ${status} -eq 0 && -s ${root}/etc/fstab ]]
  refute_called mkfs.ext4
}

@test "a disk with anything on it that is not ours is neither formatted nor mounted" {
  echo 77777777-2222-4333-8444-555555555555 >"${root}/uuid"
  refuses 'what is on its disk is not ours (UUID 77777777-2222-4333-8444-555555555555): it is left as it is'
  VOLUME_FORMATTED=true refuses 'is not ours'
  rm "${root}/uuid"
  echo '/dev/sdx 0x1fe dos' >"${root}/signature" # without a UUID: a partition table, a swap of old
  refuses 'what is on its disk is not ours (UUID none)'
  rm "${root}/signature"
  : >"${root}/wipefs-fails" # what cannot be looked at is not empty
  refuses 'is not ours'
  rm "${root}/wipefs-fails"
  : >"${root}/blkid-fails"
  refuses 'is not ours'
  [[ ! -e ${root}/etc/fstab ]]
  refute_called mkfs.ext4
}

@test "a volume that had a filesystem never gets another" {
  VOLUME_FORMATTED=true refuses 'it had a filesystem, and now none is found: it is left as it is'
  : >"${root}/blkid-fails"
  VOLUME_FORMATTED=true refuses 'it had a filesystem'
  refute_called mkfs.ext4
}

@test "one that is to be read gets none, and one whose making fails or does not show is not mounted" {
  VOLUME_MODE=ro refuses 'it has no filesystem yet: attach it for writing first'
  refute_called mkfs.ext4
  : >"${root}/mkfs-fails"
  refuses 'mkfs.ext4 failed'
  stub mkfs.ext4 ':'
  refuses 'is not ours (UUID none)'
}

@test "nothing is mounted over another, and what is not seen there is not mounted" {
  echo "${uuid}" >"${root}/uuid"
  echo /dev/sdb1 >"${root}/mounted"
  refuses "something else is mounted at ${VOLUME_PATH}: /dev/sdb1"
  rm "${root}/mounted"
  echo '/dev/sdy another' >"${root}/disks"
  refuses 'its disk does not appear in the VM'
  echo "/dev/sdx ${volume_serial}" >"${root}/disks"
  : >"${root}/not-seen"
  mounts
  [[ ${status} -ne 0 && ${output} == *"it is not seen at ${VOLUME_PATH}"* ]]
  : >"${root}/mount-fails"
  mounts
  [[ ${status} -ne 0 && ${output} == *"could not be mounted at ${VOLUME_PATH}: wrong fs type"* ]]
}

@test "a guest that does not say that it is mounted is not believed by its exit code" {
  guest_exec() { guest_exit=0 guest_out='all is well'; }
  mounts
  [[ ${status} -ne 0 && ${output} == *'could not be mounted'* ]]
  guest_exec() { guest_exit=1 guest_out='linus-volume mounted'; }
  mounts
  [[ ${status} -ne 0 ]]
}

@test "unmounting takes our line away, and no other's" {
  printf '%s\n' 'UUID=1 / ext4 defaults 0 1' "UUID=9 ${VOLUME_PATH} xfs defaults 0 0" >"${root}/etc/fstab"
  local -r before=$(<"${root}/etc/fstab")
  mounts
  [[ $(wc -l <"${root}/etc/fstab") -eq 3 ]]
  ask_unmount 10
  [[ ${guest_exit} -eq 0 && ${guest_out} == *'linus-volume unmounted'* && $(<"${root}/etc/fstab") == "${before}" ]]
  mounts
  stub umount 'echo "target is busy"; exit 1'
  ask_unmount 10
  [[ ${guest_exit} -eq 9 && ${guest_out} == *'linus-volume busy: target is busy'* && -e ${root}/mounted ]]
}

@test "what would be done is said, and not done" {
  dry_run=yes
  mounts
  [[ ${status} -eq 0 && ${output} == *"LINUS_PLAN:in the VM, through its agent: mount it at ${VOLUME_PATH} (rw)"* ]]
  volume_key=scsi2
  unmounts running no
  [[ ${status} -eq 0 && ${output} == *'LINUS_PLAN:in the VM, through its agent: umount'* && ! -s ${root}/calls ]]
}

@test "a guest whose fstab cannot be written is told of, and another is not" {
  mounts
  [[ ${output} != *'does not mount volume'* ]]
  rm "${root}/mounted" "${root}/etc/fstab"
  mkdir "${root}/etc/fstab.linus"
  mounts
  [[ ${status} -eq 0 && ${output} == *'VM 250 does not mount volume 300 when it boots'* ]]
}

unmounts() { # <the VM's status> <whether it is suspended>
  local -r is=$1 suspended=$2
  require_vm() { :; }
  vm_expect_status() { vm_status=${is}; }
  vm_find_suspended() { vm_suspended=${suspended}; }
  status=0
  output=$(unmount_volume 2>&1) || status=$?
}

@test "a volume is unmounted where it may be mounted, and only the guest's word counts" {
  mounts
  volume_key='' unmounts running no
  [[ ${status} -eq 0 && -e ${root}/mounted ]]
  volume_key=scsi2
  unmounts stopped no
  [[ ${status} -eq 0 && -e ${root}/mounted ]]
  unmounts stopped yes
  [[ ${status} -eq 5 && ${output} == *'is suspended, and has volume 300 mounted in its memory'* && -e ${root}/mounted ]]
  unmounts running no
  [[ ${status} -eq 0 && ! -e ${root}/mounted ]]
  guest_exec() { guest_exit=0 guest_out='all is well'; }
  unmounts running no
  [[ ${status} -eq 5 && ${output} == *'could not be unmounted'* ]]
  guest_exec() { guest_exit=1 guest_out='linus-volume unmounted'; }
  unmounts running no
  [[ ${status} -eq 5 && ${output} == *'could not be unmounted'* ]]
}
