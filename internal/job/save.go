package job

import (
	"strings"

	spec "linus/internal/field"
	"linus/internal/vm"
)

// SaveSpec is a template that is to be made of a VM.
type SaveSpec struct {
	Name    string
	InPlace bool   // of the VM itself, not of a copy
	By      string // for whom; the template tells it
}

// SavedTemplate is a template that was made of a VM.
type SavedTemplate struct {
	Name    string        `json:"name"`
	VMID    int           `json:"vm_id"` // of the template
	Node    string        `json:"node"`
	InPlace bool          `json:"in_place"` // the VM has become it, and is no VM any more; false: it is a copy, and the VM goes on
	Saved   vm.Provenance `json:"saved"`
	Left    []string      `json:"left,omitempty"` // what was seen in it and not removed, in words for people
}

// CheckTemplateName returns an error unless a template may be called that: by a name that is no ID.
func CheckTemplateName(name string) error {
	switch {
	case !fits(spec.DNSLabel, name, 63) || strings.ToLower(name) != name:
		return field("name", "use lower-case letters, digits and dashes, at most 63", "%q is not a template's name", name)
	case strings.Trim(name, "0123456789") == "":
		return field("name", "add a letter that no ID has", "%q is what an ID looks like", name)
	}
	return nil
}
