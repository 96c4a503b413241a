#!/usr/bin/env bats
# The host's scripts under faults: signals and KILL at every step, workers of
# Proxmox killed half way, leases, IDs with volumes left.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
  check_file
}

setup() {
  setup_stub
  answer /nodes/pve/tasks '[]'
}

# Runs create-vm and sends it a signal in the middle of a command of its own.
strike() { # <signal> <verb>
  rm -f "${PVE_STUB}"/hook-* "${PVE_STUB}/struck" "${PVE_STUB}/calls"
  # shellcheck disable=SC2016 # the hook's own variables
  hook "$2" 'set -C; if : >"${PVE_STUB}/struck"; then kill -'"$1"' "$(<"${PVE_STUB}/script.pid")"; /bin/sleep 0.1; fi 2>/dev/null'
  run_create
}

run_create() { # its process id is in script.pid
  status=0
  # A job in the background would ignore INT.
  # shellcheck disable=SC2016 # the inner shell's own variables
  env --default-signal=INT bash -c 'echo $$ >"${PVE_STUB}/script.pid"; exec bash "$1"' bash "${host_scripts}/create-vm.sh" \
    >"${BATS_TEST_TMPDIR}/stdout" 2>"${BATS_TEST_TMPDIR}/stderr" 3>&- || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  log=$(<"${BATS_TEST_TMPDIR}/stderr")
}

# What list-vms asks of the API, as the stub's configs have it.
show_vms() {
  local file list='' id name tags
  for file in "${PVE_STUB}"/vm/*; do
    id=${file##*/}
    name=$(sed -n 's/^name: //p' "${file}")
    tags=$(sed -n 's/^tags: //p' "${file}")
    list+="${list:+,}{\"vmid\":${id},\"name\":\"${name}\",\"tags\":\"${tags}\",\"status\":\"running\"}"
  done
  answer /nodes/pve/qemu "[${list}]"
}

# A lease as create-vm writes it, by a run that is gone; the VM's config, if it
# stands already, is written after it.
lease() { # <vmid> <lock> [<seconds since boot it ends>] [<date it ends>] [<boot>]
  local boot
  boot=${5:-$(</proc/sys/kernel/random/boot_id)}
  mkdir -p "${LINUS_HOST_DIR}/leases"
  printf '%s %s %s pve local-lvm %(%s)T %s 999999999 1 %s %s\n' "$2" "${VM_NAME}" "${owner}" -1 "${boot}" "${3:-0}" "${4:-0}" \
    >"${LINUS_HOST_DIR}/leases/$1-${job}"
  touch -c "${PVE_STUB}/vm/$1"
}

assert_no_lease() {
  local left
  left=$(find "${LINUS_HOST_DIR}/leases" -name '[0-9]*' 2>/dev/null) || :
  [[ -z ${left} ]] || fail "a lease was left: ${left}"
}

# --- signals ---

@test "TERM, HUP, INT and PIPE at every step: the step ends, roll-back leaves nothing" {
  local step signal code verb
  stub_program sleep 'exec /bin/sleep 0.1'
  export LINUS_LEASE_SECONDS=1000
  local -a steps=(TERM=143=clone HUP=129=set INT=130=resize PIPE=141=start TERM=143=guest-cmd HUP=129=guest-exec)
  [[ ${LINUS_TEST_LOOP:-} != nightly ]] || steps=({TERM=143,HUP=129,INT=130,PIPE=141}"="{clone,set,resize,start,guest-cmd,guest-exec})
  for step in "${steps[@]}"; do
    IFS='=' read -r signal code verb <<<"${step}"
    strike "${signal}" "${verb}"
    assert_status "${code}"
    assert_line LINUS_RESULT:FAILURE
    assert_called 'qm destroy 2.*'
    assert_no_vm_of_ours
    assert_nothing_left
  done
  assert_foreign_untouched
}

@test "a stop between lease and clone, while the host's timer is looked for, leaves no lease" {
  export LINUS_STOP=${BATS_TEST_TMPDIR}/stop
  # shellcheck disable=SC2016 # the program's own variable
  stub_program systemctl ': >"${LINUS_STOP}"; echo inactive; exit 3'
  run_script create-vm
  assert_status 143
  refute_called 'qm clone .*'
  assert_nothing_left
}

