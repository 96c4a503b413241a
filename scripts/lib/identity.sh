# shellcheck shell=bash
# Gives a restored VM its own identity. It continues as the guest that was saved, like every other
# VM of the same checkpoint, until its agent runs one program while its link is still down. The
# program comes on stdin, because everybody on the host can read arguments; the only key in it is a
# public one.
#
# It changes: the clock, the kernel's random numbers, MAC, host name, machine ID, SSH host keys, who
# may log in, network settings and DHCP's identity, the names by which iSCSI and NVMe storages know
# it, and cloud-init's instance, so that the next boot is not taken for the first one of another
# machine.
#
# Copies of one checkpoint still share the following, which cannot be changed in a running system:
#   - the kernel's boot ID (/proc/sys/kernel/random/boot_id) and uptime, and what is drawn once at a
#     boot: KASLR, the stack protector's canary, the keys of its hash tables, of TCP's sequence
#     numbers and of SYN cookies (net_secret). If the user of such a VM is trusted less than its
#     kernel, two VMs of a checkpoint must not run side by side where the one could attack the other
#     by what it sees of itself
#   - the memory of programs that keep running: their addresses (ASLR), and the random numbers they
#     drew before the save. The SSH server, journald and the network's service are restarted here;
#     init, dbus, the agent and logind are not. A template whose own services keep secrets must
#     restart them itself
#   - what programs were given once to be known by: keys of a VPN, a subscription, an agent
#     (/etc/wireguard, /var/lib/tailscale, /etc/pki/consumer, /var/lib/snapd), and the key that
#     systemd seals credentials with: a template should have none of them
#   - init's copy of the machine ID (%m in units), until the next boot
#   - UUIDs of file systems and partitions, as all clones of a template do
#   - the machine's UUID from DMI, in the memory of programs that have read it before

source "${BASH_SOURCE[0]%/*}/guest.sh"

identity_quote() { # <text>; identity_quoted: as a word of sh
  identity_quoted="'${1//\'/\'\\\'\'}'"
}

