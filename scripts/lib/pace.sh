# shellcheck shell=bash
# Decides when to ask a booting guest. Asking too early costs four seconds and a core, so its card
# is watched first: a guest sends its first packets when its network starts, at about the time its
# agent starts. The host counts the packets, and reading that starts no process. The questions are
# frequent at first and get rarer.

source "${BASH_SOURCE[0]%/*}/run.sh"

pace_most=12000 # 1/100 s, the longest wait before the first question
pace_began=0    # clock_now when the boot began
pace_next=20    # 1/100 s until the next question

pace_start() { # the boot begins
  clock_read
  pace_began=${clock_now} pace_next=20
}

# Waits until the VM's card has sent something. It returns at once if that cannot be seen (no tap of
# Proxmox's name), and never waits past the deadline.
pace_await() { # <vmid> <deadline, in SECONDS>
  local -r counter=${LINUS_NET_DIR:-/sys/class/net}/tap$1i0/statistics/rx_packets
  local said='' sent=''
  while { IFS= read -r sent <"${counter}"; } 2>/dev/null && [[ ${sent} == 0 ]]; do
    clock_read
    if ((SECONDS >= $2 || clock_now - pace_began >= pace_most)); then
      return 0
    fi
    if [[ -z ${said} ]]; then
      said=yes
      log_info "waiting until the card of VM $1 sends something"
    fi
    pace_sleep 25
  done
}

pace_pause() { # between two questions: 0.2 s, then twice as long each time, up to 2 s
  pace_sleep "${pace_next}"
  pace_next=$((pace_next < 100 ? 2 * pace_next : 200))
}

pace_sleep() { # <1/100 s>
  local seconds
  printf -v seconds '%d.%02d' "$(($1 / 100))" "$(($1 % 100))"
  run_pause "${seconds}"
}
