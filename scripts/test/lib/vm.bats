#!/usr/bin/env bats
# lib/vm.sh: reading a VM's config and proving whose it is. Destroying is tested
# with destroy-vm.sh and create-vm.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
# shellcheck source=../helper/lib.bash
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs log run retry json vm
  run_init
  vm_job=11111111-2222-4333-8444-555555555555
  vm_owner=99999999-2222-4333-8444-555555555555
  vm_name=ours
}

config_is() { # <text>: what qm config prints
  printf '%s\n' "$1" >"${BATS_TEST_TMPDIR}/config"
  stub_program qm "cat ${BATS_TEST_TMPDIR}/config"
}

@test "the config's keys and the description's words, decoded" {
  config_is $'agent: enabled=1\nallow-ksm: 0\ndescription: a%3A b%0Alinus-job%3Dx%25\nscsi0: local:100/vm.raw,size=10G'
  vm_read 100
  [[ ${vm_state} == present && ${vm_config[agent]} == enabled=1 && ${vm_config['allow-ksm']} == 0 ]]
  [[ ${vm_words} == ' a: b linus-job=x% ' ]]
}

@test "absent is only what Proxmox says is absent" {
  stub_program qm 'echo "Configuration file '"'nodes/pve/qemu-server/100.conf'"' does not exist" >&2; exit 2'
  vm_read 100
  [[ ${vm_state} == absent ]]
  stub_program qm 'echo "ipcc_send_rec failed: Connection refused" >&2; exit 111'
  vm_read 100
  [[ ${vm_state} == unknown ]]
  vm_prove
  [[ -n ${vm_doubt} ]]
}

@test "the marker survives its way through Proxmox, and proves" {
  vm_marker
  config_is "name: ours"$'\n'"tags: linus"$'\n'"description: ${vm_description//=/%3D}%0A"
  vm_read 100
  vm_prove
  [[ -z ${vm_doubt} ]]
}

@test "a config read before does not prove the next one" {
  vm_marker
  config_is "name: ours"$'\n'"tags: linus"$'\n'"description: ${vm_description}"
  vm_read 100
  config_is 'name: ours'
  vm_read 100
  vm_prove
  [[ -n ${vm_doubt} ]]
}

@test "the tag is a word among tags" {
  vm_marker
  local tags
  for tags in linus 'a;linus' 'linus;z' 'a,linus'; do
    config_is "name: ours"$'\n'"description: ${vm_description}"$'\n'"tags: ${tags}"
    vm_read 100
    vm_prove
    [[ -z ${vm_doubt} ]]
  done
  config_is "name: ours"$'\n'"description: ${vm_description}"$'\n'"tags: linus-like;not.linus"
  vm_read 100
  vm_prove
  [[ ${vm_doubt} == *tag* ]]
}

@test "sizes in every unit of Proxmox" {
  local pair
  for pair in 'x,size=10G=10485760' 'size=2252M=2306048' 'a:b,size=524288K=524288' 'x,size=1T=1073741824' 'x,size=1048576=1024' 'x,discard=on=0'; do
    vm_disk_kib "${pair%=*}"
    [[ ${vm_kib} -eq ${pair##*=} ]]
  done
}

@test "the boot disk is the first disk of the boot order, not a CD or a card" {
  declare -gA vm_config=([boot]='order=net0;ide2;virtio0;scsi0' [net0]=x [ide2]='l:iso/x.iso,media=cdrom' [virtio0]='l:d,size=1G' [scsi0]='l:e')
  vm_find_boot_disk
  [[ ${vm_boot_disk} == virtio0 ]]
  declare -gA vm_config=([scsi0]='l:e')
  vm_find_boot_disk
  [[ ${vm_boot_disk} == scsi0 ]]
  declare -gA vm_config=([scsi0]='l:vm-1-cloudinit,media=cdrom')
  vm_find_boot_disk
  [[ -z ${vm_boot_disk} ]]
}

@test "a lock that cannot be had refuses the destroy" {
  stub_program qm 'echo called >>'"${BATS_TEST_TMPDIR}/calls"
  LINUS_LOCK_DIR=/nonexistent vm_destroy 100 pve
  [[ ${vm_outcome} == failed && ${vm_reason} == *'could not take the lock'* && ! -e ${BATS_TEST_TMPDIR}/calls ]]
}
