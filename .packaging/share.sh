#!/usr/bin/env bash
# Writes what archives and packages carry beside the binary (man pages, completions,
# linus-worker and linus-sandbox, which are for VMs and so for linux/amd64 everywhere,
# licenses of what all have in them), the same bytes for the same commit.
# usage: share.sh BINARY DIR, BINARY one that runs here
set -Eeuo pipefail
shopt -s inherit_errexit

binary=$(realpath -- "$1")
rm -rf -- "$2"
mkdir -p -- "$2"
dir=$(realpath -- "$2")
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"${binary}" man "${dir}"
gzip -9n "${dir}"/man/man1/*.1
version=$("${binary}" version)
version=${version#linus }
CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -ldflags "-s -w -X main.version=${version%% *}" -o "${dir}/" ./cmd/linus-worker ./cmd/linus-sandbox

# Modules that are compiled in on one of the systems.
modules=$(for os in linux darwin windows; do
  GOOS=${os} CGO_ENABLED=0 go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/linus ./cmd/linus-worker ./cmd/linus-sandbox
done | LC_ALL=C sort -u)
goroot=$(go env GOROOT)
goversion=$(go env GOVERSION)
{
  printf 'The binaries linus, linus-worker and linus-sandbox have code of these in them, under these terms.\n'
  while read -r module version where; do
    printf '\n==== %s %s\n\n' "${module}" "${version}"
    terms=$(find "${where}" -maxdepth 1 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' \) ! -name '*.go' -print | LC_ALL=C sort)
    if [[ -z ${terms} ]]; then
      printf '%s %s has no file with its license\n' "${module}" "${version}" >&2
      exit 1
    fi
    while read -r file; do
      cat -- "${file}"
    done <<<"${terms}"
  done <<<"std ${goversion} ${goroot}"$'\n'"${modules}"
  printf '\n==== the web page'\''s files\n\n'
  cat internal/web/static/LICENSES.txt
} >"${dir}/third-party-licenses.txt"
