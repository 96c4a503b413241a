#!/usr/bin/env bash
# Installs the Debian packages that a target of the Makefile needs, when they
# are missing. Usage: install-deps.sh demo|process|test
# Exit codes: 0 all there, 1 something is missing and cannot be installed here.

# the commands each purpose needs, and the package that brings each
needed_commands() {
  cat <<'TABLE'
process sshd openssh-server
process ssh-keygen openssh-client
process perl perl
process curl curl
demo qemu-system-x86_64 qemu-system-x86
demo qemu-img qemu-utils
demo mmdebstrap mmdebstrap
demo dnsmasq dnsmasq-base
demo genisoimage genisoimage
demo ip iproute2
demo nft nftables
demo sysctl procps
demo grub-mkimage grub-common
demo sfdisk fdisk
demo mke2fs e2fsprogs
demo mkfs.vfat dosfstools
demo mcopy mtools
demo cpio cpio
demo zstd zstd
test gcc gcc
test bats bats
test shellcheck shellcheck
test shfmt shfmt
test jq jq
TABLE
}

# files that no command stands for
needed_files() {
  cat <<'TABLE'
demo /usr/lib/grub/i386-pc/boot.img grub-pc-bin
demo /usr/lib/grub/x86_64-efi/moddep.lst grub-efi-amd64-bin
demo /bin/busybox busybox-static
test /usr/include/stdlib.h libc6-dev
TABLE
}

wanted() { # <purpose of the row> <purpose asked for>
  case "$2" in
    test) return 0 ;;
    demo) [[ $1 != test ]] ;;
    *) [[ $1 == process ]] ;;
  esac
}

missing_packages() { # <purpose>
  local purpose name package
  while read -r purpose name package; do
    if wanted "${purpose}" "$1" && ! PATH="${PATH}:/usr/sbin:/sbin" command -v -- "${name}" >/dev/null; then
      printf '%s\n' "${package}"
    fi
  done < <(needed_commands)
  while read -r purpose name package; do
    if wanted "${purpose}" "$1" && [[ ! -e ${name} ]]; then
      printf '%s\n' "${package}"
    fi
  done < <(needed_files)
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local -r purpose=${1:?usage: install-deps.sh demo|process|test}
  local -a packages
  mapfile -t packages < <(missing_packages "${purpose}")
  if [[ ${#packages[@]} -eq 0 ]]; then
    return 0
  fi
  if [[ ${EUID} -ne 0 ]] || ! command -v apt-get >/dev/null; then
    printf 'missing packages: %s\ninstall them as root: apt-get install --no-install-recommends %s\n' \
      "${packages[*]}" "${packages[*]}" >&2
    return 1
  fi
  printf 'installing: %s\n' "${packages[*]}" >&2
  apt-get -qq update >&2
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null
}

if ! (return 0 2>/dev/null); then main "$@"; fi
