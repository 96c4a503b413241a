package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

const build = "0199f000-0000-7000-8000-00000000000"

// aNode is a node with a template, on which every VM fits.
func aNode(name string, gib int, change ...func(*job.Node)) job.Node {
	n := job.Node{
		Name: name, Address: "10.0.0.1", Online: true, HA: "online", MemoryMB: gib << 10, HostKeys: []string{"ssh-rsa AAAA"},
		Storages:  []job.NodeStorage{{Name: "local-lvm", Active: true}},
		Templates: []job.NodeTemplate{{ID: 9000, Name: "debian", Sum: "1"}},
	}
	for _, c := range change {
		c(&n)
	}
	return n
}

func inventory(nodes ...job.Node) job.Inventory {
	return job.Inventory{Asked: nodes[0].Name, Cluster: true, Quorum: true, Spread: true, Nodes: nodes}
}

func spec(gib int) job.VMSpec { return job.VMSpec{MemoryMB: gib << 10, Template: "debian"} }

// needs asks for a node for a VM that is to have volumes.
func needs(volumes ...vm.Volume) job.Placement {
	return job.Placement{Spec: job.VMSpec{Volumes: volumes}}
}

// Each reason is told as people can act on it.
func TestPlace_TellsWhyANodeIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*job.Node)
		want   job.Placement
		text   string
		never  bool
	}{
		{name: "offline", change: func(n *job.Node) { n.Online = false }, text: "offline"},
		{name: "maintenance", change: func(n *job.Node) { n.HA = "maintenance" }, text: "in maintenance"},
		{name: "fenced", change: func(n *job.Node) { n.HA = "fence" }, text: "its HA state is fence"},
		{name: "cordoned", want: job.Placement{Cordoned: []string{"pve2", "pve1"}}, text: "cordoned (linus node uncordon pve1)"},
		{name: "memory of VMs that run", change: func(n *job.Node) {
			n.VMs = []job.NodeVM{{ID: 100, MemoryMB: 11 << 10}, {ID: 101, MemoryMB: 8 << 10, Stopped: true}}
		}, text: "3.4 GiB free of 16, needs 4"},
		{name: "memory of VMs that are being made", want: job.Placement{VMs: []job.PlacedVM{
			{Node: "pve1", MemoryMB: 6 << 10, Making: true}, {ID: 105, Node: "pve1", MemoryMB: 5 << 10}, {ID: 106, Node: "pve2", MemoryMB: 64 << 10},
		}}, text: "3.4 GiB free of 16, needs 4"},
		{name: "too small for ever", change: func(n *job.Node) { n.MemoryMB = 4 << 10 }, text: "3 GiB for VMs in all, needs 4", never: true},
		{name: "memory not known yet", change: func(n *job.Node) { n.MemoryMB = 0 }, text: "its memory is not known yet"},
		{name: "template", change: func(n *job.Node) { n.Templates = nil }, text: "template debian not there ({template build} --all-nodes)", never: true},
		{name: "template of an offline node", change: func(n *job.Node) { n.Templates, n.Online = nil, false }, text: "template debian not there ({template build} --all-nodes)", never: true},
		{name: "two templates of the name", change: func(n *job.Node) {
			n.Templates = append(n.Templates, job.NodeTemplate{ID: 9001, Name: "debian"})
		}, text: "template debian is the name of several templates there", never: true},
		{name: "storage", change: func(n *job.Node) { n.Storages[0].Name = "nfs" }, text: "storage local-lvm not there", never: true},
		{name: "storage down", change: func(n *job.Node) { n.Storages[0].Active = false }, text: "storage local-lvm is not active"},
		{name: "a volume of another node", want: needs(vm.Volume{Name: "cache", Node: "pve2"}), text: "volume cache is on node pve2, on storage local-lvm, which is not shared", never: true},
		{name: "a volume's storage", want: needs(vm.Volume{Name: "here", Node: "pve1"}, vm.Volume{Name: "cache", Node: "pve2", Storage: "nfs", Shared: true}), text: "storage nfs of volume cache not there", never: true},
		{name: "a volume's storage on an offline node", change: func(n *job.Node) { n.Online = false }, want: needs(vm.Volume{Name: "cache", Storage: "nfs", Shared: true}), text: "storage nfs of volume cache not there", never: true},
		{name: "a volume's storage down", change: func(n *job.Node) { n.Storages = append(n.Storages, job.NodeStorage{Name: "nfs", Shared: true}) },
			want: needs(vm.Volume{Name: "cache", Node: "pve2", Storage: "nfs", Shared: true}), text: "storage nfs of volume cache is not active"},
		{name: "limit", want: job.Placement{VMs: []job.PlacedVM{{ID: 1, Node: "pve1"}, {ID: 2, Node: "pve1"}, {ID: 3, Node: "pve1"}}}, text: "has 3 VMs of linus, the limit (MAX_VMS_PER_NODE)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := aNode("pve1", 16)
			if tt.change != nil {
				tt.change(&n)
			}
			volumes := tt.want.Spec.Volumes
			tt.want.Spec = spec(4)
			tt.want.Spec.Volumes = volumes
			r := candidates(inventory(n), tt.want, Options{Storage: "local-lvm", MaxVMs: 3})[0].refusal
			if r.Text != tt.text || r.Never != tt.never || r.Node != "pve1" || r.Reason == "" {
				t.Errorf("%+v, want %q, never %v", r, tt.text, tt.never)
			}
		})
	}
}

