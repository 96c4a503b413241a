#!/usr/bin/env bash
# Builds the lab's guest image: Debian 12 with cloud-init, the QEMU guest agent
# and OpenSSH, on a bootable disk (BIOS and UEFI), without loop devices.
#
# Runs on the machine of the lab, as root, inside mount and PID namespaces of
# its own (the Go side sees to that), so that a killed build leaves no mount.
# Usage: build-image.sh <variant> <work dir> <out.qcow2>
#   variant  tuned: boots fast under emulation; plain: as Debian ships it
#   work dir an empty directory; everything but the result stays below it
# Writes <out.qcow2>.vmlinuz (the image's kernel, to try KVM with) and then
# <out.qcow2>. Progress is lines on stderr; exit 0 when both are whole.

source "$(dirname -- "${BASH_SOURCE[0]}")/rootfs.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/tune.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/initrd.sh"
source "$(dirname -- "${BASH_SOURCE[0]}")/disk.sh"

# image_size_mb is the virtual size of the disk. A VM's disk grows from it and
# can never be smaller, so it stays well below the smallest disk of a job.
image_size_mb=2048

log_step() { # <text>
  printf 'image: %s (%ds)\n' "$1" "${SECONDS}" >&2
}

main() { # <variant> <work dir> <out.qcow2>
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local -r variant=$1 work=$2 out=$3
  local -r root=${work}/root
  local features=''
  umask 022

  log_step "installing Debian packages"
  rootfs_create "${root}"
  rootfs_make_bootable "${root}"
  if [[ ${variant} == tuned ]]; then
    log_step "tuning for a fast boot"
    tune_boot "${root}"
    initrd_create "${root}" "${root}/boot/initrd.lab"
    features=^has_journal # which costs boot time
  fi
  log_step "writing the disk"
  disk_create "${root}" "${work}/disk.raw" "${image_size_mb}" "${features}"
  qemu-img convert -f raw -O qcow2 "${work}/disk.raw" "${work}/disk.qcow2"
  local version
  version=$(rootfs_kernel_version "${root}")
  cp -- "${root}/boot/vmlinuz-${version}" "${out}.vmlinuz"
  mv -- "${work}/disk.qcow2" "${out}"
  log_step "done"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
