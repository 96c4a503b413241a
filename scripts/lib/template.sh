# shellcheck shell=bash
# Turns a VM into a template of linus, for the scripts that make some: what its clones must not
# share is removed inside it (template_program), and it is shut down, marked and converted. vm_id
# and the like are the VM's; vm_kind is template once it is one.

source "${BASH_SOURCE[0]%/*}/boot.sh"

template_set=() # what the last mark has set besides the description

# The program that cleans a guest, for root's sh -s there; its argument is the user who logs in.
# Clones must not share their machine ID, host keys, log-in keys or the names by which storages know
# them, nor have what the VM's people and jobs have left: keys, histories, credentials of agents.
# Nor does a clone's first boot make up for the upgrades that the template missed, which would
# install and restart things under a job: they come at their next time. (A first boot enables what
# was disabled, so this is a drop-in.) Homes are root's, the user's and those in /home.
#
# It prints `linus-clean done` and then, separated by |, what it has found and left: first the files
# in which programs keep credentials, then everything else in homes that a new user's home does not
# have.
template_program() {
  printf 'forget_leases() {\n%s\n}\n' "${guest_forget_leases}"
  cat <<'PROGRAM'
set -eu
export LC_ALL=C
if command -v apt-get >/dev/null; then apt-get clean || :; fi
if command -v dnf >/dev/null; then dnf -q clean packages || :; fi
for timer in apt-daily apt-daily-upgrade dnf-automatic dnf-automatic-install; do
  mkdir -p "/etc/systemd/system/$timer.timer.d"
  printf "[Timer]\nPersistent=false\n" >"/etc/systemd/system/$timer.timer.d/linus.conf"
done
home=$(getent passwd "$1" | cut -d: -f6)
set -- "${home:?}"
for dir in /root /home/*; do
  if [ -d "$dir" ] && [ ! -L "$dir" ] && [ "$dir" != "$home" ]; then set -- "$@" "$dir"; fi
done
for dir; do
  rm -rf "$dir/.ssh" "$dir"/.*_history "$dir/.lesshst" "$dir/.viminfo" "$dir/.wget-hsts" "$dir/.local/share/fish/fish_history" \
    "$dir/.zsh_sessions" "$dir/.Xauthority" "$dir/.claude.json" "$dir"/.claude.json.* "$dir/.claude/.credentials.json" \
    "$dir/.claude/history.jsonl" "$dir/.claude/projects" "$dir/.claude/shell-snapshots" "$dir/.codex/auth.json" \
    "$dir/.codex/history.jsonl" "$dir/.codex/sessions" "$dir/.gemini/oauth_creds.json" "$dir/.gemini/google_accounts.json" "$dir/.gemini/tmp"
done
rm -rf /opt/job-runner /var/lib/linus /run/linus
rm -rf /var/log/journal/* /var/log/auth.log* /var/log/secure* /var/log/syslog* /var/log/messages* \
  /var/log/wtmp* /var/log/btmp* /var/log/lastlog /var/spool/mail/* /var/mail/*
forget_leases
rm -f /var/lib/systemd/random-seed /etc/netplan/50-cloud-init.yaml /etc/network/interfaces.d/50-cloud-init* /etc/systemd/network/10-cloud-init-*.network \
  /etc/NetworkManager/system-connections/cloud-init-*.nmconnection /etc/udev/rules.d/70-persistent-net.rules
if [ -f /var/lib/dbus/machine-id ] && [ ! -L /var/lib/dbus/machine-id ]; then rm -f /var/lib/dbus/machine-id; fi
for file in /etc/nvme/hostnqn /etc/nvme/hostid /etc/iscsi/initiatorname.iscsi; do
  if [ -w "$file" ]; then rm -f "$file"; fi
done
# Without the file others draw a name; Debian's scripts where it says so.
if [ -e /lib/open-iscsi/startup-checks.sh ] && [ -w /etc/iscsi ]; then echo GenerateName=yes >"$file"; fi
# A first boot's ID that systemd-machine-id-commit has not written yet is in a mount, read-only.
if grep -q ' /etc/machine-id ' /proc/self/mounts; then umount -l /etc/machine-id; fi
cloud-init clean --logs --machine-id >&2
# Before 23.1 it removes the file: systemd makes an ID where that is empty, and none where it is
# missing and the root is mounted read-only at first, as Debian's is. DHCP fails then.
[ -e /etc/machine-id ] || install -m 444 /dev/null /etc/machine-id
rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys "$home/.ssh/authorized_keys"
find /tmp /var/tmp -mindepth 1 -xdev -delete 2>/dev/null || :
for file in /etc/ssh/ssh_host_*_key "$home/.ssh" /root/.ssh /opt/job-runner /var/lib/linus; do
  if [ -e "$file" ]; then echo "$file is still there" >&2; exit 1; fi
done
sync
trimmed=yes
if ! command -v fstrim >/dev/null || ! fstrim -a >/dev/null 2>&1; then trimmed=no; fi
seen() {
  for dir; do
    for file in .docker/config.json .netrc .git-credentials .config/git/credentials .npmrc .pypirc .aws .azure .config/gcloud .config/gh \
      .config/glab-cli .config/rclone .kube .gnupg .cargo/credentials.toml .terraform.d/credentials.tfrc.json .vault-token .pgpass .my.cnf; do
      if [ -e "$dir/$file" ]; then echo "$dir/$file (may hold credentials)"; fi
    done
  done
  for file in /etc/wireguard/*.conf /etc/openvpn/*.conf /var/lib/tailscale /var/lib/zerotier-one/identity.secret /etc/cloudflared /etc/gitlab-runner/config.toml \
    /opt/actions-runner/.credentials /etc/krb5.keytab /etc/pki/consumer/key.pem /var/lib/ubuntu-advantage/private /var/lib/snapd/device/private-keys-v1 \
    /etc/salt/pki/minion /etc/puppetlabs/puppet/ssl/private_keys /etc/letsencrypt/live /etc/ssl/private/*.key /var/lib/systemd/credential.secret \
    /var/lib/docker/volumes/*/_data; do
    if [ -e "$file" ]; then echo "$file (may hold credentials)"; fi
  done
  if [ "$trimmed" = no ]; then echo "what was deleted, in free blocks of the disk (they could not be trimmed)"; fi
  for dir; do
    for file in "$dir"/* "$dir"/.[!.]*; do
      if [ -e "$file" ] && [ ! -e "/etc/skel/${file##*/}" ]; then echo "$file"; fi
    done
  done
}
printf 'linus-clean done'
seen "$@" | tr -c '[:print:]\n' '?' | tr '|' '?' | cut -c 1-100 | awk 'NR <= 30 { printf "|%s", $0 } END { if (NR > 30) printf "|and %d more", NR - 30 }'
PROGRAM
}

