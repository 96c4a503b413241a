#!/usr/bin/env bats
# build-template.sh as a whole: a process, on a stub of Proxmox that keeps state;
# ssh is a stub too, which records the programs that are run in the guest.

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
  unset VM_NAME VM_TEMPLATE VM_CPU VM_RAM VM_DISK SSH_PUBLIC_KEY
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  VM_IMAGE_SHA256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  export VM_IMAGE_URL=file://${BATS_TEST_TMPDIR}/disk.img VM_IMAGE_SHA256=${VM_IMAGE_SHA256%% *}
  export IMAGE_DIR=${BATS_TEST_TMPDIR}/images TEMPLATE_NAME=built
  stub_program qemu-img 'echo "{\"virtual-size\": 2147483648}"'
  guest_interfaces '{"name":"e","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]}'
  make_guest
  # Answers with the next line of ssh-faults (EXIT TEXT), else as a guest in
  # which all is well; what is meant for bash is really run, in make_guest's.
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program ssh '
    printf "%s\n" "ssh $*" >>"${PVE_STUB}/calls"
    cat >"${PVE_STUB}/program"
    cat "${PVE_STUB}/program" >>"${PVE_STUB}/guest-programs"
    [[ " $* " =~ " UserKnownHostsFile="([^ ]+) ]] && cp "${PVE_STUB}/keyscan" "${BASH_REMATCH[1]}"
    if [[ -s ${PVE_STUB}/ssh-faults ]]; then
      read -r code text <"${PVE_STUB}/ssh-faults"
      sed -i 1d "${PVE_STUB}/ssh-faults"
      echo "${text}" >&2
      exit "${code}"
    fi
    if [[ $* == *" bash -s "* ]]; then
      PATH=${PACKAGE_STUB}/bin LINUS_ROOT=${PACKAGE_STUB} exec bash -s <"${PVE_STUB}/program"
    fi'
}

# A Debian 12 without packages, its package manager a stub.
make_guest() {
  export PACKAGE_STUB=${BATS_TEST_TMPDIR}/guest PACKAGE_STUB_PROGRAM=${scripts_dir}/test/helper/package-stub
  mkdir -p "${PACKAGE_STUB}"/{bin,etc,installed,absent,fails,lies}
  printf 'ID=debian\nVERSION_ID="12"\n' >"${PACKAGE_STUB}/etc/os-release"
  local tool path
  for tool in bash cat chmod dirname env grep ln mktemp rm timeout true; do
    path=$(type -P "${tool}")
    ln -s "${path}" "${PACKAGE_STUB}/bin/${tool}"
  done
  for tool in id apt-get dpkg-query; do
    ln -s "${PACKAGE_STUB_PROGRAM}" "${PACKAGE_STUB}/bin/${tool}"
  done
}

assert_rolled_back() {
  assert_no_vm_of_ours
  assert_foreign_untouched
  assert_nothing_left
}

@test "builds a template that carries our mark and no key, and answers all keys" {
  run_script build-template
  assert_status 0
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_TEMPLATE_NAME:built
  assert_line LINUS_VM_NODE:pve
  assert_line LINUS_VM_USER:debian
  read_vm_id
  local config
  config=$(<"${PVE_STUB}/vm/${id}")
  grep -qx 'template: 1' <<<"${config}"
  grep -qx 'name: built' <<<"${config}"
  grep -qx 'tags: linus' <<<"${config}"
  grep -qx 'ciuser: debian' <<<"${config}"
  grep -qx "#linus-job=${job} linus-owner=${owner} linus-vm=${id} linus-template=1" <<<"${config}"
  grep -q "^scsi0: local-lvm:base-${id}-disk-0" <<<"${config}"
  [[ ${config} != *sshkeys* ]]
  [[ $(<"${PVE_STUB}/status/${id}") == stopped ]]
  grep -q 'cloud-init clean --logs --machine-id' "${PVE_STUB}/guest-programs"
  grep -q 'rm -f /etc/ssh/ssh_host_\*' "${PVE_STUB}/guest-programs"
  assert_nothing_left
  assert_foreign_untouched
}