@test "signals again and again, while a clone is at work and in each command of the roll-back: nothing is left" {
  local verb
  stub_program sleep 'exec /bin/sleep 0.1'
  export LINUS_LEASE_SECONDS=1000
  # shellcheck disable=SC2016 # the hooks' own variables
  local -r signals='pid=$(<"${PVE_STUB}/script.pid"); for signal in TERM INT TERM HUP TERM; do kill -"${signal}" "${pid}"; /bin/sleep "0.0$((RANDOM % 5))"; done'
  for verb in status stop destroy list; do
    rm -f "${PVE_STUB}"/{hook-*,struck}
    hook clone "touch \"\${PVE_STUB}/struck\"; ${signals}"
    hook "${verb}" "if [[ -e \${PVE_STUB}/struck ]]; then (${signals}) 2>/dev/null & fi"
    run_create
    [[ ${status} -eq 143 || ${status} -eq 129 || ${status} -eq 130 ]] || fail 'no signal was heard'
    assert_line LINUS_RESULT:FAILURE
    refute_line_like LINUS_WARNING
    assert_no_vm_of_ours
    assert_nothing_left
  done
}

@test "KILL at every step: the VM is found by its marker, and destroyed" {
  local verb vm i
  for verb in clone set resize start guest-cmd guest-exec; do
    strike KILL "${verb}"
    assert_status 137
    # What the script had begun goes on, and ends.
    for ((i = 0; i < 600; i += 1)); do
      pgrep -f "${BATS_TEST_TMPDIR}/bin/qm " >/dev/null || break
      command sleep 0.05
    done
    show_vms
    run_script list-vms
    vm=$(sed -n 's/^LINUS_VM:id=\([0-9]*\) .*/\1/p' <<<"${output}")
    [[ -n ${vm} ]] || fail "killed at ${verb}: not listed"
    VM_ID=${vm} run_script destroy-vm
    assert_status 0
    assert_no_vm_of_ours
    assert_no_lease
    setup_vm_list
  done
  assert_foreign_untouched
}

setup_vm_list() {
  answer /nodes/pve/qemu '[{"vmid":101,"name":"other","status":"running"},{"vmid":"9000","name":"agent-template","status":"stopped","template":1}]'
}

@test "IDs lost to a VM and to a container of other nodes: the next is tried, no lease is left" {
  fault clone 255 skip "close (rename) atomic file '/etc/pve/nodes/pve/qemu-server/250.conf' failed: File exists"
  fault clone 255 skip "unable to create VM 251 - CT 251 already exists on node 'pve3'"
  stub_program sleep 'exec /bin/sleep 0.1'
  LINUS_LEASE_SECONDS=1000 run_script create-vm
  assert_status 0
  assert_called_times 3 'qm clone .*'
  refute_called 'qm \(stop\|destroy\).*'
  local left
  left=$(find "${LINUS_HOST_DIR}/leases" -name "[0-9]*-${job}")
  [[ ${left} == */leases/[0-9]*-"${job}" && ${left} != *$'\n'* ]]
  read_vm_id
  VM_ID=${id} run_script destroy-vm
  assert_no_lease
}

# A failed create never reaches a destroy, not even the proof before it.
@test "roll-back looks for no VM whose create was refused, nor for one that another took" {
  local said
  for said in "unable to create VM 250 - VM 250 already exists on node 'pve2'" 'unable to create VM 250: no space left'; do
    fault clone 255 skip "${said}"
    VM_ID_RANGE=250-250 run_script create-vm
    [[ ${status} -eq 3 || ${status} -eq 5 ]] || fail 'it did not fail'
    refute_called 'qm \(status\|unlock\|stop\|destroy\).*'
    [[ ${log} != *'rolling back'* ]] || fail 'it looked'
    refute_line_like LINUS_WARNING
    assert_nothing_left
  done
}

# --- workers of Proxmox killed half way ---

@test "a config with only a lock is destroyed where a lease of ours announced that work" {
  local lock text
  for lock in clone create destroyed; do
    for text in '' $'# qmclone temporary file\n'; do
      add_vm 205 "${text}lock: ${lock}"
      echo stopped >"${PVE_STUB}/status/205"
      lease 205 "${lock}"
      VM_ID=205 run_script destroy-vm
      assert_status 0
      assert_called 'qm unlock 205'
      [[ ! -e ${PVE_STUB}/vm/205 ]]
      assert_no_lease
    done
  done
}

