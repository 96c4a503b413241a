# shellcheck shell=bash
# Looks into a started VM from its host: its address, its SSH server, its cloud-init. The guest
# agent is asked, but its word alone is not trusted, because a job may have been root where it runs.
# Nor can the length of its answers hold up this script.

source "${BASH_SOURCE[0]%/*}/json.sh"

# Finds the address of the card with this MAC: guest_ip, empty while there is none. guest_agent
# becomes yes once the agent has answered; guest_seen is the last thing seen, for people. An IPv6
# address alone goes into guest_ipv6, because IPv4 may still come.
guest_find_address() { # <vmid> <mac>
  local json_most=2097152
  guest_ip=''
  guest_ipv6=''
  run_read 15 qm guest cmd "$1" network-get-interfaces
  if ((run_rc != 0)); then
    guest_seen="agent: ${run_said}"
    return 0
  fi
  guest_agent=yes
  guest_take_addresses read "$2"
}

guest_take_addresses() { # <tag> <mac>
  local line
  json_addresses "$1" "$2"
  if ((json_rc != 0)); then
    guest_seen="agent: an answer that is not JSON"
    return 0
  fi
  guest_seen="agent: no address yet on the card $2"
  for line in "${json_lines[@]}"; do
    if [[ ${line} == 'ipv4 '* && -z ${guest_ip} ]]; then
      guest_ip=${line#* }
    elif [[ ${line} == 'ipv6 '* && -z ${guest_ipv6} ]]; then
      guest_ipv6=${line#* }
    fi
  done
  if [[ -n ${guest_ip}${guest_ipv6} ]]; then
    guest_seen="agent: ${guest_ip:-${guest_ipv6}}"
  fi
}

# Asks the same of a guest whose network is about to start, beside the command that starts it. It is
# one question, whose answer waits in the guest for the address. IPv6 alone is an answer after 15 s,
# or where there will be nothing else.
guest_start_address() { # <vmid> <mac> <4 or 6>
  # shellcheck disable=SC2016 # the guest's variables
  run_start address 45 qm guest exec "$1" --timeout 30 -- sh -c 'for dir in /sys/class/net/*; do
      read -r mac <"$dir/address" && [ "$mac" = "$1" ] || continue
      card=${dir##*/}
      [ ! -e "$dir/device" ] || break
    done 2>/dev/null
    tell() {
      ip -o "-$1" address show dev "$card" scope global -tentative | while read -r _ _ _ address _; do
        printf "{\"ip-address-type\":\"ipv$1\",\"ip-address\":\"${address%%/*}\"},"
      done
    }
    n=0 all=
    until [ "$n" -ge 200 ]; do
      all=$(tell 4)
      if [ -z "$all" ] && { [ "$2" = 6 ] || [ "$n" -ge 150 ]; }; then all=$(tell 6); fi
      [ -z "$all" ] || break
      n=$((n + 1))
      sleep 0.1
    done
    printf "[{\"hardware-address\":\"$1\",\"ip-addresses\":[${all%,}]}]"' sh "${2,,}" "$3"
}

guest_end_address() { # <mac>; as guest_find_address
  local exit_code text json_most=2097152
  guest_ip=''
  guest_ipv6=''
  run_wait address
  guest_seen="agent: ${run_said}"
  if ((run_rc != 0)); then
    return 0
  fi
  guest_agent=yes
  json_rows address exitcode out-data
  IFS=$'\x1f' read -r exit_code text <<<"${json_lines[0]:-}"
  if [[ ${exit_code} == 0 ]]; then
    printf '%s' "${text}" >"${run_dir}/address.out"
    guest_take_addresses address "$1"
  fi
}

# Finds the address that the host's neighbour table has for a card. Anybody on the network can write
# that table: the address is a hint for people, and is used only where they allowed that.
# guest_neighbour: empty if there is none.
guest_find_neighbour() { # <mac> <4 or 6>
  local address words
  guest_neighbour=''
  run_read 10 run_alone ip "-$2" neigh show
  while read -r address words; do
    if [[ " ${words,,} " == *" lladdr ${1,,} "* && ${address} != 169.254.* && ${address,,} != fe[89ab]* && ${words} != *FAILED* ]]; then
      guest_neighbour=${address}
    fi
  done <<<"${run_out}"
}

# Finds whose address that is, as this host's own network shows after something was sent to it.
# guest_place: yes (the card with this MAC answers there), no, hidden (no MAC is seen there) or
# routed (the way there leads through a router); guest_seen says what was seen.
guest_check_place() { # <ip> <mac>
  local -a way
  guest_place=no
  run_read 10 run_alone ip -o route get "$1"
  read -ra way <<<"${run_out}"
  local -r words=" ${way[*]} "
  if ((run_rc != 0)) || [[ ! ${way[0]:-} =~ ^[0-9a-fA-F.:]+$ || ! ${words} =~ \ dev\ ([^ ]+)\  ]]; then
    guest_seen="${HOSTNAME} has no way to $1 as to another machine: ${run_said}"
    return 0
  fi
  local -r device=${BASH_REMATCH[1]}
  if [[ ${words} == *' via '* ]]; then
    guest_place=routed
    guest_seen="${HOSTNAME} reaches $1 through a router (${way[*]:1:4})"
    return 0
  fi
  run_read 10 run_alone ip neigh show to "$1" dev "${device}"
  if [[ ! " ${run_out,,} " =~ \ lladdr\ ([0-9a-f:]+)\  ]]; then
    guest_place=hidden
    guest_seen="${HOSTNAME} sees no hardware address for $1 on ${device}"
  elif [[ ${BASH_REMATCH[1]} == "${2,,}" ]]; then
    guest_place=yes
    guest_seen="the card $2 answers at $1"
  else
    guest_seen="the card ${BASH_REMATCH[1]} answers at $1 on ${device}"
  fi
}

# An SSH server greets first, with at most 255 characters. A port that only accepts connections is
# not enough.
guest_read_banner() { # <ip> <port>; guest_banner: empty while there is none
  run_read 6 guest_hear "$1" "$2"
  guest_banner=''
  if ((run_rc == 0)) && [[ ${run_out} == SSH-* ]]; then
    guest_banner=${run_out//[[:cntrl:]]/}
  fi
}

guest_hear() { # <ip> <port>
  local line
  exec 3<>"/dev/tcp/$1/$2" && IFS= read -r -n 255 -t 5 line <&3 && printf '%s' "${line}"
}

# Runs a command in the guest through the agent, with the file guest_stdin, if set, as its input.
# guest_exit: its exit code, or empty when the agent did not answer or the command still runs;
# guest_out: its output.
guest_exec() { # <vmid> <seconds> <command...>
  local -r id=$1 seconds=$2
  shift 2
  local err json_most=2097152
  guest_exit=''
  guest_out=''
  local -a call=(qm guest exec "${id}" --timeout "${seconds}" -- "$@")
  if [[ -n ${guest_stdin:-} ]]; then
    call=(qm guest exec "${id}" --pass-stdin 1 --timeout "${seconds}" -- "$@")
  fi
  run_stdin=${guest_stdin:-} run_read "$((seconds + 15))" "${call[@]}"
  if ((run_rc == 0)); then
    guest_agent=yes
    json_rows read exited exitcode out-data err-data
    IFS=$'\x1f' read -r _ guest_exit guest_out err <<<"${json_lines[0]:-}"
    guest_out="${guest_out}${err:+ ${err}}"
  fi
}

# Asks the guest, in one call of the agent, whether it is ready, as cloud-init reports, and for its
# SSH host key. The key comes through the hypervisor, so the network cannot tamper with it.
#   guest_cloud_init  done, none (the guest has no cloud-init), failed, running, or
#                     silent (the agent does not answer). Exit 0 is done, 2 is done
#                     with warnings
#   guest_host_key    "ssh-ed25519 AAAA...", once cloud-init is done or none; empty
#                     if it cannot be read
#
# The files with the guest's identity, with its authorized keys, and with cloud-init's record of
# having made them are on its disk by then. Only those files are synced, because a boot has written
# much else.
#
# The shell does the waiting. cloud-init's own wait is Python that looks four times a second: on a
# slow guest it takes the CPU from what it waits for, and the agent leaves one more of them behind
# with each call that times out.
guest_ask_ready() { # <vmid>
  guest_host_key=''
  # shellcheck disable=SC2016 # the guest's variables
  guest_exec "$1" 60 sh -c 'n=0 code=127 said=
    if command -v cloud-init >/dev/null; then
      until [ -e /run/cloud-init/result.json ] || [ -e /run/cloud-init/disabled ]; do
        n=$((n + 1))
        [ "$n" -le 20 ] || exit 75
        sleep 1
      done
      said=$(cloud-init status --wait 2>&1)
      code=$?
    fi
    case $code in 0 | 2 | 127)
      sync /etc/ssh/ssh_host_* /etc/hostname /etc/machine-id /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys /var/lib/cloud/data/instance-id \
        /var/lib/cloud/instance/sem 2>/dev/null
      '"${guest_tell_key}"'
    esac
    printf "%s\n" "$said"
    exit "$code"'
  case ${guest_exit} in
    0 | 2) guest_cloud_init='done' ;;
    75) guest_cloud_init=running ;;
    127) guest_cloud_init=none ;;
    '')
      guest_cloud_init=silent
      if ((run_rc == 0)); then
        guest_cloud_init=running
      fi
      ;;
    *) guest_cloud_init=failed ;;
  esac
  if [[ ${guest_cloud_init} == @(done|none) ]]; then
    guest_take_key "${guest_out:0:4096}"
  fi
}