// Where a VM goes is told with what the others lack, or have left.
func TestPlace_TellsWhyANodeIsChosen(t *testing.T) {
	t.Parallel()
	nodes := []job.Node{aNode("pve1", 16), aNode("pve2", 32), aNode("pve3", 16, func(n *job.Node) { n.Online = false }), aNode("pve4", 16)}
	want := job.Placement{Spec: spec(4), Cordoned: []string{"pve4"}}
	many := nodes[:1:1]
	for i := range 8 {
		many = append(many, aNode(fmt.Sprint("small", i), 2))
	}
	for _, tt := range []struct {
		nodes []job.Node
		text  string
	}{
		{nodes[:1], "the only one there is"},
		{nodes, "14.4 GiB free of 16; also possible: pve2 (28.8 GiB free of 32); not possible: pve3 (offline), pve4 (cordoned (linus node uncordon pve4))"},
		{many, "14.4 GiB free of 16; not possible: small0 (1 GiB for VMs in all, needs 4), small1 (1 GiB for VMs in all, needs 4), small2 (1 GiB for VMs in all, needs 4) and 5 more"},
	} {
		if got := candidates(inventory(tt.nodes...), want, Options{Storage: "local-lvm"}).why(0); got != tt.text {
			t.Errorf("%q, want %q", got, tt.text)
		}
	}
}

// A VM of ours counts once: as the cluster shows it, or as its row says until it does.
func TestFree_CountsEachVMOnce(t *testing.T) {
	t.Parallel()
	const gib = 1 << 10
	n := aNode("pve1", 64)
	n.VMs = []job.NodeVM{{ID: 100, MemoryMB: 4 * gib}, {ID: 101, MemoryMB: 4 * gib, Stopped: true}}
	other := aNode("pve2", 64)
	other.VMs = []job.NodeVM{{ID: 102, MemoryMB: 4 * gib}}
	inv := inventory(n, other)
	most := n.MostMB()
	for _, tt := range []struct {
		name string
		vm   job.PlacedVM
		want int
	}{
		{"nothing of ours", job.PlacedVM{Node: "pve2", MemoryMB: 4 * gib}, most - 4*gib},
		{"shown, and running", job.PlacedVM{ID: 100, Node: "pve1", MemoryMB: 4 * gib}, most - 4*gib},
		{"shown, running, and still being made", job.PlacedVM{ID: 100, Node: "pve1", MemoryMB: 4 * gib, Making: true}, most - 4*gib},
		{"shown, and off", job.PlacedVM{ID: 101, Node: "pve1", MemoryMB: 4 * gib}, most - 4*gib},
		{"shown off, for it is being made", job.PlacedVM{ID: 101, Node: "pve1", MemoryMB: 4 * gib, Making: true}, most - 8*gib},
		{"not shown yet", job.PlacedVM{ID: 103, Node: "pve1", MemoryMB: 4 * gib}, most - 8*gib},
		{"without an ID yet", job.PlacedVM{Node: "pve1", MemoryMB: 4 * gib, Making: true}, most - 8*gib},
		{"moved to another node", job.PlacedVM{ID: 102, Node: "pve1", MemoryMB: 4 * gib}, most - 4*gib},
	} {
		if got := inv.FreeMB(n, []job.PlacedVM{tt.vm}); got != tt.want {
			t.Errorf("%s: %d MiB free, want %d", tt.name, got, tt.want)
		}
	}
}

