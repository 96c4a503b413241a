# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # places are the runner's
# What a job brings into its guest besides the task: environment, secrets and files. Part of the job
# runner.

source "${BASH_SOURCE[0]%/*}/process.sh"
source "${BASH_SOURCE[0]%/*}/result.sh"

# files_take reads a job's files from stdin and puts them where they belong. Each is a line
# "<secret|job> <name> <bytes>" followed by that many bytes. If <bytes> is "text", a line with the
# escapes of printf's %b follows instead, which takes no process. The last line is "end".
files_take() {
  local where name how text
  local -A directory=([secret]=${tmpfs} [job]=${home})
  while IFS=' ' read -r where name how; do
    case ${where} in
      secret | job) where=${directory[${where}]}/${name} ;;
      *) return 0 ;;
    esac
    if [[ ${how} == text ]]; then
      IFS= read -r text || break
      printf '%b' "${text}" >"${where}"
    else
      dd bs=64K count="${how}" iflag=fullblock,count_bytes status=none >"${where}" 7>&-
    fi || {
      log_error "cannot write ${where}"
      return 5
    }
  done
  return 1 # the connection has ended
}

# files_check_env refuses entries that task_become could not pass on exactly, and secrets that it
# could pass on only in an argument list.
files_check_env() {
  files_check_entries env "${home}/env"
  files_check_entries secrets "${tmpfs}/secrets"
}

files_check_entries() { # <env|secrets> <file>
  local entry name
  [[ -e $2 ]] || return 0
  while IFS= read -r -d '' entry || [[ -n ${entry} ]]; do
    name=${entry%%=*}
    if [[ ${entry} != *=* || ${name} != [A-Za-z_]* || ${name} == *[!A-Za-z0-9_]* ]]; then
      result_fail invalid "$1: '${name:0:100}' is not the name of a variable" "use letters, digits and _, not beginning with a digit"
    fi
    [[ ${name} != @(LINUS_JOB_ID|LINUS_TASK_FILE|LINUS_ROOT|__linus_*) ]] || result_fail invalid "$1: ${name} is the runner's own" "use another name"
    if [[ $1 == secrets ]] && ! files_bash_frees "${name}"; then
      result_fail invalid "secrets: ${name} is a variable of bash's own" "use another name"
    fi
  done <"$2"
}

# files_bash_frees tells whether bash can unset a variable.
files_bash_frees() { # <name>
  [[ $1 != @(_|POSIXLY_CORRECT) ]] && (unset -v "$1") 2>/dev/null
}

# files_install unpacks the job's files at the root, owned by the login user together with the
# directories that it makes for them. It works as root only if the user cannot do that. Existing
# files are replaced, existing directories stay as they are.
files_install() {
  local -a fields
  local -i i
  local said group
  [[ -e ${home}/files.index ]] || return 0
  mapfile -d '' -t fields <"${home}/files.index"
  for ((i = 0; i < ${#fields[@]}; i += 2)); do
    files_check "${fields[i]}" "${fields[i + 1]:-}"
  done
  group=$(id -g)
  said=$(files_unpack 2>&1) \
    || said=$(process_as_root "${BASH}" "${script}" unpack "${EUID}" "${group}" 2>&1 >/dev/null) \
    || result_fail invalid "cannot install the job's files: ${said:0:1000}" \
      "choose other paths, free some space on the VM's disk, or take a VM whose user may use sudo without a password"
}

files_check() { # <mode> <path>
  if [[ $1 != [0-7][0-7][0-7][0-7] || $2 != /* || $2 == */ || $2/ == */../* || $2 == *$'\n'* ]]; then
    result_fail invalid "files.index: '$1' '$2' is not a mode and an absolute path" "upload the job's files again"
  fi
  [[ ! -d ${root}$2 ]] || result_fail invalid "cannot install $2: there is a directory" "choose another path"
}

files_unpack() {
  tar -x -p -m -P --no-same-owner -f "${home}/files.tar" -C "${root:-/}"
}

# files_unpack_for is files_unpack as root, for the user.
files_unpack_for() { # <uid> <gid>
  local -a fields paths=() missing=() above
  local -A seen=()
  local -i i
  local path
  mapfile -d '' -t fields <"${home}/files.index"
  for ((i = 0; i < ${#fields[@]}; i += 2)); do
    path=${root}${fields[i + 1]}
    paths+=("${path}")
    above=()
    while path=${path%/*} && [[ -n ${path} && -z ${seen[${path}]:-} ]]; do
      seen[${path}]=yes
      [[ -e ${path} ]] || above=("${path}" "${above[@]}")
    done
    missing+=("${above[@]}")
  done
  # In parts, because a command's arguments have a limit.
  for ((i = 0; i < ${#missing[@]}; i += 100)); do
    install -d -o "$1" -g "$2" -- "${missing[@]:i:100}"
  done
  files_unpack
  for ((i = 0; i < ${#paths[@]}; i += 100)); do
    chown -h -- "$1:$2" "${paths[@]:i:100}"
  done
  for ((i = 0; i < ${#fields[@]}; i += 2)); do
    # The change of owner clears these bits.
    [[ ${fields[i]} == 0* ]] || chmod "${fields[i]}" -- "${root}${fields[i + 1]}"
  done
}
