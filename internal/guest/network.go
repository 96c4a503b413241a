package guest

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/term"
	"linus/internal/vm"
)

// tryTargets tries connections, all at once, and prints lines for each: <number> direct <address> <result>,
// or <number> proxy <status line> <the proxy's words>. The last line of a number counts: each try first
// prints the result to assume if it is killed on its time limit. The script needs only what every guest
// has: bash, sleep and the C library's getent. It starts few processes, because that is slow in a slow VM.
const tryTargets = `export LC_ALL=C
set -m # each try is a process group, which ends whole
direct() { # <number> <host> <port>
  local ip=$2 said
  if [[ $ip != *:* && $ip == *[!0-9.]* ]]; then
    printf '%s direct - unresolved\n' "$1"
    ip=$(getent ahosts "$2" | { read -r ip _; printf %s "$ip"; })
    [[ $ip ]] || return
  fi
  printf '%s direct %s no answer\n' "$1" "$ip"
  if said=$(exec 2>&1 3<>"/dev/tcp/$ip/$3"); then
    said=connected
  fi
  case $said in
    connected) ;;
    *refused*) said=refused ;;
    *'No route to host'* | *'etwork is unreachable'* | *'annot assign requested address'*) said=unreachable ;;
    *) said=unknown ;;
  esac
  printf '%s direct %s %s\n' "$1" "$ip" "$said"
}
proxied() { # <number> <host> <port> <the proxy's port>
  local status line
  printf '%s proxy\n' "$1"
  exec 3<>"/dev/tcp/127.0.0.1/$4" || exit
  if [[ $3 == 80 ]]; then
    printf "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" "$2" "$2" >&3
  else
    printf "CONNECT %s:%s HTTP/1.1\r\nHost: %s:%s\r\n\r\n" "$2" "$3" "$2" "$3" >&3
  fi
  IFS= read -r -n 200 status <&3 || exit
  status=${status%$'\r'}
  printf '%s proxy %s\n' "$1" "$status"
  [[ $status == *" 200"* ]] && exit
  for _ in {1..40}; do
    IFS= read -r -n 1000 line <&3 || break
    if [[ $line == linus:* ]]; then
      printf '%s proxy %s %s\n' "$1" "$status" "$line"
      break
    fi
  done
}
straight=() through=()
while (($#)); do
  "$1" "$2" "$3" "$4" "$5" &
  if [[ $1 == direct ]]; then straight+=("-$!"); else through+=("-$!"); fi
  shift 5
done
{
  sleep 5
  kill -- "${straight[@]}"
  sleep 15
  kill -- "${through[@]}"
} </dev/null >/dev/null 2>&1 &
wait "${straight[@]#-}" "${through[@]#-}"
kill -- "-$!" 2>/dev/null || true`

// TryTargets tries TCP connections from inside a VM: directly and, if proxy is a port of its loopback,
// through the HTTP proxy there. The attempts are in the order of targets; their Rule is empty.
func (g *Guest) TryTargets(ctx context.Context, v vm.VM, targets []string, proxy int) ([]job.NetworkAttempt, error) {
	var attempts []job.NetworkAttempt
	var args []string
	for _, target := range targets {
		at, err := job.ParseNetworkTarget(target)
		if err != nil {
			return nil, err
		}
		try := func(verb string, way job.NetworkWay, host string) {
			args = append(args, verb, strconv.Itoa(len(attempts)), host, strconv.Itoa(at.Port), strconv.Itoa(proxy))
			attempts = append(attempts, job.NetworkAttempt{Target: target, Way: way, Port: at.Port, Result: job.ResultUnknown})
		}
		try("direct", job.WayDirect, at.Host)
		if proxy != 0 {
			try("proxied", job.WayProxy, strings.TrimSuffix(net.JoinHostPort(at.Host, ""), ":"))
		}
	}
	said, err := g.ask(ctx, "try connections from", v, "try connections", tryTargets, args...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(said) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < len(attempts) {
			readAttempt(&attempts[n], rest)
		}
	}
	return attempts, nil
}

// readAttempt reads the VM's report of an attempt.
func readAttempt(a *job.NetworkAttempt, said string) {
	way, rest, _ := strings.Cut(said, " ")
	switch {
	case way != string(a.Way):
	case a.Way == job.WayDirect:
		address, result, _ := strings.Cut(rest, " ")
		if ip, err := netip.ParseAddr(address); err == nil && ip.Zone() == "" {
			a.Address = ip.Unmap().String()
		}
		if r := job.NetworkResult(result); slices.Contains(job.NetworkResults, r) && (a.Address != "" || r == job.ResultUnresolved) {
			a.Result = r
		}
	case rest == "":
		a.Result = job.ResultNoAnswer
	case strings.HasPrefix(rest, "HTTP/1."):
		a.Result, a.Detail = job.ResultUnknown, ""
		status, words, own := strings.Cut(rest, " linus: ")
		switch fields := strings.Fields(status); {
		case len(fields) < 2:
		case own && fields[1] == "403":
			a.Result, a.Detail = job.ResultRefused, job.Bounded(term.Line(words))
		case own && fields[1] == "502":
			a.Result, a.Detail = job.ResultUnreachable, job.Bounded(term.Line(words))
		case own:
			a.Detail = job.Bounded(term.Line(words))
		default:
			a.Result = job.ResultConnected
		}
	}
}