shut_down() {
  retry_change stop_has_landed 240 qm shutdown "${vm_id}" --timeout 180
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' did not shut down (status ${vm_status}): Proxmox answered: ${run_said:-nothing}" \
      'look at its console when started by hand'
  fi
}

# The mark comes before the conversion, so that a half-made template still proves to be linus's.
mark_template() { # <what else the template says, each word after a blank> <option of qm set...>
  vm_marker
  template_words=$1
  template_set=("${@:2}")
  retry_change template_is_marked 120 qm set "${vm_id}" "${template_set[@]}" --description "${vm_description} linus-template=1${template_words}"
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "could not mark VM ${vm_id} on node '${probe_node}': Proxmox answered: ${run_said}" "look at the task log of node '${probe_node}'"
  fi
}

# No clone may have the key or the address of the VM that it was made from.
template_is_marked() {
  vm_read "${vm_id}"
  vm_prove
  if [[ -z ${vm_doubt} && "${vm_words}" == *" linus-template=1${template_words} "* ]] \
    && [[ ${#template_set[@]} -eq 0 || (-z ${vm_config[sshkeys]:-} && ${vm_config[ipconfig0]:-} == ip=dhcp) ]]; then
    retry_landed=yes
  fi
}

# Neither the conversion nor what follows it is interrupted: a complete template, or checkpoint, is
# kept and reported.
convert_template() {
  run_stoppable=no
  retry_change template_has_landed 600 qm template "${vm_id}"
  if [[ ${vm_config[template]:-0} == 1 && ${vm_words} == *' linus-template=1 '* ]]; then
    vm_kind=template
  fi
  if [[ ${retry_landed} != yes ]]; then
    result_fail vm "VM ${vm_id} on node '${probe_node}' did not become a template: Proxmox answered: ${run_said:-nothing}" \
      'use a storage that takes templates (lvmthin, zfs, dir, nfs, rbd; not plain lvm)'
  fi
}

# A failed conversion can leave the mark of a template on a disk that is not one.
template_has_landed() {
  vm_read "${vm_id}"
  vm_find_boot_disk
  if [[ ${vm_config[template]:-0} == 1 && ${vm_config[${vm_boot_disk:-scsi0}]:-} =~ ^[^,]*[:/]base- ]]; then
    retry_landed=yes
  fi
}