@test "what jobs need is installed before the VM becomes a template" {
  run_script build-template
  assert_status 0
  assert_line 'LINUS_PACKAGES_INSTALLED:ca-certificates curl git git-lfs jq less procps rsync tar unzip xz-utils zip'
  assert_line LINUS_PACKAGE_COUNT:12
  [[ -e ${PACKAGE_STUB}/installed/rsync && ! -e ${PACKAGE_STUB}/installed/nodejs ]]
  TEMPLATE_NAME=rich VM_BOOTSTRAP=python,node run_script build-template
  assert_status 0
  assert_line LINUS_NODE_VERSION:18.20.4
  assert_line LINUS_PYTHON_VERSION:3.11.2
  TEMPLATE_NAME=all VM_BOOTSTRAP=all run_script build-template
  assert_status 0
  assert_line LINUS_CLAUDE_VERSION:2.1.197
  : >"${PVE_STUB}/guest-programs"
  TEMPLATE_NAME=bare VM_BOOTSTRAP=none run_script build-template
  assert_status 0
  ! grep -q 'bootstrap_guest base' "${PVE_STUB}/guest-programs" || fail 'the bootstrap ran'
}

@test "the template of a vendor's image says what it has, another image's does not" {
  local given
  for given in 'python  node=python,node' 'none=none' 'all=base,python,node,docker,claude,codex,gemini'; do
    run bash -c '
      source "$1"
      mark_template() { echo "marked:$1"; exit; }
      VM_BOOTSTRAP=$2 VM_IMAGE_URL=$3
      make_template' bash "${host_scripts}/build-template.sh" "${given%=*}" ''
    assert_line "marked: linus-has=${given#*=}"
  done
  VM_BOOTSTRAP=none run_script build-template
  read_vm_id
  ! grep -q linus-has "${PVE_STUB}/vm/${id}" || fail "$(<"${PVE_STUB}/vm/${id}")"
}

@test "the job runner is put into the VM, byte for byte and root's, or the build fails" {
  # shellcheck disable=SC2016 # it is not expanded, and that is the point
  printf 'echo "it'"'"'s $(id)"\nEND\n\\x\n' >"${BATS_TEST_TMPDIR}/runner"
  VM_RUNNER=${BATS_TEST_TMPDIR}/runner VM_BOOTSTRAP=none run_script build-template
  assert_status 0
  local program
  program=$(sed -n '/mkdir -p .opt.linus$/,/^    \[ /p' "${PVE_STUB}/guest-programs")
  bash -euc "${program//\/opt\/linus/${BATS_TEST_TMPDIR}\/opt}"
  cmp "${BATS_TEST_TMPDIR}/runner" "${BATS_TEST_TMPDIR}/opt/job-runner.sh"
  printf '%s\n' '0 login' '0 agent' '1 No space left on device' >"${PVE_STUB}/ssh-faults"
  TEMPLATE_NAME=another VM_RUNNER=${BATS_TEST_TMPDIR}/runner run_script build-template
  assert_status 5
  assert_says 'could not put the job runner into VM'
  assert_says 'No space left'
}

@test "an archive of a runner on this host goes into the VM, with its checksum" {
  local -r archive=${BATS_TEST_TMPDIR}/runner.tar.gz sum=$(printf '0%.0s' {1..64})
  echo 'an archive' >"${archive}"
  VM_BOOTSTRAP=github-runner VM_GITHUB_RUNNER=file://${archive} VM_GITHUB_RUNNER_SHA256=${sum} run_script build-template
  assert_status 5 # this guest has no curl
  assert_says 'could not be installed'
  assert_called 'ssh .* cat >/var/tmp/linus-github-runner'
  grep -qx 'an archive' "${PVE_STUB}/guest-programs"
  grep -q "LINUS_GITHUB_RUNNER='file:///var/tmp/linus-github-runner' LINUS_GITHUB_RUNNER_SHA256='${sum}' LINUS_GITHUB_RUNNER_USER='debian'" "${PVE_STUB}/guest-programs"
  assert_rolled_back
  VM_BOOTSTRAP=github-runner VM_GITHUB_RUNNER=file://${archive}.not VM_GITHUB_RUNNER_SHA256=${sum} run_script build-template
  assert_status 3
  assert_says 'is no file on'
  assert_rolled_back
  VM_BOOTSTRAP=github-runner VM_GITHUB_RUNNER=file://${archive} run_script build-template
  assert_status 1
  assert_says 'LINUS_ERROR:VM_GITHUB_RUNNER_SHA256='
}

