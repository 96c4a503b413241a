package e2b

import (
	"cmp"
	"maps"
	"time"

	"linus/internal/envd"
	"linus/internal/job"
	"linus/internal/vm"
)

// state is what clients know of a sandbox.
type state string

const (
	running state = "running"
	paused  state = "paused"
	gone    state = "" // to clients
)

// stateOf returns the state of a sandbox. One whose time is over is gone, though the engine
// has not come to it yet.
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
	Domain   string `json:"domain,omitempty"`             // below which they have hosts
}

// detail is a sandbox in lists, and when one is asked for.
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

// base is what clients call the template that they do not choose.
const base = "base"

// templateOf is the template of a sandbox, or the system that it was made from.
func templateOf(v vm.VM) string { return cmp.Or(v.Template, v.OS) }

// identity is what everybody who sees a sandbox knows of it.
func identity(v vm.VM) known {
	return known{Template: templateOf(v), ID: vm.SandboxID(v.Job), Client: "linus", Envd: envd.Version}
}

// known is what whoever may use a sandbox knows of it: its tokens, too.
func (s *server) known(v vm.VM) known {
	k := identity(v)
	k.Token, k.Traffic, k.Domain = s.accessToken(k.ID), s.trafficToken(k.ID), s.Domain
	return k
}

// far is when a sandbox ends that does not end: clients need a time.
var far = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// timeText is a time as clients read it; they compare milliseconds.
func timeText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// startOf is since when a sandbox is there.
func startOf(v vm.VM) time.Time {
	at := v.CreatedAt
	if v.Own != nil && !v.Own.ReadyAt.IsZero() {
		at = v.Own.ReadyAt
	}
	return at.Truncate(time.Millisecond)
}

// describe returns a sandbox without its access token.
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