@test "the sweep of list-vms and create-vm clears up after a worker that was killed with its script" {
  local script
  for script in list-vms create-vm; do
    add_vm 205 'lock: clone'
    echo stopped >"${PVE_STUB}/status/205"
    lease 205 clone
    run_script "${script}"
    assert_status 0
    [[ ! -e ${PVE_STUB}/vm/205 ]]
    [[ ! -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  done
}

@test "a foreign VM's lock is never touched, whatever a lease says" {
  local config
  # No lease; work not announced; a config that speaks; one older than the lease.
  for config in none 'lock: backup' $'lock: clone\nname: theirs' $'lock: create\nmemory: 512' \
    $'#mine\nlock: clone' old; do
    rm -rf "${LINUS_HOST_DIR}"
    case ${config} in
      none) add_vm 205 'lock: clone' ;;
      *)
        add_vm 205 "${config/#old/lock: clone}"
        lease 205 clone
        ;;
    esac
    echo stopped >"${PVE_STUB}/status/205"
    if [[ ${config} == old ]]; then
      touch -d '1 hour ago' "${PVE_STUB}/vm/205"
    fi
    VM_ID=205 run_script destroy-vm
    assert_status 5
    assert_says 'refused to destroy VM 205'
    run_script list-vms
    assert_status 0
    refute_called 'qm \(unlock\|stop\|destroy\|set\).*'
    [[ -e ${PVE_STUB}/vm/205 ]]
  done
}

@test "a task that is alive keeps its lock; when it is gone the next try destroys" {
  local start
  start=$(awk '{print $22}' "/proc/${greeter_pid}/stat")
  lease 205 clone
  add_vm 205 'lock: clone'
  echo stopped >"${PVE_STUB}/status/205"
  answer /nodes/pve/tasks "[{\"upid\":\"$(printf 'UPID:pve:%08X:%08X:0000:qmclone:9000:root@pam:' "${greeter_pid}" "${start}")\"}]"
  VM_ID=205 run_script destroy-vm
  assert_status 5
  assert_says 'a task of Proxmox is still at work on it'
  run_script list-vms
  refute_called 'qm \(unlock\|stop\|destroy\).*'
  # The list still has it, but the number is another process's now.
  answer /nodes/pve/tasks "[{\"upid\":\"$(printf 'UPID:pve:%08X:%08X:0000:qmclone:9000:root@pam:' "${greeter_pid}" "$((start + 1))")\"}]"
  VM_ID=205 run_script destroy-vm
  assert_status 0
  [[ ! -e ${PVE_STUB}/vm/205 ]]
}

@test "a run that is alive keeps what it makes" {
  lease 205 clone
  local start
  start=$(awk '{print $22}' "/proc/${greeter_pid}/stat")
  sed -i "s/ 999999999 1 / ${greeter_pid} ${start} /" "${LINUS_HOST_DIR}/leases/205-${job}"
  add_vm 205 'lock: clone'
  run_script list-vms
  refute_called 'qm .*'
  VM_ID=205 run_script destroy-vm
  assert_status 5
  assert_says 'is still at work'
}

@test "a destroy killed half way is finished by the next" {
  add_our_vm 205
  # shellcheck disable=SC2016 # the hook's own variables
  hook destroy 'rm "$0"; echo "lock: destroyed" >"${PVE_STUB}/vm/$2"; exit 137'
  VM_ID=205 run_script destroy-vm
  assert_status 5
  VM_ID=205 run_script destroy-vm
  assert_status 0
  [[ ! -e ${PVE_STUB}/vm/205 ]]
  assert_no_lease
}

@test "a locked VM that carries the marker is destroyed, whatever its lock" {
  local lock
  for lock in clone create destroyed; do
    add_our_vm 205 "lock: ${lock}"
    VM_ID=205 run_script destroy-vm
    assert_status 0
    [[ ! -e ${PVE_STUB}/vm/205 ]]
  done
}

# --- leases ---

create_leased() { # sets id
  LINUS_LEASE_SECONDS=1000 run_script create-vm
  assert_status 0
  read_vm_id
}

# The time of the lease has come.
end_lease() {
  local -r file=${LINUS_HOST_DIR}/leases/${id}-${job}
  awk '{ $10 = 1; print }' "${file}" >"${BATS_TEST_TMPDIR}/over"
  mv "${BATS_TEST_TMPDIR}/over" "${file}"
}

