#!/usr/bin/env bash
# Makes all files of a release in DIR, and publishes nothing: the same bytes for the same
# commit, but for signatures.
# usage: dist.sh VERSION [DIR], VERSION as git describe says it, DIR dist if not given
# Environment: REPOSITORY (owner/name on GitHub where the release will be; without it there
# are no server.json and no formula), MAINTAINER (packages.sh), SIGNING_KEY and
# SIGNING_PASSPHRASE_FILE (sign.sh), TARGETS (OS/ARCHITECTURE..., fewer than all)

# semver writes a version that semver, dpkg and rpm order alike: that of a tag, of what
# comes after one, or of a commit without any.
semver() { # <what git describe says>
  local said=${1#v} more=""
  if [[ ${said} == *-dirty ]]; then
    said=${said%-dirty}
    more=.dirty
  fi
  if [[ ${said} =~ ^(.+)-([0-9]+)-(g[0-9a-f]+)$ ]]; then
    said=${BASH_REMATCH[1]}
    more=.${BASH_REMATCH[2]}.${BASH_REMATCH[3]}${more}
  fi
  if [[ ! ${said} =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]]; then
    said=0.0.0-snapshot.g${said//[^0-9A-Za-z]/.}
  fi
  printf '%s%s\n' "${said}" "${more:+"+${more#.}"}"
}

build() { # <os> <arch> <program>
  printf '%s/%s\n' "$1" "$2" >&2
  CGO_ENABLED=0 GOOS=$1 GOARCH=$2 go build -trimpath -ldflags "-s -w -X main.version=${version}" -o "$3" ./cmd/linus
}

archive() { # <os> <arch> <program>
  local out tree files
  out=${dist}/linus_${version}_$1_$2
  tree=${work}/tree
  rm -rf -- "${tree}"
  mkdir -p -- "${tree}"
  files=$(git ls-files LICENSE README.md .env.example 'embed/docs/*' '.github/*.md' 'testdata/examples/*')
  xargs -d '\n' cp --parents -t "${tree}" <<<"${files}"
  cp -r -- "${work}/share" "${tree}/share"
  mv -- "${tree}/share/third-party-licenses.txt" "${tree}/share/linus-worker" "${tree}/share/linus-sandbox" "${tree}/"
  cp -- "$3" "${tree}/"
  chmod -R u=rwX,go=rX -- "${tree}"
  find "${tree}" -exec touch -d "@${SOURCE_DATE_EPOCH}" {} +
  if [[ $1 == windows ]]; then
    (cd -- "${tree}" && find . -type f | LC_ALL=C sort | TZ=UTC zip -q -X -@ "${out}.zip")
  else
    tar -C "${tree}" --sort=name --owner=0 --group=0 --numeric-owner -cf - . | gzip -9n >"${out}.tar.gz"
  fi
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  cd "$(dirname -- "${BASH_SOURCE[0]}")/.."
  local tool target os arch program host sums
  local -a programs=()
  version=$(semver "${1:?usage: dist.sh VERSION [DIR]}")
  dist=${2:-dist}
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # as it is now
  trap "rm -rf -- '${work}'" EXIT
  for tool in zip jq dpkg-deb; do
    if ! type -P "${tool}" >/dev/null; then
      printf '%s is missing: apt-get install zip jq dpkg\n' "${tool}" >&2
      return 1
    fi
  done
  bash .packaging/sign.sh
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
  export SOURCE_DATE_EPOCH
  if [[ -z ${2:-} ]]; then rm -rf dist; fi
  mkdir -p -- "${dist}"
  dist=$(realpath -- "${dist}")

  # What runs here writes the man pages, and is mostly one of the targets, too.
  host=$(go env GOHOSTOS GOHOSTARCH)
  build "${host%$'\n'*}" "${host#*$'\n'}" "${work}/linus"
  bash .packaging/share.sh "${work}/linus" "${work}/share"
  for target in ${TARGETS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64}; do
    os=${target%/*}
    arch=${target#*/}
    program=${work}/${os}_${arch}/linus
    if [[ ${os} == windows ]]; then program+=.exe; fi
    build "${os}" "${arch}" "${program}"
    programs+=("${program}")
    archive "${os}" "${arch}" "${program}"
    bash .packaging/mcpb.sh "${version}" "${os}" "${arch}" "${program}" "${dist}"
    if [[ ${os} == linux ]]; then
      bash .packaging/packages.sh "${version}" "${arch}" "${program}" "${work}/share" "${dist}"
    fi
  done

  bash .packaging/sbom.sh "${version}" "${programs[@]}" "${work}/share/linus-worker" "${work}/share/linus-sandbox" >"${dist}/linus_${version}.cdx.json"
  bash .packaging/apt.sh "${dist}"
  if [[ -n ${REPOSITORY:-} ]]; then
    bash .packaging/server-json.sh "${version}" "${dist}" "${REPOSITORY}" >"${dist}/server.json"
    if [[ -z ${TARGETS:-} ]]; then
      bash .packaging/formula.sh "${version}" "${dist}" "${REPOSITORY}" >"${dist}/linus.rb"
    fi
  fi
  sums=$(cd -- "${dist}" && sha256sum -- *)
  printf '%s\n' "${sums}" >"${dist}/checksums.txt"
  bash .packaging/sign.sh "${dist}"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
