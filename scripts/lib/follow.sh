# shellcheck shell=bash
# shellcheck disable=SC2154 # state, settings and the nonce are the runner's
# Sends the task's output, as it comes, to whoever started the task, over the connection that is
# open for that anyway. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/result.sh"

# follow_task writes the task's past and new output to stdout, each piece after a line
# LINUS_OUTPUT:<nonce>:<stream>:<offset>:<bytes>, at most max_output_size bytes of a stream. It ends
# with the task, or when stdin ends: nobody listens any more then. 10 to 100 times a second it
# checks with builtins whether a file was changed after its last read, or at the same time, because
# a timestamp can be as coarse as a second.
follow_task() {
  local -r mark=${state}/follow.$$
  local -i follow_stdout=0 follow_stderr=0 delay=1
  local seconds ended=''
  while [[ -z ${ended} && -d ${state} ]]; do
    [[ ! -e ${state}/exit_status ]] || ended=yes
    if [[ -n ${ended} || ! ${state}/stdout -ot ${mark} || ! ${state}/stderr -ot ${mark} ]]; then
      : >"${mark}"
      follow_send || break
      delay=1
    fi
    if [[ -z ${ended} ]]; then
      printf -v seconds '0.%02d' "${delay}"
      read -r -t "${seconds}" _
      (($? > 128)) || break
      delay=$((delay < 5 ? delay * 2 : 10))
    fi
  done
  rm -f -- "${mark}"
  [[ -n ${ended} ]]
}

# follow_send sends the new output of both streams.
follow_send() {
  local sizes
  [[ -s ${state}/stdout || -s ${state}/stderr ]] || return 0
  sizes=$(stat -c %s -- "${state}/stdout" "${state}/stderr") || return 1
  follow_stream stdout "${sizes%$'\n'*}" && follow_stream stderr "${sizes#*$'\n'}"
}

follow_stream() { # <stream> <size>
  local -n sent=follow_$1
  local -i size=$2 length
  ((size <= max_output_size)) || size=${max_output_size}
  while ((sent < size)); do
    length=$((size - sent < 262144 ? size - sent : 262144))
    printf 'LINUS_OUTPUT:%s:%s:%d:%d\n' "${LINUS_NONCE}" "$1" "${sent}" "${length}" || return 1
    dd if="${state}/$1" iflag=skip_bytes,count_bytes skip="${sent}" count="${length}" bs=65536 status=none || return 1
    sent=$((sent + length))
  done
}
