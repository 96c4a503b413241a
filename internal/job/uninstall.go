package job

// UninstallSpec says how to remove what linus keeps on a node.
type UninstallSpec struct {
	Plan     bool // change nothing, and return what would be removed
	LeaveVMs bool // proceed even if linus's VMs are on the node; they stay there
}

// Uninstalled is what was removed from a node.
type Uninstalled struct {
	Node    string   `json:"node"`
	Removed []string `json:"removed"`
	Stays   []string `json:"stays,omitempty"` // linus's VMs and templates
}