# What the timer runs, with what a unit has: neither the script's file nor its environment.
run_sweep() {
  status=0
  log=$(env -i "PATH=${PATH}" "PVE_STUB=${PVE_STUB}" "PVELAB_DIR=${PVELAB_DIR}" bash "${LINUS_HOST_DIR}/sweep.sh" 2>&1 3>&-) || status=$?
}

assert_timer() { # <active|inactive>
  local state
  state=$(systemctl is-active linus-sweep.timer) || :
  [[ ${state} == "$1" ]] || fail "the timer is ${state}"
}

assert_vms_of_ours() { # <count>
  local count
  count=$({ grep -lr linus-job "${PVE_STUB}/vm" || :; } | wc -l)
  [[ ${count} -eq $1 ]] || fail "${count} VMs of ours, expected $1"
}

@test "a lease that ends destroys the VM with no one of ours there" {
  LINUS_SWEEP_SECONDS=1 create_leased
  end_lease
  local -i i
  for ((i = 0; i < 300; i += 1)); do
    [[ -e ${LINUS_HOST_DIR}/leases/${id}-${job} ]] || break
    /bin/sleep 0.1
  done
  assert_called "qm destroy ${id} --purge 1"
  assert_no_vm_of_ours
  assert_no_lease
}

@test "one timer for all leases, whose program is its own; it is there again after a reboot" {
  local units
  create_leased
  assert_timer active
  ln "${LINUS_HOST_DIR}/sweep.sh" "${BATS_TEST_TMPDIR}/first"
  LINUS_JOB=22222222-2222-4333-8444-555555555555 VM_NAME=linus-job-22222222 LINUS_LEASE_SECONDS=1000 run_script create-vm
  assert_status 0
  run_script list-vms
  units=$({ systemctl list-units --plain --no-legend --state=active 'linus-*' || :; } | cut -d' ' -f1)
  [[ ${units} == linus-sweep.timer ]] || fail "${units}"
  [[ ${LINUS_HOST_DIR}/sweep.sh -ef ${BATS_TEST_TMPDIR}/first ]] || fail 'its program was written anew'
  run_sweep # nothing is over yet
  [[ ${status} -eq 0 && -z ${log} ]] || fail 'the sweep failed'
  refute_called 'qm destroy.*'
  reboot_host
  assert_timer inactive
  boot_host
  assert_timer active
  echo 'exit 1' >"${LINUS_HOST_DIR}/sweep.sh" # of another version
  run_script list-vms
  [[ $(<"${LINUS_HOST_DIR}/sweep.sh") == 'exit 1' ]] || fail 'what was seen less than a minute ago was looked at again'
  sed -E 's/^([^ ]+) [0-9]+/\1 0/' "${LINUS_HOST_DIR}/armed" >"${LINUS_HOST_DIR}/armed.new" # a minute later
  mv "${LINUS_HOST_DIR}/armed.new" "${LINUS_HOST_DIR}/armed"
  run_script list-vms
  assert_timer active
  end_lease
  run_sweep
  [[ ${status} -eq 0 ]] || fail 'the sweep failed'
  [[ ${log} != *'command not found'* && ${log} != *'unbound variable'* ]] || fail "${log}"
  [[ ! -e ${LINUS_HOST_DIR}/leases/${id}-${job} && ! -e ${PVE_STUB}/vm/${id} ]] || fail "${log}"
}

@test "the program of the timer is the newest engine's, whoever came last; one by hand is before all" {
  local edition
  export LINUS_EDITION=000000001.000000002.000000003.~
  create_leased
  assert_timer active
  cp "${LINUS_HOST_DIR}/sweep.sh" "${BATS_TEST_TMPDIR}/newer"
  grep -qx "# edition ${LINUS_EDITION}" "${LINUS_HOST_DIR}/sweep.sh"
  # An older engine, of other code and other units.
  for edition in 000000001.000000002.000000003.rc.1 000000001.000000002.000000002.~ '' $'\n'x; do
    rm "${LINUS_HOST_DIR}/armed"
    LINUS_EDITION=${edition} LINUS_SWEEP_SECONDS=77 LINUS_RESOLV_CONF=/dev/null run_script list-vms
    assert_status 0
    assert_timer active
    cmp "${LINUS_HOST_DIR}/sweep.sh" "${BATS_TEST_TMPDIR}/newer"
    ! grep -q 77 "${LINUS_UNIT_DIR}/linus-sweep.timer" || fail 'the units were written'
  done
  # A newer one, though less than a minute ago somebody looked.
  LINUS_EDITION=000000001.000000010.000000000.~ LINUS_SWEEP_SECONDS=78 LINUS_RESOLV_CONF=/dev/null run_script list-vms
  assert_status 0
  assert_timer active
  grep -qx '# edition 000000001.000000010.000000000.~' "${LINUS_HOST_DIR}/sweep.sh"
  grep -q 'RESOLV_CONF=/dev/null' "${LINUS_HOST_DIR}/sweep.sh"
  grep -q 78 "${LINUS_UNIT_DIR}/linus-sweep.timer"
}

