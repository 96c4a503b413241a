#!/usr/bin/env bash
# Builds a template from a cloud image on the Proxmox VE node this runs on, ready for
# create-vm. It boots a throw-away VM from the image, installs the guest agent if it is
# missing and what jobs commonly need (as bootstrap.sh does), removes what identifies a
# machine, and converts the VM to the template.
#
# Stock images have no agent, and Proxmox has no other way into a guest that works on
# every storage. So this host works in the VM over SSH, as the image's own user, with a
# key that is created here and exists only while this runs.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
# The VM must reach its distribution's package servers, unless it needs no packages.
#
# Inputs (environment), all optional; those not listed are create-vm's:
#   TEMPLATE_NAME agent-template   must not be the name of a VM
#   TEMPLATE_NAME_IN cluster       where to look for that name: cluster, or node (only
#                       this one)
#   TEMPLATE_ID         default: a free one of VM_ID_RANGE (100-999)
#   VM_OS debian-12     ubuntu, debian-12, debian-13, almalinux-9, rocky-9
#   VM_IMAGE_URL, VM_IMAGE_SHA256   another image than VM_OS's (file:// works)
#   VM_DISK             (GB) default: 5, for almalinux and rocky 10. Clones
#                       cannot have less
#   VM_CPU 2, VM_RAM 2048 (MB)     of the throw-away VM, and of clones
#                       that are created by hand
#   VM_BOOTSTRAP base   what to install, separated by blanks: base, python, node, docker,
#                       claude, codex, gemini, code-interpreter, github-runner,
#                       forgejo-runner, gitea-runner; or all, which leaves out
#                       code-interpreter and the three runners; or none
#   VM_GITHUB_RUNNER    URL of the archive of github-runner (file:// is this host's)
#   VM_GITHUB_RUNNER_SHA256   its checksum
#   VM_FORGEJO_RUNNER, VM_FORGEJO_RUNNER_SHA256, VM_GITEA_RUNNER, VM_GITEA_RUNNER_SHA256
#                       the same for the programs of the other runners
#   VM_RUNNER           file on this host: the job runner. Clones then have it already
#                       (in /opt/linus). Default: none
#   VM_READY_TIMEOUT 900 (seconds)  until the VM is ready and its agent responds
#   VM_BOOTSTRAP_TIMEOUT 3600 (seconds)  for installing VM_BOOTSTRAP
#   LINUS_OWNER         UUID of the installation that the template belongs to
#   LINUS_LEASE_SECONDS 10800   after that time the host destroys the VM if it is not a
#                       template yet, for example because this run was killed
#   LINUS_NONCE         delimits the output
# Options: --dry-run (check everything, print the commands, change nothing), --help
#
# The result is on stdout in LINUS_ lines (lib/result.sh), the log on stderr.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 invalid configuration,
# 4 node offline, 5 the name is taken, or a step failed, 6 network or SSH
# timeout, 129/130/141/143 signal. On every failure the script destroys its own VM.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/bootstrap.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/create.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/template.sh"

ssh_deadline=0 # for the work in the VM
installed=()   # KEY:value, as the bootstrap reported

usage() {
  printf '%s\n' \
    'usage: [VM_OS=debian-12] [TEMPLATE_NAME=agent-template] build-template.sh [--dry-run | --help]' \
    'Makes a template of a cloud image on this Proxmox VE node. All inputs and' \
    'exit codes are listed at the top of the script.' >&2
}

