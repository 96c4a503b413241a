package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// storage is one of the lab's two storages. A thin pool's volumes are files in
// one flat directory, in whatever format the driver likes; qm shows them raw,
// as it does block devices.
type storage struct {
	name    string
	kind    string // dir or lvmthin
	content string
	root    string
}

func (st storage) thin() bool { return st.kind == "lvmthin" }

func (s *State) storages() []storage {
	all := []storage{
		{"local", "dir", "images,iso,vztmpl,backup,import", s.path("storage", "local")},
		{"local-lvm", "lvmthin", "images,rootdir", s.path("storage", "local-lvm")},
	}
	return slices.DeleteFunc(all, func(st storage) bool { return s.lists(FaultMissingStorage, st.name) })
}

func (s *State) storage(name string) (storage, error) {
	for _, st := range s.storages() {
		if st.name == name {
			return st, nil
		}
	}
	return storage{}, fail(255, "storage '%s' does not exist", name)
}

// volumePattern takes a volume's last name apart: what it is (vm or base), the
// owner, the rest.
var volumePattern = regexp.MustCompile(`^(vm|base)-(\d+)-(\S+)$`)

// VolumePath is the file behind a volume id such as local-lvm:vm-100-disk-0
// or local:9000/base-9000-disk-0.qcow2/101/vm-101-disk-0.qcow2.
func (s *State) VolumePath(volid string) (string, error) {
	name, volume, ok := strings.Cut(volid, ":")
	if !ok {
		return "", fail(255, "unable to parse volume ID '%s'", volid)
	}
	st, err := s.storage(name)
	if err != nil {
		return "", err
	}
	parts := strings.Split(volume, "/")
	last := parts[len(parts)-1]
	m := volumePattern.FindStringSubmatch(last)
	switch {
	case m == nil:
	case st.thin() && len(parts) == 1:
		return filepath.Join(st.root, last), nil
	case !st.thin() && len(parts) >= 2 && parts[len(parts)-2] == m[2]:
		return filepath.Join(st.root, "images", m[2], last), nil
	}
	return "", fail(255, "unable to parse %s volume name '%s'", st.kind, volume)
}

// newVolume finds the lowest free disk name of a VM on a storage. The caller
// holds the storage's lock until the file is there. PVE takes any file with
// the number for taken, whatever its format.
func (s *State) newVolume(st storage, id int, format string) (volid string, err error) {
	for n := range 100 {
		stem := fmt.Sprintf("vm-%d-disk-%d", id, n)
		base := fmt.Sprintf("base-%d-disk-%d", id, n)
		if !s.volumeExists(st, id, stem) && !s.volumeExists(st, id, base) {
			return st.volid(id, stem, format), nil
		}
	}
	return "", fail(255, "unable to allocate an image name for VM %d in storage '%s'", id, st.name)
}

// volid builds a volume's id. A thin pool's volumes have no extension.
func (st storage) volid(id int, stem, format string) string {
	if st.thin() {
		return st.name + ":" + stem
	}
	return fmt.Sprintf("%s:%d/%s.%s", st.name, id, stem, format)
}

func (st storage) volumeDir(id int) string {
	if st.thin() {
		return st.root
	}
	return filepath.Join(st.root, "images", strconv.Itoa(id))
}

func (s *State) volumeExists(st storage, id int, stem string) bool {
	names, err := filepath.Glob(filepath.Join(st.volumeDir(id), stem+"*"))
	return err == nil && slices.ContainsFunc(names, func(name string) bool {
		rest := strings.TrimPrefix(filepath.Base(name), stem)
		return rest == "" || rest[0] == '.'
	})
}

// volume is one line of `pvesm list`.
type volume struct {
	volid  string
	format string
	path   string
	owner  int
}

// volumes lists a storage, optionally of one owner (0: all).
func (s *State) volumes(st storage, owner int) []volume {
	dirs := []string{st.root}
	if !st.thin() {
		dirs, _ = filepath.Glob(filepath.Join(st.root, "images", "*"))
	}
	var found []volume
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			m := volumePattern.FindStringSubmatch(entry.Name())
			if m == nil || entry.IsDir() {
				continue
			}
			id, _ := strconv.Atoi(m[2])
			if owner != 0 && id != owner {
				continue
			}
			v := volume{format: "raw", path: filepath.Join(dir, entry.Name()), owner: id}
			stem, ext, _ := strings.Cut(entry.Name(), ".")
			if !st.thin() {
				v.format = ext
			}
			v.volid = st.volid(id, stem, v.format)
			found = append(found, v)
		}
	}
	return found
}

// usedBy finds a linked clone of a base volume on a directory storage, by the
// VM configs that name it.
func (s *State) usedBy(baseVolid string) bool {
	for _, id := range s.VMIDs() {
		conf, err := s.LoadConf(id)
		if err != nil {
			continue
		}
		for _, key := range conf.Keys() {
			if isDrive(key) && strings.HasPrefix(conf.Get(key), baseVolid+"/") {
				return true
			}
		}
	}
	return false
}

// diskFormat tells qcow2 from raw by the file's first bytes.
func diskFormat(path string) (string, error) {
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

var drivePattern = regexp.MustCompile(`^(ide|sata|scsi|virtio)\d+$`)

func isDrive(key string) bool { return drivePattern.MatchString(key) }

// drive is a disk line of a config: a volume and its properties.
type drive struct {
	file  string
	props map[string]string
}

func parseDrive(value string) drive {
	p := Props(value)
	file := p[""]
	for _, alias := range []string{"file", "volume"} {
		if file == "" {
			file = p[alias]
		}
		delete(p, alias)
	}
	delete(p, "")
	return drive{file, p}
}

func (d drive) String() string {
	text := d.file
	for _, key := range sortedKeys(d.props) {
		text += "," + key + "=" + d.props[key]
	}
	return text
}

func (d drive) cdrom() bool     { return d.props["media"] == "cdrom" }
func (d drive) cloudInit() bool { return d.cdrom() && strings.Contains(d.file, "-cloudinit") }

// CloudInitVolume is the volume id of the VM's cloud-init drive, or "".
func (c *Conf) CloudInitVolume() string {
	for _, key := range c.Keys() {
		if d := parseDrive(c.Get(key)); isDrive(key) && d.cloudInit() {
			return d.file
		}
	}
	return ""
}

// BootDisk is the key and volume id of the disk the VM boots from: the first
// disk of the boot order, else the first disk there is.
func (c *Conf) BootDisk() (key, volid string) {
	order := strings.Split(Props(c.Get("boot"))["order"], ";")
	for _, key := range append(order, c.Keys()...) {
		d := parseDrive(c.Get(key))
		if isDrive(key) && c.Has(key) && !d.cdrom() && d.file != "none" {
			return key, d.file
		}
	}
	return "", ""
}

// parseSize reads 10G, 512M, 4096K, 123 as bytes.
func parseSize(text string) (int64, error) {
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

// formatSize writes bytes the way PVE does: in the largest unit that divides.
func formatSize(size int64) string {
	units := []string{"", "K", "M", "G", "T"}
	unit := 0
	for unit < len(units)-1 && size >= 1024 && size%1024 == 0 {
		size /= 1024
		unit++
	}
	return strconv.FormatInt(size, 10) + units[unit]
}
