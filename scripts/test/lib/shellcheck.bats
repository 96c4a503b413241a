#!/usr/bin/env bats
# scripts/dev/shellcheck.sh: what it reads again.

source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  export XDG_CACHE_HOME=${BATS_TEST_TMPDIR}/cache
  cd -- "${BATS_TEST_TMPDIR}" || return
  mkdir -p scripts/lib scripts/test/helper scripts/proxmox
  printf 'shell=bash\n' >.shellcheckrc
  printf 'name=a\n' | tee scripts/lib/a.sh scripts/test/helper/a.bash >/dev/null
  # shellcheck disable=SC2016 # the file's own
  printf 'source "${0%%/*}/../lib/a.sh"\n' >scripts/proxmox/main.sh
  # shellcheck disable=SC2016 # the stub's own
  stub_program shellcheck '[[ $1 != --version ]] || { cat version; exit; }; echo read >>reads; [[ ! -e ${XDG_CACHE_HOME}/finds ]]'
  sed -i "s,version;,${PWD}/version;,; s,>>reads,>>${PWD}/reads," bin/shellcheck
  : >version
}

# It reads the files, or not, and exits with a status.
check_reads() { # <status> <times>
  local rc=0
  : >reads
  bash "${lib_dir}/../dev/shellcheck.sh" scripts/proxmox/main.sh || rc=$?
  local -a read
  mapfile -t read <reads
  [[ ${rc} -eq $1 && ${#read[@]} -eq $2 ]]
}

@test "what nothing was found in is read again when a file or shellcheck is another" {
  check_reads 0 1
  check_reads 0 0
  local file
  for file in scripts/proxmox/main.sh scripts/lib/a.sh scripts/test/helper/a.bash .shellcheckrc version; do
    printf '# more\n' >>"${file}"
    check_reads 0 1
    check_reads 0 0
  done
}

@test "what something was found in is read each time" {
  mkdir -p "${XDG_CACHE_HOME}"
  : >"${XDG_CACHE_HOME}/finds"
  check_reads 1 1
  check_reads 1 1
  rm "${XDG_CACHE_HOME}/finds"
  check_reads 0 1
  check_reads 0 0
}