read_inputs() { # <argument...>
  script_read_options --dry-run "$@"
  : "${TEMPLATE_NAME:=agent-template}" "${TEMPLATE_ID:=}" "${VM_OS:=debian-12}"
  : "${LINUS_LEASE_SECONDS:=10800}" "${VM_READY_TIMEOUT:=900}" "${VM_BOOTSTRAP:=base}" "${VM_BOOTSTRAP_TIMEOUT:=3600}"
  : "${VM_RUNNER:=}"
  VM_BOOTSTRAP=${VM_BOOTSTRAP//,/ }
  local -r known='base|python|node|docker|claude|codex|gemini|code-interpreter|github-runner|forgejo-runner|gitea-runner'
  validate_pattern VM_BOOTSTRAP "${VM_BOOTSTRAP}" "none|all|(${known})( +(${known}))*" "none, all, or some of: ${known//|/ }"
  local part name
  for part in github-runner forgejo-runner gitea-runner; do
    if [[ " ${VM_BOOTSTRAP} " == *" ${part} "* ]]; then
      name=VM_${part^^}
      name=${name//-/_}
      validate_pattern "${name}" "${!name:-}" '(https?|file)://[^ ]+' 'an http, https or file URL'
      name+=_SHA256
      validate_pattern "${name}" "${!name:-}" '[0-9a-f]{64}' "the sha256 sum of the file at ${name%_SHA256}, in lower case"
    fi
  done
  validate_number VM_BOOTSTRAP_TIMEOUT "${VM_BOOTSTRAP_TIMEOUT}" 1 86400 seconds
  validate_name TEMPLATE_NAME "${TEMPLATE_NAME}"
  : "${TEMPLATE_NAME_IN:=cluster}"
  validate_pattern TEMPLATE_NAME_IN "${TEMPLATE_NAME_IN}" 'cluster|node' 'cluster or node'
  names_in=${TEMPLATE_NAME_IN}
  if [[ -n ${TEMPLATE_ID} ]]; then
    validate_number TEMPLATE_ID "${TEMPLATE_ID}" 100 999999999
    VM_ID_RANGE=${TEMPLATE_ID}-${TEMPLATE_ID}
  fi
  case ${VM_OS} in
    almalinux* | rocky*) : "${VM_DISK:=10}" ;;
    *) : "${VM_DISK:=5}" ;;
  esac
  VM_NAME=${TEMPLATE_NAME}
  VM_TEMPLATE='' VM_CHECKPOINT=''
  # An image may have no agent before one is installed here. That agent must then prove the
  # machine that was worked in (verify_agent).
  VM_TRUST_FIRST_USE=true
  validate_tools ssh ssh-keygen
  make_key
  read_settings
}

make_key() {
  run_read 60 ssh-keygen -q -t ed25519 -N '' -C 'linus build-template' -f "${run_dir}/key"
  if ((run_rc != 0)); then
    result_fail dependency "could not create an SSH key on ${HOSTNAME}: ${run_said}" 'look at: ssh-keygen -t ed25519'
  fi
  run_slurp "${run_dir}/key.pub"
  SSH_PUBLIC_KEY=${run_text}
}

# --- in the guest ---

# Runs a program as root in the VM, with the user's name and whether the agent answers (yes or no)
# as its arguments; run_rc and run_said are the program's. 255 is ssh's own failure: no login. Its
# output is limited to 64 MiB. A signal ends the wait at once, because the roll-back destroys the
# VM.
guest_run() { # <program> [<shell: sh>]
  printf '%s\n' "$1" >"${run_dir}/program"
  guest_feed "${run_dir}/program" "sudo -n ${2:-sh} -s -- ${vm_user} ${guest_agent}"
}

guest_feed() { # <file for its stdin> <command>
  local -ra login=(ssh -T -F /dev/null -p "${VM_SSH_PORT}" -i "${run_dir}/key" -o IdentitiesOnly=yes -o BatchMode=yes
    -o StrictHostKeyChecking=accept-new -o "UserKnownHostsFile=${run_dir}/known_hosts" -o GlobalKnownHostsFile=/dev/null
    -o ConnectTimeout=10 -o ServerAliveInterval=10 -o LogLevel=ERROR
    "${vm_user}@${vm_ip}" "$2")
  local seconds=$((ssh_deadline - SECONDS))
  # shellcheck disable=SC2016 # the inner shell's parameters
  run_read "$((seconds < 1 ? 1 : seconds))" bash --norc --noprofile -c 'ulimit -f 65536; exec "${@:2}" <"$1"' bash "$1" "${login[@]}"
}

# The key comes into the guest some time after its SSH server is up.
wait_for_login() {
  while :; do
    guest_run 'exit 0'
    if ((run_rc == 0)); then
      return 0
    elif ((SECONDS >= ssh_deadline)); then
      break
    fi
    run_pause 1
  done
  local -r said=${run_said}
  fail_when_stopped
  result_fail timeout "could not log in to VM ${vm_id} at ${vm_ip}:${VM_SSH_PORT} as ${vm_user} within ${VM_READY_TIMEOUT} s: ${said}" \
    "check that the image runs cloud-init, and makes the user ${vm_user} with sudo (or set VM_SSH_USER); or raise VM_READY_TIMEOUT"
}

