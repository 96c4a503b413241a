# shellcheck shell=bash
# shellcheck disable=SC2310 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154 # places are the runner's
# What a job brings into its guest beside the task: environment, secrets and
# files. A part of the job runner; needs result.sh and process.sh. Functions
# only; source it.

# files_check_env refuses what task_become could not hand on exactly, and
# secrets that it could hand on only by an argument list.
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

# files_bash_frees tells whether bash lets go of a variable.
files_bash_frees() { # <name>
  [[ $1 != @(_|POSIXLY_CORRECT) ]] && (unset -v "$1") 2>/dev/null
}

files_install() {
  local number mode path error
  [[ -e ${home}/files.index ]] || return 0
  while IFS= read -r -d '' number && IFS= read -r -d '' mode && IFS= read -r -d '' path; do
    if [[ ${number} == *[!0-9]* || ! -f ${home}/files/${number} || ! ${mode} =~ ^[0-7]{3,4}$ ||
      ${path} != /* || ${path} == */ || /${path}/ == */../* || ${path} == *$'\n'* ]]; then
      result_fail invalid "files.index: '${number}' '${mode}' '${path}' is not a file, a mode and an absolute path" "upload the job's files again"
    fi
    error=$(files_install_one "${home}/files/${number}" "${mode}" "${root}${path}" 2>&1) \
      || result_fail invalid "cannot install ${path}: ${error}" "choose another path, or a VM whose user may use sudo without a password"
  done <"${home}/files.index"
}

# files_install_one puts one file in place for the login user, with directories of
# theirs above it; as root only where the user cannot.
files_install_one() { # <source> <mode> <path>
  local parent=${3%/*}
  if mkdir -p -- "${parent}/" 2>/dev/null && install -T -m "$2" -- "$1" "$3" 2>/dev/null; then
    return
  fi
  local -a missing=() owner=(-o "${EUID}" -g "$(id -g)")
  while [[ -n ${parent} ]] && ! process_as_root test -e "${parent}"; do
    missing=("${parent}" "${missing[@]}")
    parent=${parent%/*}
  done
  ((${#missing[@]} == 0)) || process_as_root install -d "${owner[@]}" -- "${missing[@]}" || return
  process_as_root install -T -m "$2" "${owner[@]}" -- "$1" "$3"
}
