#!/usr/bin/env bats
# lib/left.sh: whose a VM is that does not prove to be ours, and what is noted of one that is
# left alone. That it is left alone is tested with destroy-vm.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2312,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

other=22222222-2222-4333-8444-555555555555

setup() {
  load_libs left log
  run_init
  vm_job=11111111-2222-4333-8444-555555555555
  vm_owner=99999999-2222-4333-8444-555555555555
  vm_name=ours
  export LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host
  lease_arm() { :; }
}

judged() { # <another or doubtful> <words of the description> <key=value of the config...>
  local pair
  declare -gA vm_config=()
  vm_words=" $2 "
  for pair in "${@:3}"; do
    vm_config[${pair%%=*}]=${pair#*=}
  done
  left_judge
  [[ ${left_whose} == "$1" ]] || {
    echo "$2, ${*:3}: ${left_whose}" >&2
    return 1
  }
}

@test "another's is what has neither our name nor our job, nor our owner without another job" {
  judged another '' name=web memory=512
  judged another "linus-job=${other} linus-owner=${vm_owner}" name=web memory=512
  judged another "linus-job=${other} linus-owner=${other}" memory=512
  judged doubtful '' name=Ours memory=512
  judged doubtful "linus-job=${vm_job}" name=web memory=512
  judged doubtful "linus-owner=${vm_owner}" name=web memory=512
}

@test "what a worker of Proxmox has begun, or a config that is none, says nothing of whose it is" {
  judged doubtful ''
  judged doubtful '' lock=clone
  judged doubtful 'qmclone temporary file' lock=clone description=x unparsed=x
  judged another '' lock=clone memory=512
}

@test "a VM that was saved as a template is no VM any more, and nothing else with our job is" {
  local -r saved="linus-template=1 linus-saved=${vm_job} linus-from=ours"
  judged another "linus-job=${other} ${saved}" name=tpl template=1
  judged doubtful "linus-job=${other} ${saved}" name=tpl
  judged doubtful "linus-job=${other} ${saved}" name=tpl template=0
  judged doubtful "linus-job=${other} ${saved}x" name=tpl template=1
  judged doubtful "linus-job=${other} linus-saved=${vm_job} linus-from=ours" name=tpl template=1
}

@test "a note has its date and why in one line, and rests ten minutes" {
  lease_announce 205 pve none local-lvm
  left_note 205 "${vm_job}" $'its tag\nis gone'
  local date why now
  read -r date why <"${lease_file}.left"
  [[ ${date} =~ ^[0-9]+$ && ${why} == 'its tag is gone' && $(wc -l <"${lease_file}.left") -eq 1 ]]
  printf -v now '%(%s)T' -1
  local pair
  for pair in "${now} x=yes" "$((now - 300)) x=yes" "$((now - 601)) x=no" "$((now + 300)) x=no" '1x x=no' "9${now}000 x=no" =no; do
    printf '%s\n' "${pair%=*}" >"${lease_file}.left"
    left_rests 205 "${vm_job}"
    [[ ${left_resting} == "${pair##*=}" ]] || {
      echo "${pair}: ${left_resting}" >&2
      return 1
    }
  done
  rm "${lease_file}.left"
  left_rests 205 "${vm_job}"
  [[ ${left_resting} == no ]]
}

@test "a note that cannot be written is told, one that can is not" {
  mkdir -p "${LINUS_HOST_DIR}/leases"
  run left_note 205 "${vm_job}" why
  [[ -z ${output} ]]
  rm -r "${LINUS_HOST_DIR}"
  run left_note 205 "${vm_job}" why
  [[ ${status} -eq 0 && ${output} == *"could not note in ${LINUS_HOST_DIR}/leases/205-${vm_job}.left that VM 205 is left alone"* ]]
}

@test "what is left alone is what has a note and a lease" {
  lease_announce 205 pve none local-lvm
  left_note 205 "${vm_job}" 'its tag is gone'
  left_note 206 "${vm_job}" 'its lease is gone'
  echo '1 x' >"${LINUS_HOST_DIR}/leases/205-none.left"
  left_read
  [[ ${left_alone[*]} == "205 ${vm_job} ours its tag is gone" ]]
}