customise_guest() {
  ssh_deadline=$((SECONDS + VM_READY_TIMEOUT))
  wait_for_banner "${ssh_deadline}"
  check_place
  wait_for_login
  # Enterprise Linux ships its agent with guest-exec turned off, which create-vm needs to see that
  # cloud-init is done. The agent's unit is static on some systems: then there is nothing to enable.
  # shellcheck disable=SC2016 # the guest's variables
  guest_run '
    set -eu
    cloud-init status --wait >/dev/null || [ $? -eq 2 ]
    if [ "$2" = no ] && ! command -v qemu-ga >/dev/null && [ ! -x /usr/sbin/qemu-ga ]; then
      if command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get -q -o DPkg::Lock::Timeout=300 update >&2
        apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends qemu-guest-agent >&2
      else
        dnf -q -y install qemu-guest-agent >&2
      fi
    fi
    if [ -f /etc/sysconfig/qemu-ga ]; then
      sed -i -E "s/^(BLACKLIST_RPC|BLOCK_RPCS|FILTER_RPC_ARGS)=/#&/" /etc/sysconfig/qemu-ga
    fi
    if [ -d /run/systemd/system ]; then
      systemctl -q enable qemu-guest-agent 2>/dev/null || :
      systemctl restart qemu-guest-agent
    fi'
  if ((run_rc != 0)); then
    result_fail vm "could not set up the guest agent in VM ${vm_id} (exit ${run_rc}): ${run_said}" \
      'check that VMs on the bridge reach the package servers of their distribution'
  fi
}

# Puts the job runner into the VM, as root's. Whoever uses it there compares its checksum with the
# wanted one.
install_runner() {
  local runner sum
  if [[ -z ${VM_RUNNER} ]]; then
    return 0
  fi
  ssh_deadline=$((SECONDS + VM_READY_TIMEOUT))
  runner=$(base64 -- "${VM_RUNNER}")
  sum=$(sha256sum <"${VM_RUNNER}")
  guest_run "
    set -eu
    umask 022
    mkdir -p /opt/linus
    base64 -d >/opt/linus/job-runner.sh <<'END'
${runner}
END
    [ \"\$(sha256sum </opt/linus/job-runner.sh)\" = '${sum}' ]"
  if ((run_rc != 0)); then
    result_fail vm "could not put the job runner into VM ${vm_id} (exit ${run_rc}): ${run_said}" 'look for free space on its disk (VM_DISK)'
  fi
}

# A runner's file of this host is copied into the VM first, and does not stay in the template.
bring_runners() { # runners: the bootstrap's settings for them
  local part name url sum file
  for part in github-runner forgejo-runner gitea-runner; do
    if [[ " ${VM_BOOTSTRAP} " != *" ${part} "* ]]; then
      continue
    fi
    name=${part^^}
    name=${name//-/_}
    url=VM_${name} sum=VM_${name}_SHA256
    url=${!url} sum=${!sum}
    file=${url#file://}
    if [[ ${file} != "${url}" ]]; then
      if [[ ! -f ${file} || ! -r ${file} ]]; then
        result_fail config "${url} is no file on ${HOSTNAME}" 'put it there, or give an https URL'
      fi
      url=file:///var/tmp/linus-${part}
      guest_feed "${file}" "cat >${url#file://}"
      if ((run_rc != 0)); then
        result_fail vm "could not put ${file} into VM ${vm_id} (exit ${run_rc}): ${run_said}" 'look for free space on its disk (VM_DISK)'
      fi
    fi
    runners+="LINUS_${name}=${url@Q} LINUS_${name}_SHA256=${sum@Q} "
  done
}

bootstrap_vm() {
  local line error='' remedy='' success=no kind=vm runners=''
  install_runner
  if [[ ${VM_BOOTSTRAP} == none ]]; then
    log_info 'nothing is to be installed'
    return 0
  fi
  ssh_deadline=$((SECONDS + VM_BOOTSTRAP_TIMEOUT))
  bring_runners
  guest_run "$(declare -f)
    ${runners}LINUS_GITHUB_RUNNER_USER=${vm_user@Q}
    bootstrap_guest ${VM_BOOTSTRAP/all/}" bash
  while IFS= read -r line; do
    case ${line} in
      LINUS_ERROR:*) error=${line#*:} ;;
      LINUS_REMEDY:*) remedy=${line#*:} ;;
      LINUS_RESULT:SUCCESS) success=yes ;;
      LINUS_PACKAGE*:* | LINUS_*_VERSION:*) installed+=("${line#LINUS_}") ;;
      *) ;;
    esac
  done <<<"${run_out}"
  if ((run_rc == 6 || run_rc == 124)); then
    kind=timeout
  fi
  if ((run_rc != 0)) || [[ ${success} != yes ]]; then
    result_fail "${kind}" "could not install ${VM_BOOTSTRAP} in VM ${vm_id} (exit ${run_rc}): ${error:-${run_said}}" \
      "${remedy:-check that VMs on the bridge reach the package servers of their distribution}; or set VM_BOOTSTRAP=none"
  fi
}

