// Package state is a lab's state directory, which all of its processes share: settings, VM configs
// in PVE's own syntax, volumes, locks and faults on demand. It starts no processes.
package state

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"linus/internal/lab/sys"
)

// Config is lab.json: the settings of a lab, which Up writes and every other command reads.
type Config struct {
	Driver  string `json:"driver"`
	Version string `json:"version"` // PVE version to simulate: 9.2 or 8.2
	Node    string `json:"node"`    // this node's name
	Bridge  string `json:"bridge"`
	Storage string `json:"storage"` // storage of the template and its clones
	Binary  string `json:"binary"`  // absolute path of the pvelab binary

	SSHHost   string `json:"ssh_host"`   // where the lab's sshd listens, set by up
	SSHPort   int    `json:"ssh_port"`   // and at which port
	GuestPort int    `json:"guest_port"` // port of the guests' SSH servers; 22 if it can be bound

	Direct         bool   `json:"direct,omitempty"`          // qemu: route from outside to the guests
	BlockCallbacks bool   `json:"block_callbacks,omitempty"` // qemu: guests cannot reach the outside
	ImageVariant   string `json:"image_variant,omitempty"`   // qemu: "" tuned, "plain"
	RealSystemd    bool   `json:"real_systemd,omitempty"`    // the host is a container with a systemd of its own
	SlowMS         int    `json:"slow_ms,omitempty"`         // start-up time of each qm, pvesh and pvesm, and of loading their modules
	CallMS         int    `json:"call_ms,omitempty"`         // time of a call whose modules are already loaded

	// Only for a node of a cluster. Up and Down act on the first node's lab for the whole cluster.
	Cluster string `json:"cluster,omitempty"` // directory of what all nodes share; "": no cluster
	Sizes   string `json:"sizes,omitempty"`   // first node only: memory in MiB and CPUs of each node, `32768/8 16384/4`
}

// State is a lab's state directory: everything its processes share.
//
//	lab.json faults.json        settings, faults on demand
//	cluster/                    of a cluster's first node: what all nodes share
//	nodes/<name>/               of a cluster's first node: the labs of the others
//	etc/pve/...                 VM configs, in PVE's layout and syntax
//	storage/local/images/<id>/  volumes of the directory storage
//	storage/local-lvm/          volumes of the thin pool, flat
//	locks/                      flock files
//	run/<id>/                   of a running VM: pid, agent socket, address
//	log/<id>.log                the VM's serial console
//	log/tools                   each call of qm, pvesh and pvesm: started, or of loaded modules
//	bin/                        qm, pvesh, pvesm, pveversion; process: ip
//	perl/                       stand-ins for Proxmox's modules
//	dpkg-status                 stands for the host's list of packages; only its time matters
//	ssh/                        the lab's sshd: keys, config, pid
type State struct {
	Dir    string // absolute
	Config Config
	Log    io.Writer // progress for people, one line each; nil: none
}

// Progress is where progress for people goes; it is never nil.
func (s *State) Progress() io.Writer {
	if s.Log == nil {
		return io.Discard
	}
	return s.Log
}

// ErrNoLab says that a directory holds no lab.
var ErrNoLab = errors.New("no lab here")

// Open reads the settings of the lab in dir. If there is no lab, the error is ErrNoLab.
func Open(dir string) (*State, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	s := &State{Dir: abs}
	err = sys.ReadJSON(s.Path("lab.json"), &s.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s (run `pvelab up --dir %s`)", ErrNoLab, abs, dir)
	}
	return s, err
}

// Save writes lab.json.
func (s *State) Save() error { return sys.WriteJSON(s.Path("lab.json"), s.Config, 0o644) }

// Hash is a number derived from the state directory's path. Names, addresses and ports are derived
// from it, so that two labs can run side by side.
func (s *State) Hash() uint32 {
	sum := sha256.Sum256([]byte(s.Dir))
	return binary.BigEndian.Uint32(sum[:4])
}

// Name is the lab's short name: 8 hex digits of Hash.
func (s *State) Name() string { return fmt.Sprintf("%08x", s.Hash()) }

// Path is a path below the state directory.
func (s *State) Path(elem ...string) string {
	return filepath.Join(append([]string{s.Dir}, elem...)...)
}

// Root is the directory of the whole lab: that of the cluster's first node.
func (s *State) Root() string {
	if s.Config.Cluster == "" {
		return s.Dir
	}
	return filepath.Dir(s.Config.Cluster)
}

// RunDir holds a running VM's pid file and sockets, and exists while the VM runs. Its name is short
// because a Unix socket path is limited to 107 bytes.
func (s *State) RunDir(id int) string { return s.Path("run", strconv.Itoa(id)) }

// LogPath is the log of the VM's serial console.
func (s *State) LogPath(id int) string { return s.Path("log", strconv.Itoa(id)+".log") }

// BinDir holds the work-alikes. It comes first in the PATH of the lab's sshd.
func (s *State) BinDir() string { return s.Path("bin") }

// SSHDir holds the lab's sshd: host key, client key pair, config, pid file.
func (s *State) SSHDir() string { return s.Path("ssh") }

// ClientKeyPath is the private key that logs in to the lab's sshd: in a cluster, the first node's.
func (s *State) ClientKeyPath() string { return filepath.Join(s.Root(), "ssh", "id_ed25519") }

// KnownHostsPath is the known_hosts file with the host key of the lab's sshd.
func (s *State) KnownHostsPath() string { return s.Path("ssh", "known_hosts") }

// HomeDir is the login user's home in the lab, so that sessions neither run the start-up files of
// the machine's user (bash reads .bashrc under sshd) nor leave anything in that user's home.
func (s *State) HomeDir() string { return s.Path("home") }
