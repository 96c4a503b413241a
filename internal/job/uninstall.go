package job

// UninstallSpec says how what linus keeps on a node is removed.
type UninstallSpec struct {
	Plan     bool // change nothing, and return what would be removed
	LeaveVMs bool // also while VMs of linus are on the node, which stay there
}

// Uninstalled is what was removed from a node.
type Uninstalled struct {
	Node    string   `json:"node"`
	Removed []string `json:"removed"`
	Stays   []string `json:"stays,omitempty"` // VMs and templates of linus
}
