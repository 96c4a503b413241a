package lab

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// nodeHome is a path at which each node of a cluster sees its own home, for settings that name one
// directory for all nodes. Without a cluster, or without root (only root can mount), it is the home
// of the lab's only, or first, node.
func nodeHome(s *state.State) string {
	if s.Config.Cluster == "" || os.Geteuid() != 0 {
		return s.HomeDir()
	}
	return s.Common("home")
}

// inOwnMounts runs f, and the processes f starts, in a mount namespace in which the node's home is
// mounted at nodeHome. The namespace ends with its last process.
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
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "") // unmounts by the machine propagate here
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
