#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312,SC2030,SC2031 # set by the helper; tasks are quoted on purpose

setup() {
  load runner
  runner_setup
  work=${BATS_TEST_TMPDIR}/work
  mkdir "${work}"
  settings "CWD=${work}"
}

teardown() { runner_teardown; }

patterns() { printf '%s\0' "$@" >"${home}/artifacts"; }

find_artifacts() { # [<limits>]: sets output, status; names, and found by name
  run bash "${runner}" artifacts "${@:-100}" "${2:-1000000}" "${3:-10000000}"
  local name path size mode sum
  names=()
  declare -gA found=()
  while IFS= read -r -d '' name && IFS= read -r -d '' path && IFS= read -r -d '' size \
    && IFS= read -r -d '' mode && IFS= read -r -d '' sum; do
    names+=("${name}")
    found["${name}"]="${path}|${size}|${mode}|${sum}"
  done <"${state}/artifacts.index"
  echo "${output}"
  printf 'found: %q\n' "${names[@]}"
}

limits() { # <files> <each> <all>
  run bash "${runner}" artifacts "$@"
}

has() { # <name>...: these, and no others
  local -a want=() got=()
  mapfile -t -d '' want < <(printf '%s\0' "$@" | sort -z)
  mapfile -t -d '' got < <(printf '%s\0' "${names[@]}" | sort -z)
  [[ "${want[*]@Q}" == "${got[*]@Q}" && ${output} == *"LINUS_ARTIFACTS:$#"* ]]
}

@test "a tree is found with names, sizes, modes and checksums" {
  patterns 'dist/**' out.txt
  task 'mkdir -p dist/a/b; printf one >dist/1; printf two >dist/a/b/2; chmod 750 dist/a/b/2; printf "" >out.txt; printf no >other; touch dist/.hidden'
  run_to_end
  find_artifacts
  [[ ${status} == 0 ]]
  has dist/1 dist/a/b/2 dist/.hidden out.txt
  [[ ${found["dist/a/b/2"]} == "${work}/dist/a/b/2|3|0750|$(printf two | sha256sum | head -c 64)" ]]
  [[ ${found["out.txt"]} == "${work}/out.txt|0|0644|$(sha256sum </dev/null | head -c 64)" ]]
}

@test "a directory is all that is in it, hidden files too, and what wildcards leave out is told" {
  patterns site '**/*.xml' 'wild/*' empty '[s]ub/' "${work}/abs" 'own/.git/config' '.hid*'
  task 'mkdir -p site/.well-known site/.git/hooks .deep/.er wild/dir/x empty abs/.x sub own/.git; for f in site/.htaccess site/.well-known/s site/x site/.git/hooks/h site/.git/HEAD .deep/.er/r.xml .deep/.git.xml wild/.w wild/dir/x/y abs/.x/y sub/z own/.git/config own/.git/HEAD .hidden; do : >$f; done'
  run_to_end
  find_artifacts
  has site/.htaccess site/.well-known/s site/x .deep/.er/r.xml .deep/.git.xml wild/.w "${work#/}/abs/.x/y" own/.git/config .hidden
  [[ ${output} == *"SKIPPED:git's own; it is an artifact if a pattern has .git in it: site/.git"* ]]
  [[ ${output} == *'SKIPPED:a directory; /** behind the pattern is all that is in it: wild/dir'* ]]
  [[ ${output} == *'SKIPPED:a directory; /** behind the pattern is all that is in it: sub'* ]]
  [[ ${output} == *'SKIPPED:an empty directory: empty'* && ${output} == *'LINUS_ARTIFACTS_SKIPPED:4'* ]]
}

@test "what a failed or stopped task has left is found, and again" {
  patterns '*.log'
  task 'printf x >a.log; exit 3'
  run_to_end
  find_artifacts
  has a.log
  printf xyz >"${work}/a.log"
  find_artifacts
  has a.log
  [[ ${found["a.log"]} == *'|3|'* ]]
}

@test "odd names survive: blanks, newlines, quotes, a dash in front, no UTF-8" {
  patterns '*'
  task 'for n in "a b" $'\''new\nline\n'\'' "-rf" "\$(id)" "\"q\"" "a]b[" "*" "\\x" $'\''\xff'\'' "]" "_"; do printf "%s" "$n" >"./$n"; done'
  run_to_end
  find_artifacts
  has 'a b' $'new\nline\n' -rf '$(id)' '"q"' 'a]b[' '*' '\x' $'\xff' ']' _
  local name
  for name in "${names[@]}"; do
    [[ ${found["${name}"]} == *"|$(printf '%s' "${name}" | sha256sum | head -c 64)" ]]
  done
}

@test "nothing but wildcards means anything in a pattern" {
  patterns '$(touch evil)' '`touch evil`' '{a,b}' '~' '$HOME' 'a;touch evil' '@(a|b)' '!(a)' '' 'a b' '[*]' 'c\d' '[ab]'
  task 'touch a b "a b" "*" "{a,b}" "c\d" cd'
  run_to_end
  find_artifacts
  has a b 'a b' '*' '{a,b}' 'c\d'
  [[ ! -e ${work}/evil && ${output} == *'LINUS_ARTIFACT_SKIPPED:nothing there matches: $(touch evil)'* ]]
}

