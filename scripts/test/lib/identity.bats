#!/usr/bin/env bats
# lib/identity.sh: the network settings that its program writes in a guest, and how it
# goes about what it does not know. All of it runs in the labs.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2312
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs identity
  run_init
}

# What a function of the program prints, where the guest is so.
in_guest() { # <function> <NAME=VALUE...>
  local name=$1 pair
  shift
  {
    printf 'old=saved\nname=restored\ncard=eth7\nmac=bc:24:11:00:00:02\nip4= gw4= ip6= gw6= servers= search=\n'
    for pair in "$@"; do
      identity_quote "${pair#*=}"
      printf '%s=%s\n' "${pair%%=*}" "${identity_quoted}"
    done
    identity_program | sed '$d'
    printf '%s\n' "${name}"
  } >"${BATS_TEST_TMPDIR}/program"
  run sh "${BATS_TEST_TMPDIR}/program"
}

says() { # <text>
  [[ ${output} == "$1" ]] || {
    diff <(printf '%s\n' "$1") <(printf '%s\n' "${output}") >&2
    return 1
  }
}

@test "the program is one that sh can read, and begins when all of it has come" {
  identity_program >"${BATS_TEST_TMPDIR}/program"
  sh -n "${BATS_TEST_TMPDIR}/program"
  [[ $(tail -n 1 "${BATS_TEST_TMPDIR}/program") == 'main </dev/null' ]]
}

@test "a value is one word, whatever is in it" {
  identity_quote "a 'b' \$(c) \"d\""
  [[ $(sh -c "printf %s ${identity_quoted}") == "a 'b' \$(c) \"d\"" ]]
}

@test "the clock is set where it is off by more than a second, or it is told" {
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program date 'case $1 in +%s) echo 1000 ;; *) echo "$*" >&2; [ "$3" != @900 ] ;; esac'
  in_guest set_clock time=1001
  says ''
  in_guest set_clock time=9000000
  says '-u -s @9000000'
  in_guest set_clock time=900
  [[ ${status} -ne 0 && ${output} == *'the clock could not be set' ]]
}

@test "systemd-networkd: DHCP, a given address, IPv6 alone" {
  in_guest write_networkd ip4=dhcp 'servers=1.1.1.1 9.9.9.9' search=example.lan
  says '[Match]
MACAddress=bc:24:11:00:00:02
Name=eth7

[Network]
DHCP=ipv4
DNS=1.1.1.1
DNS=9.9.9.9
Domains=example.lan'
  in_guest write_networkd ip4=10.0.0.7/24 gw4=10.0.0.1
  says '[Match]
MACAddress=bc:24:11:00:00:02
Name=eth7

[Network]
DHCP=no
Address=10.0.0.7/24
Gateway=10.0.0.1'
  in_guest write_networkd ip6=auto
  [[ ${output} == *$'DHCP=no\nIPv6AcceptRA=yes' ]]
}

@test "netplan: by name where the driver is not to be seen" {
  in_guest write_netplan ip4=10.0.0.7/24 gw4=10.0.0.1 ip6=fd77::7/64 gw6=fd77::1 servers=1.1.1.1 search=example.lan
  says 'network:
  version: 2
  ethernets:
    "eth7":
      dhcp4: false
      dhcp6: false
      addresses: ["10.0.0.7/24", "fd77::7/64"]
      routes:
        - {to: "0.0.0.0/0", via: "10.0.0.1"}
        - {to: "::/0", via: "fd77::1"}
      nameservers:
        addresses:
          - "1.1.1.1"
        search:
          - "example.lan"'
  in_guest write_netplan ip4=dhcp
  [[ ${output} == *$'dhcp4: true\n      dhcp6: false' ]]
}

@test "NetworkManager: the servers of each family with it" {
  in_guest write_manager ip4=dhcp 'servers=1.1.1.1 fd77::53' search='a.lan b.lan'
  [[ ${output} == *$'type=ethernet\ninterface-name=eth7\n'* && ${output} == *$'[ipv4]\nmethod=auto\ndns=1.1.1.1;\ndns-search=a.lan;b.lan\n\n[ipv6]\nmethod=link-local' ]]
  in_guest write_manager ip6=fd77::7/64 gw6=fd77::1 'servers=1.1.1.1 fd77::53'
  [[ ${output} == *$'[ipv4]\nmethod=disabled\n\n[ipv6]\nmethod=manual\naddress1=fd77::7/64,fd77::1\ndns=fd77::53;' ]]
}

@test "ifupdown: the loopback is still there" {
  in_guest write_ifupdown ip4=10.0.0.7/24 gw4=10.0.0.1 servers=1.1.1.1
  says 'auto lo
iface lo inet loopback

auto eth7
iface eth7 inet static
    address 10.0.0.7/24
    gateway 10.0.0.1
    dns-nameservers 1.1.1.1'
  in_guest write_ifupdown ip6=auto
  [[ ${output} == *$'auto eth7\niface eth7 inet6 auto' ]]
}

