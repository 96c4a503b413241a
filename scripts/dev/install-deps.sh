#!/usr/bin/env bash
# Installs the Debian packages that a target of the Makefile needs, when they
# are missing. Usage: install-deps.sh process|demo|test|nightly; each includes the one
# before. Exit codes: 0 all there, 1 something is missing and cannot be
# installed here.

# level, command or file, package that brings it
needed=(
  'process sshd openssh-server'
  'process ssh-keygen openssh-client'
  'process perl perl'
  'process curl curl'
  'demo qemu-system-x86_64 qemu-system-x86'
  'demo qemu-img qemu-utils'
  'demo mmdebstrap mmdebstrap'
  'demo dnsmasq dnsmasq-base'
  'demo genisoimage genisoimage'
  'demo ip iproute2'
  'demo nft nftables'
  'demo grub-mkimage grub-common'
  'demo /usr/lib/grub/i386-pc/boot.img grub-pc-bin'
  'demo /usr/lib/grub/x86_64-efi/moddep.lst grub-efi-amd64-bin'
  'demo sfdisk fdisk'
  'demo mke2fs e2fsprogs'
  'demo mkfs.vfat dosfstools'
  'demo mcopy mtools'
  'demo cpio cpio'
  'test gcc gcc'
  'test /usr/include/stdlib.h libc6-dev'
  'test bats bats'
  'test parallel parallel'
  'test systemd-nspawn systemd-container'
  'test shellcheck shellcheck'
  'test shfmt shfmt'
  'test jq jq'
  'test chromium chromium'
  'test sudo sudo'
  'test git git'
  'test git-lfs git-lfs'
  'test zip zip'
  'test pg_ctlcluster postgresql'
  'nightly lintian lintian'
  'nightly rpm rpm'
  'nightly buildah buildah'
  'nightly /usr/share/jupyter/kernels/python3/kernel.json python3-ipykernel'
)

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local levels
  case "${1:-}" in
    process) levels=' process ' ;;
    demo) levels=' process demo ' ;;
    test) levels=' process demo test ' ;;
    nightly) levels=' process demo test nightly ' ;;
    *)
      printf 'usage: install-deps.sh process|demo|test|nightly\n' >&2
      return 1
      ;;
  esac
  PATH=${PATH}:/usr/sbin:/sbin
  local row level name package
  local -a packages=()
  for row in "${needed[@]}"; do
    read -r level name package <<<"${row}"
    if [[ ${levels} == *" ${level} "* && ! -e ${name} ]] && ! type -P -- "${name}" >/dev/null; then
      packages+=("${package}")
    fi
  done
  if [[ ${#packages[@]} -eq 0 ]]; then
    return 0
  fi
  if [[ ${EUID} -ne 0 ]] || ! type -P apt-get >/dev/null; then
    printf 'missing: %s\nas root: apt-get install --no-install-recommends %s\n' \
      "${packages[*]}" "${packages[*]}" >&2
    return 1
  fi
  printf 'installing: %s\n' "${packages[*]}" >&2
  # Debian would start an SSH server for all the world; the lab starts its own.
  if [[ " ${packages[*]} " == *' openssh-server '* && ! -e /etc/systemd/system/ssh.service ]]; then
    mkdir -p /etc/systemd/system
    ln -s /dev/null /etc/systemd/system/ssh.service
    printf 'ssh.service is masked, so that no SSH server starts; to have one: systemctl unmask ssh\n' >&2
  fi
  # Nor a database server; tests start their own.
  if [[ " ${packages[*]} " == *' postgresql '* && ! -e /etc/postgresql-common/createcluster.conf ]]; then
    mkdir -p /etc/postgresql-common
    printf 'create_main_cluster = false\n' >/etc/postgresql-common/createcluster.conf
  fi
  apt-get -qq update >&2
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null
}

if ! (return 0 2>/dev/null); then main "$@"; fi
