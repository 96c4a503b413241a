#!/bin/sh
# After the files of the deb or rpm are in place: the service's user, and what
# comes next. The service is not started: without a host it could not run.
set -eu

home=/var/lib/linus-engine

if ! getent group linus >/dev/null; then
  groupadd --system linus
fi
if ! getent passwd linus >/dev/null; then
  useradd --system --gid linus --home-dir "${home}" --no-create-home --shell /usr/sbin/nologin --comment "linus engine" linus
fi
if [ ! -d "${home}" ]; then
  install -d -m 0700 -o linus -g linus "${home}"
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart linus.service
fi
# dpkg says which version was there before; rpm counts.
if { [ "${1:-}" = configure ] && [ -z "${2:-}" ]; } || [ "${1:-}" = 1 ]; then
  cat <<'NEXT'
linus is installed. For a service of this machine:
  1. PROXMOX_HOST=... in /etc/linus/env
  2. sudo -u linus ssh-keygen -t ed25519 -N '' -f /var/lib/linus-engine/.ssh/id_ed25519
     and the line of id_ed25519.pub into /root/.ssh/authorized_keys of the host
  3. sudo -u linus linus host trust --host ...
  4. systemctl enable --now linus
  5. sudo -u linus linus host check
For yourself alone none of this is needed: linus --help
NEXT
fi
