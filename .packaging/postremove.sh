#!/bin/sh
# After the files are gone. The state stays: it says which VMs are ours. dpkg
# --purge removes it, with the user.
set -eu

if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
if [ "${1:-}" = purge ]; then
  rm -rf /var/lib/linus-engine
  if getent passwd linus >/dev/null; then
    userdel linus
  fi
fi
