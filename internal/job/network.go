package job

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	spec "linus/internal/field"
	"linus/internal/vm"
)

// Bounds of one NetworkQuery and its report.
const (
	MaxNetworkTargets     = 10
	MaxNetworkConnections = 20
)

// NetworkQuery is a query about a VM's network.
type NetworkQuery struct {
	VM      string   `json:"vm"`                // the VM's name, its VM ID, or the ID of a job that runs in it
	Targets []string `json:"targets,omitempty"` // HOST, HOST:PORT or [IPv6]:PORT; without a port 443. At most MaxNetworkTargets
}

// NetworkReport says where a VM's packets may go.
type NetworkReport struct {
	VMID    int        `json:"vm_id"`
	Name    string     `json:"name"`
	Network vm.Network `json:"network"` // what the VM was created with

	NetworkRules

	Connections []Event          `json:"connections,omitempty"` // the last connections that the engine's proxy recorded for the job, or for the VM's unfinished jobs; at most MaxNetworkConnections
	Attempts    []NetworkAttempt `json:"attempts,omitempty"`    // one or two for each target, in the order of targets
}

// NetworkRules are what the VM's node does with its packets, as read from the node.
type NetworkRules struct {
	Mode    vm.Egress `json:"mode"`              // according to the VM's description
	Rules   []string  `json:"rules,omitempty"`   // the kernel's rules for this VM; none on the LAN
	Problem string    `json:"problem,omitempty"` // why the rules do not limit the VM as its mode says; empty: they do
}

// NetworkAttempt is a TCP connection attempted from inside a VM, as the VM reports it.
type NetworkAttempt struct {
	Target  string        `json:"target"`            // as asked for
	Way     NetworkWay    `json:"way"`               // how it was tried
	Address string        `json:"address,omitempty"` // the address that the VM tried; empty: none
	Port    int           `json:"port"`
	Result  NetworkResult `json:"result"`           // what the VM observed
	Detail  string        `json:"detail,omitempty"` // the proxy's reason
	Rule    string        `json:"rule,omitempty"`   // the first of Rules that matches a new connection to Address; empty: unknown, or there are no rules
}

// NetworkWay is how a target was tried.
type NetworkWay string

// The ways.
const (
	WayDirect NetworkWay = "direct" // through the VM's own network
	WayProxy  NetworkWay = "proxy"  // through the proxy of a job with vm.EgressAllow
)

// NetworkResult is the result of an attempt.
type NetworkResult string

// The results.
const (
	ResultConnected   NetworkResult = "connected"
	ResultRefused     NetworkResult = "refused"     // by the target, or by the proxy
	ResultNoAnswer    NetworkResult = "no answer"   // within 5 s, or the proxy's within 20 s: as when rules drop packets, or the machine is off
	ResultUnreachable NetworkResult = "unreachable" // the VM has no route there, or the proxy could not connect
	ResultUnresolved  NetworkResult = "unresolved"  // the VM got no address for the name within 5 s
	ResultUnknown     NetworkResult = "unknown"     // the VM did not say
)

// NetworkResults are all results.
var NetworkResults = []NetworkResult{ResultConnected, ResultRefused, ResultNoAnswer, ResultUnreachable, ResultUnresolved, ResultUnknown}

// NetworkTarget is a parsed target.
type NetworkTarget struct {
	Host string // a name in lower case, or an address
	Port int
}

// ParseNetworkTarget parses a target of NetworkQuery.
func ParseNetworkTarget(text string) (NetworkTarget, error) {
	bad := func() (NetworkTarget, error) {
		return NetworkTarget{}, &FieldError{Field: "targets", Problem: fmt.Sprintf("%.80q is not a target", text), Remedy: "give HOST or HOST:PORT, as in github.com, 10.0.0.1:22 or [2001:db8::1]:443"}
	}
	bare := text
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") {
		bare = text[1 : len(text)-1]
	}
	if a, err := netip.ParseAddr(bare); err == nil && a.Zone() == "" {
		return NetworkTarget{a.String(), 443}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = text, "443"
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		return bad()
	}
	host = strings.ToLower(host)
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		return NetworkTarget{a.String(), n}, nil
	}
	labels := strings.Split(host, ".")
	if len(host) > 253 || allDigits.MatchString(host) || slices.ContainsFunc(labels, func(l string) bool { return !spec.DNSLabel.MatchString(l) }) {
		return bad()
	}
	return NetworkTarget{host, n}, nil
}
