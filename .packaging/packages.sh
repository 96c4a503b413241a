#!/usr/bin/env bash
# Makes the deb and the rpm of one build: the same bytes for the same commit.
# usage: packages.sh VERSION ARCH BINARY SHARE DIR, ARCH as Go has it, SHARE as share.sh
# writes it
# Environment: REPOSITORY (owner/name on GitHub), MAINTAINER (NAME <ADDRESS>)
set -Eeuo pipefail
shopt -s inherit_errexit

version=$1 arch=$2
binary=$(realpath -- "$3")
share=$(realpath -- "$4")
dir=$(realpath -- "$5")
cd "$(dirname -- "${BASH_SOURCE[0]}")/.."
epoch=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH=${epoch}
date=$(LC_ALL=C date -Ru -d "@${epoch}")
mtime=$(date -u -d "@${epoch}" +%FT%TZ)

# Compiled once, in a minute or two, and kept.
nfpm=bin/nfpm-v2.45.2
if [[ ! -x ${nfpm} ]]; then
  mkdir -p bin
  compiled=$(mktemp -d "${PWD}/bin/.nfpm.XXXXXX")
  GOBIN=${compiled} CGO_ENABLED=0 go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@${nfpm#*-}"
  mv -f -- "${compiled}/nfpm" "${nfpm}"
  rmdir -- "${compiled}"
fi

# An address that exists: who owns the repository reads what is sent there by GitHub's users.
# Packages that are not for publishing have one that exists nowhere.
maintainer=${MAINTAINER:-"The linus authors <linus@example.org>"}
homepage=""
if [[ -n ${REPOSITORY:-} ]]; then
  maintainer=${MAINTAINER:-"The linus authors <${REPOSITORY%%/*}@users.noreply.github.com>"}
  homepage=https://github.com/${REPOSITORY}
fi
# 1.0.0~rc.1 comes before 1.0.0, for dpkg and for rpm.
sorted=${version/-/\~}

stage=$(mktemp -d)
trap 'rm -rf -- "${stage}"' EXIT
cp -- "${binary}" "${stage}/linus"
gzip -9n <.github/CHANGELOG.md >"${stage}/CHANGELOG.md.gz"
gzip -9n <"${share}/third-party-licenses.txt" >"${stage}/third-party-licenses.gz"
{
  printf 'linus (%s) stable; urgency=medium\n\n' "${sorted}"
  printf '  * Version %s; CHANGELOG.md.gz beside this file says what is new.\n\n' "${version}"
  printf ' -- %s  %s\n' "${maintainer}" "${date}"
} | gzip -9n >"${stage}/changelog.gz"
{
  printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: linus\n'
  printf '%s' "${homepage:+"Source: ${homepage}"$'\n'}"
  printf 'Comment: The binary has code of others in it, whose terms are in\n third-party-licenses.gz beside this file.\n'
  awk '
    /^Copyright/ { sub(/^Copyright \(c\) /, ""); printf "\nFiles: *\nCopyright: %s\nLicense: Expat\n", $0; terms = 1; next }
    terms > 1 || terms && NF { print " " (NF ? $0 : "."); terms = 2 }' LICENSE
} >"${stage}/copyright"

sed -e "s|@ARCH@|${arch}|; s|@VERSION@|${sorted}|; s|@MAINTAINER@|${maintainer}|; s|@HOMEPAGE@|${homepage}|" \
  -e "s|@DATE@|${mtime}|; s|@STAGE@|${stage}|; s|@SHARE@|${share}|" .packaging/nfpm.yaml >"${stage}/nfpm.yaml"
for format in deb rpm; do
  "${nfpm}" package --config "${stage}/nfpm.yaml" --packager "${format}" --target "${dir}/linus_${version}_linux_${arch}.${format}" >&2
done
