# shellcheck shell=bash
# Chooses and reserves the address of a VM. The address is known before the VM boots, unless the
# network assigns it. VM_IP_CONFIG is one of
#   dhcp                 IPv4, by DHCP
#   auto6 (or slaac)     IPv6 only, as its router tells
#   dhcp6                IPv6 only, by DHCP
#   ADDRESS/PREFIX       this one, IPv4 or IPv6; a pool of one
#   FIRST-LAST/PREFIX    one out of this pool
#
# No address is given twice. It is taken while a config anywhere in the cluster names it, and free
# again once that VM is gone, no matter who destroyed it. From the choice until the config is
# written, a file of that name in LINUS_HOST_DIR (/var/lib/linus)/addresses reserves it. The file
# has one line: job, process and its start, boot, date. A killed run may leave commands at work that
# still write the address into a config. Its reservation holds until its VM is destroyed, or until
# its lease says that nothing is under way and address_grace has passed since another run found the
# process gone (the file has process 0 from then on). The nodes of a cluster share the configs, but
# each node has its own reservations: if two nodes choose the same address at once, both see it in
# the configs and both give it back.

source "${BASH_SOURCE[0]%/*}/lease.sh"

address_kind=''   # dhcp, auto6, dhcp6 or pool
address_option='' # what goes into ipconfig0
address_chosen='' # the address chosen from a pool, without prefix
address_first='' address_last='' address_prefix=''
address_grace=300 # seconds, longer than a qm set may take

address_validate() {
  local range
  validate_pattern VM_IP_CONFIG "${VM_IP_CONFIG}" 'dhcp|auto6|slaac|dhcp6|[0-9a-fA-F.:]+(-[0-9a-fA-F.:]+)?/[1-9][0-9]{0,2}' \
    'dhcp, auto6, dhcp6, or an address or a range of them with its prefix, such as 192.168.1.20/24 or 192.168.1.50-192.168.1.99/24'
  validate_pattern VM_GATEWAY "${VM_GATEWAY}" '[0-9a-fA-F.:]*' 'an IP address such as 192.168.1.1'
  case ${VM_IP_CONFIG} in
    dhcp | dhcp6) address_kind=${VM_IP_CONFIG} ;;
    auto6 | slaac) address_kind=auto6 ;;
    *)
      address_kind=pool
      address_prefix=${VM_IP_CONFIG#*/}
      range=${VM_IP_CONFIG%/*}
      address_first=${range%-*}
      address_last=${range#*-}
      validate_tools perl
      address_perl check "${address_first}" "${address_last}" "${address_prefix}" "${VM_GATEWAY}"
      if ((run_rc != 0)); then
        result_fail invalid "VM_IP_CONFIG=${VM_IP_CONFIG@Q} with VM_GATEWAY=${VM_GATEWAY@Q} is not valid: ${run_said}" \
          'give an address or a range of at most 65536, IPv4 or IPv6, all in the network of its prefix, and a gateway of the same kind'
      fi
      ;;
  esac
  address_set_option
}

address_set_option() {
  local six=''
  case ${address_kind} in
    dhcp) address_option=ip=dhcp ;;
    dhcp6) address_option=ip6=dhcp ;;
    auto6) address_option=ip6=auto ;;
    *)
      if [[ ${address_first} == *:* ]]; then
        six=6
      fi
      address_option=ip${six}=${address_chosen:-${address_first}}/${address_prefix}${VM_GATEWAY:+,gw${six}=${VM_GATEWAY}}
      ;;
  esac
}

# Chooses an address of the pool and reserves it for this run's job.
address_take() {
  if [[ ${address_kind} != pool ]]; then
    return 0
  fi
  local -r dir=${LINUS_HOST_DIR:-/var/lib/linus}/addresses
  if ! { mkdir -p -- "${dir}" && exec 6>>"${dir}/.lock"; } 2>/dev/null; then
    result_fail config "could not write to ${dir} on ${HOSTNAME}" 'check that it can be written and the disk is not full'
  fi
  run_lock 120 6
  if ((run_rc != 0)); then
    result_fail vm "waited two minutes for another run to choose an address" "see who holds it: fuser ${dir}/.lock"
  fi
  address_choose
  lease_read_clock
  stat_read "$$"
  printf '%s\n' "${vm_job} $$ ${stat_start} ${lease_boot_now} ${lease_date}" >"${dir}/${address_chosen}"
  exec 6>&-
  log_info "the address will be ${address_chosen}"
}

address_choose() { # address_chosen, address_option
  address_read_reservations
  address_perl choose "${address_first}" "${address_last}" "${VM_GATEWAY}" "${LINUS_PVE_DIR:-/etc/pve}" "${!address_reserved[@]}"
  if ((run_rc != 0)); then
    result_fail config "could not see which addresses of VM_IP_CONFIG=${VM_IP_CONFIG} are taken: ${run_said}" 'look at: systemctl status pve-cluster'
  fi
  address_chosen=${run_out}
  if [[ -z ${address_chosen} ]]; then
    result_fail config "no address of VM_IP_CONFIG=${VM_IP_CONFIG} is free: VMs have them all, or they are reserved in ${LINUS_HOST_DIR:-/var/lib/linus}/addresses" \
      'destroy VMs no longer needed, or widen VM_IP_CONFIG'
  fi
  address_set_option
}

# address_reserved: the reserved addresses (value yes). Removes the files of reservations that have
# lapsed.
address_read_reservations() {
  local file
  declare -gA address_reserved=()
  lease_read_clock
  for file in "${LINUS_HOST_DIR:-/var/lib/linus}"/addresses/*; do
    if [[ ! -f ${file} ]]; then
      continue
    fi
    address_look "${file}"
    if [[ ${address_held} == yes ]]; then
      address_reserved[${file##*/}]=yes
    else
      rm -f -- "${file}"
    fi
  done
}