@test "a guest that it does not know ends it before anything of the network is changed" {
  stub_program systemctl 'exit 3'
  if [[ ! -f /etc/network/interfaces ]]; then
    in_guest find_services
    [[ ${status} -eq 65 && ${output} == *'neither networkd, NetworkManager nor ifupdown' ]]
  fi
  in_guest find_card old_mac=02:02:02:02:02:02 mac=02:02:02:02:02:03
  [[ ${status} -eq 1 && ${output} == *'has no card with the address 02:02:02:02:02:02' ]]
}

@test "of a guest that boots what is starting is started again, and its network is not written" {
  # shellcheck disable=SC2016 # the stub's own arguments
  stub_program systemctl '
    [ "$1" != is-active ] || exec printf "activating\ninactive\ninactive\ninactive\nactive\ninactive\n"
    echo "systemctl $*"'
  in_guest 'find_services; restart_services' boots=yes
  says $'systemctl restart systemd-networkd\nsystemctl --no-block restart systemd-journald'
}

@test "cloud-init's instance is the drive's, and the next boot finds all of it" {
  local -r root=${BATS_TEST_TMPDIR}/cloud
  mkdir -p "${root}/data" "${root}/instances/aaa/sem"
  echo aaa >"${root}/data/instance-id"
  echo x >"${root}/instances/aaa/obj.pkl"
  ln -s "${root}/instances/aaa" "${root}/instance"
  # What it keeps of its drive, and the names it has set: of the guest that was saved, or of
  # the one that was a copy before this.
  printf '#cloud-config\n---\nfqdn: saved.lan\nhostname: saved\nuser: x\n' >"${root}/instances/aaa/cloud-config.txt"
  printf first >"${root}/data/previous-hostname"
  printf '{"hostname": "first", "fqdn": "first"}' >"${root}/data/set-hostname"
  printf 'CD001\0\0instance-id: 0123abcdef\n\0\0#cloud-config\nhostname: restored\nfqdn: restored.lan\n\0\0' >"${BATS_TEST_TMPDIR}/drive"
  stub_program blkid "echo ${BATS_TEST_TMPDIR}/drive"
  stub_program blockdev 'exit 1'
  local program
  program=$(identity_program)
  identity_program() { printf '%s\n' "${program//\/var\/lib\/cloud/${root}}"; }
  in_guest be_instance
  [[ ${status} -eq 0 && $(<"${root}/data/instance-id") == 0123abcdef ]] || {
    echo "${output}" >&2
    return 1
  }
  [[ $(readlink "${root}/instance") == "${root}/instances/0123abcdef" && -d ${root}/instances/0123abcdef/sem && ! -e ${root}/instances/0123abcdef/obj.pkl ]]
  # Its next boot sets no name that is not this one.
  [[ $(<"${root}/instance/cloud-config.txt") == $'#cloud-config\n---\nuser: x' && $(<"${root}/data/previous-hostname") == restored ]]
  [[ $(<"${root}/data/set-hostname") == '{"hostname": "restored", "fqdn": "restored.lan"}' ]]
  echo 'no ID' >"${BATS_TEST_TMPDIR}/drive"
  in_guest be_instance
  [[ ${status} -eq 65 ]]
}