@test "a lease that ends takes the VM's volumes off it first, and leaves one with a volume on its own disk alone" {
  create_leased
  sed -i '1i scsi2: local-lvm:vm-300-disk-0,serial=linus555555555555' "${PVE_STUB}/vm/${id}"
  cp "${PVE_STUB}/vm/${id}" "${BATS_TEST_TMPDIR}/before"
  sed -i "s/vm-300-disk-0/vm-${id}-disk-7/" "${PVE_STUB}/vm/${id}"
  end_lease
  run_sweep
  [[ ${status} -eq 0 && ${log} == *'is left alone: it has a volume on a disk of its own (scsi2)'* ]] || fail "${log}"
  refute_called 'qm destroy .*'
  rm "${LINUS_HOST_DIR}"/leases/*.left # else it rests for a while
  cat "${BATS_TEST_TMPDIR}/before" >"${PVE_STUB}/vm/${id}"
  run_sweep
  [[ ${status} -eq 0 ]] || fail "${log}"
  assert_called "qm set ${id} --delete scsi2"
  assert_no_vm_of_ours
}

@test "a lease that ends destroys a suspended VM, too, and one whose suspend was killed" {
  local lock
  for lock in suspended suspending; do
    create_leased
    printf '%s\n' "lock: ${lock}" "vmstate: local-lvm:vm-${id}-state-suspend-2026-11-22" >>"${PVE_STUB}/vm/${id}"
    [[ ${lock} == suspending ]] || echo stopped >"${PVE_STUB}/status/${id}"
    answer /nodes/pve/tasks '[]'
    end_lease
    run_sweep
    [[ ${status} -eq 0 ]] || fail 'the sweep failed'
    assert_no_vm_of_ours
    assert_no_lease
  done
}

@test "after a reboot of the host a lease ends, and network rules are back, though nobody of ours comes by" {
  VM_EGRESS=none create_leased
  add_our_vm 205
  sed -i 's/^#linus-job.*/& linus-egress=none/; $ a net0: virtio=BC:24:11:00:00:05,bridge=vmbr0' "${PVE_STUB}/vm/205"
  end_lease
  reboot_host
  rm -f "${PVE_STUB}/nft" "${PVE_STUB}/machine" "${LINUS_LOCK_DIR}"/egress.*
  boot_host # the service comes at once, the timer in three minutes
  local -i i
  for ((i = 0; i < 300; i += 1)); do
    [[ -e ${LINUS_HOST_DIR}/leases/${id}-${job} || ! -e ${PVE_STUB}/nft ]] || break
    /bin/sleep 0.1
  done
  [[ ! -e ${PVE_STUB}/vm/${id} ]] || fail 'the lease did not end'
  grep -q tap205i0 "${PVE_STUB}/nft" || fail 'the rules are not back'
}

@test "a timer that runs without the files of its units is started anew with them" {
  create_leased
  systemctl disable --quiet linus-sweep.timer
  rm "${LINUS_UNIT_DIR}"/linus-sweep.*
  run_script list-vms
  assert_timer active
  [[ -e ${LINUS_UNIT_DIR}/timers.target.wants/linus-sweep.timer ]]
}

somebody_waits() { # <lock>: by descriptor 4
  local fd comm
  for fd in /proc/[0-9]*/fd/4; do
    if [[ ${fd} -ef $1 ]] && { read -r comm <"${fd%/fd/4}/comm"; } 2>/dev/null && [[ ${comm} == flock ]]; then
      return 0
    fi
  done
  return 1
}

