#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312,SC2030,SC2031 # set by the helper; tasks are quoted on purpose
# What launch tells of a task while it runs.

setup() {
  load runner
  runner_setup
  export LINUS_NONCE=n
}

teardown() { runner_teardown; }

# launch starts the job as linus does, its stdin open until hang_up.
launch() {
  mkfifo "${BATS_TEST_TMPDIR}/line"
  bash "${runner}" launch <"${BATS_TEST_TMPDIR}/line" >"${BATS_TEST_TMPDIR}/said" 2>"${BATS_TEST_TMPDIR}/errors" 3>&- &
  launched=$!
  exec {line}>"${BATS_TEST_TMPDIR}/line"
}

hang_up() { exec {line}>&-; }

said() { grep -aqF -- "$1" "${BATS_TEST_TMPDIR}/said"; }

# unframed prints what was told of a stream, and fails where a piece does not follow on
# the last one.
unframed() { # <stream>
  perl -e '
    my %at = (stdout => 0, stderr => 0);
    binmode STDIN; binmode STDOUT;
    while (<STDIN>) {
      next unless /^LINUS_OUTPUT:n:(std...):(\d+):(\d+)$/;
      my ($stream, $offset, $length) = ($1, $2, $3);
      die "$stream goes on at $offset\n" if $offset != $at{$stream};
      read(STDIN, my $data, $length) == $length or die "cut off\n";
      $at{$stream} += $length;
      print $data if $stream eq $ARGV[0];
    }' "$1" <"${BATS_TEST_TMPDIR}/said"
}

@test "launch is start, then both streams byte for byte, then the end with its sums" {
  head -c 700000 /dev/urandom >"${BATS_TEST_TMPDIR}/blob"
  task "cat ${BATS_TEST_TMPDIR}/blob; printf 'a\\x00\\nLINUS_END:n\\n' >&2; exit 6"
  launch
  wait "${launched}"
  [[ ! -s ${BATS_TEST_TMPDIR}/errors ]]
  run head -n 4 "${BATS_TEST_TMPDIR}/said"
  [[ ${output} == LINUS_BEGIN:n$'\n'LINUS_JOB_START:started$'\n'LINUS_BOOT_ID:*LINUS_RESULT:SUCCESS ]]
  unframed stdout | cmp - "${BATS_TEST_TMPDIR}/blob"
  unframed stderr | cmp - "${state}/stderr"
  run tail -n 12 "${BATS_TEST_TMPDIR}/said"
  [[ ${output} == *LINUS_JOB_STATE:exited*LINUS_EXIT_CODE:6*LINUS_STDOUT_BYTES:700000*LINUS_RESULT:SUCCESS*LINUS_END:n ]]
  [[ ${output} == *"LINUS_STDOUT_SHA256:$(sha256sum <"${BATS_TEST_TMPDIR}/blob" | cut -c1-64)"* ]]
  [[ -z $(find "${state}" -name 'follow.*') ]]
}

@test "output is told while the task runs, though it wrote it just after the last look" {
  task 'for ((i = 0; i < 40; i++)); do printf "<%s>" "${i}"; sleep "0.0$((RANDOM % 4))"; done; until [[ -e '"${root}"'/end ]]; do sleep 0.02; done'
  launch
  until_true 20 said '<39>'
  [[ ! -e ${state}/exit_status ]]
  touch "${root}/end"
  wait "${launched}"
  [[ $(unframed stdout) == "$(<"${state}/stdout")" ]]
}

@test "whoever hangs up ends what tells, and not the task" {
  task 'echo on; until [[ -e '"${root}"'/end ]]; do sleep 0.02; done; echo over'
  launch
  until_true 20 said on
  hang_up
  wait "${launched}"
  [[ ! -e ${state}/exit_status && -z $(find "${state}" -name 'follow.*') ]]
  touch "${root}/end"
  until_true 20 exited
  [[ $(<"${state}/stdout") == $'on\nover' ]]
}

@test "no more is told of a stream than is kept, and a long one has no sum" {
  settings MAX_OUTPUT_SIZE=300000
  task 'head -c 400000 /dev/zero; printf err >&2'
  launch
  wait "${launched}"
  [[ $(unframed stdout | wc -c) == 300000 && $(unframed stderr) == err ]]
  said LINUS_STDOUT_BYTES:400000
  run said SHA256
  [[ ${status} == 1 ]]
}

@test "a start that is refused is all that is told" {
  settings CWD=/none
  task true
  run bash "${runner}" launch </dev/null
  [[ ${status} == 1 && ${output} == *LINUS_RESULT:FAILURE*'cwd: /none is not a directory'*LINUS_END:n && ${output} != *LINUS_OUTPUT* ]]
}

@test "launched again, the task runs once and is told from its beginning" {
  task 'echo x >>'"${root}"'/ran; echo out; until [[ -e '"${root}"'/end ]]; do sleep 0.02; done'
  launch
  until_true 20 said out
  hang_up
  wait "${launched}"
  rm "${BATS_TEST_TMPDIR}/line"
  launch
  until_true 20 said LINUS_JOB_START:already_running
  until_true 20 said out
  touch "${root}/end"
  wait "${launched}"
  [[ $(<"${root}/ran") == x && $(unframed stdout) == out ]]
  said LINUS_JOB_STATE:exited
}