@test "a package that cannot be had is told in the bootstrap's own words, and rolled back" {
  : >"${PACKAGE_STUB}/absent/rsync"
  run_script build-template
  assert_status 5
  assert_says 'could not install base in VM'
  assert_says 'the distribution does not have all of'
  assert_says 'or set VM_BOOTSTRAP=none'
  assert_rolled_back
  VM_BOOTSTRAP='base;reboot' run_script build-template
  assert_status 1
  assert_says 'LINUS_ERROR:VM_BOOTSTRAP='
}

@test "what was set up in another machine's guest is no template" {
  echo '127.0.0.1 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHN0cmFuZ2Vy' >"${PVE_STUB}/keyscan"
  VM_BOOTSTRAP=none run_script build-template
  assert_status 6
  assert_says 'what was set up at 127.0.0.1'
  assert_rolled_back
}

@test "a clone's first boot makes up for no upgrade that its template slept through" {
  run_script build-template
  assert_status 0
  local -r root=${BATS_TEST_TMPDIR}/root
  mkdir -p "${root}/etc"
  # That part of the program, as a guest would run it, below a directory.
  sed -n "/for timer in/,/^ *done\$/{s|/etc/systemd|${root}&|g;p}" "${PVE_STUB}/guest-programs" >"${root}/program"
  sh -eu "${root}/program"
  local timer
  for timer in apt-daily apt-daily-upgrade; do
    [[ $(<"${root}/etc/systemd/system/${timer}.timer.d/linus.conf") == $'[Timer]\nPersistent=false' ]]
  done
  read_vm_id
  grep -qx 'ciupgrade: 0' "${PVE_STUB}/vm/${id}"
}

@test "no address stays with the template" {
  VM_IP_CONFIG=127.0.0.1/8 VM_BOOTSTRAP=none run_script build-template
  assert_status 0
  read_vm_id
  grep -qx 'ipconfig0: ip=dhcp' "${PVE_STUB}/vm/${id}"
}

@test "create-vm clones what was built, and the list of VMs does not have it" {
  run_script build-template
  assert_status 0
  read_vm_id
  answer /nodes/pve/qemu "[{\"vmid\":${id},\"name\":\"built\",\"status\":\"stopped\",\"template\":1,\"tags\":\"linus\"}]"
  answer "/nodes/pve/qemu/${id}/config" "{\"description\":\"linus-job=${job} linus-owner=${owner} linus-template=1\\n\"}"
  run_script list-vms
  assert_status 0
  refute_line_like LINUS_VM:
  VM_KIND=template run_script list-vms
  assert_line "LINUS_VM:id=${id} node=pve name=built status=stopped job=${job} owner=${owner}"
  guest_interfaces '{"name":"e","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]}'
  VM_NAME=clone VM_TEMPLATE=built SSH_PUBLIC_KEY='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHRlc3Q test key' run_script create-vm
  assert_status 0
  assert_line LINUS_VM_USER:debian
}

@test "TEMPLATE_ID is the ID it gets, or nothing is done" {
  TEMPLATE_ID=8000 run_script build-template
  assert_status 0
  assert_line LINUS_VM_ID:8000
  TEMPLATE_NAME=another TEMPLATE_ID=101 run_script build-template
  assert_status 3
  assert_foreign_untouched
}

@test "a name that is taken is exit 5, and nothing is touched" {
  TEMPLATE_NAME=agent-template run_script build-template
  assert_status 5
  assert_says "VM already exists: 'agent-template' is VM 9000"
  assert_line LINUS_VM_OUTCOME:exists
  refute_called 'qm \(create\|set\|start\|shutdown\|stop\|template\|destroy\) .*'
  assert_rolled_back
}

@test "a name that another run has taken meanwhile is exit 5, and only our own VM goes" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook create 'printf "name: built\ntags: linus\n" >"${PVE_STUB}/vm/555"; echo running >"${PVE_STUB}/status/555"'
  run_script build-template
  assert_status 5
  assert_says "VM already exists: 'built' is VM 555"
  assert_line LINUS_VM_OUTCOME:exists
  refute_called 'qm \(start\|template\) .*'
  [[ -e ${PVE_STUB}/vm/555 ]] || fail "the other run's VM is gone"
  rm "${PVE_STUB}/vm/555" "${PVE_STUB}/status/555"
  assert_rolled_back
}