# Draws random bytes of the host for a guest. identity_bytes: the bytes, as hex.
identity_draw() { # <number of bytes>
  run_read 10 run_alone od -An -vtx1 -N "$1" /dev/urandom
  identity_bytes=${run_out//[[:space:]]/}
}

# Runs the program, with its values before it, on stdin of a shell in the guest.
#   identity_exit  its exit code, or empty when the agent did not answer; identity_said:
#                  its output; guest_host_key: the key of its SSH server
identity_take() { # <vmid> <seconds> <NAME=VALUE...>
  local -r id=$1 seconds=$2
  local pair err json_most=65536
  shift 2
  {
    for pair in "$@"; do
      identity_quote "${pair#*=}"
      printf '%s=%s\n' "${pair%%=*}" "${identity_quoted}"
    done
    printf 'tell_key() {\n%s\n}\n' "${guest_tell_key}"
    identity_program
  } >"${run_dir}/identity"
  identity_exit=''
  run_stdin=${run_dir}/identity run_read "$((seconds + 15))" qm guest exec "${id}" --pass-stdin 1 --timeout "${seconds}" -- sh -s
  rm -f -- "${run_dir}/identity"
  identity_said=${run_said}
  if ((run_rc == 0)); then
    json_rows read exitcode out-data err-data
    IFS=$'\x1f' read -r identity_exit identity_said err <<<"${json_lines[0]:-}"
    guest_take_key "${identity_said}"
    identity_said="${identity_said:0:400}${err:+ ${err:0:400}}"
  fi
}

# The values of the program are name, mac, old_mac, user, key, time, seed and machine_id (hex), ip4
# (dhcp, ADDRESS/PREFIX or nothing), gw4, ip6 (dhcp, auto, ADDRESS/PREFIX or nothing), gw6, servers
# and search (separated by blanks), and boots (yes: the VM is not a saved guest that continues, but
# boots from the disk of another one: its card, network and instance come from its own cloud-init
# drive, which is waited for).
identity_program() {
  printf 'forget_leases() {\n%s\n}\n' "${guest_forget_leases}"
  cat <<'PROGRAM'
fail() {
  printf 'linus-identity: %s\n' "$1" >&2
  exit "${2:-1}"
}

# The clock first: all that follows writes dates. The time is the host's of when this was
# sent; the machine's hardware clock follows the host's, and may know better now.
set_clock() {
  rtc=0
  { read -r rtc </sys/class/rtc/rtc0/since_epoch; } 2>/dev/null
  if [ "${rtc:-0}" -gt "$time" ] && [ "$rtc" -le $((time + 60)) ]; then time=$rtc; fi
  off=$((time - $(date +%s)))
  [ "${off#-}" -le 1 ] || date -u -s "@$time" >/dev/null || fail 'the clock could not be set'
}

# Before anything is drawn. In a user namespace the kernel is another machine's.
reseed() {
  read -r _ _ all </proc/self/uid_map
  [ "$all" = 4294967295 ] || return 0
  rm -f /var/lib/systemd/random-seed
  if command -v perl >/dev/null; then
    seed=$seed perl -e '
      my ($bytes, $none) = (pack("H*", $ENV{seed}), 0);
      my $entropy = pack("ii", 8 * length $bytes, length $bytes) . $bytes;
      open my $random, "+<", "/dev/urandom" or die "$!\n";
      ioctl $random, 0x40085203, $entropy or die "RNDADDENTROPY: $!\n";
      ioctl $random, 0x5207, $none or die "RNDRESEEDCRNG: $!\n";'
  elif command -v python3 >/dev/null; then
    seed=$seed python3 -c '
import fcntl, os, struct
seed = bytes.fromhex(os.environ["seed"])
with open("/dev/urandom", "rb") as random:
    fcntl.ioctl(random, 0x40085203, struct.pack("ii", 8 * len(seed), len(seed)) + seed)
    fcntl.ioctl(random, 0x5207)'
  else
    fail 'it has neither perl nor python3 to reseed its random numbers with' 65
  fi || fail 'its random numbers could not be reseeded'
}

find_card() {
  card=''
  for dir in /sys/class/net/*; do
    read -r address <"$dir/address" || continue
    case $address in
      "$old_mac" | "$mac") if [ -z "$card" ] || [ -e "$dir/device" ]; then card=${dir##*/}; fi ;;
    esac
  done 2>/dev/null
  [ -n "$card" ] || fail "it has no card with the address $old_mac"
}

find_services() {
  set -- $(systemctl is-active systemd-networkd NetworkManager ssh sshd systemd-journald systemd-resolved 2>/dev/null)
  networkd=${1:-} manager=${2:-} ssh=${3:-} sshd=${4:-} journald=${5:-} resolved=${6:-}
  netplan=''
  if [ "$boots" = yes ]; then # what is starting has read the old machine ID
    [ "$networkd" != activating ] || networkd=active
    [ "$manager" != activating ] || manager=active
    return 0
  fi
  if [ "$networkd" = active ] || [ "$manager" = active ]; then
    for file in /etc/netplan/*.yaml; do
      [ ! -e "$file" ] || ! command -v netplan >/dev/null || netplan=yes
    done
  elif [ ! -f /etc/network/interfaces ] || ! command -v ifup >/dev/null; then
    fail 'its network is not known: neither networkd, NetworkManager nor ifupdown' 65
  fi
}

# The saved guest's address and lease go with its MAC.
change_mac() {
  [ "$networkd" = active ] || [ "$manager" = active ] || ifdown --force "$card" >/dev/null 2>&1
  ip link set dev "$card" down && ip address flush dev "$card" && ip link set dev "$card" address "$mac" \
    || fail "the address of card $card could not be set"
  forget_leases
  for file in /etc/netplan/* /etc/systemd/network/* /etc/udev/rules.d/*net*.rules /etc/network/interfaces \
    /etc/network/interfaces.d/* /etc/NetworkManager/system-connections/* /etc/sysconfig/network-scripts/ifcfg-*; do
    if [ -f "$file" ] && grep -qi "$old_mac" "$file"; then
      sed -i "s/$old_mac/$mac/gI" "$file"
    fi
  done
}

write_network() {
  if [ -n "$netplan" ]; then
    write_netplan >/etc/netplan/50-cloud-init.yaml.new
    chmod 600 /etc/netplan/50-cloud-init.yaml.new
    mv -f /etc/netplan/50-cloud-init.yaml.new /etc/netplan/50-cloud-init.yaml
    generator=/usr/libexec/netplan/generate
    [ -x "$generator" ] || generator=/usr/lib/netplan/generate
    if [ -x "$generator" ]; then "$generator"; else netplan generate; fi || fail 'netplan did not take its network'
  elif [ "$networkd" = active ]; then
    for file in /etc/systemd/network/*.network; do
      if [ -f "$file" ] && grep -qiE "^(MACAddress|PermanentMACAddress)=$mac|^Name=$card\$" "$file"; then rm -f "$file"; fi
    done
    mkdir -p /etc/systemd/network
    write_networkd >"/etc/systemd/network/10-cloud-init-$card.network"
  elif [ "$manager" = active ]; then
    rm -f /etc/sysconfig/network-scripts/ifcfg-"$card"
    for file in /etc/NetworkManager/system-connections/*; do
      if [ -f "$file" ] && grep -qiE "^(mac-address=$mac|interface-name=$card)\$" "$file"; then rm -f "$file"; fi
    done
    mkdir -p /etc/NetworkManager/system-connections
    (umask 077 && write_manager >"/etc/NetworkManager/system-connections/cloud-init-$card.nmconnection")
  else
    rm -f /etc/network/interfaces.d/50-cloud-init*
    ! cat /etc/network/interfaces /etc/network/interfaces.d/* 2>/dev/null | grep -qE "^iface +$card " \
      || fail "the settings of its card $card are not where cloud-init writes them" 65
    grep -qE '^source(-directory)? +/etc/network/interfaces\.d' /etc/network/interfaces \
      || echo 'source /etc/network/interfaces.d/*' >>/etc/network/interfaces
    mkdir -p /etc/network/interfaces.d
    write_ifupdown >/etc/network/interfaces.d/50-cloud-init
  fi
  # Where nobody makes it of the network's settings it is a file like any other.
  if [ "$resolved" != active ] && [ "$manager" != active ] && [ -f /etc/resolv.conf ] && [ ! -L /etc/resolv.conf ] && [ -n "$servers" ]; then
    {
      [ -z "$search" ] || echo "search $search"
      for word in $servers; do echo "nameserver $word"; done
    } >/etc/resolv.conf
  fi
}

# The driver, not the MAC: netplan asks for the one that the card was plugged in with.
write_netplan() {
  driver=$(readlink "/sys/class/net/$card/device/driver")
  printf 'network:\n  version: 2\n  ethernets:\n    "%s":\n' "$card"
  [ -z "$driver" ] || printf '      match: {driver: "%s"}\n      set-name: "%s"\n' "${driver##*/}" "$card"
  printf '      dhcp4: %s\n      dhcp6: %s\n' "$([ "$ip4" = dhcp ] && echo true || echo false)" "$([ "$ip6" = dhcp ] && echo true || echo false)"
  [ "$ip6" != auto ] || echo '      accept-ra: true'
  addresses=''
  for word in $(static_of "$ip4") $(static_of "$ip6"); do addresses="$addresses${addresses:+, }\"$word\""; done
  [ -z "$addresses" ] || printf '      addresses: [%s]\n' "$addresses"
  if [ -n "$gw4$gw6" ]; then
    echo '      routes:'
    [ -z "$gw4" ] || printf '        - {to: "0.0.0.0/0", via: "%s"}\n' "$gw4"
    [ -z "$gw6" ] || printf '        - {to: "::/0", via: "%s"}\n' "$gw6"
  fi
  if [ -n "$servers$search" ]; then
    echo '      nameservers:'
    [ -z "$servers" ] || { echo '        addresses:'; for word in $servers; do printf '          - "%s"\n' "$word"; done; }
    [ -z "$search" ] || { echo '        search:'; for word in $search; do printf '          - "%s"\n' "$word"; done; }
  fi
}

