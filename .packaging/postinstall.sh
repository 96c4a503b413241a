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
# Commands run as its user read the service's settings, too (--env-file). The service
# itself cannot change them: it sees /etc read-only.
if [ -f /etc/linus/env ]; then
  chown -h linus:linus /etc/linus/env
fi
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart linus.service || true # systemctl says so; the package is installed all the same
fi
# dpkg says which version was there before; rpm counts.
if { [ "${1:-}" = configure ] && [ -z "${2:-}" ]; } || [ "${1:-}" = 1 ]; then
  cat <<'NEXT'
linus is installed. For a service of this machine, as root:
  1. PROXMOX_HOST=... into /etc/linus/env
  2. runuser -u linus -- ssh-keygen -t ed25519 -N '' -f /var/lib/linus-engine/.ssh/id_ed25519
     and the line of /var/lib/linus-engine/.ssh/id_ed25519.pub into /root/.ssh/authorized_keys of the host
  3. runuser -u linus -- linus host trust --env-file /etc/linus/env
  4. systemctl enable --now linus
  5. runuser -u linus -- linus host check
For yourself alone none of this is needed: linus --help
NEXT
fi
