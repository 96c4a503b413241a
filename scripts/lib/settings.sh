# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # what is set here is read by the runner's other parts; home is the runner's
# How a job is to run: the lines KEY=VALUE of its settings file. They are read, never sourced. Part
# of the job runner.

# settings_load reads the settings file into globals. If a value is invalid, it sets settings_error
# and returns false.
settings_load() {
  local line value
  job_id='' agent='' timeout='' status_mode=simple callback_url=''
  heartbeat_interval=30 max_output_size=10485760
  cwd='' sudo='' stdin=closed tty='' repository='' commit='' lfs='' settings_error=''
  while IFS= read -r line || [[ -n ${line} ]]; do
    value=${line#*=}
    case ${line%%=*} in
      JOB_ID) job_id=${value} ;;
      AGENT) agent=${value} ;;
      TIMEOUT) timeout=${value} ;;
      STATUS_MODE) status_mode=${value} ;;
      CALLBACK_URL) callback_url=${value} ;;
      HEARTBEAT_INTERVAL) heartbeat_interval=${value} ;;
      MAX_OUTPUT_SIZE) max_output_size=${value} ;;
      CWD) cwd=${value} ;;
      SUDO) sudo=${value} ;;
      STDIN) stdin=${value} ;;
      TTY) tty=${value} ;;
      REPOSITORY) repository=${value} ;;
      COMMIT) commit=${value} ;;
      LFS) lfs=${value} ;;
    esac
  done 2>/dev/null <"${home}/settings" || true
  # The path at which the repository was put counts, whoever asks. A relative path is in the login
  # user's home.
  { IFS= read -r repository <"${state:-}/repository"; } 2>/dev/null || true
  [[ -z ${repository} || ${repository} == /* ]] || repository=${HOME%/}/${repository}
  cwd=${cwd:-${repository}}
  local -r number='^[1-9][0-9]{0,14}$' size='^[1-9][0-9]{0,3}x[1-9][0-9]{0,3}$'
  if [[ -z ${job_id} || ${job_id} == *[!0-9A-Za-z-]* ]]; then
    settings_error="JOB_ID '${job_id}' is not a job's id"
  elif [[ ${agent} != script && ${agent} != command && ${agent} != exec ]]; then
    settings_error="AGENT '${agent}' is not script, command or exec"
  elif [[ ${agent} != script && ! -f ${home}/command ]]; then
    settings_error="AGENT is ${agent} and there is no file command"
  elif [[ ! ${timeout} =~ ${number} ]]; then
    settings_error="TIMEOUT '${timeout}' is not a number of seconds above 0"
  elif [[ ! ${heartbeat_interval} =~ ${number} || ! ${max_output_size} =~ ${number} ]]; then
    settings_error="HEARTBEAT_INTERVAL '${heartbeat_interval}' and MAX_OUTPUT_SIZE '${max_output_size}' must be numbers above 0"
  elif [[ ${status_mode} != simple && ${status_mode} != detailed && ${status_mode} != streaming ]]; then
    settings_error="STATUS_MODE '${status_mode}' is not simple, detailed or streaming"
  elif [[ -n ${callback_url} ]] && ! settings_is_url "${callback_url}"; then
    settings_error="CALLBACK_URL '${callback_url}' is not a URL"
  elif [[ -n ${cwd} && ${cwd} != /* ]]; then
    settings_error="CWD '${cwd}' is not an absolute path"
  elif [[ ${sudo} != @(|yes|no) ]]; then
    settings_error="SUDO '${sudo}' is not yes or no"
  elif [[ ${stdin} != @(|open|closed) ]]; then
    settings_error="STDIN '${stdin}' is not open or closed"
  elif [[ -n ${tty} && ! ${tty} =~ ${size} ]]; then
    settings_error="TTY '${tty}' is not ROWSxCOLUMNS"
  elif [[ -n ${repository} && ! ${commit} =~ ^[0-9a-f]{40}$ ]]; then
    settings_error="COMMIT '${commit}' is not a commit"
  elif [[ ${lfs} != @(|yes) ]]; then
    settings_error="LFS '${lfs}' is not yes"
  elif [[ ! -f ${home}/task ]]; then
    settings_error="there is no file task"
  fi
  [[ -z ${settings_error} ]]
}

settings_is_url() { # <text>
  [[ $1 == http?(s)://?* && $1 != *[[:space:]]* ]]
}

# settings_need_sudo tells whether the task runs as root and this process does not.
settings_need_sudo() {
  [[ ${sudo} == yes ]] && ((EUID != 0))
}