@test "a path that leads outside is refused: by .., or by a symlink" {
  printf secret >"${BATS_TEST_TMPDIR}/secret"
  mkdir "${BATS_TEST_TMPDIR}/far"
  printf secret >"${BATS_TEST_TMPDIR}/far/x"
  patterns '../secret' 'd/../../secret' 'link' 'loop' 'gone' 'dir/*' 'd/**' '*/x' '.*/x' '.*' 'in'
  task 'mkdir d; ln -s ../secret link; ln -s ../far dir; ln -s ../../far d/dir; ln -s ../../secret d/link; ln -s loop loop; ln -s nothing gone; printf 1 >d/1; ln -s d/1 in'
  run_to_end
  find_artifacts
  has d/1 in
  [[ ${output} == *'SKIPPED:a path with .. is refused: ../secret'* && ${output} == *'SKIPPED:a symlink leads outside of where its pattern looks: link'* ]]
  [[ ${output} == *'SKIPPED:a symlink leads outside of where its pattern looks: dir/x'* && ${output} == *'SKIPPED:a symlink leads outside of where its pattern looks: d/link'* ]]
  [[ ${found[in]} == *'|1|'* ]]
}

@test "an absolute pattern gives names without the slash, and keeps to its directory" {
  local -r out=${BATS_TEST_TMPDIR}/out
  patterns "${out}/**/*.txt" "${out}/plain" "${out}//./plain" "${out}/sub/../plain" /etc/host[n]ame "${out}/link" "${out}/nothing/*"
  task "mkdir -p ${out}/sub; touch ${out}/plain ${out}/sub/a.txt ${out}/b.txt; ln -s /etc/passwd ${out}/c.txt; ln -s /etc/passwd ${out}/link"
  run_to_end
  find_artifacts
  has "${out#/}/sub/a.txt" "${out#/}/b.txt" "${out#/}/plain" etc/hostname
  [[ ${found["${out#/}/b.txt"]} == "${out}/b.txt|"* && ${output} == *"a symlink leads outside of where its pattern looks: ${out#/}/c.txt"* ]]
}

@test "a working directory reached by a symlink is the task's own" {
  ln -s work "${BATS_TEST_TMPDIR}/alias"
  settings "CWD=${BATS_TEST_TMPDIR}/alias"
  patterns '*'
  task 'touch a; ln -s a b'
  run_to_end
  find_artifacts
  has a b
}

@test "limits leave out what is beyond, and say so" {
  patterns '*'
  task 'for i in 1 2 3 4; do head -c 100 /dev/zero >f$i; done; head -c 101 /dev/zero >big'
  run_to_end
  limits 2 1000 1000
  [[ ${output} == *'SKIPPED:more than 2 files: f2'*'LINUS_ARTIFACTS:2'* ]]
  limits 10 100 1000
  [[ ${output} == *'SKIPPED:its 101 bytes are more than the 100 a file may have: big'*'LINUS_ARTIFACTS:4'* ]]
  limits 10 1000 301
  [[ ${output} == *'SKIPPED:with its 100 bytes all would have more than 301: f3'*'LINUS_ARTIFACTS:3'* ]]
  limits 0 0 0
  [[ ${status} == 0 && ${output} == *'LINUS_ARTIFACTS:0'* ]]
  limits 1 2
  [[ ${status} == 1 ]]
  limits 1 2 x
  [[ ${status} == 1 ]]
}

@test "what is left out is told in a bounded list, and 500 files are no trouble" {
  patterns '*' none 'd'
  task 'mkdir d; for i in {1..500}; do echo $i >$i; done; mkfifo pipe'
  run_to_end
  run bash "${runner}" artifacts 400 1000 100000
  [[ ${status} == 0 && ${output} == *LINUS_ARTIFACTS:400* ]]
  [[ $(grep -c '^LINUS_ARTIFACT_SKIPPED:' <<<"${output}") == 50 && ${output} == *'LINUS_ARTIFACTS_SKIPPED:104'* ]]
  find_artifacts 1000
  [[ ${output} == *LINUS_ARTIFACTS:500* && ${output} == *'SKIPPED:not a regular file: pipe'* ]]
  [[ ${output} == *'SKIPPED:nothing there matches: none'* && ${output} == *'SKIPPED:an empty directory: d'* ]]
}

@test "no patterns, or no directory any more, find nothing" {
  task 'true'
  run_to_end
  find_artifacts
  [[ ${status} == 0 && ${output} == *LINUS_ARTIFACTS:0* ]]
  patterns '*'
  rmdir "${work}"
  find_artifacts
  [[ ${status} == 0 && ${output} == *LINUS_ARTIFACTS:0* ]]
}

@test "artifacts of a task that runs are refused" {
  patterns '*'
  task 'sleep 300'
  start
  run bash "${runner}" artifacts 1 1 1
  [[ ${status} == 1 && ${output} == *'has not ended'* ]]
}
