#!/usr/bin/env bash
# Reports whether VMs can be created on this Proxmox VE host, and what to do about each
# thing that is missing. It changes nothing.
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment), all optional:
#   PROXMOX_NODE (this host's own), PROXMOX_STORAGE local-lvm,
#   PROXMOX_BRIDGE vmbr0, VM_TEMPLATE (empty: any)
#   STORAGE_RESERVE GB, 5: a storage with less free space takes no VM
#   VM_DISK        GB, 20: warn about storages with less free space
#   IMAGE_DIR      /var/lib/vz/template/linus: the directory of cloud images
#   CALLBACK_URL   the URL for callbacks, tested from here; empty: not tested
#   LINUS_NONCE    delimits the output
# Options: --help
#
# One line per check on stdout; a warn or a fail is followed by what to do:
#   LINUS_CHECK:<name>:<ok|warn|fail>:<text>
#   LINUS_REMEDY:<what to do>
#   LINUS_FACTS:<version> <types of storages> <sha256>   a test of this host is valid only
#                for these; the sum is that of the template's config without lock; - stands
#                for what is not known
#   LINUS_HOSTNAME, LINUS_PVE_VERSION, LINUS_VM_NODE, LINUS_RESULT (lib/result.sh)
# Exit codes: 0 no check failed, otherwise that of the first failure: 1 invalid
# parameter, 2 missing tool, 3 invalid configuration, 4 node offline;
# 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/probe.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"

pve_version='-'
storage_types='-'
template_sum='-'
first_failure='' # kind of the first check that failed
first_failure_text=''
first_failure_remedy=''

usage() {
  printf '%s\n' \
    'usage: [PROXMOX_STORAGE=...] [PROXMOX_BRIDGE=...] [VM_TEMPLATE=...] check-host.sh [--help]' \
    'Tells whether VMs can be created here. Inputs and exit codes are listed at' \
    'the top of the script.' >&2
}

read_inputs() { # <argument...>
  script_read_options '' "$@"
  : "${PROXMOX_NODE:=}" "${PROXMOX_STORAGE:=local-lvm}" "${PROXMOX_BRIDGE:=vmbr0}" "${VM_TEMPLATE:=}"
  : "${STORAGE_RESERVE:=5}" "${VM_DISK:=20}" "${IMAGE_DIR:=/var/lib/vz/template/linus}" "${CALLBACK_URL:=}"
  validate_node "${PROXMOX_NODE}"
  validate_storage "${PROXMOX_STORAGE}"
  validate_bridge "${PROXMOX_BRIDGE}"
  validate_template "${VM_TEMPLATE}"
  validate_number VM_DISK "${VM_DISK}" 5 10000 GB
  validate_reserve "${STORAGE_RESERVE}"
  validate_pattern IMAGE_DIR "${IMAGE_DIR}" '/[A-Za-z0-9_./-]*' 'an absolute path of A-Z a-z 0-9 _ . / -'
  validate_pattern CALLBACK_URL "${CALLBACK_URL}" '(https?://[^ ]+)?' 'an http or https URL'
}

report_probe() { # <name>; reports what the last probe found
  if [[ -z ${probe_kind} ]]; then
    result_text CHECK "$1:ok:${probe_text}"
  elif [[ ${probe_kind} == warn ]]; then
    result_text CHECK "$1:warn:${probe_text}"
    result_text REMEDY "${probe_remedy}"
  else
    result_text CHECK "$1:fail:${probe_text}"
    result_text REMEDY "${probe_remedy}"
    if [[ -z ${first_failure} ]]; then
      first_failure=${probe_kind}
      first_failure_text=${probe_text}
      first_failure_remedy=${probe_remedy}
    fi
  fi
}

check_tools() {
  local tool missing=''
  tools_start # checked after everything else
  for tool in qm pvesh pvesm pveversion perl timeout flock ip; do
    if ! command -v "${tool}" >/dev/null; then
      missing+="${missing:+, }${tool}"
    fi
  done
  if [[ -n ${missing} ]]; then
    probe_bad dependency "not on ${HOSTNAME}: ${missing}" 'run this on a Proxmox VE host, as root, with its usual PATH'
  else
    probe_ok 'all tools are there'
  fi
  report_probe tools
}

# Only root may import disks in Proxmox, and the state of operations is in files here.
check_permissions() {
  local user dir=${LINUS_HOST_DIR:-/var/lib/linus}
  user=$(id -un)
  find_existing "${dir}"
  if [[ ${user} != root ]]; then
    probe_bad config "logged in as ${user}: only root may import disks and run qm" 'set PROXMOX_SSH_USER=root'
  elif [[ ! -d ${existing} || ! -w ${existing} ]]; then
    probe_bad config "${existing} on ${HOSTNAME} is not a writable directory" "look at: findmnt -T ${existing}; journalctl -kp err"
  else
    probe_ok "root, and ${dir} can be written to"
  fi
  report_probe permissions
}

