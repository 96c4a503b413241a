#!/usr/bin/env bash
# Signs checksums.txt in DIR and Release, for apt, and puts the public key there. Without
# DIR it finds out whether it could: a release is not built to fail at its end.
# usage: sign.sh [DIR]
# Environment: SIGNING_KEY (file with one OpenPGP secret key; empty: nothing is signed),
# SIGNING_PASSPHRASE_FILE (file with the passphrase of the key, if it has one)
set -Eeuo pipefail
shopt -s inherit_errexit

refuse() {
  printf 'sign.sh: %s\n' "$1" >&2
  exit 1
}

key=${SIGNING_KEY:-} passphrase=${SIGNING_PASSPHRASE_FILE:-}
if [[ -z ${key} ]]; then
  if [[ -n ${passphrase} ]]; then
    refuse 'SIGNING_PASSPHRASE_FILE is set and SIGNING_KEY is not: name the file with the secret key, or set neither'
  fi
  printf 'SIGNING_KEY is not set: nothing is signed\n' >&2
  exit 0
fi
for file in "${key}" ${passphrase:+"${passphrase}"}; do
  if [[ ! -f ${file} || ! -r ${file} ]]; then
    refuse "${file} is not a file that can be read (SIGNING_KEY, SIGNING_PASSPHRASE_FILE)"
  fi
done
if ! type -P gpg >/dev/null; then
  refuse 'SIGNING_KEY is set and gpg is missing: apt-get install gpg'
fi

GNUPGHOME=$(mktemp -d)
export GNUPGHOME
trap 'gpgconf --kill all >/dev/null 2>&1 || true; rm -rf -- "${GNUPGHOME}"' EXIT
gpg=(gpg --batch --no-tty --quiet --yes --pinentry-mode loopback --passphrase-file "${passphrase:-/dev/null}")
"${gpg[@]}" --import -- "${key}" 2>/dev/null || refuse "SIGNING_KEY: ${key} has no OpenPGP key"
found=$(gpg --batch --list-secret-keys --with-colons | awk -F: '$1 == "sec" { n++ } END { print n + 0 }')
if [[ ${found} != 1 ]]; then
  refuse "SIGNING_KEY: ${key} has ${found} secret keys, and must have one (gpg --export-secret-keys --armor FINGERPRINT)"
fi
if ! "${gpg[@]}" --detach-sign </dev/null >/dev/null; then # to stdout: as root, --output would replace the device
  refuse "the key in ${key} does not sign: SIGNING_PASSPHRASE_FILE must hold its passphrase, and the key be valid"
fi
if [[ $# -eq 0 ]]; then
  exit 0
fi

cd -- "$1"
"${gpg[@]}" --armor --output checksums.txt.asc --detach-sign checksums.txt
if [[ -e Release ]]; then
  "${gpg[@]}" --armor --output Release.gpg --detach-sign Release
  "${gpg[@]}" --output InRelease --clear-sign Release
fi
"${gpg[@]}" --armor --export >linus.asc