static_of() { # <ip4 or ip6>: the address, where it is one
  case $1 in */*) echo "$1" ;; esac
}

write_networkd() {
  case $ip4/$ip6 in
    dhcp/dhcp) dhcp=yes ;;
    dhcp/*) dhcp=ipv4 ;;
    */dhcp) dhcp=ipv6 ;;
    *) dhcp=no ;;
  esac
  printf '[Match]\nMACAddress=%s\nName=%s\n\n[Network]\nDHCP=%s\n' "$mac" "$card" "$dhcp"
  [ "$ip6" != auto ] && [ "$ip6" != dhcp ] || echo IPv6AcceptRA=yes
  for word in $(static_of "$ip4") $(static_of "$ip6"); do echo "Address=$word"; done
  for word in $gw4 $gw6; do echo "Gateway=$word"; done
  for word in $servers; do echo "DNS=$word"; done
  [ -z "$search" ] || echo "Domains=$search"
}

write_manager() {
  printf '[connection]\nid=cloud-init %s\nuuid=%s\ntype=ethernet\ninterface-name=%s\nautoconnect-priority=120\n' \
    "$card" "$(cat /proc/sys/kernel/random/uuid)" "$card"
  for family in 4 6; do
    if [ "$family" = 4 ]; then how=$ip4 gateway=$gw4; else how=$ip6 gateway=$gw6; fi
    printf '\n[ipv%s]\n' "$family"
    case $how in
      dhcp) if [ "$family" = 4 ]; then echo method=auto; else echo method=dhcp; fi ;;
      auto) echo method=auto ;;
      '') if [ "$family" = 4 ]; then echo method=disabled; else echo method=link-local; fi ;;
      *) printf 'method=manual\naddress1=%s%s\n' "$how" "${gateway:+,$gateway}" ;;
    esac
    own=''
    for word in $servers; do
      case $word in *:*) of=6 ;; *) of=4 ;; esac
      [ "$of" != "$family" ] || own="$own$word;"
    done
    [ -z "$own" ] || [ -z "$how" ] || echo "dns=$own"
    [ -z "$search" ] || [ -z "$how" ] || echo "dns-search=$(echo "$search" | tr ' ' ';')"
  done
}

