# shellcheck shell=bash
# shellcheck disable=SC2310,SC2312 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154,SC2034 # settings, state and control are the runner's
# What a job's guest reports to the linus server, over HTTP, with curl. Part of the job runner: it
# reads the runner's settings, places and state, and waits by its pause.

source "${BASH_SOURCE[0]%/*}/clock.sh"
source "${BASH_SOURCE[0]%/*}/log.sh"
source "${BASH_SOURCE[0]%/*}/settings.sh"

# callback_post sends the body on stdin to /callback/<job>/<route>. It sets callback_status to the
# HTTP status (000: no answer, none: no token here) and callback_answer to the answer's text. True
# on 2xx. It takes 20 s at most. The token reaches curl through a pipe, so that ps never shows it.
# The URL is read each time, because linus may have found a better route.
callback_post() { # <route> <content_type>
  local token='' answer
  callback_status=none
  callback_answer=
  { IFS= read -r callback_url <"${state}/callback_url"; } 2>/dev/null || true
  { IFS= read -r token <"${tmpfs}/token"; } 2>/dev/null || true
  [[ -n ${token} ]] || return 1
  answer=$(
    curl -q --silent --globoff --noproxy '*' --connect-timeout 5 --max-time 20 \
      --header @<(printf 'Authorization: Bearer %s\n' "${token}") \
      --header "Content-Type: $2" --data-binary @- --write-out '\n%{http_code}' \
      --url "${callback_url%/}/callback/${job_id}/$1"
  ) || true
  callback_status=${answer##*$'\n'}
  callback_answer=${answer%$'\n'*}
  [[ ${callback_status} == 2?? ]]
}

# callback_reaches tells whether a linus server answers at a URL. It takes 8 s at most.
callback_reaches() { # <url>
  local answer
  answer=$(
    curl -q --silent --globoff --noproxy '*' --connect-timeout 4 --max-time 8 --url "${1%/}/health"
  ) || true
  [[ ${answer} =~ ^\{[[:space:]]*\"status\"[[:space:]]*:[[:space:]]*\"ok\"[[:space:]]*\}[[:space:]]*$ ]]
}

# callback_heartbeat reports that the job's runner is alive.
callback_heartbeat() {
  callback_post heartbeat application/json <<<"{\"job_id\":\"${job_id}\"}"
}

# callback_progress sends one line for people. <text> must need no JSON escapes.
callback_progress() { # <text>
  callback_post status application/json <<<"{\"job_id\":\"${job_id}\",\"progress\":\"$1\"}"
}

# callback_output sends the content of <file> from where the server's copy ends: at most <chunks>
# pieces of 256 KiB now, and no byte of the stream past <limit>. The file <mark> remembers how much
# the server holds. The server's answer {"length": N} is authoritative, so a piece that is lost or
# sent twice corrects itself. False when the server did not answer or its copy shrank: wait before
# trying again. If the server takes only part of a piece, because the rest could be the beginning of
# a secret, the rest is sent next time with what follows.
callback_output() { # <stream> <file> <mark> <limit> <chunks>
  local -r stream=$1 file=$2 mark=$3 limit=$4
  local -i held=0 before size length chunks=$5
  { read -r held <"${mark}"; } 2>/dev/null || true
  size=$(stat -c %s -- "${file}") || return 1
  ((size <= limit)) || size=${limit}
  for (( ; held < size && chunks > 0; chunks -= 1)); do
    before=${held}
    length=$((size - held < 262144 ? size - held : 262144))
    callback_post "output?stream=${stream}&offset=${held}" application/octet-stream < <(
      dd if="${file}" iflag=skip_bytes,count_bytes skip="${held}" count="${length}" bs=65536 status=none
    ) || return 1
    held=$((held + length))
    if [[ ${callback_answer} =~ \"length\"[[:space:]]*:[[:space:]]*([0-9]{1,15})([^0-9]|$) ]]; then
      held=$((10#${BASH_REMATCH[1]}))
    fi
    printf '%d\n' "${held}" >"${mark}"
    ((held >= before)) || return 1
    ((held >= before + length)) || return 0
  done
}

# callback_follow_task reports the running task to the server until it is killed or the runner is
# gone. It runs beside the supervisor, because a server that does not answer must not delay a
# timeout.
callback_follow_task() { # <launched, uptime in 1/100 s>
  local -r launched=$1
  local -i beat_at=0 text_at=0 output_at=0 delay=500
  [[ ${status_mode} != streaming ]] || delay=50
  local -ri usual=${delay} tick=$((delay < 100 ? delay : 100))
  exec {run_lock}>&- {control}<> <(:)
  while [[ -d /proc/$$ ]]; do
    clock_read
    if ((clock_now >= beat_at)); then
      beat_at=$((clock_now + heartbeat_interval * 100))
      callback_heartbeat
    fi
    if [[ ${status_mode} != simple ]] && ((clock_now >= text_at)); then
      text_at=$((clock_now + 500))
      callback_progress "running for $(((clock_now - launched) / 100)) s"
    fi
    if [[ ${status_mode} != simple ]] && ((clock_now >= output_at)); then
      if callback_send_output 8; then delay=${usual}; else delay=$((delay < 1500 ? delay * 2 : 3000)); fi
      output_at=$((clock_now + delay))
    fi
    pause "${tick}"
  done
}

callback_send_output() { # <pieces per stream at most>
  callback_output stdout "${state}/stdout" "${state}/sent.stdout" "${max_output_size}" "$1" \
    && callback_output stderr "${state}/stderr" "${state}/sent.stderr" "${max_output_size}" "$1"
}

# callback_complete reports the task's end until the server says that it is recorded, or has refused
# it for an hour: then the server no longer knows the job. Settings and token are read for each try,
# because the server may have replaced them.
callback_complete() {
  local code reason duration text status=failed body last=''
  local -i delay=1 refused_since=0
  read -r code reason _ _ duration text <"${state}/exit_status"
  [[ ${reason} != exit || ${code} != 0 ]] || status=success
  body="{\"job_id\":\"${job_id}\",\"status\":\"${status}\",\"exit_code\":${code},\"output\":\"\",\"duration_seconds\":${duration}"
  [[ ${reason} == exit ]] || body+=",\"reason\":\"${reason}\",\"error\":\"${text}\""
  body+='}'
  # If all of the job was removed, nobody waits for its end.
  while [[ -d ${state} ]]; do
    settings_load || log_error "${home}/settings: ${settings_error}"
    [[ ${status_mode} == simple ]] || callback_send_output 1000 || true
    if callback_post complete application/json <<<"${body}"; then
      publish completion "recorded ${callback_status}"
      log_info "completion recorded"
      return 0
    fi
    clock_read
    [[ ${callback_status} == "${last}" ]] || log_warn "completion: HTTP ${callback_status}; trying again"
    last=${callback_status}
    if [[ ${callback_status} != none && ${callback_status} != 4?? ]]; then
      refused_since=0
    elif ((refused_since == 0)); then
      refused_since=${clock_now}
    elif ((clock_now - refused_since >= give_up_after * 100)); then
      publish completion "given_up ${callback_status}"
      log_error "completion given up: refused for ${give_up_after} s, last with HTTP ${callback_status}"
      return 1
    fi
    pause "$((delay * (75 + RANDOM % 51)))"
    delay=$((delay < 16 ? delay * 2 : 30))
  done
}
