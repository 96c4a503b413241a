# shellcheck shell=bash
# shellcheck disable=SC2312 # the caller's pipefail sees a pipe's failures
# Functions that make the guest's root tree from Debian packages.

# rootfs_sources prints the apt sources of this machine that carry Debian 12,
# so that a machine with a mirror of its own builds from that mirror. Nothing
# when there are none: mmdebstrap then uses Debian's own servers.
rootfs_sources() {
  # shellcheck disable=SC2016 # the fields are apt's to fill in
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' 'Origin: Debian' 2>/dev/null \
    | awk '$3 ~ /^bookworm(-updates|-security)?$/ && !seen[$0]++'
}

rootfs_create() { # <root>
  local -r root=$1
  local -a packages=(
    systemd-sysv udev dbus linux-image-cloud-amd64 initramfs-tools zstd
    cloud-init cloud-guest-utils e2fsprogs python3
    qemu-guest-agent openssh-server busybox-static curl jq sudo ca-certificates
    iproute2 iputils-ping procps less
  )
  local include sources
  include=$(IFS=, && printf '%s' "${packages[*]}")
  sources=$(rootfs_sources || true)
  local -a from=()
  if [[ -n ${sources} ]]; then from=(-); fi
  mmdebstrap --quiet --variant=apt --mode=root --format=directory \
    --aptopt='Apt::Install-Recommends "false"' \
    --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --include="${include}" bookworm "${root}" "${from[@]}" <<<"${sources}"
}

rootfs_kernel_version() { # <root>
  local kernel
  kernel=$(find "$1/boot" -name 'vmlinuz-*' -printf '%f\n' | sort -V | tail -n 1)
  printf '%s' "${kernel#vmlinuz-}"
}

# rootfs_make_bootable writes what every bootable image needs and removes what
# must be made anew on each VM (machine id, SSH host keys).
rootfs_make_bootable() { # <root>
  local -r root=$1
  local version
  version=$(rootfs_kernel_version "${root}")
  printf 'LABEL=cloudroot / ext4 rw,discard,errors=remount-ro 0 1\n' >"${root}/etc/fstab"
  printf 'localhost\n' >"${root}/etc/hostname"
  : >"${root}/etc/machine-id"
  # What vendors' images have, for which systemd-firstboot would wait for somebody at the
  # console at the boot of a template's clone.
  printf 'LANG=C.UTF-8\n' | tee "${root}/etc/default/locale" >"${root}/etc/locale.conf"
  ln -sf /usr/share/zoneinfo/Etc/UTC "${root}/etc/localtime"
  rm -f -- "${root}"/etc/ssh/ssh_host_* "${root}/etc/resolv.conf"
  # The one locale that is there without the locales package.
  printf 'locale: C.UTF-8\n' >"${root}/etc/cloud/cloud.cfg.d/90-locale.cfg"
  chroot "${root}" systemctl enable --quiet systemd-networkd
  rootfs_write_grub "${root}" "initrd.img-${version}" \
    "ro console=tty0 console=ttyS0,115200"
}

rootfs_write_grub() { # <root> <initrd> <kernel arguments>
  local -r root=$1 initrd=$2 arguments=$3
  local version
  version=$(rootfs_kernel_version "${root}")
  mkdir -p -- "${root}/boot/grub"
  cat >"${root}/boot/grub/grub.cfg" <<GRUB
set timeout=0
linux /boot/vmlinuz-${version} root=LABEL=cloudroot ${arguments}
initrd /boot/${initrd}
boot
GRUB
}