write_ifupdown() {
  printf 'auto lo\niface lo inet loopback\n\nauto %s\n' "$card"
  for family in 4 6; do
    if [ "$family" = 4 ]; then how=$ip4 gateway=$gw4 kind=inet; else how=$ip6 gateway=$gw6 kind=inet6; fi
    case $how in
      '') continue ;;
      dhcp | auto) printf 'iface %s %s %s\n' "$card" "$kind" "$how" ;;
      *)
        printf 'iface %s %s static\n    address %s\n' "$card" "$kind" "$how"
        [ -z "$gateway" ] || printf '    gateway %s\n' "$gateway"
        ;;
    esac
    [ -z "$servers" ] || printf '    dns-nameservers %s\n' "$servers"
    [ -z "$search" ] || printf '    dns-search %s\n' "$search"
  done
}

set_names() {
  old=$(hostname)
  hostname "$name" && printf '%s\n' "$name" >/etc/hostname || fail 'its name could not be set'
  # Twice: two of them side by side share the blank between them.
  swap="s/(^|[[:space:]])$old([.[:space:]]|\$)/\1$name\2/g"
  [ ! -f /etc/hosts ] || sed -i -E -e "$swap" -e "$swap" /etc/hosts
  read -r old_id </etc/machine-id || old_id=''
  # systemd holds a first boot's ID in a mount over the file, read-only, until
  # systemd-machine-id-commit has written it; which may be masked.
  if grep -q ' /etc/machine-id ' /proc/self/mounts; then
    umount -l /etc/machine-id || fail 'what is mounted over /etc/machine-id could not be unmounted'
  fi
  printf '%s\n' "$machine_id" >/etc/machine-id || fail 'its machine ID could not be written'
  if [ -f /var/lib/dbus/machine-id ] && [ ! -L /var/lib/dbus/machine-id ]; then
    printf '%s\n' "$machine_id" >/var/lib/dbus/machine-id
  fi
  for dir in /var/log/journal /run/log/journal; do
    if [ -n "$old_id" ] && [ -d "$dir/$old_id" ]; then mv "$dir/$old_id" "$dir/$machine_id"; fi
  done
}

