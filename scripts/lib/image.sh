# shellcheck shell=bash
# Cloud images: which there are, and how one is brought onto the host intact.

source "${BASH_SOURCE[0]%/*}/image-keys.sh"
source "${BASH_SOURCE[0]%/*}/result.sh"
source "${BASH_SOURCE[0]%/*}/run.sh"

# The table of operating systems. image_user is the user that the image's cloud-init makes by
# default.
image_lookup() { # <os>; image_os (empty: unknown), image_url, image_sums, image_user, image_known
  image_known="ubuntu (24.04), debian-12, debian-13, almalinux-9, rocky-9"
  case $1 in
    ubuntu | ubuntu-24.04)
      image_os=ubuntu-24.04 image_user=ubuntu
      image_url=https://cloud-images.ubuntu.com/releases/24.04/release/ubuntu-24.04-server-cloudimg-amd64.img
      image_sums=SHA256SUMS
      ;;
    debian | debian-12)
      image_os=debian-12 image_user=debian
      image_url=https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2
      image_sums=SHA512SUMS
      ;;
    debian-13)
      image_os=debian-13 image_user=debian
      image_url=https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2
      image_sums=SHA512SUMS
      ;;
    almalinux | almalinux-9)
      image_os=almalinux-9 image_user=almalinux
      image_url=https://repo.almalinux.org/almalinux/9/cloud/x86_64/images/AlmaLinux-9-GenericCloud-latest.x86_64.qcow2
      image_sums=CHECKSUM
      ;;
    rocky | rocky-9)
      image_os=rocky-9 image_user=rocky
      image_url=https://dl.rockylinux.org/pub/rocky/9/images/x86_64/Rocky-9-GenericCloud-Base.latest.x86_64.qcow2
      image_sums=CHECKSUM
      ;;
    *) image_os='' image_user='' image_url='' image_sums='' ;;
  esac
}

# Brings the image into the directory, or checks the one that is there: a file already there is
# never trusted. One run downloads, others wait for its lock and then find the file. The file gets
# its final name only when its sum is right.
image_obtain() { # <directory> <sha256, or empty: the vendor's>; image_file
  local -r base=$1/${image_os}
  local run_kept=8 # a killed run may still be downloading into its own file
  local suffix
  image_sum=$2
  mkdir -p -- "$1"
  exec 8>>"${base}.lock"
  run_lock 3600 8
  if ((run_rc != 0)); then
    result_fail vm "waited an hour for another run to download ${image_url}" "see who holds it: fuser ${base}.lock"
  fi
  image_part=${base}.part
  if [[ -z ${image_sum} ]]; then
    image_read_vendor_sum
  fi
  for suffix in qcow2 raw; do
    image_file=${base}.${suffix}
    if [[ -f ${image_file} ]]; then
      image_check "${image_file}"
      if [[ ${image_good} == yes ]]; then
        log_info "image ${image_file} is there and its checksum is right"
        image_release
        return 0
      fi
      log_warn "image ${image_file} is not what ${image_url} should be: fetching it again"
    fi
  done
  image_fetch "${image_url}" "${image_part}"
  image_check "${image_part}"
  if [[ ${image_good} != yes ]]; then
    rm -f -- "${image_part}"
    result_fail vm "the checksum of ${image_url} is ${image_found}, not ${image_sum}" \
      'try again; if it persists, the download is broken or tampered with'
  fi
  image_name_by_content "${base}"
  mv -f -- "${image_part}" "${image_file}"
  image_release
}

image_release() { # releases the lock, and with it the right to the .part file
  image_part=''
  exec 8>&-
}

