#!/usr/bin/env bash
# The demo: a run on a directory's files and two jobs, each in a virtual machine of
# its own, on a stand-in Proxmox host that is gone afterwards. Usage: demo.sh [qemu|process]
# qemu needs root and /dev/net/tun; process needs neither and isolates nothing.
# Exit codes: 0 they came back as they should, 1 otherwise.

work_dir= # everything the demo writes; removed at the end
root=

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

# prints what this machine lacks for real virtual machines
check_machine() {
  if [[ ${EUID} -ne 0 ]]; then
    printf 'not root: the lab needs root for its network namespace and taps\n'
  fi
  if [[ ! -c /dev/net/tun ]]; then
    printf '/dev/net/tun is missing: modprobe tun, or start the container with --device /dev/net/tun\n'
  fi
}

clean_up() {
  local -r status=$?
  trap - EXIT TERM INT HUP
  "${root}/bin/linus" serve --stop >/dev/null 2>&1 || true
  "${root}/bin/pvelab" down --dir "${work_dir}/host" && rm -rf -- "${work_dir}"
  exit "${status}"
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local -r driver=${1:-qemu}
  root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
  cd -- "${root}"

  if [[ ${driver} == qemu ]]; then
    local missing
    missing=$(check_machine)
    if [[ -n ${missing} ]]; then
      printf 'No real virtual machine can be run here:\n%s\n' "${missing}" >&2
      printf 'Try the demo without: make demo DRIVER=process\n' >&2
      return 1
    fi
    bash scripts/dev/install-deps.sh demo
  else
    bash scripts/dev/install-deps.sh process
  fi
  say 'build'
  make --no-print-directory build

  work_dir=$(mktemp -d -t linus-demo.XXXXXX)
  trap clean_up EXIT
  trap 'exit 143' TERM
  trap 'exit 130' INT
  trap 'exit 129' HUP
  export LINUS_STATE_DIR=${work_dir}/linus
  export CALLBACK_PORT=0

  say "a stand-in Proxmox host comes up (${driver}); the guest image is built once, which takes some minutes"
  bin/pvelab up --driver "${driver}" --dir "${work_dir}/host"
  local settings
  settings=$(bin/pvelab env --dir "${work_dir}/host")
  # shellcheck disable=SC1090 # pvelab's own export lines
  source <(printf '%s\n' "${settings}")

  say 'linus host check'
  bin/linus host check

  if [[ ${driver} == qemu ]]; then
    say 'linus host test --quick: the least that VMs of jobs do; the whole takes minutes more in emulated VMs'
    bin/linus host test --quick
  else
    say 'linus host test: all that VMs can do, in VMs that are gone afterwards; the last of it waits for a timer of the host'
    bin/linus host test
  fi

  say 'linus run: a command on the files of this directory, and what it changes taken back'
  mkdir "${work_dir}/project"
  printf 'Hello from @HOST@!\n' >"${work_dir}/project/greeting"
  (cd -- "${work_dir}/project" && "${root}/bin/linus" run --memory 1G --diff --apply -- sed -i 's/@HOST@/a VM/' greeting)
  local greeting
  greeting=$(<"${work_dir}/project/greeting")

  say 'a job that shows where it runs'
  bin/linus job submit --wait -f - <<'JOB'
{
  "agentType": "script",
  "task": "echo \"kernel:      $(uname -a)\"\necho \"instance-id: $(cat /var/lib/cloud/data/instance-id)\"\necho \"address:     $(hostname -I)\"\necho \"user:        $(id -un)\"\n",
  "resources": {"memory": "1G"}
}
JOB

  say 'a job that fails with exit status 3'
  local status=0
  bin/linus job submit --wait --memory 1G -- sh -c 'echo "about to fail" >&2; exit 3' || status=$?
  printf 'linus exited with the job'"'"'s own status: %d\n' "${status}"

  say 'what is left: the jobs in the list, and on the host no VM but the template, and a checkpoint where restoring was proven'
  bin/linus job list
  bin/pvelab status --dir "${work_dir}/host"
  local left
  left=$(grep -ls linus-job "${work_dir}"/host/etc/pve/qemu-server/*.conf | xargs -r grep -L '^name: linus-checkpoint-' || true)
  if [[ ${status} -ne 3 || -n ${left} || ${greeting} != 'Hello from a VM!' ]]; then
    printf 'that is not as it should be: exit status %d, VMs left: %s, greeting: %s\n' "${status}" "${left:-none}" "${greeting}" >&2
    return 1
  fi
}

if ! (return 0 2>/dev/null); then main "$@"; fi
