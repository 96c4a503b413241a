#!/usr/bin/env bash
# Installs what a directory of testdata needs from npm into a cache directory, once, and prints
# two lines: the directory with node_modules and the node to run it with. Install scripts are
# not run. Usage: clients.sh [clients|generators]: the MCP clients, conformance suites and
# validators that the tests run (the default), or what makes clients of the API's description.
# Inputs: LINUS_CLIENTS_DIR (default linus/clients in $XDG_CACHE_HOME or
# ~/.cache). Exit codes: 0 done, 1 the install failed, 75 npm or its registry is
# not here (the reason is on stderr).

install_clients() { # <source> <dir>
  local -r source=$1 dir=$2
  if ! type -P npm >/dev/null; then
    printf 'npm is not installed\n' >&2
    return 75
  fi
  if ! timeout 20 npm ping >/dev/null 2>&1; then
    printf 'the registry of npm cannot be reached\n' >&2
    return 75
  fi
  rm -rf -- "${dir}"
  mkdir -- "${dir}"
  cp -- "${source}/package.json" "${source}/package-lock.json" "${dir}/"
  (cd -- "${dir}" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
  touch -- "${dir}/installed"
}

# Clients need a newer node than most distributions have: npm brings one.
find_node() { # <dir>
  local -r dir=$1
  local node
  for node in "${dir}"/node_modules/node-linux-*/bin/node; do
    if [[ -x ${node} ]]; then
      printf '%s\n' "${node}"
      return
    fi
  done
  if ! node=$(type -P node); then
    printf 'there is no node for this machine\n' >&2
    return 75
  fi
  printf '%s\n' "${node}"
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local source cache version dir
  source=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../testdata/${1:-clients}" && pwd)
  cache=${LINUS_CLIENTS_DIR:-${XDG_CACHE_HOME:-${HOME}/.cache}/linus/clients}
  version=$(cat -- "${source}/package.json" "${source}/package-lock.json" | sha256sum)
  dir=${cache}/${version:0:16}
  mkdir -p -- "${cache}"
  exec 9>"${cache}/lock"
  flock 9
  if [[ ! -e ${dir}/installed ]]; then
    install_clients "${source}" "${dir}"
  fi
  printf '%s\n' "${dir}"
  find_node "${dir}"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
