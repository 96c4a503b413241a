#!/usr/bin/env bats
# lib/validate.sh: every rule, on both of its sides.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs validate
  result_begin 1
}

accepts() { # <function> <value...>
  local value
  for value in "${@:2}"; do
    run "$1" X "${value}"
    [[ ${status} -eq 0 ]] || {
      printf '%s refused %q\n' "$1" "${value}" >&2
      return 1
    }
  done
}

refuses() { # <function> <value...>
  local value
  for value in "${@:2}"; do
    run "$1" X "${value}"
    [[ ${status} -eq 1 ]] || {
      printf '%s took %q\n' "$1" "${value}" >&2
      return 1
    }
  done
}

@test "names are DNS labels" {
  local label63
  printf -v label63 '%063d' 0
  accepts validate_name a linus-job-0123abcd "${label63}"
  refuses validate_name '' -a a- A a_b a.b 'a b' $'a\n' $'\na' "${label63}0" "a'b" ä
}

@test "numbers are whole, in bounds, without leading zeros" {
  in_bounds() { validate_number "$1" "$2" 5 10000 GB; }
  accepts in_bounds 5 10000
  refuses in_bounds 4 10001 05 5.0 -5 '' ' 5' $'5\n6' 5G 99999999999 'a[0]' 0x10
}

@test "uuids" {
  accepts validate_uuid 11111111-2222-4333-8444-555555555555
  refuses validate_uuid '' 11111111-2222-4333-8444-55555555555 11111111-2222-4333-8444-55555555555G '.*'
}

@test "ssh keys: one public key on one line" {
  accepts validate_ssh_key 'ssh-ed25519 AAAA' 'ssh-rsa AAAA== me@host with words' 'ecdsa-sha2-nistp256 AAAA=' 'sk-ssh-ed25519@openssh.com AAAA'
  refuses validate_ssh_key '' 'ssh-ed25519' 'ssh-dss AAAA' $'ssh-ed25519 AAAA\nssh-ed25519 BBBB' $'ssh-ed25519 AAAA me\e[2K' 'command="x" ssh-ed25519 AAAA' '-----BEGIN OPENSSH PRIVATE KEY-----'
}

@test "a missing tool is exit 2" {
  run validate_tools bash no-such-tool-here
  [[ ${status} -eq 2 && ${output} == *no-such-tool-here* ]]
}
