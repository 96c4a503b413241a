package job

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	spec "linus/internal/field"
)

// Bounds of exposed ports.
const (
	MaxPorts    = 16 // of one VM
	maxPortName = 32
	punycode    = "xn--" // browsers show the decoded name, or refuse it
)

// PortRef followed by the ID of an exposed port is a ref to its VM: VM names have no colon.
const PortRef = "port:"

// PortSpec is a request for a URL for a port of a VM.
type PortSpec struct {
	VM   string `json:"vm"`
	Port int    `json:"port" api:",required"` // of the VM's own loopback
	Name string `json:"name,omitempty"`       // a-z, digits and dashes, at most 32; empty: the port's number
}

// Check returns the port's name, or a *FieldError if the port or its name cannot be exposed.
func (s PortSpec) Check() (name string, err error) {
	name = cmp.Or(s.Name, strconv.Itoa(s.Port))
	if err := Within("port", int64(s.Port), 1, 65535); err != nil {
		return "", err
	}
	if !spec.DNSLabel.MatchString(name) || strings.ToLower(name) != name || len(name) > maxPortName || strings.HasPrefix(name, punycode) || strings.Trim(name, "0123456789") == "" && name != strconv.Itoa(s.Port) {
		return "", field("name", fmt.Sprintf("use letters of a-z, digits and dashes, at most %d, not %s first, and not another port's number", maxPortName, punycode), "%.80q is not a port's name", s.Name)
	}
	return name, nil
}

// ExposedPort is a port of a VM that has a URL.
type ExposedPort struct {
	Name      string    `json:"name"`
	Port      int       `json:"port"` // of the VM's own loopback
	URL       string    `json:"url"`  // for people who may reach the VM, after login
	ID        string    `json:"id"`   // the ID in the URL
	CreatedAt time.Time `json:"created_at"`
	Note      string    `json:"note,omitempty"` // when created: why there is nothing at the URL yet, and what to do
}
