package job

import (
	"strings"

	spec "linus/internal/field"
	"linus/internal/vm"
)

// SaveSpec is a request for a template made of a VM.
type SaveSpec struct {
	Name    string
	InPlace bool   // of the VM itself, not of a copy
	By      string // on whose behalf; recorded in the template
}

// SavedTemplate is a template made of a VM.
type SavedTemplate struct {
	Name    string        `json:"name"`
	VMID    int           `json:"vm_id"` // of the template
	Node    string        `json:"node"`
	InPlace bool          `json:"in_place"` // the VM itself became the template and is not a VM anymore; false: the template is a copy, and the VM stays
	Saved   vm.Provenance `json:"saved"`
	Left    []string      `json:"left,omitempty"` // what was found in it and not removed, in words for people
}

// CheckTemplateName returns an error unless a template may have this name. A name must not look like an ID.
func CheckTemplateName(name string) error {
	switch {
	case !fits(spec.DNSLabel, name, 63) || strings.ToLower(name) != name:
		return field("name", "use lower-case letters, digits and dashes, at most 63", "%q is not a template's name", name)
	case strings.Trim(name, "0123456789") == "":
		return field("name", "add a letter that no ID has", "%q looks like an ID", name)
	}
	return nil
}
