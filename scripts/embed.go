// Package scripts holds the scripts as they lie in the source tree. Only
// package embed imports it, and makes self-contained files of them.
package scripts

import "embed"

// FS has the trees proxmox (entry points for the Proxmox host), guest (entry
// points for the VM) and lib (functions both source).
//
//go:embed proxmox guest lib
var FS embed.FS
