# shellcheck shell=bash
# The files that a host keeps of checkpoints. A checkpoint is a VM of linus that was ready, was
# saved to the disk and turned into a template (checkpoint-vm.sh). Its description carries
# linus-checkpoint=<ID of the template that it was made of>. Its disk is the template's, and clones
# are made of it. Its memory lies here, because Proxmox would free it with the first start from it:
#   ID.state  what QEMU wrote, as a sparse file
#   ID.meta   lines KEY=VALUE of what must be the same where it is read again
# in LINUS_HOST_DIR (/var/lib/linus)/checkpoints. The meta file is written last, so a state without
# one is incomplete. Both appear by rename, and are removed with the VM.

source "${BASH_SOURCE[0]%/*}/vm.sh"

checkpoint_locate() { # <vmid>; checkpoint_state, checkpoint_meta
  checkpoint_dir=${LINUS_HOST_DIR:-/var/lib/linus}/checkpoints
  checkpoint_state=${checkpoint_dir}/$1.state
  checkpoint_meta=${checkpoint_dir}/$1.meta
}

# A meta file that is not this user's own is ignored.
checkpoint_load() { # <vmid>; checkpoint_found: yes or no; checkpoint: its keys and values
  local line
  local -a lines=()
  declare -gA checkpoint=()
  checkpoint_found=no
  checkpoint_locate "$1"
  if [[ ! -f ${checkpoint_meta} || -L ${checkpoint_meta} || ! -O ${checkpoint_meta} ]] \
    || ! { mapfile -t -n 64 lines <"${checkpoint_meta}"; } 2>/dev/null; then
    return 0
  fi
  for line in "${lines[@]}"; do
    if [[ ${line} == [A-Z]*=* ]]; then
      checkpoint[${line%%=*}]=${line#*=}
    fi
  done
  if [[ ${lines[-1]:-} == END=yes ]]; then
    checkpoint_found=yes
  fi
}

# Removes the files of a VM that is gone. If another VM has had the ID since, its files stay.
checkpoint_drop() { # <vmid> <job>
  local file
  checkpoint_load "$1"
  if [[ ${checkpoint_found} == yes && ${checkpoint[JOB]:-} != "$2" ]]; then
    return 0
  fi
  for file in "${checkpoint_meta}" "${checkpoint_state}" "${checkpoint_dir}/$1".{meta,state}.new; do
    if [[ -e ${file} || -L ${file} ]] && ! rm -f -- "${file}" 2>/dev/null; then
      log_warn "${file} of VM $1, which is gone, could not be removed"
    fi
  done
}

# Removes the files of VMs that were destroyed by hand or whose ID belongs to another VM now. The
# config file is looked at first, which costs nothing: Proxmox is asked only if it does not show the
# job.
checkpoint_sweep() {
  local file id text job
  local -A seen=()
  for file in "${LINUS_HOST_DIR:-/var/lib/linus}"/checkpoints/*; do
    if [[ ! ${file##*/} =~ ^([1-9][0-9]{2,8})\.(state|meta)(\.new)?$ || -n ${seen[${BASH_REMATCH[1]:-none}]:-} ]]; then
      continue
    fi
    id=${BASH_REMATCH[1]}
    seen[${id}]=yes
    checkpoint_load "${id}"
    job=${checkpoint[JOB]:-}
    text=''
    { IFS= read -r -N 4096 text <"${LINUS_PVE_DIR:-/etc/pve}/qemu-server/${id}.conf" || :; } 2>/dev/null
    if [[ -n ${text} && ${text} == *"linus-job=${job}"* ]]; then
      continue
    fi
    vm_read "${id}"
    if [[ ${vm_state} == absent || (${vm_state} == present && -n ${job} && ${vm_words} != *" linus-job=${job} "*) ]]; then
      log_info "the VM of checkpoint ${id} is gone: removing its memory"
      checkpoint_drop "${id}" "${job}"
    fi
  done
}