# What create-vm will ask of every clone must work in this VM already. Everything until now went to
# whatever answered at its address: its agent says whether that was the VM.
verify_agent() {
  local -r deadline=$((SECONDS + 60))
  while ((SECONDS < deadline)); do
    guest_ask_ready "${vm_id}"
    if [[ -n ${guest_host_key} ]]; then
      log_info 'the guest agent responds'
      verify_host_key
      return 0
    fi
    run_pause 1
  done
  result_fail timeout "the guest agent of VM ${vm_id} does not respond, or refuses to run commands: ${run_said} ${guest_out}" \
    'try another image, or make the template by hand'
}

verify_host_key() {
  run_slurp "${run_dir}/known_hosts"
  if [[ ${run_text}$'\n' != *" ${guest_host_key}"[$' \n']* ]]; then
    result_fail timeout "what was set up at ${vm_ip}:${VM_SSH_PORT} is not VM ${vm_id} on node '${probe_node}': it showed another SSH host key than the VM has" \
      'look for an address in use twice, or a second DHCP server'
  fi
}

clean_guest() {
  local program
  program=$(template_program)
  guest_run "${program}"
  if ((run_rc != 0)); then
    result_fail vm "could not clean VM ${vm_id} for its clones (exit ${run_rc}): ${run_said}" 'the image must have cloud-init 22.3 or newer'
  fi
}

# --- make_template ---

# What a vendor's image has after the bootstrap is known, and noted. What another image brings is
# not known.
make_template() {
  local has=''
  local -a parts
  if [[ -z ${VM_IMAGE_URL} ]]; then
    read -ra parts <<<"${VM_BOOTSTRAP/all/base python node docker claude codex gemini}"
    printf -v has ',%s' "${parts[@]}"
    has=" linus-has=${has:1}"
  fi
  mark_template "${has}" --delete sshkeys --ipconfig0 ip=dhcp
  convert_template
  vm_committed=yes
  lease_drop "${vm_id}" "${vm_job}"
}

output_result() {
  local line
  for line in "${installed[@]}"; do
    result_line "${line%%:*}" "${line#*:}"
  done
  result_line TEMPLATE_NAME "${vm_name}"
  result_line VM_OS "${image_os}"
  result_line VM_USER "${vm_user}"
  result_line VM_DISK "${VM_DISK}"
  result_line RESULT SUCCESS
}

print_plan() {
  key_file=ssh-public-key.pub
  image_file=${IMAGE_DIR}/${image_os}.qcow2
  result_text PLAN "fetch ${image_url} to ${image_file}, unless it is there and its checksum is right"
  build_create_command
  result_text PLAN "${create_command[*]@Q}"
  result_text PLAN "qm resize ${vm_id} scsi0 ${VM_DISK}G"
  result_text PLAN "qm start ${vm_id}"
  result_text PLAN "in the VM, over SSH: install qemu-guest-agent unless it is there"
  if [[ -n ${VM_RUNNER} ]]; then
    result_text PLAN "in the VM, over SSH: put ${VM_RUNNER} into /opt/linus"
  fi
  if [[ ${VM_BOOTSTRAP} != none ]]; then
    result_text PLAN "in the VM, over SSH: bootstrap.sh ${VM_BOOTSTRAP/all/}"
  fi
  result_text PLAN "in the VM, over SSH: cloud-init clean; remove host keys"
  result_text PLAN "qm shutdown ${vm_id} --timeout 180"
  result_text PLAN "qm template ${vm_id}"
  result_line RESULT SUCCESS
}

main() {
  script_begin 14 rollback
  tools_start
  read_inputs "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  result_run_step allocate_vm_id 'choosing a VM ID'
  if [[ ${dry_run} == yes ]]; then
    print_plan
    return 0
  fi
  result_run_step download_os_image 'getting the image'
  result_run_step create_vm 'creating a VM of it'
  result_run_step configure_vm 'configuring the VM'
  result_run_step start_vm 'starting the VM'
  result_run_step wait_for_network 'waiting for its address'
  result_run_step customise_guest 'setting up the guest agent'
  result_run_step bootstrap_vm 'installing what jobs need'
  result_run_step verify_agent 'waiting for the guest agent'
  result_run_step clean_guest 'removing what clones must not share'
  result_run_step shut_down 'shutting the VM down'
  result_run_step make_template 'turning the VM into a template'
  result_run_step output_result 'done'
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
