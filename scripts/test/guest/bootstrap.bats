#!/usr/bin/env bats
# bootstrap.sh as a whole: a process, on stubs of the package managers, with no
# other program on PATH than those it says it needs.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  export PACKAGE_STUB=${BATS_TEST_TMPDIR}/packages LINUS_ROOT=${BATS_TEST_TMPDIR}/root
  export PVE_STUB=${PACKAGE_STUB} TMPDIR=${BATS_TEST_TMPDIR} LINUS_HOST_DIR=${BATS_TEST_TMPDIR}
  export PACKAGE_STUB_PROGRAM=${scripts_dir}/test/helper/package-stub
  bin=${BATS_TEST_TMPDIR}/bin
  mkdir -p "${PACKAGE_STUB}"/{absent,fails,lies} "${LINUS_ROOT}/etc" "${bin}"
  : >"${PACKAGE_STUB}/calls"
  printf '%s\n' root docker >"${PACKAGE_STUB}/groups"
  local tool path
  for tool in bash cat chmod dirname env grep ln mktemp rm timeout true; do
    path=$(type -P "${tool}")
    ln -s "${path}" "${bin}/${tool}"
  done
  for tool in id getent usermod; do
    ln -s "${PACKAGE_STUB_PROGRAM}" "${bin}/${tool}"
  done
  stub_program sleep 'exit 0'
  unset LINUS_NONCE LINUS_LOCK_TIMEOUT LINUS_INSTALL_TIMEOUT
}

use_os() { # <ID> <VERSION_ID>: a fresh VM
  rm -rf "${PACKAGE_STUB}"/{installed,stream} "${bin}"/{apt-get,dpkg-query,dnf,rpm,npm,node,docker,claude,codex,gemini,python3}
  mkdir "${PACKAGE_STUB}/installed"
  printf 'PRETTY_NAME="A system"\nVERSION_ID="%s"\nID=%s\n' "$2" "$1" >"${LINUS_ROOT}/etc/os-release"
  local tool
  local -a tools=(dnf rpm)
  if [[ $1 == debian || $1 == ubuntu ]]; then
    tools=(apt-get dpkg-query)
  fi
  for tool in "${tools[@]}"; do
    ln -s "${PACKAGE_STUB_PROGRAM}" "${bin}/${tool}"
  done
}

bootstrap() { # <argument...>
  status=0
  PATH=${bin} bash "${scripts_dir}/guest/bootstrap.sh" "$@" >"${BATS_TEST_TMPDIR}/stdout" 2>"${BATS_TEST_TMPDIR}/stderr" 3>&- || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  log=$(<"${BATS_TEST_TMPDIR}/stderr")
}

assert_failed() { # <exit code> <part of the error>: and a remedy is told
  assert_status "$1"
  assert_line LINUS_RESULT:FAILURE
  assert_says "$2"
  assert_says $'\nLINUS_REMEDY:'
  assert_nothing_left
}

