# shellcheck shell=bash
# Functions that turn a root tree into a bootable GPT disk, with neither a loop
# device nor a mount. The layout is that of Debian's cloud images: partition 14
# for BIOS GRUB, 15 for UEFI, 1 the root, which starts at 128 MiB and comes
# last, so that growpart can grow it.

disk_create() { # <root> <out.raw> <size in MiB> [<features of ext4>]
  local -r root=$1 raw=$2 size_mb=$3 features=${4:+,$4}
  local -r bios_start=2048 efi_start=8192 root_start=262144
  local -r root_sectors=$((size_mb * 2048 - root_start - 2048))
  rm -f -- "${raw}"
  truncate -s "${size_mb}M" "${raw}"
  disk_partition "${raw}" <<PARTITIONS
label: gpt
first-lba: 34
1 : start=${root_start}, size=${root_sectors}, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, name=root
14 : start=${bios_start}, size=$((efi_start - bios_start)), type=21686148-6449-6E6F-744E-656564454649
15 : start=${efi_start}, size=$((root_start - efi_start)), type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B
PARTITIONS
  mke2fs -q -F -t ext4 -L cloudroot -m 1 \
    -O "^metadata_csum_seed,^orphan_file${features}" \
    -E "offset=$((root_start * 512)),lazy_itable_init=1,nodiscard,root_owner=0:0" \
    -d "${root}" "${raw}" "$((root_sectors / 2))k"
  cat >"${raw}.cfg" <<'GRUB'
set root=(hd0,gpt1)
set prefix=(hd0,gpt1)/boot/grub
configfile (hd0,gpt1)/boot/grub/grub.cfg
GRUB
  disk_install_bios_grub "${raw}" "${bios_start}"
  disk_install_efi_grub "${raw}" "${efi_start}" "$((root_start - efi_start))"
  rm -f -- "${raw}".*
}

disk_partition() { # <raw>; the partition table on stdin
  sfdisk --quiet --no-reread --no-tell-kernel "$1"
}

# disk_install_bios_grub does by hand what grub-install would do to a device:
# boot.img into the MBR, core.img into the BIOS boot partition, and into both
# the sector where the next stage lies (offsets from GRUB's boot.h).
disk_install_bios_grub() { # <raw> <first sector>
  local -r raw=$1 start=$2
  grub-mkimage -O i386-pc -p '(hd0,gpt1)/boot/grub' -c "${raw}.cfg" -o "${raw}.core" \
    biosdisk part_gpt ext2 normal configfile linux minicmd echo test serial search search_label
  cp -- /usr/lib/grub/i386-pc/boot.img "${raw}.boot"
  local core next
  core=$(disk_le64 "${start}")
  next=$(disk_le64 "$((start + 1))")
  disk_patch "${raw}.boot" 92 "${core}"   # kernel_sector
  disk_patch "${raw}.boot" 102 '\x90\x90' # no drive number check: a hard disk
  disk_patch "${raw}.core" 500 "${next}"  # block list of diskboot.img
  dd if="${raw}.boot" of="${raw}" bs=1 count=440 conv=notrunc status=none
  dd if="${raw}.core" of="${raw}" bs=512 seek="${start}" conv=notrunc status=none
}

disk_install_efi_grub() { # <raw> <first sector> <sectors>
  local -r raw=$1 start=$2 sectors=$3
  grub-mkimage -O x86_64-efi -p '/EFI/BOOT' -c "${raw}.cfg" -o "${raw}.efi" \
    part_gpt ext2 normal configfile linux echo test search search_label
  truncate -s "$((sectors / 2))K" "${raw}.esp"
  mkfs.vfat -n EFI "${raw}.esp" >/dev/null
  mmd -i "${raw}.esp" ::EFI ::EFI/BOOT
  mcopy -i "${raw}.esp" "${raw}.efi" ::EFI/BOOT/BOOTX64.EFI
  dd if="${raw}.esp" of="${raw}" bs=512 seek="${start}" conv=notrunc,sparse status=none
}

disk_patch() { # <file> <offset> <bytes as \xNN escapes>
  printf '%b' "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

disk_le64() { # <number>; prints eight \xNN escapes, least significant first
  local -r number=$1
  local shift
  for shift in 0 8 16 24 32 40 48 56; do
    printf '\\x%02x' "$(((number >> shift) & 255))"
  done
}