# Proxmox takes the format from the name if it cannot look inside.
image_name_by_content() { # <path without suffix>; image_file
  run_read 60 run_alone od -An -tx1 -N4 -- "${image_part}"
  if [[ ${run_out//[[:space:]]/} == 514649fb ]]; then
    image_file=$1.qcow2
  else
    image_file=$1.raw
  fi
}

# An https URL is fetched only by https, also after redirects: http and file are for those who ask
# for them. wget cannot be restricted to https, so for sums, on which all trust in an image rests,
# it follows no redirect at all.
image_fetch() { # <url> <file> [sums]
  local -a fetch
  local protocols=http,https
  if [[ $1 == https://* ]]; then
    protocols=https
  fi
  if [[ $1 == file://* ]]; then
    fetch=(cp -- "${1#file://}" "$2")
  elif command -v curl >/dev/null; then
    fetch=(curl -fsSL --proto "=${protocols}" --proto-redir "=${protocols}" --retry 3 --connect-timeout 20 --speed-limit 1024 --speed-time 60 -o "$2" -- "$1")
  else
    fetch=(wget -q --tries=3 --timeout=60)
    if [[ ${3:-} == sums ]]; then
      fetch+=(--max-redirect=0)
    fi
    fetch+=(-O "$2" -- "$1")
  fi
  log_info "fetch $1"
  run_read 3600 "${fetch[@]}"
  if ((run_rc != 0)); then
    rm -f -- "$2"
    result_fail vm "could not fetch $1 on ${HOSTNAME} (exit ${run_rc}): ${run_said}" \
      'check that the host reaches it (proxy, DNS), or set VM_IMAGE_URL and VM_IMAGE_SHA256'
  fi
}

# Vendors write their sums as "<sum>  <file>" or "SHA256 (<file>) = <sum>".
image_read_vendor_sum() { # image_sum
  local -r name=${image_url##*/} sums=${image_url%/*}/${image_sums}
  local line
  image_fetch "${sums}" "${run_dir}/sums" sums
  image_verify_sums "${sums}"
  while IFS= read -r line; do
    if [[ ${line} =~ ^([0-9a-f]{64}|[0-9a-f]{128})\ [\ *](.+)$ && ${BASH_REMATCH[2]} == "${name}" ]]; then
      image_sum=${BASH_REMATCH[1]}
    elif [[ ${line} =~ ^SHA(256|512)\ \((.+)\)\ =\ ([0-9a-f]+)$ && ${BASH_REMATCH[2]} == "${name}" ]]; then
      image_sum=${BASH_REMATCH[3]}
    fi
  done <"${run_dir}/sums"
  if [[ -z ${image_sum} ]]; then
    result_fail vm "${sums} has no checksum for ${name}" 'set VM_IMAGE_URL and VM_IMAGE_SHA256'
  fi
}

# Checks the vendor's signature of the list just fetched, if there is one, by the vendor's key
# alone. Proxmox VE has gpgv, because apt needs it.
image_verify_sums() { # <the list's URL>
  image_find_key "${image_os}"
  if [[ -z ${image_signature} ]]; then
    return 0
  elif ! command -v gpgv >/dev/null; then
    result_warning "the signature of $1 is not checked: gpgv is missing on ${HOSTNAME}"
    return 0
  fi
  base64 -d <<<"${image_keyring}" >"${run_dir}/keyring.gpg"
  image_fetch "${1%/*}/${image_signature}" "${run_dir}/signature" sums
  run_read 60 gpgv --status-fd 1 --keyring "${run_dir}/keyring.gpg" -- "${run_dir}/signature" "${run_dir}/sums"
  if [[ $'\n'${run_out} != *$'\n[GNUPG:] GOODSIG '* || $'\n'${run_out} != *$'\n[GNUPG:] VALIDSIG '"${image_signer} "* ]]; then
    result_fail vm "$1 is not signed by its vendor's key ${image_signer}: ${run_said}" \
      'try again; if it persists, it is tampered with, or the vendor has a new key: update linus, or set VM_IMAGE_URL and VM_IMAGE_SHA256'
  fi
  log_info "$1 is signed by its vendor's key ${image_signer}"
}

image_check() { # <file>; image_good: yes or no; image_found: its sum
  local tool=sha256sum
  if ((${#image_sum} == 128)); then
    tool=sha512sum
  fi
  image_good=no
  run_read 600 "${tool}" -- "$1"
  image_found=${run_out%% *}
  if ((run_rc == 0)) && [[ ${image_found} == "${image_sum}" ]]; then
    image_good=yes
  fi
}

image_clean() { # for the EXIT trap
  if [[ -n ${image_part:-} ]]; then
    rm -f -- "${image_part}"
  fi
}