// Only nodes with the newest build of a template get VMs of it. Of builds that do not
// tell their time, any counts.
func TestPlace_TakesTheNewestBuildOfATemplate(t *testing.T) {
	t.Parallel()
	const old = "7a1f1c1e-0000-4000-8000-000000000000" // a UUID without time
	for _, tt := range []struct {
		builds  [3]string
		refused string // which nodes
		why     string // of the first one
	}{
		{[3]string{"", "", ""}, "", ""},
		{[3]string{old, "", old}, "", ""},
		{[3]string{build + "1", build + "1", build + "1"}, "", ""},
		{[3]string{build + "1", build + "2", ""}, "pve1 pve3", "is of an older build than on other nodes (remove it, then {template build} --all-nodes)"},
		{[3]string{"", build + "1", build + "1"}, "pve1", "was not built by linus, as on other nodes (rename or remove it by hand, then {template build} --all-nodes)"},
		{[3]string{old, build + "1", build + "1"}, "pve1", "is of an older build"},
	} {
		var nodes []job.Node
		for i, b := range tt.builds {
			nodes = append(nodes, aNode(fmt.Sprint("pve", i+1), 16, func(n *job.Node) { n.Templates[0].Build = b }))
		}
		var refused []string
		refusals := candidates(inventory(nodes...), job.Placement{Spec: spec(1)}, Options{Storage: "local-lvm"}).refusals()
		for _, r := range refusals {
			refused = append(refused, r.Node)
		}
		if len(refusals) > 0 && !strings.HasPrefix(refusals[0].Text, "template debian "+tt.why) {
			t.Errorf("%v: %q, want %q", tt.builds, refusals[0].Text, tt.why)
		}
		if got := strings.Join(refused, " "); got != tt.refused {
			t.Errorf("%v: refused %q, want %q", tt.builds, got, tt.refused)
		}
	}
}

func TestNoRoom_IsForEverOnlyIfEveryNodeSaysSo(t *testing.T) {
	t.Parallel()
	never := job.Refusal{Node: "a", Text: "x", Never: true}
	later := job.Refusal{Node: "b", Text: "y"}
	for _, tt := range []struct {
		refusals []job.Refusal
		want     bool
	}{{nil, false}, {[]job.Refusal{never}, true}, {[]job.Refusal{never, later}, false}} {
		if got := (&job.NoRoomError{Refusals: tt.refusals}).Never(); got != tt.want {
			t.Errorf("%v: %v", tt.refusals, got)
		}
	}
	err := &job.NoRoomError{Refusals: []job.Refusal{never, later}}
	if want := "no node can take it: a: x; b: y"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

// 200 jobs on nodes of different size, also with jobs that end meanwhile: no node is over
// its limit, and each has its share.
func TestPlace_SpreadsByMemory(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][3]int{{256, 128, 64}, {512, 64, 64}, {256, 256, 256}, {600, 40, 20}} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprint(sizes, seed), func(t *testing.T) {
				t.Parallel()
				spread(t, sizes, seed)
			})
		}
	}
}

func spread(t *testing.T, sizes [3]int, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	var nodes []job.Node
	total := 0
	for i, gib := range sizes {
		nodes = append(nodes, aNode(fmt.Sprint("pve", i+1), gib))
		total += gib
	}
	inv := inventory(nodes...)
	var vms []job.PlacedVM
	count := map[string]int{}
	for i := range 200 {
		c := candidates(inv, job.Placement{Spec: spec(1), VMs: vms}, Options{Storage: "local-lvm"})
		at := c.draw(random.Float64)
		if at < 0 {
			t.Fatalf("job %d: %v", i, &job.NoRoomError{Refusals: c.refusals()})
		}
		vms = append(vms, job.PlacedVM{Node: c[at].Name, MemoryMB: 1 << 10, Making: true})
		count[c[at].Name]++
		if inv.FreeMB(c[at].Node, vms) < 0 {
			t.Fatalf("job %d: %s is over its limit", i, c[at].Name)
		}
	}
	for i, n := range nodes {
		share := float64(200*sizes[i]) / float64(total)
		if got := float64(count[n.Name]); got < 0.8*share-1 || got > 1.2*share+1 {
			t.Errorf("%s has %v of 200 jobs, its share is %.1f (%v)", n.Name, got, share, count)
		}
	}
}

