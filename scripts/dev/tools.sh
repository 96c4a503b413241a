#!/usr/bin/env bash
# Installs the Go programs that the Makefile uses, at the versions below, into bin/, unless
# they are there at that version; without names all of them, and says how the others are got.
# Usage: tools.sh [NAME...]. Exit codes: 0 all there, 1 one cannot be installed, or no such tool.

# package at version; the name is the last part of its path
tools=(
  gotest.tools/gotestsum@v1.13.0
  github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
  github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
)

# is_there reports whether bin/ has the tool at its version. A Go program says what it was made of.
is_there() { # <tool>
  local -r tool=$1
  local -r package=${tool%@*} version=${tool#*@}
  local made
  [[ -x bin/${package##*/} ]] || return 1
  made=$(go version -m "bin/${package##*/}") || return 1
  # the module's path begins the package's
  awk -v package="${package}" -v version="${version}" '
    $1 == "mod" && index(package "/", $2 "/") == 1 && $3 == version { found = 1 }
    END { exit !found }' <<<"${made}"
}

install_tool() { # <tool>
  local -r tool=$1
  # shellcheck disable=SC2310 # it says itself where it fails
  if is_there "${tool}"; then
    return 0
  fi
  printf 'installing %s\n' "${tool}" >&2
  GOBIN=${PWD}/bin CGO_ENABLED=0 go install "${tool}"
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
  local tool name found
  mkdir -p bin
  if [[ $# -eq 0 ]]; then
    for tool in "${tools[@]}"; do
      install_tool "${tool}"
    done
    for name in shellcheck shfmt; do
      if ! type -P -- "${name}" >/dev/null; then
        printf '%s is missing: apt-get install %s, or make deps\n' "${name}" "${name}" >&2
      fi
    done
    return 0
  fi
  for name in "$@"; do
    found=
    for tool in "${tools[@]}"; do
      if [[ ${tool} == */"${name}"@* ]]; then
        found=1
        install_tool "${tool}"
      fi
    done
    if [[ -z ${found} ]]; then
      printf 'no tool is called %s\n' "${name}" >&2
      return 1
    fi
  done
}

if ! (return 0 2>/dev/null); then main "$@"; fi
