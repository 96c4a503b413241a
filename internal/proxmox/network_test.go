package proxmox_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/proxmox"
	"linus/internal/vm"
)

// pool4 is addresses of a lab's own on the loopback, outside of those its guests
// take by themselves.
func (h *labHost) pool4(count int) string {
	first := netip.AddrFrom4([4]byte{127, byte(100 + h.Hash()%100), byte(h.Hash() >> 8), 10})
	last := first
	for range count - 1 {
		last = last.Next()
	}
	return fmt.Sprintf("%s-%s/8", first, last)
}

// TestPool_GivesEachVMItsOwn has as many VMs made at once as the pool has
// addresses.
func TestPool_GivesEachVMItsOwn(t *testing.T) {
	t.Parallel()
	const size = 5
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, func(o *proxmox.Options) { o.IPConfig, o.Gateway, o.VLANTag = h.pool4(size), "127.0.0.1", 7 })
	vms := make([]vm.VM, size)
	var wg sync.WaitGroup
	for i := range vms {
		wg.Go(func() {
			var err error
			if vms[i], err = p.Create(t.Context(), h.spec(), func(job.Progress) {}); err != nil {
				t.Errorf("VM %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	var given []string
	for _, v := range vms {
		config, err := h.QM(t.Context(), "config", strconv.Itoa(v.ID))
		if err != nil || !strings.Contains(config, "ipconfig0: ip="+v.IP+"/8,gw=127.0.0.1\n") || !strings.Contains(config, ",tag=7\n") {
			t.Errorf("VM %d at %s: %v\n%s", v.ID, v.IP, err, config)
		}
		given = append(given, v.IP)
	}
	slices.Sort(given)
	if different := slices.Compact(slices.Clone(given)); len(different) != size {
		t.Errorf("given: %v", given)
	}

	_, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
	var host *job.HostError
	if !errors.As(err, &host) || !strings.Contains(host.Text, "no address of VM_IP_CONFIG=") {
		t.Fatalf("with the pool used up: %v", err)
	}
	// Destroyed by hand: nobody of ours hears of it.
	freed := vms[3]
	for _, verb := range []string{"stop", "destroy"} {
		if _, err := h.QM(t.Context(), verb, strconv.Itoa(freed.ID)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
	if err != nil || again.IP != freed.IP {
		t.Errorf("the freed address is %s, given was %s: %v", freed.IP, again.IP, err)
	}
	if left, err := filepath.Glob(filepath.Join(h.Dir, "home", "linus", "addresses", "[0-9]*")); err != nil || len(left) != 0 {
		t.Errorf("still reserved: %v, %v", left, err)
	}
}

// TestPool_ACreateThatDiesGivesItsAddressBack stops a create while its VM is
// there, and one whose worker was killed half way.
func TestPool_ACreateThatDiesGivesItsAddressBack(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, func(o *proxmox.Options) { o.IPConfig = h.pool4(1) })
	for _, fault := range []lab.Fault{state.FaultKilledWorker, state.FaultStartFails} {
		if err := h.SetFault(fault, "1"); err != nil {
			t.Fatal(err)
		}
		if vm, err := p.Create(t.Context(), h.spec(), func(job.Progress) {}); err == nil {
			t.Fatalf("%s: VM %d was made", fault, vm.ID)
		}
	}
	if _, err := p.Create(t.Context(), h.spec(), func(job.Progress) {}); err != nil {
		t.Error(err)
	}
}

// fromImage sets a provider up with the lab's own image.
func (h *labHost) fromImage(t *testing.T) func(*proxmox.Options) {
	image := filepath.Join(h.Dir, "image.qcow2")
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return func(o *proxmox.Options) {
		o.ImageURL, o.ImageSHA256, o.ImageDir = "file://"+image, hex.EncodeToString(sum[:]), filepath.Join(h.Dir, "images")
	}
}

// TestSystems_AreMadeFromTheirImages goes the way without a template, the image
// being the lab's; what a system's own differs in for linus is its user.
func TestSystems_AreMadeFromTheirImages(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, h.fromImage(t))
	g := guest.New(guest.Options{Host: guest.Through(h.pool), Keys: oneKey(h.key), Port: h.Config.GuestPort})
	defer g.Close()
	for os, user := range map[string]string{"debian-12": "debian", "almalinux-9": "almalinux"} { // systems.bats has all
		t.Run(os, func(t *testing.T) {
			spec := h.spec()
			spec.Template, spec.OS = "", os
			vm, err := p.Create(t.Context(), spec, func(job.Progress) {})
			if err != nil {
				t.Fatal(err)
			}
			if vm.User != user {
				t.Errorf("its user is %q, want %q", vm.User, user)
			}
			if state, err := g.Probe(t.Context(), job.Job{ID: vm.Job, VM: &vm}); err != nil || state.Started {
				t.Errorf("probe: %+v, %v", state, err)
			}
			config, err := h.QM(t.Context(), "config", strconv.Itoa(vm.ID))
			if err != nil || !strings.Contains(config, "ciuser: "+user+"\n") || !strings.Contains(config, "size=5G") {
				t.Errorf("config: %v\n%s", err, config)
			}
			if err := p.Destroy(t.Context(), vm); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestIPv6Only_IsFoundByItsAgent(t *testing.T) {
	h := newLab(t, lab.DriverProcess) // one guest at a time: not parallel
	vm := ipv6Only(t, h, netip.MustParsePrefix("::1/128"))
	g := guest.New(guest.Options{Host: guest.Through(h.pool), Keys: oneKey(h.key), Port: h.Config.GuestPort})
	defer g.Close()
	if state, err := g.Probe(t.Context(), job.Job{ID: vm.Job, VM: &vm}); err != nil || state.Started {
		t.Errorf("probe: %+v, %v", state, err)
	}
}

// ipv6Only makes a VM that has an address of network and no IPv4.
func ipv6Only(t *testing.T, h *labHost, network netip.Prefix) vm.VM {
	v := newVM(t, h, func(o *proxmox.Options) { o.IPConfig = "auto6" })
	if ip, err := netip.ParseAddr(v.IP); err != nil || !network.Contains(ip) {
		t.Errorf("its address is %q, not in %s", v.IP, network)
	}
	return v
}
