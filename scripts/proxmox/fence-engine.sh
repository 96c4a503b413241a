#!/usr/bin/env bash
# Makes every node of the cluster refuse whatever an engine of linus asks from now on. Other
# engines have taken it for dead, and take over its jobs (lib/fence.sh).
#
# Runs as root on a Proxmox VE host (8.x, 9.x); needs nothing installed there.
#
# Inputs (environment):
#   FENCE_ENGINE   the engine's UUID (required)
#   LINUS_NONCE    delimits the output
# Options: --help
#
# It can be run twice. The result is on stdout in LINUS_ lines (lib/result.sh), the log on
# stderr. Fences older than a month are removed: no engine comes back after that.
# Exit codes: 0 ok, 1 invalid parameter, 2 missing tool, 3 the fence could not be
# written (no quorum), 129/130/141/143 signal.

source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/fence.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/probe.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/script.sh"

usage() {
  printf '%s\n' \
    'usage: FENCE_ENGINE=... fence-engine.sh [--help]' \
    'Makes the cluster refuse what that engine of linus asks from now on.' >&2
}

validate_environment() {
  validate_uuid FENCE_ENGINE "${FENCE_ENGINE:-}"
  validate_tools timeout find
  probe_cluster ''
  if [[ ${probe_quorum} == no ]]; then
    probe_require
  fi
}

write_fence() {
  local -r dir=${LINUS_PVE_DIR:-/etc/pve}/priv/linus
  local -r file=${dir}/fence-${FENCE_ENGINE}
  # Only what is read back counts: pmxcfs has it on all nodes then.
  run_change 30 mkdir -p -- "${dir}"
  run_change 30 touch -- "${file}"
  if [[ ! -e ${file} ]]; then
    result_fail config "could not write the fence ${file} on ${HOSTNAME}: ${run_said:-it is not there}" \
      'the cluster must have quorum for that; look at: pvecm status, systemctl status pve-cluster'
  fi
  run_change 30 find "${dir}" -mindepth 1 -maxdepth 1 -name 'fence-*' -mtime +30 -delete
}

main() {
  script_begin 2
  script_read_options '' "$@"
  result_run_step validate_environment 'checking the inputs and the host'
  result_run_step write_fence 'writing the fence'
  result_line RESULT SUCCESS
}

if ! (return 0 2>/dev/null); then script_run "$@"; fi
