#!/usr/bin/env bats
# lib/vm.sh: reading a VM's config and proving whose it is. Destroying is tested
# with destroy-vm.sh and create-vm.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs vm
  run_init
  vm_job=11111111-2222-4333-8444-555555555555
  vm_owner=99999999-2222-4333-8444-555555555555
  vm_name=ours vm_id=100
  export LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc
  mkdir -p "${LINUS_PVE_DIR}"/nodes/{pve,pve2}/qemu-server
  ln -s nodes/pve/qemu-server "${LINUS_PVE_DIR}/qemu-server"
  echo '{"nodename":"pve","version":0}' >"${LINUS_PVE_DIR}/.members"
}

fail() {
  printf '%s\n' "$@" >&2
  return 1
}

config_is() { # <text of the config's file>
  printf '%s\n' "$1" >"${LINUS_PVE_DIR}/qemu-server/100.conf"
}

@test "the config's keys and the description's words, decoded" {
  config_is $'#a%3A b\n#linus-job=x%25 %zz %\nagent: enabled=1\nallow-ksm: 0\nscsi0: local:100/vm.raw,size=10G'
  vm_read 100
  [[ ${vm_state} == present && ${vm_config[agent]} == enabled=1 && ${vm_config['allow-ksm']} == 0 ]]
  [[ ${vm_words} == ' a: b linus-job=x% %zz % ' ]]
  # As `qm config` prints it and an editor may leave it: Proxmox takes that, too.
  config_is $'description: a%3A b%0Alinus-job%3Dx%25\nagent:enabled=1'
  vm_read 100
  [[ ${vm_words} == ' a: b linus-job=x% ' && ${vm_config[agent]} == enabled=1 ]]
}

@test "what waits for a restart, a snapshot's and Proxmox's own sections are not read" {
  local section
  for section in PENDING pending special:cloudinit one unknown.kind; do
    config_is $'#ours\nmemory: 1024\n\n['"${section}"$']\n#theirs\nmemory: 2048\nlock: x'
    vm_read 100
    [[ ${vm_state} == present && ${vm_config[memory]} == 1024 && -z ${vm_config[lock]:-} && ${vm_words} == ' ours ' ]]
  done
}

@test "a line that is none of Proxmox's is seen, and a password is not" {
  config_is $'lock: destroyed\n<<<<<<< mine\ncipassword: $5$secret'
  vm_read 100
  [[ ${vm_state} == present && ${vm_config[lock]} == destroyed && -n ${vm_config[unparsed]} ]]
  [[ ${vm_config[cipassword]} == hidden ]]
}

@test "bytes of any kind stay one value of one line" {
  config_is "#$(printf '%%0A%%00%%1b[31mname: forged%%0Dlock: x')"$'\nname: ours\a\x01'
  vm_read 100
  [[ ${vm_state} == present && ${vm_config[name]} == 'ours'* && -z ${vm_config[lock]:-} && ${vm_words} != *[[:cntrl:]]* ]]
  config_is "#$(printf 'x%.0s' {1..70000})"
  vm_read 100
  [[ ${vm_state} == unknown && ${run_said} == *'too long'* ]]
}

