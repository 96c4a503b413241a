package lab

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// nodeHome is a path at which each node of a cluster has its own home, for settings
// that name one directory of all nodes. Without root, who alone can mount, and without
// a cluster it is the home of the lab's only, or first, node.
func nodeHome(s *state.State) string {
	if s.Config.Cluster == "" || os.Geteuid() != 0 {
		return s.HomeDir()
	}
	return s.Common("home")
}

// inOwnMounts runs f, and the processes f starts, in a mount namespace in which the
// node's home is at nodeHome. It ends with the last of these.
func inOwnMounts(s *state.State, f func() error) error {
	if nodeHome(s) == s.HomeDir() {
		return f()
	}
	if err := os.MkdirAll(nodeHome(s), 0o755); err != nil {
		return err
	}
	return sys.OnThreadOfItsOwn(func() error {
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") // what the machine unmounts goes here, too
		}
		if err == nil {
			err = unix.Mount(s.HomeDir(), nodeHome(s), "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("mount %s at %s for node %s: %w", s.HomeDir(), nodeHome(s), s.Config.Node, err)
		}
		return f()
	})
}
