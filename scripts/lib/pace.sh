# shellcheck shell=bash
# When to ask a guest that boots. Asking one too early costs four seconds and a
# core, so the last boots of the same template tell when it is worth it; the asking
# itself begins dense and gets rarer.
#
# The file boots in LINUS_HOST_DIR (/var/lib/linus) has a line for each of the last
# templates: its ID, or its image's name, and after how many 1/100 s the question
# was put that was answered, of its last boots. A guest can only delay its own, and
# the shortest counts: one honest boot outweighs the others.

source "${BASH_SOURCE[0]%/*}/clock.sh"
source "${BASH_SOURCE[0]%/*}/run.sh"

pace_most=12000   # 1/100 s, waited at most before the first question
pace_began=0      # clock_now when the boot began
pace_next=20      # 1/100 s until the next question
pace_asked=0      # clock_now when the last question was put
pace_templates=20 # kept in the file, with this many boots each:
pace_boots=5

pace_start() { # the boot begins
  clock_read
  pace_began=${clock_now} pace_next=20
}

pace_ask() { # a question is put now
  clock_read
  pace_asked=${clock_now}
}

# Sleeps for three quarters of the shortest of the last boots, and never past the
# deadline: a template that boots faster than it did is found out soon.
pace_await() { # <template, or empty> <deadline, in SECONDS>
  local -i shortest wait boot
  pace_load "$1"
  if ((${#pace_known[@]} == 0)); then
    return 0
  fi
  shortest=${pace_known[0]}
  for boot in "${pace_known[@]:1}"; do
    shortest=$((boot < shortest ? boot : shortest))
  done
  shortest=$((shortest * 3 / 4 < pace_most ? shortest * 3 / 4 : pace_most))
  clock_read
  wait=$((pace_began + shortest - clock_now))
  if ((wait > ($2 - SECONDS) * 100)); then
    wait=$((($2 - SECONDS) * 100))
  fi
  if ((wait > 0)); then
    log_info "boots of ${1} answer later: waiting $((wait / 100)) s before asking"
    pace_sleep "${wait}"
  fi
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

# pace_known: the last boots of a template; pace_lines: the lines of the others.
pace_load() { # <template, or empty>
  local line text=''
  local -r file=${LINUS_HOST_DIR:-/var/lib/linus}/boots form='^[a-z0-9][a-z0-9.-]{0,63}( (0|[1-9][0-9]{0,5})){1,5}$'
  local -a words
  pace_known=() pace_lines=()
  # One that is not this user's own says nothing.
  if [[ ! -O ${file} || ! -f ${file} || -L ${file} ]] || ! { IFS= read -r -N 4096 text <"${file}" || [[ -n ${text} ]]; } 2>/dev/null; then
    return 0
  fi
  while IFS= read -r line; do
    if [[ ${line} =~ ${form} ]]; then
      read -ra words <<<"${line}"
      if [[ ${words[0]} == "$1" ]]; then
        pace_known=("${words[@]:1}")
      else
        pace_lines+=("${line}")
      fi
    fi
  done <<<"${text}"
}

# The question put last was the first that was answered.
pace_note() { # <template, or empty>
  local -r file=${LINUS_HOST_DIR:-/var/lib/linus}/boots
  local -i boot=$((pace_asked - pace_began))
  if [[ -z $1 ]] || ((boot < 0 || boot > 999999)); then
    return 0
  fi
  pace_load "$1"
  (
    umask 077
    mkdir -p -- "${file%/*}"
    pace_known=("${boot}" "${pace_known[@]}")
    printf '%s\n' "$1 ${pace_known[*]:0:pace_boots}" "${pace_lines[@]:0:pace_templates-1}" >"${file}.$$" \
      && mv -f -- "${file}.$$" "${file}"
  ) 2>/dev/null || log_warn "could not write ${file}"
}