address_look() { # <reservation>; address_held: yes or no
  local job='' pid='' start='' boot='' date='' lease lock
  { read -r job pid start boot date <"$1"; } 2>/dev/null || :
  address_held=yes
  if [[ ${boot} != "${lease_boot_now}" ]]; then
    address_held=no
  elif [[ ${pid} != 0 ]]; then
    stat_read "${pid}"
    if [[ -z ${stat_start} || ${stat_start} != "${start}" ]]; then
      printf '%s\n' "${job} 0 0 ${boot} ${lease_date}" >"$1"
    fi
  elif ((lease_date >= date + address_grace)); then
    address_held=no
    for lease in "${LINUS_HOST_DIR:-/var/lib/linus}"/leases/*-"${job}"; do
      if { read -r lock _ <"${lease}"; } 2>/dev/null && [[ ${lock} != none ]]; then
        address_held=yes
      fi
    done
  fi
}

# Checks that the written config names the address and that no other VM's does. The config now holds
# the address, so the reservation is dropped.
address_settle() { # <vmid>
  local file own=no others=''
  if [[ ${address_kind} != pool ]]; then
    return 0
  fi
  address_perl holders "${address_chosen}" "${LINUS_PVE_DIR:-/etc/pve}"
  while IFS= read -r file; do
    if [[ ${file} == */"${probe_node}/qemu-server/$1.conf" ]]; then
      own=yes
    else
      others+="${others:+, }${file##*/nodes/}"
    fi
  done <<<"${run_out}"
  if ((run_rc != 0)) || [[ ${own} != yes ]]; then
    result_fail vm "the config of VM $1 on node '${probe_node}' does not show its address ${address_chosen}: ${run_said}" "see who has changed it: the task log of node '${probe_node}'"
  fi
  if [[ -n ${others} ]]; then
    result_fail vm "the address ${address_chosen} was given to another VM at the same time: ${others}" 'try again; give each node of the cluster a pool of its own'
  fi
  address_drop "${vm_job}"
}

