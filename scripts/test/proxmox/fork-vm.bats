#!/usr/bin/env bats
# Copies of a VM that runs: power-vm.sh's fork and unfork, and create-vm.sh with VM_FORK,
# as processes on a stub of Proxmox that keeps state.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

readonly job2=22222222-2222-4333-8444-555555555555

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
  check_file
}

setup() {
  setup_stub
  add_our_vm 250 'boot: order=scsi0' 'ciuser: worker' 'cores: 2' 'memory: 2048' 'net0: virtio=BC:24:11:AA:AA:AA,bridge=vmbr0' \
    'ipconfig0: ip=dhcp' 'scsi0: local-lvm:vm-250-disk-0,size=10G' 'scsi1: local-lvm:vm-250-cloudinit,media=cdrom'
  answer /nodes/pve/storage/local/status '{"active":1,"enabled":1,"content":"images","avail":107374182400,"type":"dir"}'
}

power() { # <action> [<argument...>]
  ACTION=$1 VM_ID=250 run_script power-vm "${@:2}"
}

# The VM has the snapshot that fork takes, as Proxmox writes it.
saved() {
  {
    printf '\n[linus-fork]\n'
    sed -n '/^[a-z]/p' "${PVE_STUB}/vm/250"
    printf '%s\n' 'runningcpu: host' 'runningmachine: pc-i440fx-10.1+pve0' 'running-nets-host-mtu: net0=1500' 'snaptime: 1700000000' \
      'vmstate: local-lvm:vm-250-state-linus-fork'
  } >"${PVE_STUB}/section"
  cat "${PVE_STUB}/section" >>"${PVE_STUB}/vm/250"
}

copy() { # <linus-job of the VM>
  VM_NAME=copy VM_FORK=250 VM_FORK_JOB=$1 LINUS_JOB=${job2} VM_TEMPLATE=gone VM_CPU=7 run_script create-vm
}

@test "a VM whose storage clones snapshots gets one with memory, and it is said" {
  sed -i '$ a ide2: local:iso/x.iso,media=cdrom\nscsi5: none' "${PVE_STUB}/vm/250" # which are no disks of its own
  power fork
  assert_status 0
  assert_called 'qm snapshot 250 linus-fork --vmstate 1'
  assert_line LINUS_FORK:live
  assert_says "LINUS_FORK_WHY:storage 'local-lvm' (lvmthin) clones a snapshot with memory"
  # The stub has no agent's socket.
  refute_line_like LINUS_FORK_PAUSE
  # Again: one of a fork that was killed goes first.
  power fork
  assert_status 0
  assert_called 'qm delsnapshot 250 linus-fork'
  power unfork
  assert_status 0
  [[ ! -e ${PVE_STUB}/snapshots/250/linus-fork ]]
  power unfork
  assert_status 0
  assert_called_times 2 'qm delsnapshot .*'
  [[ $(<"${PVE_STUB}/status/250") == running ]]
  assert_nothing_left
}

@test "a VM that changes hands as the snapshot of a killed fork goes gets no other" {
  power fork
  : >"${PVE_STUB}/calls"
  take_during after-delsnapshot 1
  power fork
  assert_status 5
  assert_called 'qm delsnapshot 250 linus-fork'
  refute_called 'qm snapshot .*'
}

@test "a VM whose storage does not is copied from its disk, and nothing is taken" {
  sed -i 's/^scsi0: .*/scsi0: local:250\/vm-250-disk-0.qcow2,size=10G/' "${PVE_STUB}/vm/250"
  power fork
  assert_status 0
  assert_line LINUS_FORK:disk
  assert_says "its disk scsi0 is on storage 'local' (dir), of which Proxmox clones no snapshot"
  # Where it does, and something would be wrong then.
  sed -i 's/^scsi0: .*/scsi0: local-lvm:vm-250-disk-0,size=10G/' "${PVE_STUB}/vm/250"
  local type
  for type in rbd btrfs; do
    answer /nodes/pve/storage/local-lvm/status "{\"active\":1,\"enabled\":1,\"content\":\"images\",\"avail\":107374182400,\"type\":\"${type}\"}"
    power fork
    assert_status 0
    assert_line LINUS_FORK:disk
    assert_says "on storage 'local-lvm' (${type}), where "
  done
  refute_called 'qm snapshot .*'
}