# One that looks while another arms it would take it for one of other files, and stop it.
@test "the timer is armed by one at a time" {
  local -r lock=${LINUS_HOST_DIR}/timer.lock
  local -i i
  create_leased
  systemctl disable --quiet --now linus-sweep.timer
  exec 4>"${lock}"
  flock 4
  run_script list-vms 4>&- &
  for ((i = 0; i < 300; i += 1)); do
    if somebody_waits "${lock}"; then
      break
    fi
    /bin/sleep 0.1
  done
  ((i < 300)) || fail 'nobody waits for who arms the timer'
  assert_timer inactive
  exec 4>&-
  wait $!
  assert_timer active
}

@test "a sweep ends two leases at most, and one sweep is at work at a time" {
  local -i n
  for n in 205 206 207; do
    add_our_vm "${n}"
    lease "${n}" none 1 1
  done
  run_script list-vms # arms, and ends two
  assert_vms_of_ours 1
  exec 5>>"${LINUS_HOST_DIR}/leases/.sweep"
  flock 5
  run_sweep
  assert_vms_of_ours 1
  exec 5>&-
  run_sweep
  assert_no_vm_of_ours
  assert_no_lease
}

@test "a lease that nothing would end stops the create" {
  stub_program systemctl 'echo "Failed to connect to bus: No such file or directory" >&2; exit 1'
  LINUS_LEASE_SECONDS=1000 run_script create-vm
  assert_status 3
  assert_says 'could not start linus-sweep.timer'
  refute_called 'qm clone.*'
  assert_nothing_left
}

@test "a lease that ends leaves a VM alone that is not proven, keeps its file, and tells of it" {
  add_our_vm 205
  sed -i 's/^#.*/#mine/; /^tags: /d' "${PVE_STUB}/vm/205"
  lease 205 none 1 1
  run_script list-vms
  assert_status 0
  assert_line "LINUS_LEFT_ALONE:205 ${job} ${VM_NAME} its description does not carry linus-job=${job}"
  refute_called 'qm \(stop\|destroy\).*'
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  # It is told of each time, and not asked of Proxmox each time.
  rm "${PVE_STUB}/calls"
  run_script list-vms
  assert_says "LINUS_LEFT_ALONE:205 ${job}"
  refute_called 'qm .*'
  # Later it is looked at again: a proof that is back destroys it.
  add_our_vm 205
  sed -i 's/^[0-9]*/1/' "${LINUS_HOST_DIR}/leases/205-${job}.left"
  run_script list-vms
  [[ ! -e ${PVE_STUB}/vm/205 ]]
  refute_line_like LINUS_LEFT_ALONE
  assert_no_lease
}

@test "a lease ends where its VM's ID is another's by now" {
  add_vm 205 'name: web' 'memory: 512'
  lease 205 none 1 1
  run_script list-vms
  assert_status 0
  refute_line_like LINUS_LEFT_ALONE
  refute_called 'qm \(stop\|destroy\).*'
  assert_no_lease
}

@test "what a killed run announced is kept in mind while it is neither proven nor gone" {
  add_our_vm 205
  sed -i 's/^#.*/#mine/' "${PVE_STUB}/vm/205"
  lease 205 clone
  run_script list-vms
  assert_says "LINUS_LEFT_ALONE:205 ${job}"
  rm "${PVE_STUB}/vm/205" "${LINUS_PVE_DIR}/qemu-server/205.conf"
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"
  : >"${LINUS_PVE_DIR}/nodes/pve2/qemu-server/205.conf"
  sed -i 's/^[0-9]*/1/' "${LINUS_HOST_DIR}/leases/205-${job}.left"
  run_script list-vms
  assert_says "LINUS_LEFT_ALONE:205 ${job} ${VM_NAME} node 'pve2' has a VM of that ID"
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
}

@test "the lease of an ID whose VM was never made stays while the create may be at work, and keeps nobody from the ID" {
  local -r file=${LINUS_HOST_DIR}/leases/205-${job}
  local now
  lease 205 clone
  run_script list-vms
  assert_status 0
  [[ -e ${file} ]] || fail 'what the killed script has begun may still be at work'
  # After a reboot it is not, nor when the last try has had its time.
  lease 205 clone 0 0 another-boot
  run_script list-vms
  assert_no_lease
  lease 205 clone
  printf -v now '%(%s)T' -1
  sed -i -E "s/^(([^ ]+ ){5})[0-9]+/\\1$((now - 10810))/" "${file}"
  run_script list-vms
  assert_no_lease
  # Another's VM of that ID is its end, too.
  lease 205 clone
  add_vm 205 'name: web' 'memory: 512'
  run_script list-vms
  refute_called 'qm \(stop\|destroy\).*'
  refute_line_like LINUS_LEFT_ALONE
  assert_no_lease
}

