package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"linus/internal/lab/agent"
	"linus/internal/lab/cloudinit"
	"linus/internal/lab/netns"
	"linus/internal/lab/qemu"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/loops"
)

// needQemu skips where a real machine cannot run, and says why.
func needQemu(t *testing.T) {
	t.Helper()
	loops.NotInCheck(t)
	if missing := Missing(state.DriverQemu); len(missing) > 0 {
		t.Skipf("no qemu lab on this machine: %s", strings.Join(missing, " "))
	}
}

// newQemuState is a lab of its own with network and sshd, which leaves nothing.
func newQemuState(t *testing.T) *state.State {
	t.Helper()
	// Longer than a socket's address can be.
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 20)+"lab")
	s := &state.State{Dir: dir, Log: testLog{t}, Config: state.Config{
		Driver: state.DriverQemu, Version: "9.2", Node: "pve", Bridge: "vmbr0", Storage: "local-lvm",
	}}
	for _, sub := range []string{"bin", "run", "log", "locks", "storage/local-lvm"} {
		if err := os.MkdirAll(s.Path(sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := stopSSHD(s); err != nil {
			t.Error(err)
		}
		if err := (qemu.Driver{}).Down(context.Background(), s); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		assertNothingLeft(t, s)
	})
	return s
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// assertNothingLeft looks for anything of the lab on the machine.
func assertNothingLeft(t *testing.T, s *state.State) {
	t.Helper()
	commands, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range commands {
		raw, err := os.ReadFile(path)
		if err == nil && bytes.Contains(raw, []byte(s.Dir+"/")) {
			t.Errorf("process left: %s", bytes.ReplaceAll(raw, []byte{0}, []byte{' '}))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if n := netns.Of(s); strings.Contains(string(mounts), n.Namespace) || strings.Contains(string(mounts), s.Dir) {
		t.Errorf("mount left:\n%s", mounts)
	}
	for _, path := range []string{netns.Of(s).Path(), filepath.Join("/sys/class/net", netns.Of(s).Veth), s.Dir} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s left", path)
		}
	}
}

// bootVM is the config of a VM as our scripts make one.
const bootVM = `agent: enabled=1
boot: order=scsi0;net0
cores: 2
memory: 2048
name: linus-job-1
net0: virtio=BC:24:11:AA:BB:CC,bridge=vmbr0
scsi0: local-lvm:vm-100-disk-0,size=10G
scsi1: local-lvm:vm-100-cloudinit,media=cdrom
smbios1: uuid=6c4b7a52-0d3a-4f63-8d7f-e9f4f35f1b2a
`

// TestQemu_BootsARealMachine is the way of every VM of the qemu lab: image,
// linked disk, seed, boot, agent, SSH jumped through the lab's sshd, cloud-init
// done, reboot, shutdown, and nothing left.
func TestQemu_BootsARealMachine(t *testing.T) {
	loops.AtNightOnly(t, "TestJob_RunsInARealVM takes a real machine from the image to its end")
	needQemu(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	s, driver := newQemuState(t), qemu.Driver{}
	begin := time.Now()
	step := func(format string, args ...any) {
		t.Helper()
		t.Logf("%6.1fs %s", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}

	image, err := driver.BuildImage(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	step("image %s", filepath.Base(image))
	if err := driver.Up(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := driver.Up(ctx, s); err != nil {
		t.Fatalf("a second up: %v", err)
	}
	if err := startSSHD(ctx, s); err != nil {
		t.Fatal(err)
	}
	step("network and sshd at %s", s.Config.SSHHost)

	disk := s.Path("storage", "local-lvm", "vm-100-disk-0")
	if err := driver.LinkDisk(ctx, image, disk); err != nil {
		t.Fatal(err)
	}
	if err := driver.ResizeDisk(ctx, disk, 5<<30); err != nil {
		t.Fatal(err)
	}
	if size, err := driver.DiskSize(ctx, disk); err != nil || size != 5<<30 {
		t.Fatalf("size after resize: %d, %v", size, err)
	}
	pub, err := os.ReadFile(s.ClientKeyPath() + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	conf := state.ParseConf(bootVM)
	conf.Set("memory", "1024")
	conf.Set("ciuser", "worker")
	conf.Set("ciupgrade", "0")
	conf.Set("ipconfig0", "ip=dhcp")
	conf.Set("sshkeys", url.PathEscape(string(pub)))
	vm := state.VM{ID: 100, Conf: conf}

	begin = time.Now()
	if err := driver.Start(ctx, s, vm); err != nil {
		t.Fatal(err)
	}
	pid, running := s.Pid(vm.ID)
	if !running {
		t.Fatal("no process after start")
	}
	step("QEMU runs, process %d", pid)

	t.Cleanup(func() {
		if t.Failed() {
			console, _ := os.ReadFile(s.LogPath(100))
			t.Logf("serial console:\n%s", console)
		}
	})
	if err := qemu.Monitor(ctx, s.RunDir(100), "query-status", nil); err != nil {
		t.Errorf("monitor: %v", err)
	}
	if err := qemu.Monitor(ctx, s.RunDir(100), "no-such-thing", nil); err == nil {
		t.Error("monitor: an unknown command is no error")
	}
	waitFor(t, ctx, "agent", func() error {
		_, err := agent.Call(ctx, s.AgentSocket(100), "guest-ping", nil, agent.PingTimeout)
		return err
	})
	step("agent answers")

	address := leaseOf(t, ctx, s, conf.MAC())
	var guest *ssh.Client
	waitFor(t, ctx, "SSH", func() (err error) {
		guest, err = dialGuest(s, address, "worker")
		return err
	})
	defer guest.Close()
	step("SSH login at %s", address)

	out, err := guestRun(guest, "cloud-init status --wait; sudo -n id -u; systemctl is-active lab-cloud-init; hostname; df --output=size -BM / | tail -n 1; cat /var/lib/cloud/data/instance-id")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	step("cloud-init done")
	wantID := strings.TrimSpace(strings.TrimPrefix(cloudinit.New(100, conf, netns.Of(s).Gateway.String()).Meta, "instance-id: "))
	for _, want := range []string{"status: done", "\n0\nactive\n", "linus-job-1", wantID} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the guest's answer:\n%s", want, out)
		}
	}
	var rootMB int
	if at := strings.Index(out, "M\n"); at < 0 {
		t.Errorf("no size of the root file system in %q", out)
	} else if _, err := fmt.Sscanf(out[strings.LastIndexByte(out[:at], '\n')+1:at], "%d", &rootMB); err != nil || rootMB < 4500 {
		t.Errorf("root file system of %d MB (%v) on a disk of 5 GiB: it has not grown", rootMB, err)
	}

	testCallbackWay(t, ctx, s, guest, address)

	testSuspend(t, ctx, s, vm, disk, address, guest, step)

	// The first snapshot is the running machine's to make, and so is its end;
	// with the machine off they are qemu-img's.
	for _, name := range []string{"running", "deleted"} {
		if err := driver.SnapshotDisk(ctx, s, vm, "scsi0", disk, name); err != nil {
			t.Fatalf("snapshot of a running machine: %v", err)
		}
	}
	if err := driver.DeleteSnapshot(ctx, s, vm, "scsi0", disk, "deleted"); err != nil {
		t.Fatal(err)
	}
	begin = time.Now()
	if err := driver.Shutdown(ctx, s, vm); err != nil {
		// A guest that goes down may end the agent's command before that ends by itself.
		t.Logf("shut down: %v", err)
		if err := sys.WaitPidFile(ctx, s.PidFile(vm.ID)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(s.RunDir(vm.ID)); err != nil {
			t.Fatal(err)
		}
	}
	step("shut down")
	if _, running := s.Pid(vm.ID); running {
		t.Error("process runs after shutdown")
	}

	if err := driver.RollbackDisk(ctx, disk, "deleted"); err == nil {
		t.Error("a snapshot that was deleted is still there")
	}
	if err := driver.SnapshotDisk(ctx, s, vm, "scsi0", disk, "off"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(driver.RollbackDisk(ctx, disk, "running"), driver.DeleteSnapshot(ctx, s, vm, "scsi0", disk, "off")); err != nil {
		t.Fatal(err)
	}

	if err := driver.Start(ctx, s, vm); err != nil {
		t.Fatalf("second start: %v", err)
	}
	begin = time.Now()
	if err := driver.Stop(ctx, s, vm); err != nil {
		t.Fatal(err)
	}
	step("stopped")
	if err := driver.Stop(ctx, s, vm); err != nil {
		t.Errorf("stop of a stopped VM: %v", err)
	}
	// One is left running, for down to find.
	if err := driver.Start(ctx, s, vm); err != nil {
		t.Fatal(err)
	}
}

// testCallbackWay has the guest reach the outside, and not reach it when the
// setting says so; and the outside reach the guest once there is a route.
func testCallbackWay(t *testing.T, ctx context.Context, s *state.State, guest *ssh.Client, address string) {
	t.Helper()
	n := netns.Of(s)
	listener, err := net.Listen("tcp", net.JoinHostPort(n.Outside.String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "from %s", conn.RemoteAddr())
			conn.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	call := fmt.Sprintf("timeout 3 bash -c 'cat </dev/tcp/%s/%s'", n.Outside, port)
	if out, err := guestRun(guest, call); err != nil || !strings.HasPrefix(out, "from "+n.Host.String()) {
		t.Errorf("callback from the guest: %q, %v; want it to come from %s", out, err, n.Host)
	}
	s.Config.BlockCallbacks = true
	if err := (qemu.Driver{}).Up(ctx, s); err != nil {
		t.Fatal(err)
	}
	if out, err := guestRun(guest, call); err == nil {
		t.Errorf("a blocked callback got through: %q", out)
	}
	s.Config.BlockCallbacks = false

	direct := net.JoinHostPort(address, "22")
	// Somebody else may answer at that address, but not a guest.
	if err := greetsWithin(ctx, direct); err == nil {
		t.Errorf("the guest is reached directly at %s without the setting", direct)
	}
	s.Config.Direct = true
	if err := (qemu.Driver{}).Up(ctx, s); err != nil {
		t.Fatal(err)
	}
	if err := greetsWithin(ctx, direct); err != nil {
		t.Errorf("direct reach: %v", err)
	}
	s.Config.Direct = false
	if err := (qemu.Driver{}).Up(ctx, s); err != nil {
		t.Fatal(err)
	}
}

func TestQemu_TwoLabsAreUpSideBySide(t *testing.T) {
	needQemu(t)
	a, b := newQemuState(t), newQemuState(t)
	for _, s := range []*state.State{a, b} {
		if err := (qemu.Driver{}).Up(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if err := startSSHD(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := stopSSHD(a); err != nil {
		t.Fatal(err)
	}
	if err := (qemu.Driver{}).Down(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if out := hostRun(t, b, "hostname && ip -4 -o addr show dev vmbr0"); !strings.Contains(out, netns.Of(b).Gateway.String()) {
		t.Errorf("the second lab after the first went down: %s", out)
	}
}

// hostRun runs a command through the lab's sshd.
func hostRun(t *testing.T, s *state.State, command string) string {
	t.Helper()
	host, err := dialHost(s)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	out, err := guestRun(host, command)
	if err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	return out
}

func dialHost(s *state.State) (*ssh.Client, error) {
	raw, err := os.ReadFile(s.ClientKeyPath())
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return nil, err
	}
	known, err := knownhosts.New(s.KnownHostsPath())
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(s.Config.SSHHost, fmt.Sprint(s.Config.SSHPort))
	return ssh.Dial("tcp", address, &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: known,
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519}, Timeout: 5 * time.Second,
	})
}

// dialGuest jumps through the lab's sshd.
func dialGuest(s *state.State, address, login string) (*ssh.Client, error) {
	host, err := dialHost(s)
	if err != nil {
		return nil, err
	}
	target := net.JoinHostPort(address, "22")
	conn, err := host.Dial("tcp", target)
	if err != nil {
		host.Close()
		return nil, err
	}
	raw, err := os.ReadFile(s.ClientKeyPath())
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return nil, err
	}
	client, channels, requests, err := ssh.NewClientConn(conn, target, &ssh.ClientConfig{
		User: login, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		host.Close()
		return nil, err
	}
	return ssh.NewClient(client, channels, requests), nil
}

func guestRun(client *ssh.Client, command string) (string, error) {
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	out, err := session.CombinedOutput(command)
	return string(out), err
}

// leaseOf waits for the address that DHCP gave to a hardware address.
func leaseOf(t *testing.T, ctx context.Context, s *state.State, mac string) (address string) {
	t.Helper()
	waitFor(t, ctx, "DHCP lease", func() error {
		raw, err := os.ReadFile(s.Path("run", "dhcp", "leases"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(raw)) {
			if fields := strings.Fields(line); len(fields) > 2 && strings.EqualFold(fields[1], mac) {
				address = fields[2]
				return nil
			}
		}
		return fmt.Errorf("no lease for %s in %q", mac, raw)
	})
	return address
}

func greetsWithin(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return sshGreets(ctx, address)
}

func waitFor(t *testing.T, ctx context.Context, what string, probe func() error) {
	t.Helper()
	for {
		err := probe()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v (last: %v)", what, ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
