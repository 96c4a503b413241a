# shellcheck shell=bash
# For the tests of library files: they are sourced, as entry points do, and
# their functions called in the test's own shell.

lib_dir=$(cd -- "${BATS_TEST_DIRNAME}/../../lib" && pwd)

load_libs() { # <name...>
  local name
  trap '[[ ${BASH_SOURCE-} == "${lib_dir}"/* ]] || bats_debug_trap "${BASH_SOURCE}"' DEBUG
  for name in "$@"; do
    # shellcheck disable=SC1090 # which files is the test's choice
    source "${lib_dir}/${name}.sh"
  done
  export TMPDIR=${BATS_TEST_TMPDIR} LINUS_UNIT_DIR=${BATS_TEST_TMPDIR}/units # never the machine's own
}

# A recorded answer, as a run left it: what json.sh reads.
recorded() { # <tag> <text>
  # shellcheck disable=SC2154 # run_init sets it
  printf '%s\n' "$2" >"${run_dir}/$1.out"
}

# A program on PATH.
stub_program() { # <name> <body>
  mkdir -p "${BATS_TEST_TMPDIR}/bin"
  rm -f "${BATS_TEST_TMPDIR}/bin/$1" # it may be a link
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"${BATS_TEST_TMPDIR}/bin/$1"
  chmod +x "${BATS_TEST_TMPDIR}/bin/$1"
  PATH=${BATS_TEST_TMPDIR}/bin:${PATH}
}

# qm, pvesh and pvesm as whole scripts have them (common.bash, pve-stub), without the rest of a
# host: for libraries that change something. Whether a VM runs is qm's word.
# shellcheck disable=SC2034,SC2154,SC2317 # of the libraries, and of common.bash
setup_proxmox() { # vm_job, vm_owner, vm_name are those of add_our_vm
  local tool
  export PVE_STUB=${BATS_TEST_TMPDIR}/pve LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc LINUS_QEMU_DIR=${BATS_TEST_TMPDIR}/qemu-server
  export LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks VM_NAME=ours
  mkdir -p "${LINUS_PVE_DIR}"/nodes/{pve,pve2}/qemu-server "${LINUS_QEMU_DIR}" "${PVE_STUB}"/{vm,status,answers,faults} "${BATS_TEST_TMPDIR}/bin"
  ln -s nodes/pve/qemu-server "${LINUS_PVE_DIR}/qemu-server"
  echo '{"nodename":"pve","version":0}' >"${LINUS_PVE_DIR}/.members"
  for tool in qm pvesh pvesm; do
    ln -s "${BATS_TEST_DIRNAME}/../helper/pve-stub" "${BATS_TEST_TMPDIR}/bin/${tool}"
  done
  PATH=${BATS_TEST_TMPDIR}/bin:${PATH}
  : >"${PVE_STUB}/calls"
  : >"${PVE_STUB}/machine"
  answer /nodes/pve/tasks '[]'
  vm_job=${job} vm_owner=${owner} vm_name=${VM_NAME}
  vm_see_process() { vm_process=unknown; }
  lease_arm() { :; } # it is tested with scripts, on a host of its own
  run_pause() { :; }
}
