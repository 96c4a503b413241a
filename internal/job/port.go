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
	punycode    = "xn--" // browsers show what it stands for, or refuse it
)

// PortRef and the ID of an exposed port stand for its VM, as a ref: no VM's name has a colon.
const PortRef = "port:"

// PortSpec is a port of a VM that is to have a URL.
type PortSpec struct {
	VM   string `json:"vm"`
	Port int    `json:"port" api:",required"` // of the VM's own loopback
	Name string `json:"name,omitempty"`       // a-z, digits and dashes, at most 32; empty: the port's number
}

// Check returns a *FieldError for what cannot be exposed, or its name.
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
	URL       string    `json:"url"`  // for those who may reach the VM, once they have logged in
	ID        string    `json:"id"`   // that the URL has
	CreatedAt time.Time `json:"created_at"`
	Note      string    `json:"note,omitempty"` // as it is made: why there is nothing at the URL yet, and what to do
}