address_drop() { # <job>; removes its reservations
  local file job
  for file in "${LINUS_HOST_DIR:-/var/lib/linus}"/addresses/*; do
    if { read -r job _ <"${file}"; } 2>/dev/null && [[ ${job} == "$1" ]]; then
      rm -f -- "${file}"
    fi
  done
}

# Address arithmetic, and the addresses in the configs of all nodes' VMs and containers:
#   check FIRST LAST PREFIX GATEWAY       fails, in words, unless it is a pool
#   choose FIRST LAST GATEWAY DIR TAKEN...   prints a free address, searched from a
#                                         random place on; nothing if none is free
#   holders ADDRESS DIR                   prints the files that name it
address_perl() { # <verb> <argument...>; run_rc, run_out
  # shellcheck disable=SC2016 # perl's variables, not the shell's
  run_read 60 perl -MSocket=inet_pton,inet_ntop,AF_INET,AF_INET6 -MFile::Glob=:bsd_glob -e '
    use strict; use warnings;
    sub parse {
      my $text = shift;
      return inet_pton($text =~ /:/ ? AF_INET6 : AF_INET, $text) // die "\"$text\" is no IP address\n";
    }
    sub text { my $ip = shift; return inet_ntop(length $ip == 4 ? AF_INET : AF_INET6, $ip) }
    sub span {
      my ($first, $last) = @_;
      die "\"@_\" are not of one kind\n" if length $first != length $last or substr($first, 0, -4) ne substr($last, 0, -4);
      my $count = unpack("N", substr $last, -4) - unpack("N", substr $first, -4) + 1;
      die "the range has $count addresses\n" if $count < 1 or $count > 65536;
      return $count;
    }
    sub named {
      my $dir = shift;
      my %by;
      die "$dir/nodes is not there\n" unless -d "$dir/nodes";
      for my $file (bsd_glob("$dir/nodes/*/{qemu-server,lxc}/*.conf", GLOB_BRACE)) {
        open my $in, "<", $file or $!{ENOENT} ? next : die "$file: $!\n";
        while (my $line = <$in>) {
          next unless $line =~ /^(?:ipconfig|net)[0-9]+:/;
          while ($line =~ /[ ,]ip6?=([0-9A-Fa-f.:]+)/g) {
            my $text = $1;
            my $ip = inet_pton($text =~ /:/ ? AF_INET6 : AF_INET, $text) // next;
            $by{text($ip)}{$file} = 1;
          }
        }
      }
      return \%by;
    }
    my ($verb, @in) = @ARGV;
    if ($verb eq "check") {
      my ($first, $last, $prefix, $gateway) = @in;
      ($first, $last) = (parse($first), parse($last));
      my $bits = 8 * length $first;
      die "prefix /$prefix is longer than $bits\n" if $prefix > $bits;
      span($first, $last);
      my $mask = pack "B*", "1" x $prefix . "0" x ($bits - $prefix);
      die "the range is larger than its network\n" if ($first & $mask) ne ($last & $mask);
      die "the gateway is not of the same kind\n" if length $gateway and length parse($gateway) != length $first;
    } elsif ($verb eq "choose") {
      my ($first, $last, $gateway, $dir, @reserved) = @in;
      ($first, $last) = (parse($first), parse($last));
      my %taken = map { text(parse($_)) => 1 } grep { length } $gateway, @reserved;
      my ($named, $count, $start) = (named($dir), span($first, $last), unpack "N", substr $first, -4);
      my $offset = int rand $count;
      for my $i (0 .. $count - 1) {
        my $ip = text(substr($first, 0, -4) . pack "N", $start + ($offset + $i) % $count);
        next if $taken{$ip} or $named->{$ip};
        print "$ip\n";
        last;
      }
    } else {
      my ($address, $dir) = @in;
      print "$_\n" for sort keys %{ named($dir)->{text(parse($address))} // {} };
    }' -- "$@"
}
