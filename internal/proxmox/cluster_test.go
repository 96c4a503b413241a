package proxmox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/proxmox"
	"linus/internal/vm"
)

// newClusterLab is one installation that uses three nodes, each by its own provider.
func newClusterLab(t *testing.T) []*labHost {
	t.Helper()
	first := newLabAs(t, lab.Options{Driver: lab.DriverProcess, Nodes: 3})
	nodes, err := first.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	hosts := []*labHost{first}
	for _, l := range nodes[1:] {
		h := &labHost{Lab: l, owner: first.owner, key: first.key, public: first.public, scripts: first.scripts + "-" + l.Config.Node}
		h.dial(t)
		hosts = append(hosts, h)
	}
	return hosts
}

// anywhere are the configs of VMs and their volumes, but for the templates', on all nodes.
func anywhere(t *testing.T, l *lab.Lab) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"etc/pve/nodes/*/qemu-server/*.conf", "storage/*/vm-*", "storage/*/images/*/vm-*", "nodes/*/storage/*/vm-*", "nodes/*/storage/*/images/*/vm-*", "cluster/storage/*/images/*/vm-*"} {
		files, err := filepath.Glob(filepath.Join(l.Root(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, files...)
	}
	return slices.DeleteFunc(found, func(file string) bool { return strings.Contains(file, "/900") || strings.Contains(file, "vm-900") })
}

// TestCluster takes the host scripts through what happens on a cluster. Each step
// leaves the lab as it found it.
func TestCluster(t *testing.T) {
	t.Parallel()
	hosts := newClusterLab(t)
	first, second, third := hosts[0], hosts[1], hosts[2]
	ctx := t.Context()
	create := func(t *testing.T, h *labHost, change func(*proxmox.Options)) vm.VM {
		t.Helper()
		v, err := h.provider(t, change).Create(ctx, h.spec(), func(job.Progress) {})
		if err != nil {
			t.Fatalf("create on %s: %v", h.Config.Node, err)
		}
		if v.Node != h.Config.Node {
			t.Errorf("VM %d is on %s, asked for on %s", v.ID, v.Node, h.Config.Node)
		}
		return v
	}
	destroy := func(t *testing.T, h *labHost, v vm.VM) {
		t.Helper()
		if err := h.provider(t, nil).Destroy(ctx, v); err != nil {
			t.Errorf("destroy VM %d on %s: %v", v.ID, h.Config.Node, err)
		}
	}
	// listed are the nodes of the VMs that a node lists. offline is the node that it must
	// have said it could not ask; "": none.
	listed := func(t *testing.T, h *labHost, offline string) map[int]string {
		t.Helper()
		vms, err := h.provider(t, nil).List(ctx)
		if offline == "" && err != nil || offline != "" && (err == nil || !strings.Contains(err.Error(), "node '"+offline+"' is offline")) {
			t.Fatalf("list: %v", err)
		}
		nodes := map[int]string{}
		for _, v := range vms {
			nodes[v.ID] = v.Node
		}
		return nodes
	}
	nothingLeft := func(t *testing.T) {
		t.Helper()
		if left := anywhere(t, first.Lab); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}

	t.Run("NodesTakeTheIDsTheyGet", func(t *testing.T) {
		// As many VMs as IDs: all meet at the same ones.
		vms := make([]vm.VM, len(hosts))
		var all sync.WaitGroup
		for i, h := range hosts {
			all.Go(func() {
				vms[i] = create(t, h, func(o *proxmox.Options) { o.VMIDRange = "300-302" })
			})
		}
		all.Wait()
		if nodes := listed(t, second, ""); len(nodes) != 3 {
			t.Errorf("listed over the nodes: %v", nodes)
		}
		for i, h := range hosts {
			destroy(t, h, vms[i])
		}
		nothingLeft(t)
	})

	t.Run("AMovedVM", func(t *testing.T) {
		v := create(t, first, nil)
		id := strconv.Itoa(v.ID)
		if _, err := first.QM(ctx, "migrate", id, "pve3", "--online", "--with-local-disks"); err != nil {
			t.Fatal(err)
		}
		if node := listed(t, first, "")[v.ID]; node != "pve3" {
			t.Errorf("listed on %q", node)
		}
		err := first.provider(t, nil).Destroy(ctx, v)
		if err == nil || !strings.Contains(err.Error(), "pve3") {
			t.Errorf("destroy where it was: %v", err)
		}
		if out, err := third.QM(ctx, "status", id); err != nil || out != "status: running\n" {
			t.Errorf("after a destroy on its old node: %q, %v", out, err)
		}
		v.Node = "pve3"
		destroy(t, third, v)
		nothingLeft(t)
	})

	t.Run("AVolumeOfAllNodes", func(t *testing.T) {
		make := func(name, storage string) vm.Volume {
			t.Helper()
			id := uuid.NewString()
			v, err := first.provider(t, nil).CreateVolume(ctx, vm.Volume{ID: id, Name: name, Owner: first.owner, SizeGB: 1, Storage: storage})
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		all, one := make("all", "shared"), make("one", "local-lvm")
		if !all.Shared || one.Shared || all.Node != "pve1" {
			t.Errorf("made: %+v, %+v", all, one)
		}
		there, elsewhere := create(t, second, nil), create(t, third, nil)
		use := vm.VolumeUse{Path: "/srv/cache"}
		if err := second.provider(t, nil).AttachVolume(ctx, all, there, use); err != nil {
			t.Fatalf("on a node that shares its storage: %v", err)
		}
		if err := second.provider(t, nil).AttachVolume(ctx, one, there, use); err == nil || !strings.Contains(err.Error(), "is on node 'pve1', on storage 'local-lvm', which that node does not share") {
			t.Errorf("on a node that does not: %v", err)
		}
		if err := third.provider(t, nil).AttachVolume(ctx, all, elsewhere, use); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("is attached to VM %d (rw)", there.ID)) {
			t.Errorf("a second writer, on another node: %v", err)
		}
		if err := first.provider(t, nil).RemoveVolume(ctx, all); err == nil || !strings.Contains(err.Error(), "is attached to") {
			t.Errorf("removed while another node has it: %v", err)
		}
		destroy(t, second, there) // with it
		if err := third.provider(t, nil).AttachVolume(ctx, all, elsewhere, use); err != nil {
			t.Errorf("when that has gone: %v", err)
		}
		if err := third.provider(t, nil).DetachVolume(ctx, all, elsewhere); err != nil {
			t.Error(err)
		}
		destroy(t, third, elsewhere)
		for _, v := range []vm.Volume{all, one} {
			if err := first.provider(t, nil).RemoveVolume(ctx, v); err != nil {
				t.Error(err)
			}
		}
		nothingLeft(t)
	})

	t.Run("ANodeDown", func(t *testing.T) {
		here, there := create(t, first, nil), create(t, second, nil)
		if err := first.NodeDown(ctx, "pve2"); err != nil {
			t.Fatal(err)
		}
		if nodes := listed(t, first, "pve2"); nodes[here.ID] != "pve1" || nodes[there.ID] != "" {
			t.Errorf("listed: %v", nodes)
		}
		if err := first.NodeUp(ctx, "pve2"); err != nil {
			t.Fatal(err)
		}
		second.dial(t)
		destroy(t, first, here)
		destroy(t, second, there)
		nothingLeft(t)
	})

	t.Run("NoQuorum", func(t *testing.T) {
		for _, h := range hosts {
			if err := first.SetCutOff(ctx, h.Config.Node, true); err != nil {
				t.Fatal(err)
			}
		}
		_, err := first.provider(t, nil).Create(ctx, first.spec(), func(job.Progress) {})
		if err == nil || !strings.Contains(err.Error(), "quorum") {
			t.Errorf("create: %v", err)
		}
		for _, h := range hosts {
			if err := first.SetCutOff(ctx, h.Config.Node, false); err != nil {
				t.Fatal(err)
			}
		}
		nothingLeft(t)
	})

	t.Run("QuorumLostInTheMiddle", func(t *testing.T) {
		// The link breaks when the clone is there: from then on nothing can be changed.
		qm, binary := filepath.Join(third.BinDir(), "qm"), third.Config.Binary
		script := fmt.Sprintf("#!/bin/bash\n[[ $1 != set ]] || %s quorum lost pve3 --dir %s\nexec -a qm %s \"$@\"\n", binary, third.Root(), binary)
		if err := errors.Join(os.Remove(qm), os.WriteFile(qm, []byte(script), 0o755)); err != nil {
			t.Fatal(err)
		}
		_, err := third.provider(t, nil).Create(ctx, third.spec(), func(job.Progress) {})
		if err == nil || !strings.Contains(err.Error(), "pvecm status") {
			t.Fatalf("create, while quorum is lost: %v", err)
		}
		if len(anywhere(t, first.Lab)) == 0 {
			t.Error("what was made was taken away without quorum")
		}
		if err := errors.Join(os.Remove(qm), os.Symlink(binary, qm), first.SetCutOff(ctx, "pve3", false)); err != nil {
			t.Fatal(err)
		}
		// With quorum again it is found by its marker and destroyed.
		vms, err := third.provider(t, nil).List(ctx)
		if err != nil || len(vms) != 1 {
			t.Fatalf("listed: %v, %v", vms, err)
		}
		destroy(t, third, vms[0])
		nothingLeft(t)
	})
}