# Two that log in to a storage under one name take each other's disks. What the file says
# before the first colon is whose the name is.
set_storage_names() {
  iscsid=no
  file=/etc/iscsi/initiatorname.iscsi
  if [ -w "$file" ] && grep -q '^InitiatorName=' "$file"; then
    read -r uuid </proc/sys/kernel/random/uuid
    sed -i "s/^\(InitiatorName=[^:]*\).*/\1:$uuid/" "$file" || fail 'its iSCSI name could not be written'
    iscsid=yes
  fi
  if [ -w /etc/nvme/hostnqn ]; then
    read -r uuid </proc/sys/kernel/random/uuid
    echo "nqn.2014-08.org.nvmexpress:uuid:$uuid" >/etc/nvme/hostnqn || fail 'its NVMe name could not be written'
    [ ! -e /etc/nvme/hostid ] || echo "$uuid" >/etc/nvme/hostid
  fi
}

# One key of each type that there was. One is enough to be reached by: the others, of which
# RSA's takes seconds to find, come when all else is done, and count from the SSH server's
# next start.
make_host_keys() {
  first='' later=''
  for type in ed25519 ecdsa rsa; do
    if [ -z "$first" ] && [ -e "/etc/ssh/ssh_host_${type}_key" ]; then
      first=$type
    elif [ -e "/etc/ssh/ssh_host_${type}_key" ]; then
      later="$later $type"
    fi
  done
  rm -f /etc/ssh/ssh_host_*
  make_host_key "${first:-ed25519}" || fail "its ${first:-ed25519} host key could not be made"
}

make_host_key() { # <type>
  ssh-keygen -q -t "$1" -N '' -C "root@$name" -f "/etc/ssh/ssh_host_${1}_key" || return 1
  [ ! -e /sys/fs/selinux/enforce ] || restorecon -F "/etc/ssh/ssh_host_${1}_key" "/etc/ssh/ssh_host_${1}_key.pub" || :
}

make_later_keys() {
  for type in $later; do make_host_key "$type"; done
  sync
}