@test "a copy has DHCP identities and names for storages of its own, by the owner's prefix" {
  local -r root=${BATS_TEST_TMPDIR}/guest
  mkdir -p "${root}"/{etc/iscsi,etc/nvme,var/lib/dhcpcd}
  touch "${root}"/var/lib/dhcpcd/{duid,secret,eth0.lease} "${root}/etc/dhcpcd.secret"
  echo nqn.2014-08.org.nvmexpress:uuid:saved >"${root}/etc/nvme/hostnqn"
  echo saved >"${root}/etc/nvme/hostid"
  printf '# drawn\nInitiatorName=iqn.1993-08.org.debian:01:saved\n' >"${root}/etc/iscsi/initiatorname.iscsi"
  stub_program systemctl 'echo "systemctl $*"'
  local program
  program=$(identity_program | sed -E "s#(^|[ =>])/(etc|var|run)/#\\1${root}/\\2/#g")
  identity_program() { printf '%s\n' "${program}"; }
  in_guest 'forget_leases; set_storage_names; networkd='"''"' manager= ssh= sshd= journald=; restart_services' boots=yes
  says 'systemctl --no-block try-restart iscsid'
  [[ -z $(ls "${root}/var/lib/dhcpcd") && ! -e ${root}/etc/dhcpcd.secret ]]
  local -r nvme=$(<"${root}/etc/nvme/hostnqn")
  grep -qxE 'InitiatorName=iqn.1993-08.org.debian:[0-9a-f-]{36}' "${root}/etc/iscsi/initiatorname.iscsi"
  [[ ${nvme} =~ ^nqn\.2014-08\.org\.nvmexpress:uuid:[0-9a-f-]{36}$ && ${nvme##*:} == $(<"${root}/etc/nvme/hostid") ]]
  in_guest set_storage_names
  [[ $(<"${root}/etc/nvme/hostnqn") != "${nvme}" ]]
  # What is to be drawn at its first use is, without us.
  echo GenerateName=yes >"${root}/etc/iscsi/initiatorname.iscsi"
  in_guest set_storage_names
  [[ $(<"${root}/etc/iscsi/initiatorname.iscsi") == GenerateName=yes ]]
}

# The program for a guest whose files are below $root. What `umount` and `sync` do there is
# theirs: `sync` notes what would be on the disk if the power went now.
guest_below() { # <root>
  guest_program=$(identity_program | sed -E "s#(^|[ =>\"<])/(etc|var|run|proc/self/mounts)#\\1$1/\\2#g")
  identity_program() { printf '%s\n' "${guest_program}"; }
  mkdir -p "$1"/{etc,proc/self,disk,run} "$1/var/lib"
  : >"$1/proc/self/mounts"
  stub_program hostname "[ -z \"\$1\" ] || echo \"\$1\" >$1/hostname; [ -n \"\$1\" ] || echo saved"
  stub_program sync "rm -rf $1/disk/etc && cp -a $1/etc $1/disk/etc"
}

@test "its name takes the saved one's place in each word of /etc/hosts, and in no other" {
  local -r root=${BATS_TEST_TMPDIR}/guest
  guest_below "${root}"
  printf '127.0.0.1 localhost\n127.0.1.1 saved saved\n127.0.1.1 saved.lan saved saved\tsaved\n10.0.0.1 saved-2 unsaved\n' >"${root}/etc/hosts"
  in_guest set_names machine_id=0123456789abcdef0123456789abcdef
  [[ ${status} -eq 0 ]]
  output=$(<"${root}/etc/hosts")
  says $'127.0.0.1 localhost\n127.0.1.1 restored restored\n127.0.1.1 restored.lan restored restored\trestored\n10.0.0.1 saved-2 unsaved'
}

@test "a machine ID that systemd holds in a mount is unmounted, and ours is on the disk below" {
  local -r root=${BATS_TEST_TMPDIR}/guest
  guest_below "${root}"
  echo 00000000000000000000000000000001 >"${root}/etc/machine-id"
  echo uninitialized >"${root}/below"
  mkdir -p "${root}/var/log/journal/00000000000000000000000000000001"
  printf 'tmpfs %s/etc/machine-id tmpfs ro 0 0\n' "${root}" >"${root}/proc/self/mounts"
  stub_program umount "[ \"\$2\" = ${root}/etc/machine-id ] && mv ${root}/below ${root}/etc/machine-id && : >${root}/proc/self/mounts"
  in_guest set_names machine_id=0123456789abcdef0123456789abcdef
  [[ ${status} -eq 0 && $(<"${root}/etc/machine-id") == 0123456789abcdef0123456789abcdef && ! -e ${root}/below ]]
  [[ -d ${root}/var/log/journal/0123456789abcdef0123456789abcdef ]]
  # What cannot be unmounted ends it.
  printf 'tmpfs %s/etc/machine-id tmpfs ro 0 0\n' "${root}" >"${root}/proc/self/mounts"
  stub_program umount 'echo busy >&2; exit 32'
  in_guest set_names machine_id=0123456789abcdef0123456789abcdef
  [[ ${status} -eq 1 && ${output} == *"what is mounted over ${root}/etc/machine-id could not be unmounted" ]]
}

@test "who it is, is on its disk before it says so, and the keys that come later are soon after" {
  local -r root=${BATS_TEST_TMPDIR}/guest
  guest_below "${root}"
  printf 'InitiatorName=iqn.1993-08.org.debian:01:saved\n' | install -D /dev/stdin "${root}/etc/iscsi/initiatorname.iscsi"
  echo saved >"${root}/etc/machine-id"
  stub_program id 'echo 0'
  for key in ed25519 ecdsa; do install -D /dev/null "${root}/etc/ssh/ssh_host_${key}_key"; done
  stub_program systemctl 'exit 0'
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program ssh-keygen 'while [ "$1" != -f ]; do shift; done; echo new >"$2"; echo new >"$2.pub"'
  stub_program getent "echo user:x:$(id -u):0::${root}/etc/home:/bin/sh"
  # What differs on the disk when it says so is what a power cut would take.
  in_guest "set_clock() { :; }; reseed() { :; }; tell_key() { diff -r ${root}/etc ${root}/disk/etc; }; main; wait" \
    boots=yes user=user key=key machine_id=0123456789abcdef0123456789abcdef
  says 'linus-identity taken'
  [[ $(<"${root}/disk/etc/ssh/ssh_host_ecdsa_key") == new && $(<"${root}/disk/etc/hostname") == restored ]]
}
