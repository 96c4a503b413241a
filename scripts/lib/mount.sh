# shellcheck shell=bash
# Mounts a volume's filesystem in a running VM, through its guest agent, now and, by a line in its
# /etc/fstab, at each boot; or unmounts it and removes the line. The caller has proven the VM and
# attached the disk, whose serial number is volume_serial.

source "${BASH_SOURCE[0]%/*}/guest.sh"
source "${BASH_SOURCE[0]%/*}/vm.sh"

# Code that both programs share. A line of linus has a mount option of its own, and is on the disk
# when the script ends, because the VM may be off a moment later. A mount unit that systemd made of
# a removed line would make it unmount what else is mounted there.
# shellcheck disable=SC2016 # the guest's variables
mount_guest='PATH=$PATH:/usr/sbin:/sbin
    find_disk() { lsblk -dnro PATH,SERIAL | while read -r at is; do [ "$is" != "$serial" ] || echo "$at"; done; }
    tab() { # <line that takes the place of those of this volume, and of volumes at its path; or empty>
      if [ -e /etc/fstab ]; then
        cp -p /etc/fstab /etc/fstab.linus || return 1
        grep -vF -e "UUID=$uuid " -e " $where ext4 rw,nofail,x-linus-volume " -e " $where ext4 ro,nofail,x-linus-volume " /etc/fstab >/etc/fstab.linus
        [ "$?" -le 1 ] || return 1
      else
        : >/etc/fstab.linus || return 1
      fi
      [ -z "$1" ] || printf "%s\n" "$1" >>/etc/fstab.linus || return 1
      sync /etc/fstab.linus || sync
      mv -f /etc/fstab.linus /etc/fstab || return 1
      sync /etc || sync
    }
    forget_unit() { # <path>
      unit=$(systemd-escape -p --suffix=mount "$1" 2>/dev/null) || return 0
      [ ! -e "/run/systemd/generator/$unit" ] || systemctl daemon-reload
    }
    '

# Only a disk on which nothing can be found gets a filesystem, and only once. The filesystem is on
# the disk when that is reported.
mount_volume() {
  local said
  if [[ ${dry_run} == yes ]]; then
    result_text PLAN "in the VM, through its agent: mount it at ${VOLUME_PATH} (${VOLUME_MODE}), at each boot, too; where it was never formatted and has no signature, mkfs.ext4 first"
    return 0
  fi
  # shellcheck disable=SC2016 # the guest's variables
  guest_exec "${vm_id}" 300 sh -c 'serial=$1 uuid=$2 path=$3 mode=$4 formatted=$5 label=$6 user=$7 n=0 dev=
    '"${mount_guest}"'fail() { echo "linus-volume $*"; exit 9; }
    while :; do
      dev=$(find_disk)
      [ -z "$dev" ] || break
      n=$((n + 1))
      [ "$n" -le 30 ] || fail "its disk does not appear in the VM"
      sleep 1
    done
    there=$(findmnt -nro SOURCE --mountpoint "$path") || there=
    if [ "$there" != "$dev" ]; then
      [ -z "$there" ] || fail "something else is mounted at $path: $there"
      found=$(blkid -p -o value -s UUID "$dev") && code=0 || code=$?
      if [ "$code" = 2 ] && [ -z "$found" ] && signs=$(wipefs -n "$dev") && [ -z "$signs" ] && [ "$formatted" = false ]; then
        [ "$mode" = rw ] || fail "it has no filesystem yet: attach it for writing first"
        mkfs.ext4 -q -F -U "$uuid" -L "$label" -E lazy_itable_init=1 "$dev" || fail "mkfs.ext4 failed"
        found=$(blkid -p -o value -s UUID "$dev") || found=
      elif [ "$code" != 0 ] && [ "$formatted" = true ]; then
        fail "it had a filesystem, and now none is found: it is left as it is"
      fi
      [ "$found" = "$uuid" ] || fail "what is on its disk is not ours (UUID ${found:-none}): it is left as it is"
    fi
    where=$(printf %s "$path" | sed "s/\\\\/\\\\134/g; s/ /\\\\040/g")
    line="UUID=$uuid $where ext4 $mode,nofail,x-linus-volume 0 0"
    if ! grep -qsxF -e "$line" /etc/fstab; then
      said=$(tab "$line" 2>&1) || echo "linus-volume untold: $said"
      [ "$there" = "$dev" ] || forget_unit "$path"
    fi
    if [ "$there" != "$dev" ]; then
      mkdir -p "$path" || fail "there can be no directory $path"
      if ! said=$(mount -t ext4 -o "$mode" "$dev" "$path" 2>&1); then
        [ "$mode" = rw ] || said="$said; if it was not unmounted when its last VM ended, attach it for writing once"
        fail "it could not be mounted at $path: $said"
      fi
      [ "$mode" = ro ] || [ "$(stat -c %U "$path")" = "$user" ] || chown "$user:" "$path" || fail "$path could not be given to $user"
      [ "$(findmnt -nro SOURCE --mountpoint "$path")" = "$dev" ] || fail "it is not seen at $path"
    fi
    [ "$mode" = ro ] || sync -f "$path" || sync
    echo "linus-volume mounted"' sh "${volume_serial}" "${VOLUME_UUID}" "${VOLUME_PATH}" "${VOLUME_MODE}" "${VOLUME_FORMATTED}" "linus-${VOLUME_UUID: -10}" "${VM_SSH_USER:-${vm_config[ciuser]:-root}}"
  said=${guest_out:0:400}
  if [[ ${guest_exit} != 0 || ${guest_out} != *'linus-volume mounted'* ]]; then
    result_fail vm "volume ${VOLUME_VMID} could not be mounted at ${VOLUME_PATH} in VM ${vm_id} on node '${probe_node}' (exit ${guest_exit:-unknown}): ${said:-${run_said}}" \
      'the VM needs a guest agent that runs commands as root, and util-linux and e2fsprogs'
  elif [[ ${guest_out} == *'linus-volume untold'* ]]; then
    log_warn "VM ${vm_id} does not mount volume ${VOLUME_VMID} when it boots: /etc/fstab could not be written: ${said}"
  fi
  volume_plugged=no
  result_line VOLUME_FORMATTED true
}

