package pve

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
)

// modules are stand-ins for those of Proxmox's Perl modules that callers load instead of starting
// the tools. They pass on what they are asked to the lab's tools.
//
//go:embed perl
var modules embed.FS

// loadedVariable is in the environment of a tool that a module has called: such a call does not
// take the time that a started tool needs to load the modules.
const loadedVariable = "PVELAB_LOADED"

// WriteModules writes the modules to a directory, for PERL5LIB.
func WriteModules(dir string) error {
	return fs.WalkDir(modules, "perl", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := modules.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel("perl", name)
		if err != nil {
			return err
		}
		path := filepath.Join(dir, rel)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as what it stands in for
			return err
		}
		return os.WriteFile(path, text, 0o644) //nolint:gosec // as what it stands in for
	})
}