# How a program in the guest removes what DHCP servers know it by, and what its stable IPv6
# addresses are made of.
guest_forget_leases='rm -f /run/systemd/netif/leases/* /var/lib/systemd/network/* /var/lib/dhcp/*.lease* /var/lib/dhclient/*.lease* \
        /var/lib/dhcpcd/*.lease* /var/lib/dhcpcd/duid /var/lib/dhcpcd/secret /etc/dhcpcd.duid /etc/dhcpcd.secret \
        /var/lib/NetworkManager/*.lease /var/lib/NetworkManager/secret_key /var/lib/NetworkManager/timestamps'

# How a program in the guest prints the SSH server's public key.
# shellcheck disable=SC2016 # the guest's variables
guest_tell_key='for type in ed25519 ecdsa rsa; do
        file=/etc/ssh/ssh_host_${type}_key.pub
        [ ! -f "$file" ] || { printf "linus-host-key " && head -c 2048 "$file"; break; }
      done'

guest_take_key() { # <text that begins with it>; guest_host_key
  local -r form='^linus-host-key ((ssh-ed25519|ecdsa-sha2-nistp(256|384|521)|ssh-rsa) [A-Za-z0-9+/]+=*)'
  guest_host_key=''
  if [[ $1 =~ ${form} ]]; then
    guest_host_key=${BASH_REMATCH[1]}
  fi
}

# Reads the key of a type that the network shows. Start and end are separate, so that the guest can
# be asked something else meanwhile. guest_shown_key: empty when the key could not be read.
guest_start_scan() { # <ip> <port> <type: ed25519, ecdsa or rsa>
  run_start scan 10 run_alone ssh-keyscan -T 5 -t "$3" -p "$2" -- "$1"
}

guest_end_scan() { # <key of the type>
  local line
  local -r key=" (${1%% *} [A-Za-z0-9+/]+=*)$"
  guest_shown_key=''
  run_wait scan
  while IFS= read -r line; do
    if [[ ${line} =~ ${key} ]]; then
      guest_shown_key=${BASH_REMATCH[1]}
    fi
  done <<<"${run_out}"
}
