# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # places and state are the runner's
# The size of a task's terminal. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/process.sh"
source "${BASH_SOURCE[0]%/*}/result.sh"

# resize_terminal sets the size of the terminal of the task's session; the kernel tells the programs
# in it. If sudo has made the session, the terminal is root's.
resize_terminal() { # <rows>x<columns>
  local session device
  local -r size='^[1-9][0-9]{0,3}x[1-9][0-9]{0,3}$'
  [[ $1 =~ ${size} ]] || result_fail invalid "${1@Q} is not ROWSxCOLUMNS" "give a terminal's size, as in 24x80"
  { IFS= read -r session <"${state}/session"; } 2>/dev/null || session=''
  stat_tty=''
  [[ ${session} != [1-9]* || ${session} == *[!0-9]* ]] || stat_read "${session}"
  if (((stat_tty >> 8 & 4095) != 136)); then # makedev(3): a pseudo terminal
    result_fail invalid "the task has no terminal now" "submit it with a terminal, and resize it while it runs"
  fi
  device=/dev/pts/$((stat_tty & 255 | stat_tty >> 12 & 1048320))
  if [[ -r ${device} && -w ${device} ]]; then
    stty -F "${device}" rows "${1%x*}" cols "${1#*x}"
  else
    process_as_root stty -F "${device}" rows "${1%x*}" cols "${1#*x}"
  fi
}