@test "each step that fails is exit 5 or 6 in its own words, and is rolled back" {
  fault create 255 skip 'no space left'
  run_script build-template
  assert_status 5
  assert_says 'no space left'
  assert_rolled_back

  fault start 255 skip 'start failed: out of memory'
  run_script build-template
  assert_status 5
  assert_says 'out of memory'
  assert_rolled_back

  printf '%s\n' '0 login' '100 E: Unable to locate package qemu-guest-agent' >"${PVE_STUB}/ssh-faults"
  run_script build-template
  assert_status 5
  assert_says 'Unable to locate package qemu-guest-agent'
  assert_rolled_back

  printf '%s\n' '0 login' '0 agent' '1 bash: not found' >"${PVE_STUB}/ssh-faults"
  run_script build-template
  assert_status 5
  assert_says 'could not install base in VM'
  assert_rolled_back

  VM_BOOTSTRAP=none
  export VM_BOOTSTRAP
  printf '%s\n' '0 login' '0 agent' '2 unrecognized arguments: --machine-id' >"${PVE_STUB}/ssh-faults"
  run_script build-template
  assert_status 5
  assert_says 'unrecognized arguments'
  assert_rolled_back

  fault shutdown 255 skip 'VM quit/powerdown failed - got timeout'
  local try
  for try in 2 3 4 5 6; do
    : "try ${try}"
    fault shutdown 255 skip 'VM quit/powerdown failed - got timeout'
  done
  run_script build-template
  assert_status 5
  assert_says 'did not shut down'
  assert_rolled_back

  fault set 255 skip 'unable to parse value'
  run_script build-template
  assert_status 5
  assert_says 'could not mark'
  assert_rolled_back
}

@test "a log-in that never comes is exit 6, rolled back" {
  VM_READY_TIMEOUT=1
  stub_program ssh 'echo "Permission denied (publickey)." >&2; command sleep 0.3; exit 255'
  run_script build-template
  assert_status 6
  assert_says 'Permission denied'
  assert_rolled_back
}

@test "a template that Proxmox only says it made is rolled back" {
  fault template 0 skip 'command lvrename failed: exit code 5'
  run_script build-template
  assert_status 5
  assert_says 'did not become a template'
  assert_says 'lvrename failed'
  assert_rolled_back
}

@test "a template by its mark whose disk is none is rolled back too" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook template 'echo "template: 1" >>"${PVE_STUB}/vm/$2"'
  fault template 0 skip 'command lvrename failed: exit code 5'
  run_script build-template
  assert_status 5
  assert_rolled_back
}

@test "dry run prints the commands and changes nothing" {
  run_script build-template --dry-run
  assert_status 0
  assert_says "LINUS_PLAN:'qm' 'create'"
  assert_says 'LINUS_PLAN:qm template'
  refute_called 'qm \(create\|set\|start\|stop\|template\|destroy\) .*'
  [[ ! -e ${IMAGE_DIR} ]]
  assert_nothing_left
}

@test "with a nonce the answer is framed" {
  LINUS_NONCE=abc123 run_script build-template
  assert_status 0
  [[ ${output} == 'LINUS_BEGIN:abc123'$'\n'* && ${output} == *$'\nLINUS_RESULT:SUCCESS\nLINUS_END:abc123' ]]
}

@test "a template is removed only as a template, and a VM never as one" {
  run_script build-template
  read_vm_id
  VM_ID=${id} VM_NAME=built run_script destroy-vm
  assert_status 5
  assert_says 'it is a template'
  VM_ID=${id} VM_NAME=built VM_KIND=template run_script destroy-vm
  assert_status 0
  [[ ! -e ${PVE_STUB}/vm/${id} ]]
  export VM_NAME=linus-job-11111111
  add_our_vm 250
  VM_ID=250 VM_KIND=template run_script destroy-vm
  assert_status 5
  assert_says 'it is not a template'
  add_our_vm 250 'template: 1'
  VM_ID=250 VM_KIND=template run_script destroy-vm
  assert_status 5
  assert_says 'does not carry linus-template=1'
  [[ -e ${PVE_STUB}/vm/250 ]]
}