# What vm_look sees is what vm_read sees, and what both do not take is perl's alone.
looks_alike() { # <whether perl is needed: yes or no> <text of the config>
  local key want
  local -a perls
  local -A read=()
  rm -f "${BATS_TEST_TMPDIR}/perls"
  printf '%s' "$2" >"${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_read 100
  want="${vm_state}/${vm_words}/${vm_copy_of}"
  for key in "${!vm_config[@]}"; do read[${key}]=${vm_config[${key}]}; done
  vm_look 100
  [[ ${vm_state}/${vm_words}/${vm_copy_of} == "${want}" && ${#vm_config[@]} -eq ${#read[@]} ]] || fail "$2: ${want}, ${vm_state}/${vm_words}"
  for key in "${!read[@]}"; do
    [[ ${vm_config[${key}]} == "${read[${key}]}" ]] || fail "$2: ${key}"
  done
  mapfile -t perls <"${BATS_TEST_TMPDIR}/perls"
  [[ ${#perls[@]}$1 == @(1no|2yes) ]] || fail "$2: perl needed: not $1"
}

@test "what is read back after a change is read without perl, and alike" {
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program perl 'echo >>'"${BATS_TEST_TMPDIR}"'/perls; exec /usr/bin/perl "$@"'
  vm_egress=linus-egress=none:2222
  vm_marker
  looks_alike no "#${vm_description//:/%3A}"$'\nagent:enabled=1\nboot: order=scsi0;net0\nscsi0: local-lvm:vm-100-disk-0,size=10G\nlock: clone\n\n[PENDING]\nmemory: 1\nlock: x\n'
  looks_alike no $'#two%3A lines \\x41 \\n\n# 100%25 of it\nname: ours  \n'
  looks_alike no $'name: a\n#linus-job=1\nname: b\n'
  local text
  for text in '' 'name: cut' $'#a\tb\nname: a\n' $'#x%0Ay\nname: a\n' $'#%zz %\nname: a\n' $'description: a%3A b\nname: a\n' $'<<<<<<< mine\n' $'cipassword: $5$secret\n' \
    $'name: a\x01b\n' $'#\xc3\xa4 %C3%A4\n' $'  indented: x\n' "#$(printf 'x%.0s' {1..5000})"$'\n' "$(printf 'scsi%d: x\n' {1..1100})"$'\n'; do
    looks_alike yes "${text}"
  done
  rm "${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_look 100
  [[ ${vm_state} == absent ]]
  echo 'name: ours' >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/100.conf"
  vm_look 100
  [[ ${vm_state} == moved ]]
  rm "${LINUS_PVE_DIR}/.members"
  echo 'name: ours' >"${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_look 100
  [[ ${vm_state} == unknown ]]
}

@test "absent is only what pmxcfs shows to be absent, on every node" {
  vm_read 100
  [[ ${vm_state} == absent ]]
  echo 'name: ours' >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/100.conf"
  vm_read 100
  [[ ${vm_state} == moved && ${vm_moved_to} == pve2 && ${vm_config[name]} == ours ]]
  vm_prove
  [[ -n ${vm_doubt} ]]
  vm_read 100 pve2
  [[ ${vm_state} == present ]]
  rm "${LINUS_PVE_DIR}/nodes/pve2/qemu-server/100.conf"
  vm_read 100 pve3
  [[ ${vm_state} == unknown ]]
  # A file nobody can read; pmxcfs is not mounted; it is not there at all.
  ln -s 100.conf "${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_read 100
  [[ ${vm_state} == unknown ]]
  rm "${LINUS_PVE_DIR}/qemu-server/100.conf" "${LINUS_PVE_DIR}/.members"
  vm_read 100
  [[ ${vm_state} == unknown && ${run_said} == *'not mounted'* ]]
  LINUS_PVE_DIR=/nonexistent vm_read 100
  [[ ${vm_state} == unknown ]]
  vm_prove
  [[ -n ${vm_doubt} ]]
}

@test "a VM that moves while it is looked for is not missing" {
  echo 'name: ours' >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/100.conf"
  mkdir "${BATS_TEST_TMPDIR}/perl"
  # It comes when this node was looked at, before the others are.
  # shellcheck disable=SC2016 # perl's variables
  printf '%s\n' 'package Moves;' \
    'BEGIN { *CORE::GLOBAL::readdir = sub { my @found = CORE::readdir($_[0]); rename "nodes/pve2/qemu-server/100.conf", "qemu-server/100.conf"; @found } }' \
    1 >"${BATS_TEST_TMPDIR}/perl/Moves.pm"
  PERL5OPT="-I${BATS_TEST_TMPDIR}/perl -MMoves" vm_read 100
  [[ ${vm_state} == present ]] || fail "${vm_state}: ${run_said}"
}

@test "without quorum no file is known to be missing, and what is there is there" {
  local members
  for members in '{"nodename":"pve","cluster":{"name":"c","quorate": 0 }}' '{"cluster":{"quorate":"0"}}' '{"cluster":{"quorate"  :  }}'; do
    echo "${members}" >"${LINUS_PVE_DIR}/.members"
    rm -f "${LINUS_PVE_DIR}/qemu-server/100.conf"
    vm_read 100
    [[ ${vm_state} == unknown && ${run_said} == *'no quorum'* ]] || fail "${members}"
    config_is 'name: ours'
    vm_read 100
    [[ ${vm_state} == present ]]
  done
  echo '{"nodename":"pve","cluster":{"name":"c","nodes":2,"quorate": 1 }}' >"${LINUS_PVE_DIR}/.members"
  rm "${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_read 100
  [[ ${vm_state} == absent ]]
}

@test "a file system that does not answer is unknown" {
  stub_program perl 'exec sleep 60'
  run_read() {
    run_start read 0.2 "${@:2}"
    run_wait read
  }
  config_is 'name: ours'
  vm_read 100
  [[ ${vm_state} == unknown && ${run_said} == 'no answer in time'* ]]
}

@test "the marker survives its way through Proxmox, and proves" {
  vm_marker
  config_is "#${vm_description}"$'\n'"name: ours"$'\n'"tags: linus"
  vm_read 100
  vm_prove
  [[ -z ${vm_doubt} ]]
}

# Reads and judges the config after a change to it.
changed() { # <sed's script>
  sed -i "$1" "${LINUS_PVE_DIR}/qemu-server/100.conf"
  vm_read 100
  vm_prove
}

@test "every part of the proof is needed, and each word of it is whole" {
  vm_marker
  local change
  for change in 's/ linus-vm=100//' 's/linus-vm=100/&0/' 's/linus-vm/x&/' "s/${vm_job}/&0/" "s/${vm_job}/&-x/" "s/${vm_job}/x&/" 's/linus-job/x&/' 's/linus-job/& /' "s/linus-job=${vm_job} //" \
    "s/${vm_owner}/&0/" "s/${vm_owner}/&,x/" "s/${vm_owner}/x&/" 's/linus-owner/x&/' "s/ linus-owner=${vm_owner}//" \
    "s/${vm_owner}/${vm_job}/" "s/${vm_job}/${vm_owner}/" '/^#/d' 's/^#/#x/' 's/^#/memory: /' \
    's/^name: ours/&2/' 's/^name: ours/name: Ours/' 's/^name: ours/name: xours/' '/^name/d' 's/^name: ours/name: ou.s/' \
    '/^tags/d' 's/^tags: .*/tags: linux/' 's/^tags: .*/tags: linus-job/' 's/^tags: .*/tags: alinus/' '$ a template: 1' '$ a template: 2'; do
    config_is "#${vm_description}"$'\n'"name: ours"$'\n'"tags: linus"
    changed ''
    [[ -z ${vm_doubt} ]]
    changed "${change}"
    [[ -n ${vm_doubt} ]] || fail "proven in spite of ${change}"
  done
}

@test "a clone or a restored backup of a VM, under another ID, is not that VM" {
  vm_marker
  config_is "#${vm_description}"$'\n'"name: ours"$'\n'"tags: linus"
  changed ''
  [[ -z ${vm_doubt} && -z ${vm_copy_of} ]]
  cp "${LINUS_PVE_DIR}/qemu-server/"{100,1001}.conf
  vm_read 1001
  vm_prove
  [[ ${vm_doubt} == *'a copy'* && ${vm_copy_of} == 100 ]]
  changed 's/linus-vm=100/&1/'
  [[ ${vm_doubt} == *'a copy'* && ${vm_copy_of} == 1001 ]]
  changed 's/linus-vm=1001//' # it names none
  [[ ${vm_doubt} == 'its description does not carry linus-vm=100' && -z ${vm_copy_of} ]]
}

@test "a clone at work has no tag yet, and proves by a whole word" {
  vm_marker
  config_is "#${vm_description} linus-state=cloning"$'\n'"name: ours"
  changed ''
  [[ -z ${vm_doubt} ]]
  changed 's/cloning/&x/'
  [[ ${vm_doubt} == *tag* ]]
  changed 's/cloningx/cloning/; s/linus-state/x&/'
  [[ ${vm_doubt} == *tag* ]]
}

@test "a template proves as a template of ours only, and a VM as none" {
  vm_marker
  local change vm_kind=template
  for change in '' '/^template/d' 's/^template: 1/template: 0/' 's/ linus-template=1//' 's/linus-template=1/&0/' 's/linus-template/x&/' '/^tags/d' "s/${vm_owner}/&0/"; do
    config_is "#${vm_description} linus-template=1"$'\n'"name: ours"$'\n'"tags: linus"$'\n'"template: 1"
    changed "${change}"
    [[ -z ${change} && -z ${vm_doubt} || -n ${change} && -n ${vm_doubt} ]] || fail "'${change}': ${vm_doubt:-proven}"
  done
  vm_kind=vm
  config_is "#${vm_description} linus-template=1"$'\n'"name: ours"$'\n'"tags: linus"$'\n'"template: 1"
  changed ''
  [[ ${vm_doubt} == *template* ]]
}

@test "a config read before does not prove the next one" {
  vm_marker
  config_is "#${vm_description}"$'\n'"name: ours"$'\n'"tags: linus"
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
    config_is "#${vm_description}"$'\n'"name: ours"$'\n'"tags: ${tags}"
    vm_read 100
    vm_prove
    [[ -z ${vm_doubt} ]]
  done
  config_is "#${vm_description}"$'\n'"name: ours"$'\n'"tags: linus-like;not.linus"
  vm_read 100
  vm_prove
  [[ ${vm_doubt} == *tag* ]]
}

@test "the status of a VM is what qm says and means" {
  local line
  for line in 'echo status: running=running' 'echo status: stopped=stopped' 'echo status: prelaunch=prelaunch' \
    'echo status: stopped; exit 2=unknown' 'echo stopped=unknown' 'echo the status: stopped=unknown' 'exit 0=unknown'; do
    stub_program qm "${line%=*}"
    vm_read_status 100
    [[ ${vm_status} == "${line##*=}" ]] || fail "${line}: ${vm_status}"
  done
}

@test "a VM runs while the process lives whose ID QEMU wrote, and which names that file" {
  export LINUS_QEMU_DIR=${BATS_TEST_TMPDIR}/qemu-server
  # shellcheck disable=SC2016 # the stub's own variable
  stub_program qm 'echo asked >>"${LINUS_QEMU_DIR}.asked"; echo "status: paused"'
  vm_see_process 100
  [[ ${vm_process} == unknown ]]
  vm_expect_status 100 stopped
  [[ ${vm_status} == paused && -e ${LINUS_QEMU_DIR}.asked ]]
  rm "${LINUS_QEMU_DIR}.asked"
  mkdir "${LINUS_QEMU_DIR}"
  vm_expect_status 100 stopped
  [[ ${vm_process} == stopped && ${vm_status} == stopped ]]
  perl -e 'sleep 600' -- -id 100 -pidfile "/var/run/qemu-server/100.pid" -daemonize >/dev/null 2>&1 3>&- &
  local -r pid=$!
  echo "${pid}" >"${LINUS_QEMU_DIR}/100.pid"
  until mapfile -d '' -t words <"/proc/${pid}/cmdline" && [[ ${words[0]} == perl ]]; do sleep 0.02; done
  vm_expect_status 100 running
  [[ ${vm_process} == running && ${vm_status} == running && ! -e ${LINUS_QEMU_DIR}.asked ]]
  # Another VM's process, one that is gone, and no number.
  cp "${LINUS_QEMU_DIR}/100.pid" "${LINUS_QEMU_DIR}/10.pid"
  vm_see_process 10
  [[ ${vm_process} == stopped ]]
  kill "${pid}"
  wait "${pid}" || :
  vm_see_process 100
  [[ ${vm_process} == stopped ]]
  local text
  for text in '' x 0 -1 '1 1' "$$"; do
    echo "${text}" >"${LINUS_QEMU_DIR}/100.pid"
    vm_see_process 100
    [[ ${vm_process} == stopped ]] || fail "${text}: ${vm_process}"
  done
  # Not as it should be: qm has the last word.
  vm_expect_status 100 running
  [[ ${vm_status} == paused && -e ${LINUS_QEMU_DIR}.asked ]]
}

@test "sizes in every unit of Proxmox" {
  local pair
  for pair in 'x,size=10G=10485760' 'size=2252M=2306048' 'a:b,size=524288K=524288' 'x,size=1T=1073741824' 'x,size=1048576=1024' 'x,size=14=0' 'x,size=0T=0' 'x,discard=on=0'; do
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

proves() { # <kind> <template: 0 or 1> <word>
  vm_marker
  config_is "#${vm_description} $3"$'\n'"name: ours"$'\n'"tags: linus"$'\n'"template: $2"
  vm_read 100
  vm_kind=$1 vm_prove
  [[ -z ${vm_doubt} ]]
}

@test "what holds a volume, and what is a checkpoint, proves as that alone" {
  proves vm 0 ''
  proves volume 0 linus-volume=data
  ! proves volume 0 '' || fail 'a VM proves as a volume'
  ! proves vm 0 linus-volume=data || fail 'a volume proves as a VM'
  ! proves template 1 'linus-template=1 linus-volume=data' || fail 'a volume proves as a template'
  proves vm 1 linus-checkpoint=9000
  ! proves vm 1 '' || fail 'a template proves as a VM'
  [[ ${vm_doubt} == 'it is a template' ]]
}

@test "of a VM that is elsewhere, or cannot be read, the doubt says that" {
  vm_marker
  config_is "#${vm_description}"$'\n'"name: ours"$'\n'"tags: linus"
  mv "${LINUS_PVE_DIR}"/qemu-server/100.conf "${LINUS_PVE_DIR}/nodes/pve2/qemu-server/"
  vm_read 100
  vm_prove
  [[ ${vm_doubt} == "node 'pve2' has a VM of that ID"* ]]
  rm "${LINUS_PVE_DIR}/nodes/pve2/qemu-server/100.conf"
  vm_read 100
  vm_prove
  [[ ${vm_doubt} == 'its config could not be read' ]]
}

@test "suspended is what is off, with its memory on a disk, and no other work's" {
  local line
  for line in 'stopped x suspended yes' 'stopped x - yes' 'running x suspended no' 'stopped - suspended no' 'stopped x backup no'; do
    local status memory lock want
    read -r status memory lock want <<<"${line}"
    declare -gA vm_config=()
    [[ ${memory} == - ]] || vm_config[vmstate]=${memory}
    [[ ${lock} == - ]] || vm_config[lock]=${lock}
    vm_find_suspended "${status}"
    [[ ${vm_suspended} == "${want}" ]] || fail "${line}: ${vm_suspended}"
  done
}

@test "what no copy can have is found, and the disks are measured, on all their storages" {
  local key
  for key in hostpci0 usb1 virtiofs0 ivshmem parallel0 net1 tpmstate0; do
    declare -gA vm_config=([scsi0]=x [net0]=y ["${key}"]=z)
    vm_find_uncopyable
    [[ ${vm_uncopyable} == "${key}" ]] || fail "${key}: ${vm_uncopyable}"
  done
  vm_asked=100
  declare -gA vm_config=([scsi0]='lvm:vm-100-disk-0,size=2G' [efidisk0]='lvm:vm-100-disk-1,size=4M' [ide2]='local:iso/x.iso,media=cdrom,size=600M'
    [name]='fast:vm-100-name,size=1G' [vmstate]='zfs:vm-100-state-a' [unused0]='nfs:100/vm-100-disk-9.qcow2' [scsi1]='lvm:vm-200-disk-0,size=1G' [net0]='virtio=x,bridge=b')
  vm_find_uncopyable
  [[ -z ${vm_uncopyable} ]]
  vm_measure_disks
  [[ ${vm_disks_mib} -eq $((3 * 1024 + 4)) ]] || fail "${vm_disks_mib}"
  vm_find_storages
  local -a storages volumes
  read -ra storages <<<"${vm_storages}"
  read -ra volumes <<<"${vm_volumes}"
  [[ ${#storages[@]} -eq 4 && " ${vm_storages} " == *' lvm '* && " ${vm_storages} " == *' zfs '* && " ${vm_storages} " == *' nfs '* && " ${vm_storages} " == *' local '* ]] || fail "${vm_storages}"
  [[ ${#volumes[@]} -eq 4 && " ${vm_volumes} " == *' lvm:vm-100-disk-0 '* && " ${vm_volumes} " == *' zfs:vm-100-state-a '* && " ${vm_volumes} " == *' nfs:100/vm-100-disk-9.qcow2 '* ]] || fail "${vm_volumes}"
}

@test "what the HA manager is asked for is waited for, and nothing else is" {
  export LINUS_QEMU_DIR=${BATS_TEST_TMPDIR}/none
  local -r pauses=${BATS_TEST_TMPDIR}/pauses
  local -a lines
  # shellcheck disable=SC2317
  run_pause() { echo "$1" >>"${pauses}"; }
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program qm 'echo >>"${0}.calls"; (($(wc -l <"${0}.calls") < 4)) && echo "status: stopped" || echo "status: running"'
  vm_await_status 100 running 'Requesting HA start for VM 100'
  mapfile -t lines <"${pauses}"
  [[ ${vm_ha} == yes && ${vm_status} == running && ${#lines[@]} -eq 3 ]] || fail "${vm_status}"
  rm "${pauses}" "${BATS_TEST_TMPDIR}/bin/qm.calls"
  vm_await_status 100 running 'start failed'
  [[ ${vm_ha} == no && ${vm_status} == stopped && ! -e ${pauses} ]]
  # A process that is not as asked says so without qm.
  LINUS_QEMU_DIR=${BATS_TEST_TMPDIR}/qemu
  mkdir "${LINUS_QEMU_DIR}"
  rm "${BATS_TEST_TMPDIR}/bin/qm.calls"
  vm_await_status 100 running 'Requesting HA start for VM 100'
  mapfile -t lines <"${BATS_TEST_TMPDIR}/bin/qm.calls"
  [[ ${vm_status} == stopped && ${#lines[@]} -eq 1 ]]
  mapfile -t lines <"${pauses}"
  [[ ${#lines[@]} -eq 90 ]]
}

tasks_are() { # <entry...>: as Proxmox lists them
  local IFS=,
  # shellcheck disable=SC2317
  stub_program pvesh "printf '%s' '[$*]'"
}

@test "a task at work on the VM is seen, or one that may be, and those that have ended are not" {
  local now start
  start=$(cut -d' ' -f22 "/proc/$$/stat")
  upid() { printf '{"upid":"UPID:pve:%08X:%08X:0000:%s:%s:root@pam:"%s}' "$$" "$1" "$2" "$3" "${4:-}"; }
  local -a busy=("$(upid "${start}" qmstart 100)" "$(upid "${start}" qmclone 9000)" "$(upid "${start}" vzdump '')" '{"upid":"nonsense"}')
  local -a free=("$(upid "${start}" qmstart 101)" "$(upid "${start}" vzdump 101)" "$(upid "$((start + 1))" qmstart 100)" "$(upid "${start}" qmstart 100 ',"endtime":5')")
  local one
  for one in "${busy[@]}"; do
    tasks_are "${free[0]}" "${one}"
    vm_find_tasks 100 pve
    [[ ${vm_busy} == yes ]] || fail "${one}"
  done
  for one in "${free[@]}"; do
    tasks_are "${one}"
    vm_find_tasks 100 pve
    [[ ${vm_busy} == no ]] || fail "${one}"
  done
  stub_program pvesh 'echo "[]"; exit 1'
  vm_find_tasks 100 pve
  [[ ${vm_busy} == yes ]]
  stub_program pvesh 'echo "no list"'
  vm_find_tasks 100 pve
  [[ ${vm_busy} == yes ]]
}