let_in() {
  entry=$(getent passwd "$user") || fail "it has no user $user" 65
  home=${entry%:*}
  home=${home##*:}
  ids=${entry#*:*:}
  ids=${ids%%:*}:$(id -g "$user")
  mkdir -p "$home/.ssh" && chmod 700 "$home/.ssh"
  (umask 077 && printf '%s\n' "$key" >"$home/.ssh/authorized_keys") || fail 'its key could not be written'
  chown "$ids" "$home/.ssh" "$home/.ssh/authorized_keys"
  [ ! -e /sys/fs/selinux/enforce ] || restorecon -R "$home/.ssh" || :
}

# cloud-init takes a machine for another when the ID on its drive is not the one it
# remembers. The drive is the new one; who mounts it sees it as it was. Before it looks there at
# a boot it sets the name of the settings that it keeps, where that is not the last one it has
# set; and a name that it has not set itself it leaves, as its owner's.
be_instance() {
  data=/var/lib/cloud/data
  [ -e "$data/instance-id" ] || return 0
  read -r old_instance <"$data/instance-id"
  drive=$(blkid -c /dev/null -L cidata || blkid -c /dev/null -L CIDATA || blkid -c /dev/null -L config-2)
  [ -n "$drive" ] || fail "its cloud-init drive was not found" 65
  blockdev --flushbufs "$drive" 2>/dev/null
  instance=$(LC_ALL=C grep -a -o -m 1 'instance-id: [0-9a-f]*' "$drive" | head -n 1)
  instance=${instance#*: }
  case $instance in
    '' | *[!0-9a-f]*) fail 'its cloud-init drive names no instance' 65 ;;
    "$old_instance") return 0 ;;
  esac
  if [ -d "/var/lib/cloud/instances/$old_instance" ]; then
    rm -rf "/var/lib/cloud/instances/$instance"
    mv "/var/lib/cloud/instances/$old_instance" "/var/lib/cloud/instances/$instance"
    rm -f "/var/lib/cloud/instances/$instance/obj.pkl"
    [ ! -f "/var/lib/cloud/instances/$instance/cloud-config.txt" ] || sed -i '/^hostname:/d; /^fqdn:/d' "/var/lib/cloud/instances/$instance/cloud-config.txt"
  fi
  fqdn=$(LC_ALL=C grep -a -o -m 1 '^fqdn: [A-Za-z0-9.-]*' "$drive" | head -n 1)
  fqdn=${fqdn#*: }
  printf '%s' "$name" >"$data/previous-hostname"
  printf '{"hostname": "%s", "fqdn": "%s"}' "$name" "${fqdn:-$name}" >"$data/set-hostname"
  rm -f /var/lib/cloud/instance
  ln -s "/var/lib/cloud/instances/$instance" /var/lib/cloud/instance
  printf '%s\n' "$instance" >"$data/instance-id"
  [ ! -e "$data/previous-instance-id" ] || printf '%s\n' "$instance" >"$data/previous-instance-id"
  for file in /run/cloud-init/instance-data*.json; do
    [ ! -f "$file" ] || sed -i "s/$old_instance/$instance/g; s/\"$old\"/\"$name\"/g" "$file"
  done
  [ ! -e /run/cloud-init/.instance-id ] || printf '%s\n' "$instance" >/run/cloud-init/.instance-id
}

restart_services() {
  set --
  [ "$networkd" != active ] || set -- "$@" systemd-networkd
  [ "$manager" != active ] || set -- "$@" NetworkManager
  if [ "$ssh" = active ]; then set -- "$@" ssh; elif [ "$sshd" = active ]; then set -- "$@" sshd; fi
  [ $# = 0 ] || systemctl restart "$@" || fail "these did not start again: $*"
  if [ "$networkd" != active ] && [ "$manager" != active ] && [ "$boots" = no ]; then
    ifup "$card" >/dev/null 2>&1 &
  fi
  [ "$journald" != active ] || systemctl --no-block restart systemd-journald
  [ "${iscsid:-no}" = no ] || systemctl --no-block try-restart iscsid
  # Those that the saving stopped, so that the clock's leap does not set all of them off.
  if [ -s /run/linus-timers ]; then
    systemctl --no-block start $(cat /run/linus-timers)
    rm -f /run/linus-timers
  fi
}

# What its boot still writes, it writes before this does.
await_cloud_init() {
  while [ "$(systemctl is-active cloud-init-local 2>/dev/null)" = activating ]; do sleep 0.2; done
}

main() {
  {
    [ "$boots" = no ] || await_cloud_init
    set_clock
    reseed
    find_services
    if [ "$boots" = no ]; then
      find_card
      change_mac
    else
      forget_leases
    fi
    set_names
    set_storage_names
    [ "$boots" = yes ] || write_network
    make_host_keys
    let_in
    [ "$boots" = yes ] || be_instance
    restart_services
    # A kill of QEMU, as a power cut, takes what is not on the disk: it would boot as what it
    # was copied from.
    sync
  } >/dev/null
  tell_key
  echo linus-identity taken
  make_later_keys </dev/null >/dev/null 2>&1 &
}

main </dev/null
PROGRAM
}
