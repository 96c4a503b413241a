# shellcheck shell=bash
# Tuning of the guest tree for a fast boot under emulation, where every process
# that starts costs tenths of a second. What a job can see stays as in any
# cloud image: cloud-init, sudo, systemd, sshd, the guest agent.

tune_boot() { # <root>
  local -r root=$1
  local -r units=${root}/etc/systemd/system
  rootfs_write_grub "${root}" initrd.lab \
    "rw console=ttyS0,115200 quiet loglevel=3 systemd.show_status=0 mitigations=off audit=0 apparmor=0 cryptomgr.notests random.trust_cpu=on no_timer_check rcupdate.rcu_expedited=1"
  rm -f -- "${root}"/boot/initrd.img-*
  : >"${root}/etc/fstab"
  ln -sf /lib/systemd/system/multi-user.target "${units}/default.target"
  tune_cloud_init "${root}"
  tune_mask_units "${units}"
  tune_generators "${root}"
  tune_services "${root}"
}

# tune_cloud_init leaves the modules that PVE's user-data and vendor data can
# ask for, one data source, and the key types that clients of ours use.
tune_cloud_init() { # <root>
  cat >"$1/etc/cloud/cloud.cfg.d/99-lab.cfg" <<'CLOUD'
datasource_list: [ NoCloud ]
ssh_genkeytypes: [ ed25519, ecdsa ]
cloud_init_modules: [ bootcmd, write-files, growpart, resizefs, set_hostname, update_hostname, update_etc_hosts, users-groups, ssh ]
cloud_config_modules: [ set-passwords, timezone, runcmd ]
cloud_final_modules: [ package-update-upgrade-install, write-files-deferred, scripts-per-once, scripts-per-boot, scripts-per-instance, scripts-user, phone-home, final-message, power-state-change ]
CLOUD
  tune_cloud_init_forks "$1"
}

# tune_cloud_init_forks lets cloud-init's stages be forks of one process (see
# cloud-init-forks.py). What else cloud-init does, and all of it while that
# process is not there, is done by Debian's program.
tune_cloud_init_forks() { # <root>
  local -r root=$1
  chroot "${root}" dpkg-divert --quiet --local --rename --divert /usr/bin/cloud-init.distrib --add /usr/bin/cloud-init
  cat >"${root}/usr/bin/cloud-init" <<'WRAPPER'
#!/bin/sh
run=/run/lab-cloud-init forks=
case $1 in
  init | modules | status) [ ! -w "$run/request" ] || forks=yes ;;
esac
[ -n "$forks" ] || exec /usr/bin/cloud-init.distrib "$@"
mkfifo -m 0600 "$run/reply.$$"
echo "$$ $*" >"$run/request"
read -r code <"$run/reply.$$"
rm "$run/reply.$$"
exit "${code:-1}"
WRAPPER
  chmod 0755 -- "${root}/usr/bin/cloud-init"
  mkdir -p -- "${root}/usr/lib/lab"
  cp -- "${BASH_SOURCE[0]%/*}/cloud-init-forks.py" "${root}/usr/lib/lab/"
  chroot "${root}" python3 -m compileall -q /usr/lib/python3 /usr/lib/lab
  cat >"${root}/etc/systemd/system/lab-cloud-init.service" <<'UNIT'
[Unit]
Description=cloud-init, imported once
DefaultDependencies=no
Before=cloud-init-local.service
Conflicts=shutdown.target
Before=shutdown.target

[Service]
RuntimeDirectory=lab-cloud-init
RuntimeDirectoryMode=0700
ExecStartPre=mkfifo -m 0600 /run/lab-cloud-init/request
ExecStart=/usr/bin/python3 /usr/lib/lab/cloud-init-forks.py
KillMode=process
TasksMax=infinity
StandardOutput=journal+console

[Install]
WantedBy=cloud-init.target
UNIT
  chroot "${root}" systemctl enable --quiet lab-cloud-init.service
}