@test "destroy-vm ends the lease" {
  create_leased
  VM_ID=${id} run_script destroy-vm
  assert_status 0
  assert_no_lease
}

@test "no lease asked for: none is left once the VM speaks for itself" {
  run_script create-vm
  assert_status 0
  assert_no_lease
}

@test "a lease that cannot be written stops the create" {
  : >"${BATS_TEST_TMPDIR}/file"
  LINUS_HOST_DIR=${BATS_TEST_TMPDIR}/file run_script create-vm
  assert_status 3
  assert_says 'could not write the lease'
  refute_called 'qm clone.*'
}

@test "after a reboot a lease ends by the date; while the boot is the same, by it alone" {
  local now up
  printf -v now '%(%s)T' -1
  read -r up _ </proc/uptime
  add_our_vm 205
  lease 205 none "$((${up%.*} + 500))" "$((now - 10))"
  run_script list-vms
  [[ -e ${PVE_STUB}/vm/205 ]] || fail 'a change of date ended the lease'
  lease 205 none 1 "$((now + 500))" another-boot
  run_script list-vms
  [[ -e ${PVE_STUB}/vm/205 ]] || fail 'another boot ended the lease'
  lease 205 none "$((${up%.*} + 500))" "$((now - 10))" another-boot
  run_script list-vms
  assert_status 0
  [[ ! -e ${PVE_STUB}/vm/205 ]] || fail 'the lease was not ended'
  assert_no_lease
}

# --- IDs in quarantine ---

@test "an ID whose volumes stayed is not used before they are gone" {
  export VM_ID_RANGE=205-205
  printf '%s\n' 'Volid Format Type Size VMID' 'other:vm-205-disk-3 raw images 4194304' >"${PVE_STUB}/volumes"
  mkdir -p "${LINUS_HOST_DIR}/quarantine"
  echo other:vm-205-disk-3 >"${LINUS_HOST_DIR}/quarantine/205"
  run_script list-vms
  assert_line 'LINUS_QUARANTINED:205 other:vm-205-disk-3'
  refute_line_like LINUS_WARNING
  run_script create-vm
  assert_status 3
  assert_says 'no VM ID is free'
  # A storage that does not answer frees nothing.
  fault list 255 skip 'storage is not online'
  run_script list-vms
  assert_line 'LINUS_QUARANTINED:205 other:vm-205-disk-3'
  : >"${PVE_STUB}/volumes"
  run_script list-vms
  refute_line_like LINUS_QUARANTINED
  [[ ! -e ${LINUS_HOST_DIR}/quarantine/205 ]]
  run_script create-vm
  assert_line LINUS_VM_ID:205
}

@test "a destroy that leaves a volume puts the ID into quarantine" {
  add_our_vm 205
  printf '%s\n' 'Volid Format Type Size VMID' 'local-lvm:vm-205-disk-3 raw images 4194304 205' >"${PVE_STUB}/volumes"
  VM_ID=205 run_script destroy-vm
  assert_status 0
  [[ $(<"${LINUS_HOST_DIR}/quarantine/205") == local-lvm:vm-205-disk-3 ]]
}

@test "a free ID with volumes of somebody else is not used" {
  printf '%s\n' 'Volid Format Type Size VMID' 'local-lvm:vm-205-disk-0 raw images 4194304 205' >"${PVE_STUB}/volumes"
  VM_ID_RANGE=205-205 run_script create-vm
  assert_status 3
  assert_says 'no VM ID is free'
}

# --- full disks ---

# Runs a script on a host whose directory has no room left.
run_full() { # <directory> <script>
  export directory=$1
  mkdir -p "${directory}"
  status=0
  # shellcheck disable=SC2016 # the inner shell's variable
  unshare -m bash -c 'mount -t tmpfs -o size=64k,mode=700 tmpfs "${directory}" && { cat /dev/zero >"${directory}/ballast" 2>/dev/null || exec bash "$1"; }' \
    bash "${host_scripts}/$2.sh" >"${BATS_TEST_TMPDIR}/stdout" 2>"${BATS_TEST_TMPDIR}/stderr" 3>&- || status=$?
  output=$(<"${BATS_TEST_TMPDIR}/stdout")
  log=$(<"${BATS_TEST_TMPDIR}/stderr")
}

