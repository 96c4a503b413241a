# shellcheck shell=bash
# shellcheck disable=SC2312 # the caller's pipefail sees a pipe's failures
# A tiny initramfs: a static busybox and the modules a Proxmox-like VM needs to
# reach its root disk. Debian's own takes seconds longer under emulation.

initrd_create() { # <root> <out>
  local -r root=$1 out=$2
  local -r tree=${root}.initrd
  local -a modules=(
    virtio_pci virtio_mmio virtio_blk virtio_scsi sd_mod sr_mod
    ata_piix isofs virtio_net virtio_console
  )
  local version module
  version=$(rootfs_kernel_version "${root}")
  rm -rf -- "${tree}"
  mkdir -p -- "${tree}"/{bin,dev,proc,sys,root,lib}
  cp -L -- "${root}/bin/busybox" "${tree}/bin/busybox"
  for module in "${modules[@]}"; do
    chroot "${root}" modprobe --set-version "${version}" --show-depends "${module}"
  done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"${tree}.modules"
  local file
  while read -r file; do
    cp -- "${root}${file}" "${tree}/lib/"
    printf '%s\n' "${file##*/}" >>"${tree}/lib/order"
  done <"${tree}.modules"
  initrd_write_init "${tree}/init"
  (cd -- "${tree}" && find . -print0 | sort -z \
    | cpio --null --create --format=newc --owner=0:0 --quiet) >"${out}"
  rm -rf -- "${tree}" "${tree}.modules"
}

initrd_write_init() { # <file>
  cat >"$1" <<'INIT'
#!/bin/busybox sh
B=/bin/busybox
$B mount -t devtmpfs dev /dev
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
while read -r module; do $B insmod "/lib/$module" 2>/dev/null; done </lib/order
root= mode=rw init=/sbin/init
for word in $($B cat /proc/cmdline); do
  case $word in
    root=*) root=${word#root=} ;;
    ro) mode=ro ;;
    init=*) init=${word#init=} ;;
  esac
done
tries=0
while :; do
  device=$root
  case $root in LABEL=* | UUID=*) device=$($B findfs "$root" 2>/dev/null) ;; esac
  [ -b "$device" ] && $B mount -t ext4 -o "$mode" "$device" /root 2>/dev/null && break
  tries=$((tries + 1))
  [ "$tries" -gt 300 ] && { echo "root $root not found"; exec $B sh; }
  $B usleep 50000
done
$B mount -o move /dev /root/dev
$B mount -o move /proc /root/proc
$B mount -o move /sys /root/sys
exec $B switch_root /root "$init"
INIT
  chmod 0755 -- "$1"
}
