package nspawn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"linus/internal/lab/sys"
)

// machinePaths returns the machine's paths that the container sees read-only: all programs, systemd
// among them, and the settings they need.
func machinePaths() []string {
	paths := []string{"/usr"}
	for _, path := range append(programDirs(),
		"/etc/alternatives", "/etc/ssl", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/hosts", "/etc/resolv.conf", "/etc/services",
		"/var/lib/dpkg",
	) {
		if info, err := os.Stat(path); err == nil && (info.IsDir() || info.Mode().IsRegular()) && !isLink(path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// programDirs are links into /usr on most machines.
func programDirs() []string {
	return []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// makeRoot makes or completes the container's root directory. It has only the units of systemd's
// own packages, and the machine's accounts, none with a usable password.
func (c Container) makeRoot(ctx context.Context) error {
	for _, dir := range []string{"usr", "etc", "var/lib", "run", "tmp", "proc", "sys", "dev", "root", "opt", "srv", "home", "mnt"} {
		if err := os.MkdirAll(filepath.Join(c.Root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range programDirs() {
		if target, err := os.Readlink(dir); err == nil {
			if err := os.Symlink(target, filepath.Join(c.Root, dir)); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	files := map[string]string{
		// With a machine ID, this is not a first boot, which would enable every unit.
		"etc/machine-id": fmt.Sprintf("%x", sha256.Sum256([]byte(c.Name)))[:32] + "\n",
		"etc/hostname":   c.Name + "\n",
	}
	for name, source := range map[string]string{"etc/passwd": "/etc/passwd", "etc/group": "/etc/group", "etc/os-release": "/etc/os-release"} {
		raw, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		files[name] = string(raw)
	}
	for line := range strings.Lines(files["etc/passwd"]) {
		name, _, _ := strings.Cut(line, ":")
		files["etc/shadow"] += name + ":*:19000:0:99999:7:::\n"
	}
	// Before it mounts anything, systemd-nspawn looks for a file of this name to learn which
	// cgroups the systemd inside understands.
	version, err := systemdVersion(ctx)
	if err != nil {
		return err
	}
	files["usr/lib/systemd/libsystemd-shared-"+version+".so"] = ""
	// Directories of the machine may be mounted below the temporary ones: nothing may clear them.
	files["etc/tmpfiles.d/tmp.conf"] = ""
	for name, content := range files {
		path := filepath.Join(c.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if name == "etc/shadow" {
			mode = 0o600
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			return err
		}
	}
	return nil
}

// systemdVersion returns the number of the machine's systemd version.
func systemdVersion(ctx context.Context) (string, error) {
	out, err := sys.Run(ctx, "systemd-nspawn", "--version")
	if err != nil {
		return "", err
	}
	// systemd 252 (252.39-1~deb12u2)
	if fields := strings.Fields(string(out)); len(fields) > 1 {
		if _, err := strconv.Atoi(fields[1]); err == nil {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("systemd-nspawn --version: %q", out)
}
