#!/usr/bin/env bash
# Builds the container image of a binary for Linux, and of linus-worker and linus-sandbox
# beside it, by no registry.
# usage: image.sh BINARY NAME [BUILDER...], BUILDER a command line that takes a
# Containerfile's options (default: podman build, buildah build or docker build); or
# image.sh BINARY --context DIR, which only writes what the image is built from
set -Eeuo pipefail
shopt -s inherit_errexit
here=$(cd "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

write_context() { # <binary> <dir>
  local -r dir=$2
  mkdir -p -- "${dir}/root/usr/bin" "${dir}/root/usr/lib/linus" "${dir}/root/etc/ssl/certs" "${dir}/root/tmp" "${dir}/home/linus"
  cp -- "${here}/Containerfile" "${dir}/"
  cp -- "$1" "${dir}/root/usr/bin/linus"
  cp -- "$(dirname -- "$1")"/linus-{worker,sandbox} "${dir}/root/usr/lib/linus/"
  # Certificates of those who may vouch for web servers: webhooks, OAUTH_ISSUER, OTLP.
  if [[ ! -r /etc/ssl/certs/ca-certificates.crt ]]; then
    printf 'image.sh: no /etc/ssl/certs/ca-certificates.crt here: apt-get install ca-certificates\n' >&2
    return 1
  fi
  cp -L -- /etc/ssl/certs/ca-certificates.crt "${dir}/root/etc/ssl/certs/"
  printf 'root:x:0:0:root:/:/nologin\nlinus:x:10001:10001:linus:/var/lib/linus:/nologin\n' >"${dir}/root/etc/passwd"
  printf 'root:x:0:\nlinus:x:10001:\n' >"${dir}/root/etc/group"
  # A file, so that no builder leaves the directory out, and a new volume gets its owner.
  : >"${dir}/home/linus/.keep"
  chmod -R u=rwX,go=rX -- "${dir}"
  chmod 0755 -- "${dir}/root/usr/bin/linus" "${dir}"/root/usr/lib/linus/linus-{worker,sandbox}
  chmod 0700 -- "${dir}/home/linus"
  chmod 1777 -- "${dir}/root/tmp"
}

binary=$1 name=$2
shift 2
if [[ ${name} == --context ]]; then
  write_context "${binary}" "$1"
  exit
fi
if [[ $# -eq 0 ]]; then
  for tool in podman buildah docker; do
    if type -P "${tool}" >/dev/null; then
      set -- "${tool}" build
      break
    fi
  done
fi
if [[ $# -eq 0 ]]; then
  printf 'image.sh: podman, buildah and docker are missing: apt-get install buildah\n' >&2
  exit 1
fi
context=$(mktemp -d)
trap 'rm -rf -- "${context}"' EXIT
write_context "${binary}" "${context}"
"$@" --file "${context}/Containerfile" --tag "${name}" "${context}"