# VM 250's agent does with $c, who asks it, what is given as perl; guest is its process. Its first
# answer is waited for.
agent() { # <perl>
  stub_program sleep 'exec /bin/sleep 0.05'
  # shellcheck disable=SC2016 # perl's variables
  perl -MIO::Socket::UNIX -e '
    chdir shift;
    my $s = IO::Socket::UNIX->new(Local => "250.qga", Listen => 1) or die;
    my $c = $s->accept;
    eval shift' "${LINUS_QEMU_DIR}" "$1" >/dev/null 2>&1 3>&- &
  guest=$!
  until [[ -S ${LINUS_QEMU_DIR}/250.qga ]]; do command sleep 0.05; done
}

@test "a guest that says no end where its agent should answer does not hold a fork up" {
  local guest
  # shellcheck disable=SC2016 # perl's variables
  agent '<$c>, syswrite $c, "{}\n"; <$c>, syswrite $c, "x" x 1048576; sleep 100'
  local -r began=${SECONDS}
  power fork
  kill "${guest}" 2>/dev/null || :
  assert_status 0
  assert_line LINUS_FORK:live
  refute_line_like LINUS_FORK_PAUSE
  [[ ${log} == *'the agent says no end'* ]] || fail 'it was not heard'
  ((SECONDS - began < 55)) || fail 'it was waited for'
}

@test "a VM that may have stood still while nobody asked it is told to have, for that time" {
  local guest
  # shellcheck disable=SC2016 # perl's variables
  agent 'while (<$c>) { syswrite $c, "{}\n" }'
  # On a busy host who asks does not wake until the snapshot is there.
  cat >"${BATS_TEST_TMPDIR}/Late.pm" <<'END'
package Late;
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);
no warnings;
*Time::HiRes::usleep = *main::usleep = sub {
  my $began = clock_gettime(CLOCK_MONOTONIC);
  select undef, undef, undef, 0.01 until -e "$ENV{PVE_STUB}/snapshots/250/linus-fork";
  open my $late, ">>", "$ENV{PVE_STUB}/late";
  printf $late "%d\n", 1000 * (clock_gettime(CLOCK_MONOTONIC) - $began);
};
1;
END
  PERL5LIB=${BATS_TEST_TMPDIR} PERL5OPT=-MLate power fork
  assert_status 0
  local late pause
  read -r late <"${PVE_STUB}/late"
  pause=$(sed -n 's/^LINUS_FORK_PAUSE://p' <<<"${output}")
  ((late > 0 && pause >= late)) || fail "nobody asked it for ${late} ms, and it stood still for ${pause:-none}"
}

@test "what cannot be copied is refused before anything is done" {
  sed -i '$ a hostpci0: 0000:01:00.0' "${PVE_STUB}/vm/250"
  power fork
  assert_status 3
  assert_says 'has hostpci0, which no copy of it can have'
  sed -i '/^hostpci0/d' "${PVE_STUB}/vm/250"
  mv "${PVE_STUB}/guest/interfaces" "${PVE_STUB}/guest/away"
  power fork
  assert_status 5
  assert_says "the guest agent of VM 250 on node 'pve' does not answer"
  echo stopped >"${PVE_STUB}/status/250"
  rm -f "${LINUS_QEMU_DIR}/250.pid"
  power fork
  assert_status 5
  assert_says 'does not run (status: stopped)'
  refute_called 'qm snapshot .*'
}

@test "dry run says what a fork would do" {
  answer /nodes/pve/qemu/250/feature '{"hasFeature":1}'
  power fork --dry-run
  assert_status 0
  assert_line 'LINUS_PLAN:qm snapshot 250 linus-fork --vmstate 1'
  refute_called 'qm snapshot .*'
}

