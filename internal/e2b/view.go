package e2b

import (
	"cmp"
	"maps"
	"time"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/vm"
)

type state string

const (
	running state = "running"
	paused  state = "paused"
	gone    state = "" // clients see no such sandbox
)

// stateOf returns the state of a sandbox. A sandbox whose time is over is gone, or paused if it
// pauses at its end, even if the engine has not acted yet.
func stateOf(v vm.VM) state {
	over := !v.ExpiresAt.IsZero() && !time.Now().Before(v.ExpiresAt)
	switch {
	case v.State != vm.Created || v.Sandbox().Build || v.Unwanted || v.BeingMade() || over && !pauses(v):
		return gone
	case over || v.Off != "" || !v.SuspendedAt.IsZero():
		return paused
	}
	return running
}

// known is a sandbox as create and connect return it.
type known struct {
	Template string `json:"templateID"`
	ID       string `json:"sandboxID"`
	Client   string `json:"clientID"`
	Envd     string `json:"envdVersion"`
	Token    string `json:"envdAccessToken,omitempty"`
	Traffic  string `json:"trafficAccessToken,omitempty"` // opens its ports
	Domain   string `json:"domain,omitempty"`             // parent of the hosts of its ports
}

// detail is a sandbox as list and show return it.
type detail struct {
	known
	Alias    string            `json:"alias,omitempty"`
	Started  string            `json:"startedAt"`
	Ends     string            `json:"endAt"`
	CPU      int               `json:"cpuCount"`
	Memory   int               `json:"memoryMB"`
	Disk     int               `json:"diskSizeMB"`
	State    state             `json:"state"`
	Metadata map[string]string `json:"metadata"`

	Internet  *bool      `json:"allowInternetAccess,omitempty"`
	Lifecycle *lifecycle `json:"lifecycle,omitempty"`
}

type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"` // kill or pause
}

// base is the clients' name for the default template.
const base = "base"

// templateOf returns the template of a sandbox, or the system that it was made from.
func templateOf(v vm.VM) string { return cmp.Or(v.Template, v.OS) }

// identity returns what everybody who sees a sandbox may know of it.
func identity(v vm.VM) known {
	return known{Template: templateOf(v), ID: vm.SandboxID(v.Job), Client: "linus", Envd: envd.Version}
}

// known returns identity with the tokens, for callers who may use the sandbox.
func (s *server) known(v vm.VM) known {
	k := identity(v)
	k.Token, k.Traffic, k.Domain = s.accessToken(k.ID), s.trafficToken(k.ID), s.Domain
	return k
}

// far is reported as the end of a sandbox that has none: clients need a time.
var far = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// timeText formats a time for clients, which compare milliseconds.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// startOf returns when a sandbox became ready.
func startOf(v vm.VM) time.Time {
	at := v.CreatedAt
	if v.Own != nil && !v.Own.ReadyAt.IsZero() {
		at = v.Own.ReadyAt
	}
	return at.Truncate(time.Millisecond)
}

// describe returns a sandbox without its tokens.
func describe(v vm.VM) detail {
	ends := v.ExpiresAt
	if ends.IsZero() {
		ends = far
	}
	d := detail{
		known:   identity(v),
		Started: timeText(startOf(v)), Ends: timeText(ends), State: stateOf(v), Metadata: map[string]string{},
		CPU: v.Resources.CPU, Memory: job.SizeMB(v.Resources.Memory), Disk: job.SizeMB(v.Resources.Disk),
	}
	maps.Copy(d.Metadata, v.Sandbox().Metadata)
	return d
}
