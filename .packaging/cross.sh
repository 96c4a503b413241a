#!/usr/bin/env bash
# Builds and vets linus for the systems it is released for: cross.sh
# [<os>/<architecture>...], all of them without arguments. Tests are not vetted:
# the lab they need is Linux's. Slow once; then what did not change comes from
# Go's cache.
set -Eeuo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."

if (($# == 0)); then
  set -- linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
fi
export CGO_ENABLED=0 GOOS GOARCH
vetted=' '
for target in "$@"; do
  GOOS=${target%/*} GOARCH=${target#*/}
  printf '%s\n' "${target}"
  go build ./cmd/linus ./embed # two packages: compiled, and not linked
  if [[ ${vetted} != *" ${GOOS} "* ]]; then
    vetted+="${GOOS} "
    # Files, not packages: of a package go vet takes the tests too.
    # shellcheck disable=SC2016 # the $p is go list's
    go list -deps -f '{{if not .Standard}}{{$p := .}}{{if .Module.Main}}{{range .GoFiles}}{{$p.Dir}}/{{.}} {{end}}{{end}}{{end}}' ./cmd/linus \
      | while read -ra files; do
        if ((${#files[@]} > 0)); then
          go vet "${files[@]}"
        fi
      done
  fi
done
