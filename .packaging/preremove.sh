#!/bin/sh
# Before the files go, not before an upgrade. Tasks in VMs go on.
set -eu

if [ "${1:-}" = remove ] || [ "${1:-}" = 0 ]; then
  if [ -d /run/systemd/system ]; then
    systemctl disable --now linus.service
  fi
  # An engine that a command of its user has started would keep the user from going.
  runuser -u linus -- linus serve --stop >/dev/null 2>&1 || true
fi