@test "a full /tmp, /var/lib/linus or /run is told, and nothing is done by half" {
  unshare -m true || skip 'cannot mount here'
  local script
  export LINUS_LEASE_SECONDS=1000 VM_ID=205
  run_full "${LINUS_HOST_DIR}" create-vm
  assert_status 3
  assert_says 'could not write the lease'
  VM_EGRESS=none LINUS_LOCK_DIR=${BATS_TEST_TMPDIR}/locks run_full "${BATS_TEST_TMPDIR}/locks" create-vm
  assert_status 3
  assert_says 'is its disk full?'
  assert_no_vm_of_ours
  refute_called 'qm start.*'
  add_our_vm 205
  : >"${PVE_STUB}/calls"
  for script in destroy-vm create-vm list-vms show-vm; do
    TMPDIR=${BATS_TEST_TMPDIR}/tmp run_full "${BATS_TEST_TMPDIR}/tmp" "${script}"
    assert_status 3
    assert_says "LINUS_ERROR:${BATS_TEST_TMPDIR}/tmp on ${HOSTNAME} is full"
    [[ ! -s ${PVE_STUB}/calls ]] || fail "called: $(<"${PVE_STUB}/calls")"
  done
  run_full "${LINUS_HOST_DIR}" destroy-vm
  assert_status 0
  assert_line LINUS_VM_OUTCOME:destroyed
}

# A template 205 of ours, as build-template.sh leaves it.
add_our_template() {
  add_vm 205 "#linus-job=${job} linus-owner=${owner} linus-vm=205 linus-template=1" 'boot: order=scsi0' "name: ${VM_NAME}" \
    'scsi0: local:205/base-205-disk-0.qcow2,size=10G' 'tags: linus' 'template: 1'
  echo stopped >"${PVE_STUB}/status/205"
  export VM_ID=205 VM_KIND=template
}

@test "a template whose disk clones read is not tried to destroy, and its clones are told" {
  add_our_template
  add_vm 206 'name: clone' 'scsi0: local:205/base-205-disk-0.qcow2/206/vm-206-disk-0.qcow2,size=10G'
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve/qemu-server"
  ln -sf "${PVE_STUB}/vm/206" "${LINUS_PVE_DIR}/nodes/pve/qemu-server/206.conf"
  run_script destroy-vm
  assert_status 5
  assert_line LINUS_VM_OUTCOME:failed
  assert_says 'has linked clones, which read its disk: 206 (clone)'
  refute_called 'qm \(destroy\|stop\|set\|unlock\) .*'
  [[ ! -e ${LINUS_HOST_DIR}/leases/205-${job} ]] || fail 'its end was announced'
  # An earlier template of that ID had other disks.
  printf '%s\n' 'scsi0: local:205/base-205-disk-7.qcow2/206/vm-206-disk-0.qcow2' 'scsi1: other:205/base-205-disk-0.qcow2/206/vm-206-disk-1.qcow2' >"${PVE_STUB}/vm/206"
  run_script destroy-vm
  assert_status 0
}

@test "a template whose destroy Proxmox refused, or whose build's lease ends, is no VM that is left alone" {
  add_our_template
  fault destroy 255 skip "base volume 'local:205/base-205-disk-0.qcow2' is still in use by linked cloned"
  run_script destroy-vm
  assert_status 5
  assert_says 'has linked clones, which read its disk'
  [[ -e ${LINUS_HOST_DIR}/leases/205-${job} ]]
  run_sweep
  [[ ${status} -eq 0 && ${log} != *'left alone'* && ! -e ${LINUS_HOST_DIR}/leases/205-${job} && -e ${PVE_STUB}/vm/205 ]] || fail "${log}"

  printf 'none %s %s pve local 1 %s 1 1 1 1\n' "${VM_NAME}" "${owner}" "$(</proc/sys/kernel/random/boot_id)" >"${LINUS_HOST_DIR}/leases/205-${job}"
  run_sweep
  [[ ${status} -eq 0 && ${log} == *'is a template now'* && ${log} != *'left alone'* && ! -e ${LINUS_HOST_DIR}/leases/205-${job} && -e ${PVE_STUB}/vm/205 ]] || fail "${log}"
}