find_existing() { # <path>; existing: it, or the part of it that exists
  existing=$1
  while [[ ! -e ${existing} && ${existing} == /*/* ]]; do
    existing=${existing%/*}
  done
  if [[ ! -e ${existing} ]]; then
    existing=/
  fi
}

check_version() {
  local version=''
  run_read 60 pveversion
  if [[ ${run_out} =~ ^pve-manager/([0-9]+)(\.[0-9]+)*([^/ ]*) ]]; then
    version=${run_out#pve-manager/}
    version=${version%%/*}
    result_line PVE_VERSION "${version}"
    pve_version=${version}
  fi
  if [[ -z ${version} ]]; then
    probe_bad config "pveversion on ${HOSTNAME} did not report a version: ${run_said}" 'look at: pveversion -v'
  elif ((${version%%[!0-9]*} < 8)); then
    probe_bad config "Proxmox VE ${version} is too old" 'upgrade to 8.x or 9.x: --ciupgrade and more are missing before'
  elif ((${version%%[!0-9]*} > 9)); then
    probe_bad warn "Proxmox VE ${version} is newer than what this was tried with (8.x, 9.x)" 'go on, and report what does not work'
  else
    probe_ok "Proxmox VE ${version}"
  fi
  report_probe proxmox
}

check_node() { # node_ok
  probe_cluster "${PROXMOX_NODE}"
  node_ok=no
  if [[ ${probe_quorum} == no ]]; then
    report_probe quorum
    return 0
  elif [[ ${probe_quorum} == yes ]]; then
    result_text CHECK 'quorum:ok:the cluster has quorum'
  fi
  report_probe node
  if [[ -z ${probe_kind} ]]; then
    node_ok=yes
  fi
  if [[ -n ${probe_node} ]]; then
    result_line VM_NODE "${probe_node}"
  fi
}

check_parts() {
  local storages=${PROXMOX_STORAGE}
  probe_start "${PROXMOX_STORAGE}"
  run_start storages 60 pvesh get "/nodes/${probe_node}/storage" --output-format json
  probe_storage "${PROXMOX_STORAGE}"
  report_probe storage
  probe_bridge "${PROXMOX_BRIDGE}"
  report_probe bridge
  cluster_list_vms
  if ((run_rc != 0)); then
    probe_unread "the configs of the VMs on ${HOSTNAME}" 'look at: systemctl status pve-cluster'
  elif [[ -n ${VM_TEMPLATE} ]]; then
    probe_template "${VM_TEMPLATE}"
    if [[ -n ${probe_template_id} && ${vm_words} != *' linus-template=1 '* ]]; then
      probe_text+='; made elsewhere: a VM of it counts only when its qemu-guest-agent answers'
    fi
  else
    probe_templates
  fi
  report_probe template
  if [[ -n ${probe_template_id:-} ]]; then # its clones lie where it lies
    vm_find_sum
    template_sum=${vm_sum}
    vm_find_storages
    storages=${vm_storages}
  fi
  check_space "${storages}"
  check_snippets
}

# Thin storages are overcommitted, and a full one stops every VM on it.
check_space() { # <storages, separated by blanks>
  local line storage active avail type free='' low='' types=''
  run_wait storages
  json_rows storages storage active avail type
  for line in "${json_lines[@]}"; do
    IFS=$'\x1f' read -r storage active avail type <<<"${line}"
    if [[ " $1 " != *" ${storage} "* ]]; then
      continue
    fi
    types+="${types:+,}${type:--}"
    if [[ ${active} != 1 ]]; then
      probe_bad config "storage '${storage}' on node '${probe_node}', where the template lies, is not active" 'look at: pvesm status; then bring it up'
      report_probe space
      return 0
    fi
    probe_free_mib=${avail:+$((avail / 1048576))}
    probe_reserve "${storage}" 0
    if [[ -n ${probe_kind} ]]; then
      report_probe space
      return 0
    fi
    free+="${free:+, }$((${avail:-0} / 1073741824)) GiB on '${storage}'"
    if ((${avail:-0} / 1073741824 < VM_DISK)); then
      low+="${low:+, }${storage}"
    fi
  done
  storage_types=${types:--}
  if [[ -z ${free} ]]; then
    probe_bad warn "the free space of ${1// /, } is not known: ${run_said}" 'look at: pvesm status'
  elif [[ -n ${low} ]]; then
    probe_bad warn "free for VMs: ${free}; one VM's disk may grow to ${VM_DISK} GiB" \
      "remove what is not needed (pvesm list ${low%%,*}), or make the storage larger: a full one stops the VMs on it"
  else
    probe_ok "free for VMs: ${free}"
  fi
  report_probe space
}

# Cloud images are some hundred MB each, and are unpacked next to the download.
check_images() {
  local line free=''
  find_existing "${IMAGE_DIR}"
  run_read 20 df -Pk -- "${existing}"
  while read -r _ _ _ line _; do
    free=${line}
  done <<<"${run_out}"
  if [[ ! ${free} =~ ^[0-9]+$ ]]; then
    probe_bad warn "the free space of ${IMAGE_DIR} is not known: ${run_said}" "look at: df ${existing}"
  elif ((free < 5242880)); then
    probe_bad warn "$((free / 1048576)) GiB free in ${IMAGE_DIR} for cloud images" 'make room: build-template.sh and VMs from a cloud image need up to 5 GiB there'
  else
    probe_ok "$((free / 1048576)) GiB free in ${IMAGE_DIR} for cloud images"
  fi
  report_probe images
}

# Reported because people ask for it. Nothing needs snippets: Proxmox's own cloud-init settings give
# users, keys and addresses, and host keys are read through the guest agent.
check_snippets() {
  local line storage content having=''
  run_wait storages
  json_rows storages storage content
  for line in "${json_lines[@]}"; do
    IFS=$'\x1f' read -r storage content <<<"${line}"
    if [[ ",${content// /}," == *,snippets,* ]]; then
      having+="${having:+, }${storage}"
    fi
  done
  if [[ -n ${having} ]]; then
    probe_ok "on ${having}; none are needed"
  else
    probe_ok 'no storage takes any; none are needed'
  fi
  report_probe snippets
}

# VMs are near this host: they can hardly reach what it cannot.
check_callback() {
  run_wait callback
  if ((run_rc != 0)); then
    probe_bad warn "${CALLBACK_URL} is not reached from ${HOSTNAME}: ${run_said:-no answer}" \
      "jobs run all the same, their reports come over SSH; for direct ones open the port in the firewall before linus, or set CALLBACK_URL to what VMs can reach"
  else
    probe_ok "${CALLBACK_URL} is reached from ${HOSTNAME}"
  fi
  report_probe callback
}

start_callback() {
  if command -v curl >/dev/null; then
    run_start callback 10 curl -fsS --proto =http,https --noproxy '*' --connect-timeout 5 -o /dev/null -- "${CALLBACK_URL%/}/health"
  else
    run_start callback 10 wget -q --no-proxy --tries=1 --timeout=5 -O /dev/null -- "${CALLBACK_URL%/}/health"
  fi
}

# Only VMs with a limited network need nft.
check_nft() {
  run_read 20 nft -c add table bridge linus
  if ! command -v nft >/dev/null; then
    probe_bad warn "nft is not on ${HOSTNAME}: VMs can have egress lan only" 'apt-get install nftables, for other modes; nothing of it needs to run'
  elif ((run_rc != 0)); then
    probe_bad warn "nft on ${HOSTNAME} takes no table of family bridge, so VMs can have egress lan only: ${run_said}" 'look at: nft -c add table bridge linus'
  else
    probe_ok 'nft takes tables of family bridge: VMs can have every egress mode'
  fi
  report_probe nft
}

# Looks at the tool server as an engine has it: by hand there is none.
check_tool_server() {
  if [[ ${PROXMOX_TOOLS:-auto} == plain ]]; then
    probe_ok 'qm, pvesh and pvesm load their modules for each call, which takes most of a second: PROXMOX_TOOLS is plain'
    report_probe loaded
    return 0
  fi
  if [[ -z ${LINUS_TOOL_SERVER:-} ]]; then
    return 0
  fi
  tools_init
  tools_await
  case ${tools_state} in
    ready | full) probe_ok 'qm, pvesh and pvesm have their modules loaded once, not for each call' ;;
    failed) probe_bad warn "the tools of Proxmox are started for each call, which takes most of a second: ${tools_why}" 'VMs are created all the same, slower; report it, with what pveversion -v says; PROXMOX_TOOLS=plain does not try it' ;;
    *) probe_bad warn "the tools of Proxmox are started for each call, which takes most of a second: the server that would have them loaded does not start (${tools_state})" "look at: journalctl -u 'linus-tool-server-*'; PROXMOX_TOOLS=plain does not try it" ;;
  esac
  report_probe loaded
}

check_kvm() {
  if [[ -r /dev/kvm && -w /dev/kvm ]]; then
    probe_ok '/dev/kvm can be opened'
  else
    probe_bad warn "/dev/kvm cannot be used on ${HOSTNAME}" 'turn on virtualisation in the firmware (or nested virtualisation): VMs are slow or do not start without it'
  fi
  report_probe kvm
}

check_host() {
  result_line HOSTNAME "${HOSTNAME}"
  check_tools
  if [[ -n ${first_failure} ]]; then
    return 0
  fi
  if [[ -n ${CALLBACK_URL} ]]; then
    start_callback
  fi
  check_permissions
  check_version
  check_node
  if [[ ${node_ok} == yes ]]; then
    check_parts
  fi
  check_images
  check_tool_server
  check_kvm
  check_nft
  if [[ -n ${CALLBACK_URL} ]]; then
    check_callback
  fi
  result_line FACTS "${pve_version} ${storage_types} ${template_sum}"
}

main() {
  script_begin 1
  read_inputs "$@"
  result_run_step check_host 'looking at the host'
  if [[ -n ${first_failure} ]]; then
    result_fail "${first_failure}" "${first_failure_text}" "${first_failure_remedy}"
  fi
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
