#!/usr/bin/env bash
# Compares the page's files that come from npm with the packages they come from, or
# with UPDATE=1 fetches them. The list is internal/web/vendored.txt. Packages' install
# scripts are not run.
# Inputs: UPDATE (1: fetch). Exit codes: 0 they are the same, 1 one is not, 75 npm or
# its registry is not here.

fetch_package() { # <package> <dir>
  local -r package=$1 dir=$2
  mkdir -p -- "${dir}"
  (cd -- "${dir}" && npm pack --ignore-scripts --silent -- "${package}" >/dev/null && tar -xzf ./*.tgz)
}

differs=0

# ours is compressed where its name ends in .gz, theirs never is
compare_file() { # <ours> <theirs> <package>
  local -r ours=$1 theirs=$2 package=$3
  local pack=cat unpack=cat
  if [[ ${ours} == *.gz ]]; then
    pack='gzip -9n' unpack='gzip -d'
  fi
  if [[ ${UPDATE:-} == 1 ]]; then
    ${pack} <"${theirs}" >"${ours}"
    chmod 0644 -- "${ours}"
  elif ! ${unpack} <"${ours}" | cmp -- "${theirs}" -; then
    printf '%s is not the one of %s; make vendored UPDATE=1 fetches it\n' "${ours}" "${package}" >&2
    differs=1
  fi
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local web work file package path
  web=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../../internal/web" && pwd)
  if ! type -P npm >/dev/null || ! timeout 20 npm ping >/dev/null 2>&1; then
    printf 'npm is not installed, or its registry cannot be reached\n' >&2
    return 75
  fi
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # as it is now
  trap "rm -rf -- '${work}'" EXIT
  while read -r file package path; do
    if [[ -z ${file} || ${file} == '#'* ]]; then
      continue
    fi
    if [[ ! -e ${work}/${package} ]]; then
      fetch_package "${package}" "${work}/${package}"
    fi
    compare_file "${web}/static/${file}" "${work}/${package}/package/${path}" "${package}"
  done <"${web}/vendored.txt"
  return "${differs}"
}

if ! (return 0 2>/dev/null); then
  main "$@"
fi
