package guest

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/term"
)

// tryTargets tries connections, all at once, and prints a line for each: <number> direct
// <address> <result>, or <number> proxy <status line> <the proxy's words>. It needs what
// every guest has: bash, coreutils and the C library's getent.
const tryTargets = `export LC_ALL=C
direct() { # <number> <host> <port>
  local ip=$2 said rc=0 word=unknown
  if [[ $ip != *:* && $ip == *[!0-9.]* ]]; then
    ip=$(timeout 5 getent ahosts "$2" | { read -r ip _; printf %s "$ip"; })
  fi
  if [[ -z $ip ]]; then
    printf '%s direct - unresolved\n' "$1"
    return
  fi
  said=$(timeout 5 bash -c 'exec 3<>"/dev/tcp/$1/$2"' bash "$ip" "$3" 2>&1) || rc=$?
  case $rc$said in
    0*) word=connected ;;
    124*) word='no answer' ;;
    *refused*) word=refused ;;
    *'No route to host'* | *'etwork is unreachable'* | *'annot assign requested address'*) word=unreachable ;;
  esac
  printf '%s direct %s %s\n' "$1" "$ip" "$word"
}
proxied() { # <number> <host> <port> <the proxy's port>
  local said
  said=$(timeout 20 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$3" || exit
    if [[ $2 == 80 ]]; then
      printf "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" "$1" "$1" >&3
    else
      printf "CONNECT %s:%s HTTP/1.1\r\nHost: %s:%s\r\n\r\n" "$1" "$2" "$1" "$2" >&3
    fi
    IFS= read -r -n 200 status <&3 || exit
    printf "%s\n" "${status%$'\''\r'\''}"
    [[ $status == *" 200"* ]] && exit
    for _ in {1..40}; do
      IFS= read -r -n 1000 -t 5 line <&3 || break
      if [[ $line == linus:* ]]; then
        printf "%s\n" "$line"
        break
      fi
    done' bash "$2" "$3" "$4" 2>/dev/null)
  printf '%s proxy %s\n' "$1" "${said//$'\n'/ }"
}
while (($#)); do
  "$1" "$2" "$3" "$4" "$5" &
  shift 5
done
wait`

// TryTargets tries TCP connections from inside a VM: directly and, if proxy is a port of
// its loopback, through the HTTP proxy there. The attempts are in the order of targets;
// their Rule is empty.
func (g *Guest) TryTargets(ctx context.Context, vm job.VM, targets []string, proxy int) ([]job.NetworkAttempt, error) {
	timed, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var attempts []job.NetworkAttempt
	args := []string{"bash", "-c", tryTargets, "linus"}
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
	d, leave, err := g.enter(timed, vm)
	if err != nil {
		return nil, g.workspaceFault(ctx, "try connections from", vm, err)
	}
	defer leave()
	out, err := d.pool.Output(timed, remote.Command{Name: "try connections", Line: remote.Quote(args...)}, answers)
	if err != nil {
		return nil, g.workspaceFault(ctx, "try connections from", vm, err)
	}
	for line := range strings.Lines(string(out)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < len(attempts) && attempts[n].Result == job.ResultUnknown {
			readAttempt(&attempts[n], rest)
		}
	}
	return attempts, nil
}

// readAttempt reads what the VM says of an attempt.
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