tune_mask_units() { # <unit dir>
  local -a masked=(
    apt-daily.timer apt-daily-upgrade.timer apt-daily.service apt-daily-upgrade.service
    dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer
    systemd-pstore.service getty@tty1.service
    systemd-update-utmp.service systemd-update-utmp-runlevel.service
    systemd-networkd-wait-online.service systemd-journal-flush.service systemd-binfmt.service
    modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service
    modprobe@fuse.service modprobe@loop.service modprobe@dm_mod.service
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount
    sys-kernel-config.mount sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount
    cloud-init-hotplugd.socket systemd-tmpfiles-clean.timer remote-fs.target
    systemd-network-generator.service systemd-firstboot.service
    systemd-fsck-root.service systemd-remount-fs.service systemd-random-seed.service
    systemd-modules-load.service kmod-static-nodes.service systemd-sysusers.service
    systemd-fsckd.socket systemd-ask-password-console.path systemd-ask-password-wall.path
    systemd-initctl.socket systemd-user-sessions.service
  )
  local unit
  for unit in "${masked[@]}"; do ln -sf /dev/null "$1/${unit}"; done
}

# tune_generators masks all of systemd's generators: the root is mounted by the
# kernel's command line, and what cloud-init's would enable is enabled here.
tune_generators() { # <root>
  local -r root=$1 units=$1/etc/systemd/system
  local path
  mkdir -p -- "${root}/etc/systemd/system-generators" "${units}/multi-user.target.wants" \
    "${root}/etc/tmpfiles.d"
  for path in "${root}"/usr/lib/systemd/system-generators/*; do
    ln -sf /dev/null "${root}/etc/systemd/system-generators/${path##*/}"
  done
  ln -sf /lib/systemd/system/cloud-init.target "${units}/multi-user.target.wants/cloud-init.target"
  ln -sf /lib/systemd/system/serial-getty@.service \
    "${units}/multi-user.target.wants/serial-getty@ttyS0.service"
  # systemd-user-sessions is masked, so nothing would remove the boot's nologin.
  ln -sf /dev/null "${root}/etc/tmpfiles.d/systemd-nologin.conf"
}

tune_services() { # <root>
  local -r root=$1 units=$1/etc/systemd/system
  # The udev coldplug, only for what the guest needs.
  tune_drop_in "${units}/systemd-udev-trigger.service.d" '[Service]' 'ExecStart=' \
    "ExecStart=-udevadm trigger --type=devices --action=add --subsystem-match=block --subsystem-match=net --subsystem-match=virtio-ports --subsystem-match=virtio --subsystem-match=tty --sysname-match=ttyS0 --sysname-match=vd* --sysname-match=sd* --sysname-match=sr* --sysname-match=vport* --sysname-match=virtio* --sysname-match=e*"
  tune_drop_in "${units}/ssh.service.d" '[Service]' 'ExecStartPre='
  tune_drop_in "${units}/systemd-logind.service.d" '[Unit]' 'After=ssh.service'
  tune_drop_in "${units}/serial-getty@ttyS0.service.d" '[Unit]' 'After=ssh.service'
  tune_drop_in "${root}/etc/systemd/journald.conf.d" '[Journal]' 'Storage=volatile' 'RuntimeMaxUse=16M'
  # The slow post-quantum exchange last; no reverse lookups.
  tune_drop_in "${root}/etc/ssh/sshd_config.d" \
    'KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,sntrup761x25519-sha512@openssh.com' \
    'UseDNS no'
  local module
  for module in kvm_amd kvm_intel kvm powernow_k8 acpi_cpufreq psmouse pcspkr floppy i2c_piix4 \
    parport_pc ppdev lp joydev evdev input_leds crc32_pclmul sha512_ssse3 ghash_clmulni_intel \
    aesni_intel crct10dif_pclmul; do
    printf 'blacklist %s\n' "${module}"
  done >"${root}/etc/modprobe.d/lab.conf"
}

tune_drop_in() { # <dir> <line>...
  local -r dir=$1
  shift
  mkdir -p -- "${dir}"
  printf '%s\n' "$@" >"${dir}/lab.conf"
}
