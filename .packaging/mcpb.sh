#!/usr/bin/env bash
# Makes an MCPB bundle (a zip with manifest.json and the binary) of one build.
# usage: mcpb.sh VERSION OS ARCH BINARY DIR, OS and ARCH as Go has them
set -Eeuo pipefail
here=$(cd "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

version=$1 os=$2 arch=$3 binary=$4 dir=$5
platform=${os}
program=linus
if [[ ${os} == windows ]]; then
  platform=win32
  program=linus.exe
fi
tree=$(mktemp -d)
trap 'rm -rf "${tree}"' EXIT
mkdir -p "${tree}/server" "${dir}"
cp -- "${binary}" "${tree}/server/${program}"
chmod 0755 "${tree}/server/${program}"
sed -e "s/@VERSION@/${version}/; s/@PLATFORM@/${platform}/; s/@PROGRAM@/${program}/" "${here}/mcpb/manifest.json" >"${tree}/manifest.json"
out=$(cd "${dir}" && pwd)/linus_${version}_${os}_${arch}.mcpb
rm -f -- "${out}"
cd "${tree}"
TZ=UTC find . -exec touch -d @"${SOURCE_DATE_EPOCH:-0}" {} +
zip -q -X -r "${out}" manifest.json server
