package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// The nodes of a cluster share one /etc/pve as long as they have quorum. A node without quorum
// keeps what it saw last, and pmxcfs refuses writes with `Permission denied`. Root ignores file
// modes, so for root the lab makes the files immutable, and the error is `Operation not permitted`.

// clusterFiles are the entries of /etc/pve that all nodes share.
var clusterFiles = []string{"nodes", "priv", "ha", "storage.cfg"}

// LayOutCluster creates the files that all nodes share.
func (s *State) LayOutCluster() error {
	for _, dir := range []string{"locks", "born", "pve/nodes", "pve/priv", "pve/ha", "storage/shared/images"} {
		if err := os.MkdirAll(s.Common(dir), 0o755); err != nil {
			return err
		}
	}
	return sys.WriteFile(s.Common("pve", "storage.cfg"), []byte(storageConfig), 0o640)
}

const storageConfig = `dir: local
	path /var/lib/vz
	content images,iso,vztmpl,backup,import

lvmthin: local-lvm
	thinpool data
	vgname pve
	content images,rootdir

nfs: shared
	export /srv/shared
	path /mnt/pve/shared
	server 192.0.2.10
	content images,iso,vztmpl,backup,import

`

// ShowCluster makes this node's /etc/pve agree with what the node sees.
func (s *State) ShowCluster() error {
	if s.Config.Cluster == "" {
		return s.WriteMembers()
	}
	if s.Quorate() == nil {
		if err := s.link(s.Common("pve")); err != nil {
			return err
		}
		return errors.Join(s.Thaw(), s.WriteMembers())
	}
	return errors.Join(s.freeze(), s.WriteMembers())
}

// link points the shared entries of this node's /etc/pve to a directory.
func (s *State) link(dir string) error {
	for _, name := range clusterFiles {
		path := s.Path("etc", "pve", name)
		tmp := filepath.Join(filepath.Dir(path), sys.Temporary+name)
		err := errors.Join(os.RemoveAll(tmp), os.Symlink(filepath.Join(dir, name), tmp), os.Rename(tmp, path))
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *State) frozen() string { return s.Path("etc", "frozen") }

// freeze keeps a copy of the current /etc/pve for this node only, which nobody can write to.
func (s *State) freeze() error {
	if target, err := os.Readlink(s.Path("etc", "pve", "nodes")); err == nil && target == filepath.Join(s.frozen(), "nodes") {
		return nil
	}
	if err := s.Thaw(); err != nil {
		return err
	}
	if err := sys.CopyTree(s.Common("pve"), s.frozen()); err != nil {
		return err
	}
	if err := s.link(s.frozen()); err != nil {
		return err
	}
	return eachFile(s.frozen(), func(path string, info fs.FileInfo) error {
		err := os.Chmod(path, info.Mode().Perm()&^0o222)
		_ = setImmutable(path, true) // needs root, and not every file system supports it
		return err
	})
}

// Thaw removes the copy that freeze made.
func (s *State) Thaw() error {
	err := eachFile(s.frozen(), func(path string, info fs.FileInfo) error {
		_ = setImmutable(path, false)
		return os.Chmod(path, info.Mode().Perm()|0o200)
	})
	return errors.Join(err, os.RemoveAll(s.frozen()))
}

// eachFile visits a directory and everything below it. A missing directory counts as empty.
func eachFile(dir string, visit func(path string, info fs.FileInfo) error) error {
	return filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return visit(path, info)
	})
}

const immutableFlag = 0x10 // FS_IMMUTABLE_FL of linux/fs.h

// setImmutable sets or clears the attribute that chattr calls +i.
func setImmutable(path string, on bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	if on {
		flags |= immutableFlag
	} else {
		flags &^= immutableFlag
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}
