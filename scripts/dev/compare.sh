#!/usr/bin/env bash
# Compares what this commit costs with what another one does, measured in turns on this
# machine: builds both, the other from a work tree that is removed again.
# usage: compare.sh [BASE]: a commit; without one the last release's tag, and where there is
# none the commit of a week ago, or the first
# Environment: N (pairs of measurements, default 5). Exit codes: 0 no measure is beyond its
# bound, 1 one is, and what to do is on stdout.

choose_base() {
  local base
  base=$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null) || base=$(git rev-list -1 --before='1 week ago' HEAD)
  if [[ -z ${base} ]]; then
    base=$(git rev-list --max-parents=0 HEAD | tail -n 1)
  fi
  printf '%s\n' "${base}"
}

build() { # <source> <dir>
  mkdir -- "$2"
  (cd -- "$1" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=compared' -o "$2/" ./cmd/linus ./cmd/pvelab)
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."
  local base commit work
  base=${1:-$(choose_base)}
  commit=$(git rev-parse --verify --short "${base}^{commit}")
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # as it is now
  trap "git worktree remove --force '${work}/source' 2>/dev/null || :; rm -rf -- '${work}'" EXIT
  git worktree add --quiet --detach "${work}/source" "${commit}"
  if [[ ! -d ${work}/source/cmd/pvelab ]]; then
    printf '%s has no linus with a lab: nothing to compare with\n' "${commit}"
    return
  fi
  build "${work}/source" "${work}/base"
  build . "${work}/head"
  CGO_ENABLED=0 go test -count=1 -timeout 60m -run '^TestCompare$' ./internal/e2e \
    -compare.base="${work}/base" -compare.head="${work}/head" -compare.name="${commit}" -compare.n="${N:-5}"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