@test "a copy goes on from the snapshot, its card closed until it is itself" {
  saved
  # shellcheck disable=SC2016 # the hooks' own variables
  hook start 'cp "${PVE_STUB}/nft" "${PVE_STUB}/rules-at-start"'
  VM_FORK_LIVE=true copy "${job}"
  assert_status 0
  assert_line LINUS_VM_SOURCE:forked
  assert_line LINUS_VM_CPU:2
  assert_line LINUS_VM_DISK:10
  assert_called 'qm clone 250 [0-9]* --name copy --description .* --snapname linus-fork --full 0'
  assert_called 'qm start [0-9]* --stateuri local-lvm:vm-250-state-linus-fork --machine pc-i440fx-10.1+pve0 --force-cpu host --nets-host-mtu net0=1500'
  grep -q 'goto from_' "${PVE_STUB}/rules-at-start" || fail 'the card was open at the start'
  [[ ! -e ${PVE_STUB}/nft ]] || fail "rules are left: $(<"${PVE_STUB}/nft")"
  grep -q "^boots='no'" "${PVE_STUB}/guest/program"
  grep -qi "^old_mac='bc:24:11:aa:aa:aa'" "${PVE_STUB}/guest/program"
  local conf
  conf=$(grep -l "${job2}" "${PVE_STUB}"/vm/*)
  grep -q '^net0: .*bridge=vmbr0$' "${conf}" || fail "$(<"${conf}")"
  ! grep -q 'linus-egress' "${conf}" || fail "$(<"${conf}")"
  [[ $(<"${PVE_STUB}/status/250") == running ]]
}

@test "a copy whose network rules, link or owner do not read back as they were set is not given out" {
  local line
  for line in '/^#/s/$/ linus-egress=none/' 's/^net0: .*/&,link_down=1/' 's/^#linus-job=/&0/'; do
    rm -f "${PVE_STUB}"/hook-*
    saved
    # shellcheck disable=SC2016 # the hook's own variables
    hook after-set '[[ "$*" != *--net0* || "$*" == *link_down* ]] || sed -i "'"${line}"'" "${PVE_STUB}/vm/$2"'
    VM_FORK_LIVE=true copy "${job}"
    assert_status 5
    assert_says 'the link of VM'
    refute_line_like LINUS_VM_IP
    rm -f "${PVE_STUB}"/vm/2[0-4]* "${PVE_STUB}"/status/2[0-4]*
    sed -i '/^$/,$d' "${PVE_STUB}/vm/250"
  done
}

@test "a copy of the disk boots, and takes its identity before its link is up" {
  copy "${job}"
  assert_status 0
  assert_line LINUS_VM_SOURCE:forked
  assert_called 'qm clone 250 [0-9]* --name copy --description .* --full 1'
  assert_called 'qm start [0-9]*'
  grep -q "^boots='yes'" "${PVE_STUB}/guest/program"
  refute_called 'qm start .*--stateuri.*'
}

@test "a copy of the disk has hours to be made, and is not begun where its storage has not room for all of it" {
  # shellcheck disable=SC2016 # the stub's own arguments
  stub_program timeout 'printf "timeout %s\n" "$*" >>"${PVE_STUB}/calls"; exec /usr/bin/timeout "$@"'
  copy "${job}"
  assert_status 0
  assert_called 'timeout -k 30 10000 qm clone 250 .*'
  answer /nodes/pve/storage/local-lvm/status '{"active":1,"enabled":1,"content":"images","avail":15032385536,"type":"lvmthin"}'
  : >"${PVE_STUB}/calls"
  LINUS_JOB=33333333-2222-4333-8444-555555555555
  VM_NAME=copy2 VM_FORK=250 VM_FORK_JOB=${job} VM_TEMPLATE=gone run_script create-vm
  assert_status 3
  assert_says "has 14 GiB free, and 5 GiB are to stay free beside 10240 MiB of the copy"
  refute_called 'qm clone .*'
}

@test "a copy of another VM than the one meant is not made, nor one without its memory" {
  VM_FORK_LIVE=true copy "${job}"
  assert_status 3
  assert_says "it has no snapshot 'linus-fork' with its memory"
  saved
  copy 33333333-2222-4333-8444-555555555555
  assert_status 3
  assert_says 'it is not proven to be the VM that is meant'
  VM_FORK=250 VM_FORK_JOB=x run_script create-vm
  assert_status 1
  assert_says 'VM_FORK_JOB'
  sed -i '0,/^cores: 2/s//cores: 2\nsockets: 2/' "${PVE_STUB}/vm/250"
  copy "${job}"
  assert_status 3
  assert_says 'it has 2 sockets'
  refute_called 'qm clone .*'
}

@test "copies of one VM are cloned one after another" {
  # shellcheck disable=SC2016 # the hook's own variables
  hook clone '! flock -n "${LINUS_LOCK_DIR}/clone-of-$2.lock" true || touch "${PVE_STUB}/side-by-side"'
  copy "${job}"
  assert_status 0
  [[ ! -e ${PVE_STUB}/side-by-side ]]
  flock -n "${LINUS_LOCK_DIR}/clone-of-250.lock" true
}

@test "a copy that does not become itself is destroyed" {
  saved
  printf '{"exitcode":65,"exited":1,"err-data":"linus-identity: it has no user worker\\n"}\n' >"${PVE_STUB}/guest/identity"
  VM_FORK_LIVE=true copy "${job}"
  assert_status 5
  assert_says 'a fork of VM 250, did not take an identity of its own (exit 65)'
  assert_called 'qm destroy .*'
  ! grep -l "${job2}" "${PVE_STUB}"/vm/* || fail 'it is left'
  [[ ! -e ${PVE_STUB}/nft ]] || fail 'rules are left'
}
