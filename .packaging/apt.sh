#!/usr/bin/env bash
# Makes a directory with debs a repository for apt, a flat one, as the files of a release
# are: Packages, Packages.gz and Release. sign.sh signs it.
# usage: apt.sh DIR
set -Eeuo pipefail
shopt -s inherit_errexit
cd -- "$1"

for deb in *.deb; do
  dpkg-deb --field "${deb}"
  size=$(stat -c %s -- "${deb}")
  sum=$(sha256sum -- "${deb}")
  printf 'Filename: %s\nSize: %s\nSHA256: %s\n\n' "${deb}" "${size}" "${sum%% *}"
done >Packages
gzip -9n <Packages >Packages.gz

date=$(LC_ALL=C date -Ru -d "@${SOURCE_DATE_EPOCH:-0}")
architectures=$(awk '/^Architecture: / && !seen[$2]++ { printf " %s", $2 }' Packages)
{
  printf 'Origin: linus\nLabel: linus\nSuite: stable\nDate: %s\nArchitectures:%s\n' "${date}" "${architectures}"
  printf 'Description: Run jobs in ephemeral Proxmox VE virtual machines\nSHA256:\n'
  for index in Packages Packages.gz; do
    size=$(stat -c %s "${index}")
    sum=$(sha256sum "${index}")
    printf ' %s %s %s\n' "${sum%% *}" "${size}" "${index}"
  done
} >Release