// A full cluster takes as many VMs as fit, and no more.
func TestPlace_FillsTheClusterAndNotMore(t *testing.T) {
	t.Parallel()
	inv := inventory(aNode("pve1", 16), aNode("pve2", 8), aNode("pve3", 4))
	fit := 0
	for _, n := range inv.Nodes {
		fit += n.MostMB() / (2 << 10)
	}
	var vms []job.PlacedVM
	for {
		c := candidates(inv, job.Placement{Spec: spec(2), VMs: vms}, Options{Storage: "local-lvm"})
		at := c.draw(rand.Float64)
		if at < 0 {
			err := &job.NoRoomError{Refusals: c.refusals()}
			if len(err.Refusals) != 3 || err.Never() {
				t.Errorf("%v", err)
			}
			break
		}
		vms = append(vms, job.PlacedVM{Node: c[at].Name, MemoryMB: 2 << 10})
	}
	if len(vms) != fit {
		t.Errorf("%d VMs, %d fit", len(vms), fit)
	}
}

func TestFits_KnowsWhatNeverFits(t *testing.T) {
	t.Parallel()
	p := New(Options{Storage: "local-lvm", Only: []string{"pve1", "pve2"}})
	if err := p.Fits(t.Context(), spec(1000)); err != nil {
		t.Errorf("nothing is known of the cluster: %v", err)
	}
	p.inv = inventory(aNode("pve1", 16), aNode("pve2", 32, func(n *job.Node) { n.Online = false }), aNode("pve3", 2000))
	p.err, p.triedAt = errors.New("the entry is away"), time.Now() // so the second look adds nothing
	for gib, never := range map[int]bool{4: false, 20: false, 32: true} {
		err := p.Fits(t.Context(), spec(gib))
		var full *job.NoRoomError
		if errors.As(err, &full) != never {
			t.Errorf("%d GiB: %v", gib, err)
		}
	}
}

// A VM goes where its volumes can be; where they never can, each node says which one and why.
func TestPlace_GoesWhereTheVolumesAre(t *testing.T) {
	t.Parallel()
	nfs := func(n *job.Node) {
		n.Storages = append(n.Storages, job.NodeStorage{Name: "nfs", Active: true, Shared: true})
	}
	inv := inventory(aNode("pve1", 16), aNode("pve2", 16, nfs), aNode("pve3", 16, nfs))
	shared, local := vm.Volume{Name: "all", Node: "pve3", Storage: "nfs", Shared: true}, vm.Volume{Name: "one", Node: "pve2"}
	lost := vm.Volume{Name: "lost", Node: "pve9"}
	p := New(Options{Storage: "local-lvm"})
	p.inv, p.err, p.triedAt = inv, errors.New("the entry is away"), time.Now()
	for _, c := range []struct {
		name    string
		node    string
		volumes []vm.Volume
		able    string
		never   string
	}{
		{name: "a shared storage", volumes: []vm.Volume{shared}, able: "pve2 pve3"},
		{name: "a local one, too", volumes: []vm.Volume{shared, local}, able: "pve2"},
		{name: "of a node that is gone", volumes: []vm.Volume{lost}, never: "no node can take it: " +
			"pve1: volume lost is on node pve9, on storage local-lvm, which is not shared; pve2: volume lost is on node pve9, on storage local-lvm, which is not shared; pve3: volume lost is on node pve9, on storage local-lvm, which is not shared"},
		{name: "on a node without its storage", node: "pve1", volumes: []vm.Volume{shared}, never: "no node can take it: pve1: storage nfs of volume all not there"},
		{name: "on a node with its storage", node: "pve2", volumes: []vm.Volume{shared}, able: "pve2"},
		{name: "on no node of ours", node: "pve9", never: "no node can take it: pve9: not among the nodes that VMs are created on (linus node list)"},
	} {
		want := spec(4)
		want.Volumes, want.Node = c.volumes, c.node
		var able []string
		for _, at := range candidates(inv, job.Placement{Spec: want, Only: c.node}, p.o) {
			if at.refusal.Reason == "" {
				able = append(able, at.Name)
			}
		}
		if got := strings.Join(able, " "); got != c.able {
			t.Errorf("%s: %q can have it, want %q", c.name, got, c.able)
		}
		never := ""
		if err := p.Fits(t.Context(), want); err != nil {
			never = err.Error()
		}
		if never != c.never {
			t.Errorf("%s: %s, want %s", c.name, never, c.never)
		}
	}
}
