package state

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"linus/internal/lazyregexp"
)

// Storage is one of the lab's storages. A node has two of its own, and all nodes of a cluster share
// one. A thin pool's volumes are files in one flat directory, in any format the driver likes; qm
// shows them as raw, as it does block devices.
type Storage struct {
	Name    string
	Kind    string // dir, lvmthin or nfs
	Content string
	Shared  bool
	root    string
}

// Thin reports whether the storage is a thin pool.
func (st Storage) Thin() bool { return st.Kind == "lvmthin" }

// Storages returns the existing storages, without those that a fault hides.
func (s *State) Storages() []Storage {
	const files = "images,iso,vztmpl,backup,import"
	all := []Storage{
		{Name: "local", Kind: "dir", Content: files, root: s.Path("storage", "local")},
		{Name: "local-lvm", Kind: "lvmthin", Content: "images,rootdir", root: s.Path("storage", "local-lvm")},
	}
	if s.Config.Cluster != "" {
		all = append(all, Storage{Name: "shared", Kind: "nfs", Content: files, Shared: true, root: s.Common("storage", "shared")})
	}
	return slices.DeleteFunc(all, func(st Storage) bool { return s.Lists(FaultMissingStorage, st.Name) })
}

// Storage finds a storage by name. If there is none, it fails with PVE's text.
func (s *State) Storage(name string) (Storage, error) {
	for _, st := range s.Storages() {
		if st.Name == name {
			return st, nil
		}
	}
	return Storage{}, Fail(255, "storage '%s' does not exist", name)
}

// VolumePattern splits a volume's last name into what it is (vm or base), its owner, and the rest.
var VolumePattern = lazyregexp.New(`^(vm|base)-(\d+)-(\S+)$`)

// VolumePath is the file behind a volume ID such as local-lvm:vm-100-disk-0 or
// local:9000/base-9000-disk-0.qcow2/101/vm-101-disk-0.qcow2.
func (s *State) VolumePath(volid string) (string, error) {
	name, volume, ok := strings.Cut(volid, ":")
	if !ok {
		return "", Fail(255, "unable to parse volume ID '%s'", volid)
	}
	st, err := s.Storage(name)
	if err != nil {
		return "", err
	}
	parts := strings.Split(volume, "/")
	last := parts[len(parts)-1]
	m := VolumePattern.FindStringSubmatch(last)
	switch {
	case m == nil:
	case st.Thin() && len(parts) == 1:
		return filepath.Join(st.root, last), nil
	case !st.Thin() && len(parts) >= 2 && parts[len(parts)-2] == m[2]:
		return filepath.Join(st.root, "images", m[2], last), nil
	}
	return "", Fail(255, "unable to parse %s volume name '%s'", st.Kind, volume)
}

// OwnPart returns a volume ID without the base it is a clone of, as its own clones name it.
func OwnPart(volid string) string {
	storage, volume, _ := strings.Cut(volid, ":")
	parts := strings.Split(volume, "/")
	return storage + ":" + strings.Join(parts[max(0, len(parts)-2):], "/")
}

// Owner returns the ID of the VM in a volume's name, or 0.
func Owner(volid string) int {
	m := VolumePattern.FindStringSubmatch(volid[strings.LastIndexAny(volid, ":/")+1:])
	if m == nil {
		return 0
	}
	id, _ := strconv.Atoi(m[2])
	return id
}

// NewVolume finds the lowest free disk name of a VM on a storage. The caller holds the storage's
// lock until the file exists. As in PVE, a file of any format takes its number.
func (s *State) NewVolume(st Storage, id int, format string) (volid string, err error) {
	for n := range 100 {
		stem := fmt.Sprintf("vm-%d-disk-%d", id, n)
		base := fmt.Sprintf("base-%d-disk-%d", id, n)
		if !s.VolumeExists(st, id, stem) && !s.VolumeExists(st, id, base) {
			return st.VolID(id, stem, format), nil
		}
	}
	return "", Fail(255, "unable to allocate an image name for VM %d in storage '%s'", id, st.Name)
}

// VolID builds a volume ID. A thin pool's volumes have no extension.
func (st Storage) VolID(id int, stem, format string) string {
	if st.Thin() {
		return st.Name + ":" + stem
	}
	return fmt.Sprintf("%s:%d/%s.%s", st.Name, id, stem, format)
}

// VolumeDir is the directory of a VM's volumes.
func (st Storage) VolumeDir(id int) string {
	if st.Thin() {
		return st.root
	}
	return filepath.Join(st.root, "images", strconv.Itoa(id))
}

// VolumeExists reports whether a volume has this name, whatever its format.
func (s *State) VolumeExists(st Storage, id int, stem string) bool {
	names, err := filepath.Glob(filepath.Join(st.VolumeDir(id), stem+"*"))
	return err == nil && slices.ContainsFunc(names, func(name string) bool {
		rest := strings.TrimPrefix(filepath.Base(name), stem)
		return rest == "" || rest[0] == '.'
	})
}

// Volume is one line of `pvesm list`.
type Volume struct {
	VolID  string
	Format string
	Path   string
	Owner  int
}

