#!/usr/bin/env bats
# lib/volume.sh: which disks are volumes, and who has them. Making, attaching and removing them
# is tested with volume.sh (proxmox/volume.bats).

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs volume
  run_init
}

fail() {
  printf '%s\n' "$@" >&2
  return 1
}

@test "a drive is a volume where its disk is another VM's, or bears a volume's serial number" {
  local line
  for line in 'scsi1 lvm:vm-200-disk-0,size=1G foreign' 'virtio2 dir:200/vm-200-disk-0.qcow2,size=1G foreign' 'sata0 lvm:vm-10-disk-0 foreign' \
    'scsi1 lvm:vm-100-disk-3,serial=linus0123456789ab,size=1G moved' 'scsi1 lvm:vm-100-disk-3,serial=linus0123456789ab moved' \
    'scsi1 lvm:vm-100-disk-0,size=1G own' 'scsi1 lvm:vm-100-disk-0,serial=linus0123456789abc,size=1G own' 'scsi1 lvm:vm-100-disk-0,serial=WD-1,size=1G own' \
    'ide2 local:iso/vm-200-x.iso,media=cdrom own' 'ide2 lvm:vm-200-cloudinit,media=cdrom own' 'unused0 lvm:vm-200-disk-0 own' 'efidisk0 lvm:vm-200-disk-0 own' 'scsi1 /dev/sdb own' 'scsi1 none own'; do
    local key value want
    read -r key value want <<<"${line}"
    declare -gA vm_config=([scsi0]='lvm:vm-100-disk-0,size=8G' ["${key}"]=${value})
    volume_find_foreign 100
    case ${want} in
      foreign) [[ ${volume_foreign} == "${key}" && -z ${volume_moved} ]] || fail "${line}: ${volume_foreign}, ${volume_moved}" ;;
      moved) [[ ${volume_foreign} == "${key}" && ${volume_moved} == "${key}" ]] || fail "${line}: ${volume_foreign}, ${volume_moved}" ;;
      *) [[ -z ${volume_foreign}${volume_moved} ]] || fail "${line}: ${volume_foreign}, ${volume_moved}" ;;
    esac
  done
  declare -gA vm_config=([scsi1]='lvm:vm-200-disk-0' [scsi2]='lvm:vm-201-disk-0')
  volume_find_foreign 100
  [[ ,${volume_foreign}, == *,scsi1,* && ,${volume_foreign}, == *,scsi2,* ]]
  declare -gA vm_config=([scsi1]='lvm:vm-100-d,serial=linus0123456789ab' [scsi2]='lvm:vm-100-e,serial=linus0123456789ac')
  volume_find_foreign 100
  [[ ${volume_moved} == "${volume_foreign}" && ,${volume_moved}, == *,scsi1,* && ,${volume_moved}, == *,scsi2,* ]]
}

@test "a holder's disk is its own, and the unused one first" {
  vm_asked=300
  local line
  for line in 'unused0 lvm:vm-300-disk-0 lvm:vm-300-disk-0' 'scsi4 dir:300/vm-300-disk-0.raw,size=1G dir:300/vm-300-disk-0.raw' 'unused0 lvm:vm-301-disk-0 -' 'net0 virtio=vm-300-x -' 'unused0 lvm:vm-3000-disk-0 -'; do
    local key value want
    read -r key value want <<<"${line}"
    declare -gA vm_config=(["${key}"]=${value})
    volume_find_disk
    [[ ${volume_disk:--} == "${want}" && (${want} == - || ${volume_held} == "${key}") ]] || fail "${line}: ${volume_disk} ${volume_held}"
  done
  declare -gA vm_config=([scsi0]='lvm:vm-300-disk-1' [unused0]='lvm:vm-300-disk-0' [sata1]='lvm:vm-300-disk-2')
  volume_find_disk
  [[ ${volume_disk} == lvm:vm-300-disk-0 && ${volume_held} == unused0 ]]
}

@test "whoever has a disk in a config, of any node, is a user of it, but for its holder" {
  local -r etc=${BATS_TEST_TMPDIR}/etc
  export LINUS_PVE_DIR=${etc}
  mkdir -p "${etc}"/nodes/{pve,pve2}/qemu-server
  volume_find_users lvm:vm-300-disk-0 300
  ((volume_rc == 1 && ${#volume_users[@]} == 0))
  printf '%s\n' 'scsi1: lvm:vm-300-disk-0,size=1G' 'scsi2: lvm:vm-300-disk-00,size=1G' >"${etc}/nodes/pve/qemu-server/100.conf"
  printf '%s\n' 'name: x' '[PENDING]' 'virtio3: lvm:vm-300-disk-0,ro=1,size=1G' >"${etc}/nodes/pve2/qemu-server/101.conf"
  printf '%s\n' 'unused0: lvm:vm-300-disk-0' >"${etc}/nodes/pve/qemu-server/300.conf"
  printf '%s\n' 'scsi1: lvm:vm-300-disk-0' >"${etc}/nodes/pve/qemu-server/102.conf.tmp"
  volume_find_users lvm:vm-300-disk-0 300
  local all
  printf -v all '%s;' "${volume_users[@]}"
  [[ ${#volume_users[@]} -eq 2 && ${all} == *'100 scsi1 rw;'* && ${all} == *'101 virtio3 ro;'* ]] || fail "${all}"
  LINUS_PVE_DIR=${etc}.none volume_find_users lvm:vm-300-disk-0 300
  ((volume_rc > 1))
}