# An unmount writes to the disk what the VM has not written yet. Nothing is mounted in a VM that is
# off, unless its memory is on the disk.
unmount_volume() {
  if [[ -z ${volume_key} ]]; then
    log_info 'it is not attached there'
    return 0
  fi
  require_vm
  vm_expect_status "${vm_id}" running
  vm_find_suspended "${vm_status}"
  if [[ ${vm_suspended} == yes ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' is suspended, and has volume ${VOLUME_VMID} mounted in its memory" 'resume it first'
  elif [[ ${vm_status} != running ]]; then
    return 0
  elif [[ ${dry_run} == yes ]]; then
    result_text PLAN 'in the VM, through its agent: umount'
    return 0
  fi
  ask_unmount 60
  if [[ ${guest_exit} != 0 || ${guest_out} != *'linus-volume unmounted'* ]]; then
    result_fail vm "volume ${VOLUME_VMID} could not be unmounted in VM ${vm_id} on node '${probe_node}' (exit ${guest_exit:-unknown}): ${guest_out:-${run_said}}" \
      'end what uses it there; or destroy the VM: the volume is taken off first'
  fi
}

ask_unmount() { # <seconds>
  # shellcheck disable=SC2016 # the guest's variables
  guest_exec "${vm_id}" "$1" sh -c 'serial=$1 uuid=$2 n=0
    '"${mount_guest}"'dev=$(find_disk)
    while [ -n "$dev" ] && at=$(findmnt -nlo TARGET -S "$dev" | tail -n 1) && [ -n "$at" ]; do
      if ! said=$(umount "$at" 2>&1); then
        n=$((n + 1))
        [ "$n" -le 10 ] || { echo "linus-volume busy: $said"; exit 9; }
        sleep 1
      fi
    done
    where=$(sed -n "s/^UUID=$uuid \\([^ ]*\\) ext4 .*/\\1/p" /etc/fstab 2>/dev/null | tail -n 1)
    if [ -n "$where" ] && tab ""; then
      forget_unit "$(printf %b "$where")"
    fi
    echo "linus-volume unmounted"' sh "${volume_serial}" "${VOLUME_UUID}"
}
