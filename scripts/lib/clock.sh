# shellcheck shell=bash
# shellcheck disable=SC2034 # clock_now is the callers'
# Time that only goes forward.

# clock_read sets clock_now, in 1/100 s since boot, so that no change of date or daylight saving
# time can end a task early.
clock_read() {
  local up
  IFS=' ' read -r up _ </proc/uptime
  clock_now=$((10#${up/./}))
}
