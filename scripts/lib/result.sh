# shellcheck shell=bash
# The script's answer: LINUS_ lines on stdout. Nothing else writes to stdout.
#
# With LINUS_NONCE set the lines lie between LINUS_BEGIN:<nonce> and LINUS_END:<nonce>, so that
# nothing else on stdout can be taken for an answer. Without the END the answer is incomplete. A
# value is one line: all that follows the first colon after the key.
#
# Exit codes, defined only here (result_code): 0 ok, 1 invalid, 2 dependency, 3 config, 4 offline, 5
# vm, 6 timeout.

source "${BASH_SOURCE[0]%/*}/log.sh"

result_begin() { # <total steps>
  result_steps_total=$1
  result_steps_done=0
  result_step_text=''
  result_error=''
  result_remedy=''
  result_nonce=${LINUS_NONCE:-}
  if [[ -n ${result_nonce} && ! ${result_nonce} =~ ^[A-Za-z0-9_-]{1,128}$ ]]; then
    result_nonce=''
    result_fail invalid 'LINUS_NONCE has characters other than A-Z a-z 0-9 _ -' 'give 1 to 128 of those'
  fi
  if [[ -n ${result_nonce} ]]; then
    printf 'LINUS_BEGIN:%s\n' "${result_nonce}"
  fi
}

result_fold() { # <text>; result_folded: the text on one line, of a bounded length
  result_folded=${1:0:1500}
  result_folded=${result_folded//[[:cntrl:]]/ }
}

# A value with a line break is refused, because it could forge a key.
result_line() { # <key without LINUS_> <value>
  if [[ ! $1 =~ ^[A-Z][A-Z0-9_]*$ ]] || ((${#2} > 65536)) || [[ $2 == *[[:cntrl:]]* ]]; then
    result_fail vm "refused to print LINUS_$1: the value has control characters, or no end" 'report this as a fault of the script'
  fi
  printf 'LINUS_%s:%s\n' "$1" "$2"
}

result_text() { # <key without LINUS_> <free text>: folded to one line
  result_fold "$2"
  printf 'LINUS_%s:%s\n' "$1" "${result_folded}"
}

# Runs one step, and reports it before it begins.
result_run_step() { # <function> <text>
  result_step_text=$2
  ((result_steps_done += 1))
  result_text STEP "${result_steps_done}/${result_steps_total}:$1:$2"
  log_info "step ${result_steps_done}/${result_steps_total}: $2"
  "$1"
}

result_warning() { # <text>: something an operator should know; the script continues
  log_warn "$1"
  result_text WARNING "$1"
}

result_code() { # <kind>; result_status: its exit code
  case $1 in
    invalid) result_status=1 ;;    # general, or an invalid parameter
    dependency) result_status=2 ;; # a tool is missing
    config) result_status=3 ;;     # node name, storage, bridge, template, OS, quorum
    offline) result_status=4 ;;    # the node is offline
    vm) result_status=5 ;;         # creating, configuring, starting or destroying failed
    timeout) result_status=6 ;;    # network or SSH did not come in time
    *) result_status=1 ;;
  esac
}

# Ends the script. Call it in the main shell: in $( ) its text would be lost.
result_fail() { # <kind> <what failed> <what to do>
  result_error=$2
  result_remedy=$3
  result_code "$1"
  log_error "$2"
  exit "${result_status}"
}

result_unexpected() { # <status> <line> <command>: from the ERR trap
  if [[ -z ${result_error} ]]; then
    result_error="unexpected exit status $1 of '$3' in line $2 while: ${result_step_text:-starting}"
    result_remedy="read the script's log above this line; run it with --dry-run to see what it would do"
  fi
}

# Prints the end of the answer, from the EXIT trap. Nobody may be listening any more.
result_end() { # <exit status>
  local -r status=$1
  if ((status != 0)); then
    if ((status > 128)); then
      result_error=${result_error:-"stopped by a signal (exit ${status}) while: ${result_step_text:-starting}"}
      result_remedy=${result_remedy:-'run it again; what it had made was rolled back unless a LINUS_WARNING says otherwise'}
    fi
    {
      printf 'LINUS_RESULT:FAILURE\n'
      result_text ERROR "${result_error:-"exit status ${status} while: ${result_step_text:-starting}"}"
      result_text REMEDY "${result_remedy:-"read the script's log, on stderr"}"
    } 2>/dev/null || :
  fi
  if [[ -n ${result_nonce:-} ]]; then
    printf 'LINUS_END:%s\n' "${result_nonce}" 2>/dev/null || :
  fi
}
