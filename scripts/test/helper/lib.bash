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
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"${BATS_TEST_TMPDIR}/bin/$1"
  chmod +x "${BATS_TEST_TMPDIR}/bin/$1"
  PATH=${BATS_TEST_TMPDIR}/bin:${PATH}
}