// Volumes lists a storage's volumes, optionally of one owner only (0: all).
func (s *State) Volumes(st Storage, owner int) []Volume {
	dirs := []string{st.root}
	if !st.Thin() {
		dirs, _ = filepath.Glob(filepath.Join(st.root, "images", "*"))
	}
	var found []Volume
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			m := VolumePattern.FindStringSubmatch(entry.Name())
			if m == nil || entry.IsDir() {
				continue
			}
			id, _ := strconv.Atoi(m[2])
			if owner != 0 && id != owner {
				continue
			}
			v := Volume{Format: "raw", Path: filepath.Join(dir, entry.Name()), Owner: id}
			stem, ext, _ := strings.Cut(entry.Name(), ".")
			if !st.Thin() {
				v.Format = ext
			}
			v.VolID = st.VolID(id, stem, v.Format)
			found = append(found, v)
		}
	}
	return found
}

// UsedBy reports whether a base volume on a directory storage has a linked clone, judged by the VM
// configs that name it: this node's, or all nodes' for a shared storage.
func (s *State) UsedBy(baseVolid string) bool {
	baseVolid = OwnPart(baseVolid)
	name, _, _ := strings.Cut(baseVolid, ":")
	st, _ := s.Storage(name)
	for _, node := range s.Nodes() {
		if node.Name != s.Config.Node && !st.Shared {
			continue
		}
		for _, conf := range s.ConfsOf(node.Name) {
			for _, d := range Drives(conf.Values) {
				if strings.HasPrefix(d.File, baseVolid+"/") {
					return true
				}
			}
		}
	}
	return false
}

// DiskFormat tells qcow2 from raw by the file's first bytes.
func DiskFormat(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var magic [4]byte
	if n, _ := f.Read(magic[:]); n == 4 && bytes.Equal(magic[:], []byte("QFI\xfb")) {
		return "qcow2", nil
	}
	return "raw", nil
}

var drivePattern = lazyregexp.New(`^(ide|sata|scsi|virtio)\d+$`)

// IsDrive reports whether a config key names a drive.
func IsDrive(key string) bool { return drivePattern.MatchString(key) }

// Drive is a disk line of a config: a volume and its properties.
type Drive struct {
	File  string
	Props map[string]string
}

// ParseDrive reads a drive's value: the volume, and its properties.
func ParseDrive(value string) Drive {
	p := Props(value)
	file := p[""]
	for _, alias := range []string{"file", "volume"} {
		if file == "" {
			file = p[alias]
		}
		delete(p, alias)
	}
	delete(p, "")
	return Drive{file, p}
}

func (d Drive) String() string {
	text := d.File
	for _, key := range slices.Sorted(maps.Keys(d.Props)) {
		text += "," + key + "=" + d.Props[key]
	}
	return text
}

// CDROM reports whether the drive is a CD drive.
func (d Drive) CDROM() bool { return d.Props["media"] == "cdrom" }

// CloudInit reports whether the drive is the one that cloud-init reads.
func (d Drive) CloudInit() bool { return d.CDROM() && strings.Contains(d.File, "-cloudinit") }

// Storage is the name of the storage of the drive's volume, or "" if it has none.
func (d Drive) Storage() string {
	name, _, named := strings.Cut(d.File, ":")
	if !named {
		return ""
	}
	return name
}

// Disk reports whether the drive is a disk: neither a CD drive nor empty.
func (d Drive) Disk() bool { return !d.CDROM() && d.File != "none" }

// Drives iterates over the drives of a config or of a snapshot, in the order of their keys.
func Drives(values map[string]string) iter.Seq2[string, Drive] {
	return func(yield func(string, Drive) bool) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if IsDrive(key) && !yield(key, ParseDrive(values[key])) {
				return
			}
		}
	}
}

// CloudInitVolume is the volume ID of the VM's cloud-init drive, or "".
func (c *Conf) CloudInitVolume() string {
	for _, d := range Drives(c.Values) {
		if d.CloudInit() {
			return d.File
		}
	}
	return ""
}

// BootOrder returns the keys of the devices the VM boots from, in the order they are tried.
func (c *Conf) BootOrder() []string { return strings.Split(Props(c.Get("boot"))["order"], ";") }

// BootDisk returns the key and volume ID of the disk the VM boots from: the first disk of the boot
// order, else the first disk there is.
func (c *Conf) BootDisk() (key, volid string) {
	for _, key := range append(c.BootOrder(), c.Keys()...) {
		d := ParseDrive(c.Get(key))
		if IsDrive(key) && c.Has(key) && d.Disk() {
			return key, d.File
		}
	}
	return "", ""
}

// ParseSize reads 10G, 512M, 4096K or 123 as bytes.
func ParseSize(text string) (int64, error) {
	units := map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
	factor := int64(1)
	if text != "" && units[text[len(text)-1]] != 0 {
		factor = units[text[len(text)-1]]
		text = text[:len(text)-1]
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("bad size %q", text)
	}
	return int64(n * float64(factor)), nil
}

// FormatSize writes bytes the way PVE does: in the largest unit that divides the size.
func FormatSize(size int64) string {
	units := []string{"", "K", "M", "G", "T"}
	unit := 0
	for unit < len(units)-1 && size >= 1024 && size%1024 == 0 {
		size /= 1024
		unit++
	}
	return strconv.FormatInt(size, 10) + units[unit]
}

// DriveID is PVE's name for a drive in QEMU's monitor.
func DriveID(slot string) string { return "drive-" + slot }
