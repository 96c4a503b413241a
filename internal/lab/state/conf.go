package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"linus/internal/lazyregexp"
)

// Conf is a VM's config file in PVE's syntax: `key: value` lines; the description as `#` lines on
// top; changes that wait for a restart in a [PENDING] section; the values still on the cloud-init
// drive that differ in [special:cloudinit]; and each snapshot in a section of its name. Values are
// as PVE stores them (sshkeys URL-encoded).
type Conf struct {
	Values    map[string]string
	pending   map[string]string
	Drive     map[string]string            // old values still on the cloud-init drive; nil: no section
	Snapshots map[string]map[string]string // by name
}

// NewConf returns an empty config.
func NewConf() *Conf {
	return &Conf{Values: map[string]string{}, pending: map[string]string{}, Snapshots: map[string]map[string]string{}}
}

var snapshotSection = lazyregexp.New(`^\[([A-Za-z][A-Za-z0-9_-]+)\]$`)

const driveSection = "[special:cloudinit]"

// ParseConf reads a config file. It drops unknown lines, as PVE does.
func ParseConf(text string) *Conf {
	c := NewConf()
	section := c.Values
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case line == "[PENDING]":
			section = c.pending
		case line == driveSection:
			c.Drive = map[string]string{}
			section = c.Drive
		case strings.HasPrefix(line, "["):
			section = nil // a kind of section that the lab does not know
			if m := snapshotSection.FindStringSubmatch(line); m != nil {
				section = map[string]string{}
				c.Snapshots[m[1]] = section
			}
		case section == nil:
		case strings.HasPrefix(line, "#"):
			section["description"] += decodeText(line[1:]) + "\n"
		default:
			if key, value, ok := strings.Cut(line, ": "); ok && key != "description" {
				// PVE's pattern reads an empty value as the blank before it.
				section[key] = cmp.Or(strings.TrimSpace(value), " ")
			}
		}
	}
	delete(c.pending, "description") // the description takes effect at once, so it is never pending
	return c
}

// String returns the config file's text.
func (c *Conf) String() string {
	var b strings.Builder
	writeSection(&b, c.Values)
	if len(c.pending) > 0 {
		b.WriteString("\n[PENDING]\n")
		writeSection(&b, c.pending)
	}
	if c.Drive != nil && c.CloudInitVolume() != "" {
		b.WriteString("\n" + driveSection + "\n")
		writeSection(&b, c.Drive)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Snapshots)) {
		b.WriteString("\n[" + name + "]\n")
		writeSection(&b, c.Snapshots[name])
	}
	return b.String()
}

func writeSection(b *strings.Builder, section map[string]string) {
	for line := range strings.Lines(section["description"]) {
		b.WriteString("#" + EncodeText(strings.TrimSuffix(line, "\n")) + "\n")
	}
	for _, key := range slices.Sorted(maps.Keys(section)) {
		if key != "description" {
			fmt.Fprintf(b, "%s: %s\n", key, section[key])
		}
	}
}

// Get returns the value in effect, or "".
func (c *Conf) Get(key string) string { return c.Values[key] }

// Has reports whether a key is set.
func (c *Conf) Has(key string) bool { _, ok := c.Values[key]; return ok }

// Set sets a value that takes effect at once.
func (c *Conf) Set(key, value string) { c.Values[key] = value }

// Delete removes keys.
func (c *Conf) Delete(keys ...string) {
	for _, key := range keys {
		delete(c.Values, key)
	}
}

// SetPending records a change for the next start.
func (c *Conf) SetPending(key, value string) { c.pending[key] = value }

// DeletePending records a removal for the next start.
func (c *Conf) DeletePending(key string) {
	delete(c.pending, key)
	if c.Has(key) {
		c.pending["delete"] = strings.Trim(c.pending["delete"]+","+key, ",")
	}
}

// DropPendingKey discards a change that waits for the next start, and returns its value.
func (c *Conf) DropPendingKey(key string) string {
	value := c.pending[key]
	delete(c.pending, key)
	return value
}

// ApplyPending puts the pending changes into effect. It reports whether there were any.
func (c *Conf) ApplyPending() bool {
	changed := len(c.pending) > 0
	for _, key := range strings.Split(c.pending["delete"], ",") {
		delete(c.Values, key)
	}
	delete(c.pending, "delete")
	maps.Copy(c.Values, c.pending)
	c.pending = map[string]string{}
	return changed
}

// NoteDrive records that a value has changed while a running VM's cloud-init drive still has the
// old one. The record stays until the drive is written again or the value is changed back.
func (c *Conf) NoteDrive(key, before, after string) {
	if c.CloudInitVolume() == "" || before == after {
		return
	}
	if c.Drive == nil {
		c.Drive = map[string]string{}
	}
	if was, noted := c.Drive[key]; !noted {
		c.Drive[key] = before
	} else if was == after {
		delete(c.Drive, key)
	}
}

// DropPending discards all changes that wait for a restart.
func (c *Conf) DropPending() { c.pending = map[string]string{} }

// Clone returns a deep copy.
func (c *Conf) Clone() *Conf { return ParseConf(c.String()) }

// Keys returns the keys that are set, sorted.
func (c *Conf) Keys() []string { return slices.Sorted(maps.Keys(c.Values)) }

// IsTemplate reports whether the VM is a template.
func (c *Conf) IsTemplate() bool { return c.Get("template") == "1" }

// Props splits a property string such as `virtio=BC:24:11:00:00:01,bridge=vmbr0` or
// `local:9/vm-9-disk-0.raw,size=2G` into its parts. A part without a name is kept under "".
func Props(value string) map[string]string {
	props := map[string]string{}
	for _, part := range strings.Split(value, ",") {
		name, v, ok := strings.Cut(part, "=")
		if !ok {
			name, v = "", part
		}
		props[name] = v
	}
	return props
}

// SSHKeys returns the public keys of the cloud-init settings, one per line.
func (c *Conf) SSHKeys() string { return decodeText(c.Get("sshkeys")) }

// MAC returns the hardware address of net0 in upper case, or "".
func (c *Conf) MAC() string {
	for _, model := range NICModels {
		if mac := Props(c.Get("net0"))[model]; mac != "" {
			return strings.ToUpper(mac)
		}
	}
	return ""
}

// EncodeText is PVE::Tools::encode_text: control and high characters, ':' and '%' become %XX.
func EncodeText(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c >= 0x20 && c <= 0x7e && c != ':' && c != '%' {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// decodeText undoes EncodeText and any other %XX encoding. It leaves everything else as it is.
func decodeText(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if c, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 2
				continue
			}
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
