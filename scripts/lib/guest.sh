# shellcheck shell=bash
# Looking into a started VM from its host: its address, its SSH server, its
# cloud-init. The guest agent is asked first; where it does not answer, the
# host's neighbour table knows what the VM has said on the network.

# guest_ip: the address of the card with this MAC, empty while there is none.
# guest_agent becomes yes once the agent has answered; guest_seen is the last
# thing seen, for people. An IPv6 address alone goes into guest_ipv6: IPv4 may
# still come.
guest_find_address() { # <vmid> <mac>
  local line
  guest_ip=''
  guest_ipv6=''
  run_read 15 qm guest cmd "$1" network-get-interfaces
  if ((run_rc != 0)); then
    guest_seen="agent: ${run_said}"
    return 0
  fi
  guest_agent=yes
  json_addresses read "$2"
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

guest_find_neighbour() { # <mac> <4 or 6>; guest_ip
  local address words
  run_read 10 ip "-$2" neigh show
  while read -r address words; do
    if [[ " ${words,,} " == *" lladdr ${1,,} "* && ${address} != 169.254.* && ${address,,} != fe[89ab]* && ${words} != *FAILED* ]]; then
      guest_ip=${address}
    fi
  done <<<"${run_out}"
}

# An SSH server greets first: a port that takes connections is not enough.
guest_read_banner() { # <ip> <port>; guest_banner: empty while there is none
  # shellcheck disable=SC2016 # the inner shell's parameters
  run_read 6 bash -c 'exec 3<>"/dev/tcp/$1/$2" && IFS= read -r -t 5 line <&3 && printf "%s" "${line}"' bash "$1" "$2"
  guest_banner=''
  if ((run_rc == 0)) && [[ ${run_out} == SSH-* ]]; then
    guest_banner=${run_out//[[:cntrl:]]/}
  fi
}

# Runs a command in the guest through the agent. guest_exit: its exit code, or
# empty when the agent did not answer or the command still runs; guest_out.
guest_exec() { # <vmid> <seconds> <command...>
  local -r id=$1 seconds=$2
  shift 2
  local err
  guest_exit=''
  guest_out=''
  run_read "$((seconds + 15))" qm guest exec "${id}" --timeout "${seconds}" -- "$@"
  if ((run_rc == 0)); then
    guest_agent=yes
    json_rows read exited exitcode out-data err-data
    IFS=$'\x1f' read -r _ guest_exit guest_out err <<<"${json_lines[0]:-}"
    guest_out="${guest_out}${err:+ ${err}}"
  fi
}

# cloud-init's word that the guest is ready. guest_cloud_init: done, none (the
# guest has no cloud-init), failed, running, or silent (the agent says nothing).
# Exit 0 is done, 2 is done with warnings.
#
# The waiting is the shell's. cloud-init's own is Python that looks four times a
# second: on a slow guest it takes the CPU from what it waits for, and the agent
# leaves one more behind with each call that times out.
guest_check_cloud_init() { # <vmid>
  # shellcheck disable=SC2016 # the guest's variables
  guest_exec "$1" 60 sh -c 'command -v cloud-init >/dev/null || exit 127
    n=0
    until [ -e /run/cloud-init/result.json ] || [ -e /run/cloud-init/disabled ]; do
      n=$((n + 1))
      [ "$n" -le 20 ] || exit 75
      sleep 1
    done
    exec cloud-init status --wait'
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
}

# The guest's SSH host key through the hypervisor, which the network cannot
# tamper with. guest_host_key: "ssh-ed25519 AAAA...", empty when not to be had.
guest_read_host_key() { # <vmid>
  guest_exec "$1" 10 cat /etc/ssh/ssh_host_ed25519_key.pub
  guest_host_key=''
  local -r key='^(ssh-ed25519 [A-Za-z0-9+/]+=*)'
  if [[ ${guest_exit} == 0 && ${guest_out} =~ ${key} ]]; then
    guest_host_key=${BASH_REMATCH[1]}
  fi
}

# The key the network shows. guest_shown_key: empty when it could not be asked.
guest_scan_host_key() { # <ip> <port>
  local -r key=' (ssh-ed25519 [A-Za-z0-9+/]+=*)$'
  local line
  guest_shown_key=''
  run_read 10 ssh-keyscan -T 5 -t ed25519 -p "$2" -- "$1"
  while IFS= read -r line; do
    if [[ ${line} =~ ${key} ]]; then
      guest_shown_key=${BASH_REMATCH[1]}
    fi
  done <<<"${run_out}"
}
