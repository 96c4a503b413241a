#!/usr/bin/env bats
# lib/lease.sh: what a lease proves of a config that a killed worker of Proxmox
# left, and the timer that ends leases. When they end is tested with create-vm.sh and destroy-vm.sh.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154,SC2312,SC2317
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs lease
  run_init
  lease_arm() { :; } # of its own tests below, and of scripts on a host of their own
  vm_job=11111111-2222-4333-8444-555555555555
  vm_owner=99999999-2222-4333-8444-555555555555
  vm_name=ours
  export LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/host LINUS_PVE_DIR=${BATS_TEST_TMPDIR}/etc
  conf=${LINUS_PVE_DIR}/qemu-server/100.conf
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve/qemu-server"
  ln -s nodes/pve/qemu-server "${LINUS_PVE_DIR}/qemu-server"
  echo '{"nodename":"pve","version":0}' >"${LINUS_PVE_DIR}/.members"
}

# A lease that says what is done to VM 100, and the config its worker left.
leave() { # <lock announced> [<line of the config...>]
  lease_announce 100 pve "$1" local-lvm
  : >"${conf}"
  (($# == 1)) || printf '%s\n' "${@:2}" >"${conf}"
}

proves() { # <yes or no> <of what>
  vm_read 100
  lease_match 100
  if [[ ${lease_matches} != "$1" ]]; then
    echo "$2: ${lease_matches}" >&2
    return 1
  fi
}

@test "what a worker of ours leaves that was killed is proven by its lease" {
  local lock
  for lock in clone create destroyed; do
    leave "${lock}" "lock: ${lock}"
    proves yes "${lock}"
  done
  leave clone '#qmclone temporary file' 'lock: clone'
  proves yes 'a clone that has just begun'
  leave clone 'lock: destroyed'
  proves yes 'a clone whose destroy was killed'
  leave destroyed
  proves yes 'a destroy whose lock was broken'
}

@test "a lease proves nothing of a config that is another's, or not of its time" {
  leave clone 'lock: clone' 'name: web'
  proves no 'a config with a name'
  leave clone 'lock: clone' 'scsi0: local-lvm:vm-100-disk-0'
  proves no 'a config with a disk'
  leave clone '#precious' 'lock: clone'
  proves no 'a config with a description'
  leave clone '#qmclone temporary file of mine' 'lock: clone'
  proves no 'a config with more of a description'
  leave clone '<<<<' 'lock: clone'
  proves no 'a config with a line that is not of Proxmox'
  leave clone 'lock: backup'
  proves no 'another lock'
  leave clone 'lock: create'
  proves no 'the lock of other work'
  leave none 'lock: none'
  proves no 'a lease of a VM that speaks for itself'
  leave clone 'lock: clone'
  touch -d "@$((lease_made - 60))" "${conf}"
  proves no 'a config older than its lease'
  touch -d "@$((lease_made + lease_window + 60))" "${conf}"
  proves no 'a config much younger than its lease'
  touch -d "@$((lease_made + lease_window - 60))" "${conf}"
  proves yes 'a config of the last try'
  rm "${conf}"
  proves no 'no config'
}

@test "a lease that is announced again after a reboot ends when it would have" {
  lease_announce 100 pve clone local-lvm
  lease_set_end 1000
  lease_settle 100
  lease_read_clock
  # That boot had lasted for a year; 400 s of the lease were left at its end.
  lease_boot=another lease_ends_uptime=31536000 lease_ends_date=$((lease_date + 400))
  lease_save
  lease_announce 100 pve destroyed local-lvm
  lease_load 100 "${vm_job}"
  [[ ${lease_boot} == "${lease_boot_now}" ]]
  ((lease_ends_uptime - lease_uptime >= 390 && lease_ends_uptime - lease_uptime <= 400))
  # One that was over long ago is over.
  lease_boot=another lease_ends_uptime=31536000 lease_ends_date=1
  lease_save
  lease_announce 100 pve destroyed local-lvm
  lease_load 100 "${vm_job}"
  [[ ${lease_found} == yes ]]
  ((lease_ends_uptime == lease_uptime))
  # One without end has none.
  lease_boot=another lease_ends_uptime=0 lease_ends_date=0
  lease_save
  lease_announce 100 pve destroyed local-lvm
  lease_load 100 "${vm_job}"
  ((lease_ends_uptime == 0 && lease_ends_date == 0))
}

@test "the last whole line of a lease counts, and it does not grow without end" {
  local -i i
  lease_announce 100 pve clone 'local-lvm local' 1000
  lease_settle 100
  lease_load 100 "${vm_job}"
  [[ ${lease_lock}/${lease_storages} == none/local-lvm,local && ${#lease_lines[@]} -eq 2 ]]
  ((lease_ends_uptime == lease_uptime + 1000))
  lease_announce 100 pve destroyed local-lvm
  printf 'none ours %s pve local 1 b 1 1 1 1' "${vm_owner}" >>"${lease_file}" # a line that was cut
  lease_load 100 "${vm_job}"
  [[ ${lease_found}/${lease_lock} == yes/destroyed ]]
  lease_settle 100
  lease_load 100 "${vm_job}"
  [[ ${lease_found}/${lease_lock} == yes/none && ${lease_cut} == no ]]
  for ((i = 0; i < 40; i += 1)); do
    lease_announce 100 pve destroyed local-lvm
  done
  lease_load 100 "${vm_job}"
  [[ ${lease_found}/${lease_lock} == yes/destroyed && ${#lease_lines[@]} -le 16 ]]
  printf 'clone ours' >"${lease_file}"
  lease_load 100 "${vm_job}"
  [[ ${lease_found} == no ]]
  ln -sf /dev/full "${lease_file}"
  lease_lines=() lease_cut=no
  lease_save
  [[ ${lease_saved} == no ]]
}

@test "a lease is of one VM, job, name and owner" {
  leave clone 'lock: clone'
  proves yes 'as announced'
  vm_name=other
  proves no 'another name'
  vm_name=ours vm_owner=88888888-2222-4333-8444-555555555555
  proves no 'another owner'
  vm_owner=99999999-2222-4333-8444-555555555555 vm_job=88888888-2222-4333-8444-555555555555
  proves no 'another job'
  vm_job=11111111-2222-4333-8444-555555555555
  mv "${conf}" "${conf%/*}/101.conf"
  vm_read 101
  lease_match 101
  [[ ${lease_matches} == no ]]
}

fail() {
  printf '%s\n' "$@" >&2
  return 1
}

@test "a lease without its numbers is none" {
  lease_announce 100 pve clone local-lvm 1000
  local -i field
  local -a fields
  for field in 5 9 10; do
    read -ra fields <<<"${lease_lines[-1]}"
    fields[field]=x
    printf '%s\n' "${fields[*]}" >"${lease_file}"
    lease_load 100 "${vm_job}"
    [[ ${lease_found} == no ]] || fail "${fields[*]}"
    fields[field]=1
    lease_lines=("${fields[*]}")
  done
}

@test "which jobs have a lease of a VM" {
  local -r other=22222222-2222-4333-8444-555555555555
  lease_announce 100 pve clone local-lvm
  : >"${lease_file}.left"
  : >"${LINUS_HOST_DIR}/leases/100-none"
  : >"${LINUS_HOST_DIR}/leases/1000-${other}"
  lease_find 100
  [[ ${lease_jobs} == "${vm_job}" ]] || fail "${lease_jobs}"
  : >"${LINUS_HOST_DIR}/leases/100-${other}"
  lease_find 100
  [[ ${lease_jobs} == "${vm_job} ${other}" ]] || fail "${lease_jobs}"
}

@test "a create that has landed keeps a lease that ends, and none else" {
  lease_announce 101 pve clone local-lvm
  lease_settle 101
  [[ ! -e ${LINUS_HOST_DIR}/leases/101-${vm_job} ]]
  lease_announce 100 pve clone local-lvm 1000
  lease_settle 100
  [[ -e ${LINUS_HOST_DIR}/leases/100-${vm_job} ]]
  lease_settle 102 # which has none
  [[ ! -e ${LINUS_HOST_DIR}/leases/102-${vm_job} ]]
}

tasks_are() { # <JSON>
  stub_program pvesh "printf '%s\n' '$1'"
}

proof_is() { # <yes, busy or no>
  vm_read 100
  lease_prove 100 pve
  [[ ${lease_proof} == "$1" ]] || fail "${lease_proof}: ${vm_reason:-}"
}

@test "what a lease proves is destroyed when nobody is at work on it any more" {
  tasks_are '[]'
  leave clone 'lock: clone' 'name: web'
  proof_is no
  leave clone 'lock: clone'
  proof_is yes # this process has written it
  tasks_are 'who knows'
  proof_is busy
  tasks_are '[]'
  sleep 60 3>&- &
  local -r pid=$!
  stat_read "${pid}"
  lease_pid=${pid} lease_start=${stat_start}
  lease_save
  proof_is busy
  lease_start=$((stat_start - 1)) # another process of that ID
  lease_save
  proof_is yes
  lease_start=${stat_start}
  lease_save
  kill "${pid}"
  wait "${pid}" || :
  proof_is yes
}

# --- the timer, of a systemd that keeps its state in a file and links ---

setup_timer() {
  load_libs lease
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program systemctl 'dir='"${BATS_TEST_TMPDIR}"'
    printf "%s\n" "$*" >>"${dir}/calls"
    case $1 in
      is-active) cat "${dir}/active" ;;
      stop) echo inactive >"${dir}/active" ;;
      start) [[ -e ${dir}/broken ]] || echo active >"${dir}/active" ;;
      enable)
        mkdir -p "${dir}"/units/{multi-user,timers}.target.wants
        : >"${dir}/units/multi-user.target.wants/linus-sweep.service"
        : >"${dir}/units/timers.target.wants/linus-sweep.timer"
        ;;
    esac'
  echo inactive >"${BATS_TEST_TMPDIR}/active"
  note=${LINUS_HOST_DIR}/armed sweep=${LINUS_HOST_DIR}/sweep.sh
}

arms() { # <what systemctl is called for, in order; none: it is believed>
  rm -f "${BATS_TEST_TMPDIR}/calls"
  lease_armed=no
  lease_arm
  local call called=''
  if [[ -e ${BATS_TEST_TMPDIR}/calls ]]; then
    while read -r call _; do
      called+="${called:+ }${call}"
    done <"${BATS_TEST_TMPDIR}/calls"
  fi
  [[ ${called} == "$*" ]] || fail "called: ${called}"
}

@test "the timer is written, enabled and started once; what was seen is believed for a while" {
  setup_timer
  arms is-active enable start is-active
  [[ ${lease_armed} == yes && -e ${note} && -e ${LINUS_UNIT_DIR}/linus-sweep.service ]]
  arms
  lease_armed=yes
  rm "${note}"
  lease_arm # this run has seen it
  [[ ! -e ${BATS_TEST_TMPDIR}/calls ]]
  ln "${sweep}" "${sweep}.same" # what is as it should be is not written anew: it may be read just then
  arms is-active
  [[ ${sweep} -ef ${sweep}.same ]]
}

@test "a note of an armed timer is believed only where it is ours, of this boot and edition, and all is there" {
  setup_timer
  export LINUS_EDITION=2
  arms is-active enable start is-active
  local -r text=$(<"${note}")
  local change link fd
  for change in "x${text}" "${text/ */}x ${text#* }" "${text/ */} lease_uptime 2" "${text% *} 1" ''; do
    printf '%s\n' "${change}" >"${note}"
    arms is-active
    arms
  done
  mv "${note}" "${note}.link"
  ln -s armed.link "${note}"
  arms is-active
  rm "${note}"
  mkfifo "${note}"
  exec {fd}<>"${note}"
  printf '%s\n' "${text}" >&"${fd}"
  arms is-active
  exec {fd}>&-
  rm "${note}"
  arms is-active
  if ((EUID == 0)); then
    chown 65534 "${note}"
    arms is-active
    chown 0 "${note}"
  fi
  rm "${sweep}"
  arms is-active
  for link in multi-user.target.wants/linus-sweep.service timers.target.wants/linus-sweep.timer; do
    arms
    rm "${LINUS_UNIT_DIR}/${link}"
    arms is-active stop enable start is-active
  done
}

@test "a timer that does not run is started, and one with other units anew" {
  setup_timer
  arms is-active enable start is-active
  rm "${note}"
  echo inactive >"${BATS_TEST_TMPDIR}/active"
  arms is-active enable start is-active
  rm "${note}"
  echo old >"${LINUS_UNIT_DIR}/linus-sweep.timer"
  arms is-active stop daemon-reload enable start is-active
  [[ $(<"${LINUS_UNIT_DIR}/linus-sweep.timer") == *OnUnitActiveSec=* ]]
}

@test "a timer that does not start, or cannot be written, is not noted as armed" {
  setup_timer
  : >"${BATS_TEST_TMPDIR}/broken"
  arms is-active enable start is-active
  [[ ${lease_armed} == no && ! -e ${note} ]]
  rm -r "${BATS_TEST_TMPDIR}/broken" "${LINUS_UNIT_DIR}"
  : >"${LINUS_UNIT_DIR}"
  arms is-active
  echo active >"${BATS_TEST_TMPDIR}/active"
  arms is-active
  [[ ! -e ${note} ]]
  rm -r "${LINUS_UNIT_DIR}" "${LINUS_HOST_DIR}"
  mkdir "${LINUS_HOST_DIR}"
  mkdir "${sweep}.$$" # it cannot be written
  echo inactive >"${BATS_TEST_TMPDIR}/active"
  lease_locate_units
  lease_write_sweep
  [[ ${lease_written} == no ]]
}

@test "the program and the units of a newer engine stay, and what is none of ours is replaced" {
  setup_timer
  export LINUS_EDITION=2 LINUS_RESOLV_CONF=''
  foreign() { :; }
  arms is-active enable start is-active
  if grep -E 'LINUS_RESOLV_CONF=|^foreign ' "${sweep}"; then
    return 1
  fi
  grep -q "LINUS_HOST_DIR=${LINUS_HOST_DIR}" "${sweep}"
  local text
  for text in 'zzz' '# edition 1' '# edition 2'; do
    printf '%s\n' "${text}" >"${sweep}"
    rm "${note}"
    arms is-active
    [[ $(wc -l <"${sweep}") -gt 100 ]] || fail "${text}"
  done
  echo '# edition 3' >"${sweep}"
  echo newer >"${LINUS_UNIT_DIR}/linus-sweep.timer"
  rm "${LINUS_UNIT_DIR}/linus-sweep.service" "${note}"
  arms is-active stop enable start is-active
  [[ $(<"${sweep}") == '# edition 3' && $(<"${LINUS_UNIT_DIR}/linus-sweep.timer") == newer && -e ${LINUS_UNIT_DIR}/linus-sweep.service ]]
  LINUS_EDITION='9 x' lease_locate_units
  [[ -z ${lease_edition} ]]
}