assert_no_cache() { # npm's downloads do not stay
  local cache
  cache=$(sed -n 's/.* --cache \([^ ]*\) .*/\1/p' "${PACKAGE_STUB}/calls")
  cache=${cache##*$'\n'}
  [[ -n ${cache} && ! -e ${cache} ]]
}

changes='\(apt-get\|dnf\|npm\|usermod\) .*'

@test "Debian 12: all parts, their versions, what was added" {
  use_os debian 12
  LINUS_NONCE=abc123 bootstrap
  assert_status 0
  assert_line LINUS_BEGIN:abc123
  assert_line LINUS_STEP:6/8:install_claude:'installing claude'
  assert_line LINUS_PYTHON_VERSION:3.11.2
  assert_line LINUS_NODE_VERSION:18.20.4
  assert_line LINUS_DOCKER_VERSION:20.10.24+dfsg1
  assert_line LINUS_CLAUDE_VERSION:2.1.197
  assert_line LINUS_CODEX_VERSION:0.169.0
  assert_line LINUS_GEMINI_VERSION:0.61.0
  assert_line 'LINUS_PACKAGES_INSTALLED:ca-certificates curl git git-lfs jq less procps rsync tar unzip xz-utils zip python3 python3-pip python3-venv nodejs npm apparmor docker.io'
  assert_line LINUS_PACKAGE_COUNT:19
  assert_line LINUS_RESULT:SUCCESS
  assert_line LINUS_END:abc123
  refute_line_like '[!L]*'
  assert_called_times 1 'apt-get .*update'
  assert_called 'apt-get .*--no-remove install nodejs npm'
  assert_called 'npm install --global .* @anthropic-ai/claude-code'
  assert_called 'npm install --global .* @openai/codex'
  assert_called 'npm install --global .* node-linux-.*@22 @google/gemini-cli'
  assert_called 'npm install .*--cache /var/tmp/linus-npm[.].* @google/gemini-cli'
  assert_no_cache
  assert_nothing_left
}

@test "run again, it changes nothing and tells the same versions" {
  local os first again
  for os in 'debian 12' 'rocky 9.6'; do
    # shellcheck disable=SC2086 # two words
    use_os ${os}
    bootstrap
    assert_status 0
    first=$(grep _VERSION: <<<"${output}")
    : >"${PACKAGE_STUB}/calls"
    bootstrap
    assert_status 0
    refute_called "${changes}"
    again=$(grep _VERSION: <<<"${output}")
    [[ ${again} == "${first}" ]] || fail "other versions than: ${first}"
    assert_line LINUS_PACKAGES_INSTALLED:
    assert_line LINUS_PACKAGE_COUNT:0
  done
}

@test "EL 9: a module stream for Node.js, Podman for Docker" {
  local os
  for os in almalinux rocky; do
    use_os "${os}" 9.6
    bootstrap
    assert_status 0
    assert_called 'dnf .*exit_on_lock=True module enable nodejs:22'
    assert_called 'dnf .* install nodejs npm'
    assert_called 'dnf .* install podman-docker'
    assert_line LINUS_DOCKER_VERSION:5.4.0
    assert_line LINUS_RESULT:SUCCESS
  done
}

@test "EL 9: a stream that somebody enabled stays" {
  use_os rocky 9.6
  echo nodejs:20 >"${PACKAGE_STUB}/stream"
  bootstrap node
  assert_status 0
  refute_called 'dnf .*module enable.*'
}

@test "each OS has its package for the docker command" {
  local os
  for os in 'debian 12:docker.io' 'ubuntu 24.04:docker.io' 'debian 13:docker.io docker-cli'; do
    # shellcheck disable=SC2086 # two words
    use_os ${os%:*}
    bootstrap docker
    assert_status 0
    assert_line "LINUS_PACKAGES_INSTALLED:apparmor ${os#*:}"
  done
}

@test "only what is named, and claude brings node" {
  use_os debian 12
  bootstrap python
  assert_status 0
  assert_line 'LINUS_PACKAGES_INSTALLED:python3 python3-pip python3-venv'
  refute_line_like 'LINUS_NODE_VERSION*'
  bootstrap claude
  assert_status 0
  assert_line 'LINUS_PACKAGES_INSTALLED:nodejs npm'
  assert_line LINUS_CLAUDE_VERSION:2.1.197
  refute_line_like 'LINUS_DOCKER_VERSION*'
}

@test "only what lacks is installed" {
  use_os debian 12
  local package
  for package in curl git git-lfs jq less procps rsync tar unzip xz-utils zip; do
    : >"${PACKAGE_STUB}/installed/${package}"
  done
  bootstrap base
  assert_status 0
  assert_called 'apt-get .* install ca-certificates'
  assert_line LINUS_PACKAGES_INSTALLED:ca-certificates
  assert_line LINUS_PACKAGE_COUNT:1
}

@test "a node and a docker from elsewhere stay" {
  use_os debian 12
  stub_program node 'echo v22.1.0'
  stub_program npm 'exit 0'
  stub_program docker 'echo Docker version 28.0.1, build 068a01e'
  bootstrap node docker
  assert_status 0
  refute_called "${changes}"
  assert_line LINUS_NODE_VERSION:22.1.0
  assert_line LINUS_DOCKER_VERSION:28.0.1
}

@test "a lock held for a while is waited for" {
  local os
  for os in 'debian 12' 'almalinux 9.6'; do
    # shellcheck disable=SC2086 # two words
    use_os ${os}
    echo 3 >"${PACKAGE_STUB}/locked"
    bootstrap base
    assert_status 0
    [[ $(<"${PACKAGE_STUB}/locked") == 0 ]]
    [[ ${log} == *'another package manager is running'* ]] || fail 'the log does not tell of the wait'
    assert_line LINUS_PACKAGE_COUNT:12
  done
}

@test "a lock held past its deadline is exit 6 and says who holds it" {
  use_os debian 12
  echo 999999 >"${PACKAGE_STUB}/locked"
  LINUS_LOCK_TIMEOUT=0 bootstrap base
  assert_failed 6 'held by process 812 (unattended-upgr)'
  use_os rocky 9.6
  LINUS_LOCK_TIMEOUT=0 bootstrap base
  assert_failed 6 'another package manager held its lock for 0 s'
}

@test "a package manager that does not end is exit 6" {
  use_os debian 12
  rm "${bin}/apt-get"
  stub_program apt-get 'while :; do :; done'
  LINUS_INSTALL_TIMEOUT=1 bootstrap base
  assert_failed 6 'not done in 1 s'
}

@test "a package the distribution lacks is exit 2" {
  use_os debian 12
  : >"${PACKAGE_STUB}/absent/jq"
  bootstrap base
  assert_failed 2 'Unable to locate package jq'
  use_os rocky 9.6
  bootstrap base
  assert_failed 2 'Unable to find a match: jq'
}

@test "an installation that fails is exit 5, and the rest stays" {
  use_os debian 12
  echo 'E: You do not have enough free space in /var/cache/apt/archives/' >"${PACKAGE_STUB}/fails/docker.io"
  bootstrap
  assert_failed 5 'enough free space'
  assert_line LINUS_NODE_VERSION:18.20.4
  [[ -e ${PACKAGE_STUB}/installed/git && ! -e ${bin}/claude ]]
}

@test "an exit 0 that installed nothing is not believed" {
  use_os debian 12
  : >"${PACKAGE_STUB}/lies/git"
  bootstrap base
  assert_failed 5 'these are not installed: git'
  : >"${PACKAGE_STUB}/lies/@anthropic-ai_claude-code"
  bootstrap claude
  assert_failed 5 'claude is installed but does not report its version'
}

@test "npm that cannot install the Claude CLI is exit 5" {
  use_os debian 12
  echo 'npm error network ENOTFOUND' >"${PACKAGE_STUB}/fails/@anthropic-ai_claude-code"
  bootstrap claude
  assert_failed 5 'ENOTFOUND'
  assert_no_cache
}

@test "an unknown OS is exit 3, and nothing is touched" {
  local os
  for os in 'alpine 3.20' 'debian 11' 'ubuntu 22.04' 'rocky 8.10'; do
    # shellcheck disable=SC2086 # two words
    use_os ${os}
    bootstrap
    assert_failed 3 "operating system '${os}'"
  done
  rm "${LINUS_ROOT}/etc/os-release"
  bootstrap
  assert_failed 3 "operating system 'unknown "
  [[ ! -s ${PACKAGE_STUB}/calls ]] || fail 'something was called' "$(<"${PACKAGE_STUB}/calls")"
}

@test "a part or a number that is none is exit 1" {
  use_os debian 12
  local part
  for part in emacs 'base python' '' --all; do
    bootstrap base "${part}"
    assert_failed 1 'nothing is called'
  done
  LINUS_LOCK_TIMEOUT=soon bootstrap
  assert_failed 1 'LINUS_LOCK_TIMEOUT'
  refute_called "${changes}"
}

@test "as a user: changes by sudo, and docker's group once" {
  use_os debian 12
  echo debian >"${PACKAGE_STUB}/user"
  echo debian >"${PACKAGE_STUB}/user-groups"
  ln -s "${PACKAGE_STUB_PROGRAM}" "${bin}/sudo"
  bootstrap docker
  assert_status 0
  assert_called 'sudo -nH -- timeout .* env .* apt-get .* install apparmor docker.io'
  assert_called 'usermod -aG docker debian'
  : >"${PACKAGE_STUB}/calls"
  echo debian docker >"${PACKAGE_STUB}/user-groups"
  bootstrap docker
  assert_status 0
  refute_called "${changes}"
}

@test "a user without sudo, or whose sudo asks a password, is exit 2" {
  use_os debian 12
  echo debian >"${PACKAGE_STUB}/user"
  bootstrap base
  assert_failed 2 'there is no sudo'
  stub_program sudo 'echo "sudo: a password is required" >&2; exit 1'
  bootstrap base
  assert_failed 2 'a password is required'
  refute_called "${changes}"
}

# An archive of a runner, and the programs that fetch and unpack it.
make_runner() { # archive, sum
  local -r dir=${BATS_TEST_TMPDIR}/runner
  local tool path
  mkdir -p "${dir}/bin"
  printf '#!/usr/bin/env bash\n' >"${dir}/run.sh"
  printf '#!/usr/bin/env bash\necho 2.330.0\n' >"${dir}/bin/Runner.Listener"
  # shellcheck disable=SC2016 # the program's own variables
  printf '#!/usr/bin/env bash\necho "dependencies $*" >>"${PACKAGE_STUB}/calls"\n' >"${dir}/bin/installdependencies.sh"
  chmod +x "${dir}/run.sh" "${dir}"/bin/*
  archive=${BATS_TEST_TMPDIR}/runner.tar.gz
  tar -czf "${archive}" -C "${dir}" .
  sum=$(sha256sum "${archive}")
  sum=${sum%% *}
  for tool in curl gzip mkdir mv sha256sum tar; do
    path=$(type -P "${tool}")
    ln -sf "${path}" "${bin}/${tool}"
  done
  # shellcheck disable=SC2016 # the program's own variables
  stub_program chown 'echo "chown $*" >>"${PACKAGE_STUB}/calls"'
}

@test "the runner of GitHub Actions comes from the archive that is given, and stays" {
  local archive sum
  use_os debian 12
  make_runner
  LINUS_GITHUB_RUNNER=file://${archive} LINUS_GITHUB_RUNNER_SHA256=${sum} LINUS_GITHUB_RUNNER_USER=debian bootstrap github-runner
  assert_status 0
  assert_line LINUS_STEP:2/3:install_base:'installing base'
  assert_line LINUS_GITHUB_RUNNER_VERSION:2.330.0
  assert_called 'chown -R debian: /var/tmp/linus-runner.*'
  assert_called 'dependencies '
  [[ -x ${LINUS_ROOT}/opt/actions-runner/run.sh ]]
  assert_nothing_left
  rm "${archive}"
  LINUS_GITHUB_RUNNER=file://${archive} LINUS_GITHUB_RUNNER_SHA256=${sum} bootstrap github-runner
  assert_status 0
  assert_line LINUS_GITHUB_RUNNER_VERSION:2.330.0
}

@test "a runner's archive that is another one, is not there or has no checksum is refused" {
  local archive sum
  local -r wrong=$(printf '0%.0s' {1..64})
  use_os debian 12
  make_runner
  LINUS_GITHUB_RUNNER=file://${archive} LINUS_GITHUB_RUNNER_SHA256=${wrong} bootstrap github-runner
  assert_failed 5 "the file's checksum is ${sum}"
  LINUS_GITHUB_RUNNER=file://${archive}.not LINUS_GITHUB_RUNNER_SHA256=${sum} bootstrap github-runner
  assert_failed 5 'could not be installed'
  [[ ! -e ${LINUS_ROOT}/opt ]]
  LINUS_GITHUB_RUNNER=file://${archive} bootstrap github-runner
  assert_failed 1 LINUS_GITHUB_RUNNER_SHA256
  bootstrap github-runner
  assert_failed 1 LINUS_GITHUB_RUNNER
}

@test "the runners of Forgejo and Gitea come from the programs that are given, and stay" {
  local archive program sum part name
  use_os debian 12
  make_runner
  program=${BATS_TEST_TMPDIR}/program
  printf '#!/usr/bin/env bash\necho "runner version v12.1.0"\n' >"${program}"
  sum=$(sha256sum "${program}")
  sum=${sum%% *}
  for part in forgejo-runner gitea-runner; do
    name=${part^^}
    name=LINUS_${name//-/_}
    export "${name}=file://${program}" "${name}_SHA256=0"
    bootstrap "${part}"
    assert_failed 1 "${name}_SHA256"
    export "${name}_SHA256=$(printf '0%.0s' {1..64})"
    bootstrap "${part}"
    assert_failed 5 "the file's checksum is ${sum}"
    [[ ! -e ${LINUS_ROOT}/usr/local/bin/${part} && ! -e ${LINUS_ROOT}/usr/local/bin/${part}.new ]]
    export "${name}_SHA256=${sum}"
    bootstrap "${part}"
    assert_status 0
    assert_line "${name}_VERSION:12.1.0"
    [[ -x ${LINUS_ROOT}/usr/local/bin/${part} ]]
  done
  rm "${program}"
  bootstrap gitea-runner
  assert_status 0
}

@test "the code interpreter's server is there, and sandboxes begin with it" {
  use_os debian 12
  local tool path
  for tool in sh mkdir mv; do
    path=$(type -P "${tool}")
    ln -sf "${path}" "${bin}/${tool}"
  done
  bootstrap code-interpreter
  assert_status 0
  assert_line LINUS_CODE_INTERPRETER_VERSION:6.17.0
  assert_called 'apt-get .* install python3-ipykernel .*'
  python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "${LINUS_ROOT}/usr/local/lib/linus/code-interpreter.py"
  jq -e '.start == "exec /usr/bin/python3 /usr/local/lib/linus/code-interpreter.py" and (.ready | length > 0)' "${LINUS_ROOT}/etc/linus-sandbox.json"
  bootstrap code-interpreter
  assert_status 0
  refute_line_like 'LINUS_WARNING:*'
  echo '{"start":"mine"}' >"${LINUS_ROOT}/etc/linus-sandbox.json"
  bootstrap code-interpreter
  assert_says 'linus-sandbox.json is there and stays'
  [[ $(<"${LINUS_ROOT}/etc/linus-sandbox.json") == '{"start":"mine"}' ]]
}
