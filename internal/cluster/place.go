package cluster

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Place chooses a node for a new VM. It draws two of the nodes that can take the VM at random, and
// chooses the one with the larger share of its memory left. It returns *job.NoRoomError if there is
// none.
func (p *Provider) Place(ctx context.Context, want job.Placement) (job.Placed, error) {
	inv, err := p.Nodes(ctx)
	if !want.Planned && candidates(inv, want, p.o).never() != nil { // another engine may have just made its template
		inv, err = p.reread(ctx)
	}
	if err != nil {
		return job.Placed{}, err
	}
	if !inv.Quorum {
		return job.Placed{}, &job.NoRoomError{Text: "the cluster has no quorum (asked on node '" + inv.Asked + "'): " +
			"bring the other nodes back, until then Proxmox refuses every change; look at: pvecm status"}
	}
	c := candidates(inv, want, p.o)
	defer func() {
		for _, r := range c.refusals() {
			if !want.Planned {
				p.o.Refused(r)
			}
		}
	}()
	for {
		i := c.draw(rand.Float64)
		if i < 0 {
			return job.Placed{}, &job.NoRoomError{Refusals: c.refusals()}
		}
		if r := p.look(ctx, c[i].Node, cmp.Or(want.Spec.Network.Bridge, p.o.Bridge)); r.Reason != "" {
			c[i].refusal = r
			continue
		}
		return job.Placed{Node: c[i].Name, Why: c.why(i)}, nil
	}
}

// refitTime bounds how long a submit waits for a second look at the cluster.
const refitTime = 5 * time.Second

// reread is Nodes, but never from memory.
func (p *Provider) reread(ctx context.Context) (job.Inventory, error) {
	p.mu.Lock()
	p.readAt = time.Time{}
	p.mu.Unlock()
	return p.Nodes(ctx)
}

// Fits returns *job.NoRoomError if it is known that no node can ever take the VM. Before that it
// reads the cluster's state again: a template or a node may have just been added.
func (p *Provider) Fits(ctx context.Context, spec job.VMSpec) error {
	err := p.fits(p.known(), spec)
	if err == nil {
		return nil
	}
	timed, end := context.WithTimeout(ctx, refitTime)
	defer end()
	inv, unread := p.reread(timed)
	if unread != nil {
		return err
	}
	return p.fits(inv, spec)
}

func (p *Provider) fits(inv job.Inventory, spec job.VMSpec) error {
	inv.Nodes = p.used(inv)
	if len(inv.Nodes) == 0 {
		return nil
	}
	if err := candidates(inv, job.Placement{Spec: spec, Only: spec.Node}, p.o).never(); err != nil {
		return err
	}
	return nil
}

// candidate is a node, and what it has left for new VMs.
type candidate struct {
	job.Node
	free, needs int // MiB
	refusal     job.Refusal
}

type candidateList []candidate

// never returns the refusals if no candidate can ever take the VM; nil: one may.
func (l candidateList) never() *job.NoRoomError {
	err := &job.NoRoomError{Refusals: l.refusals()}
	if len(err.Refusals) < len(l) || !err.Never() {
		return nil
	}
	return err
}

func candidates(inv job.Inventory, want job.Placement, o Options) candidateList {
	list := make(candidateList, 0, len(inv.Nodes))
	newest := inv.NewestBuild(want.Spec.Template)
	for _, n := range inv.Nodes {
		if want.Only != "" && n.Name != want.Only {
			continue
		}
		c := candidate{Node: n, free: inv.FreeMB(n, want.VMs), needs: want.Spec.MemoryMB}
		c.refusal = c.judge(want, newest, o)
		c.refusal.Node = n.Name
		list = append(list, c)
	}
	if want.Only != "" && len(list) == 0 {
		list = append(list, candidate{Node: job.Node{Name: want.Only}, refusal: job.Refusal{
			Node: want.Only, Reason: job.RefusedOffline, Never: true, Text: "not among the nodes that VMs are created on (linus node list)",
		}})
	}
	return list
}

// judge returns why the node cannot take the VM; without a reason, it can. Reasons that waiting
// does not change come first.
func (c candidate) judge(want job.Placement, newest string, o Options) job.Refusal {
	refuse := func(reason job.RefusalReason, never bool, text string, args ...any) job.Refusal {
		return job.Refusal{Reason: reason, Never: never, Text: fmt.Sprintf(text, args...)}
	}
	if r := c.judgeTemplate(want.Spec.Template, newest); r.Reason != "" {
		return r
	}
	volumes := c.judgeVolumes(want.Spec.Volumes, o.Storage)
	if volumes.Never {
		return volumes
	}
	storage := slices.IndexFunc(c.Storages, func(s job.NodeStorage) bool { return s.Name == o.Storage })
	ours := 0
	for _, vm := range want.VMs {
		if vm.Node == c.Name {
			ours++
		}
	}
	switch {
	case c.MemoryMB > 0 && c.needs > c.MostMB():
		return refuse(job.RefusedMemory, true, "%s GiB for VMs in all, needs %s", gib(c.MostMB()), gib(c.needs))
	case storage < 0:
		return refuse(job.RefusedStorage, true, "storage %s not there", o.Storage)
	case !c.Online:
		return refuse(job.RefusedOffline, false, "offline")
	case c.HA == "maintenance":
		return refuse(job.RefusedMaintenance, false, "in maintenance")
	case c.Maintained():
		return refuse(job.RefusedMaintenance, false, "its HA state is %s", c.HA)
	case slices.Contains(want.Cordoned, c.Name):
		return refuse(job.RefusedCordoned, false, "cordoned (linus node uncordon %s)", c.Name)
	case !c.Storages[storage].Active:
		return refuse(job.RefusedStorage, false, "storage %s is not active", o.Storage)
	case volumes.Reason != "":
		return volumes
	case o.MaxVMs > 0 && ours >= o.MaxVMs:
		return refuse(job.RefusedLimit, false, "has %d VMs of linus, the limit (MAX_VMS_PER_NODE)", ours)
	case c.MemoryMB == 0:
		return refuse(job.RefusedMemory, false, "its memory is not known yet")
	case c.needs > c.free:
		return refuse(job.RefusedMemory, false, "%s GiB free of %s, needs %s", gib(max(0, c.free)), gib(c.MemoryMB), gib(c.needs))
	}
	return job.Refusal{}
}

// judgeVolumes returns why the node cannot have all of the volumes.
func (c candidate) judgeVolumes(all []vm.Volume, storage string) (r job.Refusal) {
	for _, v := range all {
		on := cmp.Or(v.Storage, storage)
		at := slices.IndexFunc(c.Storages, func(s job.NodeStorage) bool { return s.Name == on })
		switch {
		case !v.Shared && v.Node != "" && v.Node != c.Name:
			return job.Refusal{Reason: job.RefusedVolume, Never: true, Text: fmt.Sprintf("volume %s is on node %s, on storage %s, which is not shared", v.Name, v.Node, on)}
		case at < 0:
			return job.Refusal{Reason: job.RefusedVolume, Never: true, Text: fmt.Sprintf("storage %s of volume %s not there", on, v.Name)}
		case !c.Storages[at].Active:
			r = job.Refusal{Reason: job.RefusedVolume, Text: fmt.Sprintf("storage %s of volume %s is not active", on, v.Name)}
		}
	}
	return r
}

func (c candidate) judgeTemplate(template, newest string) job.Refusal {
	if template == "" {
		return job.Refusal{}
	}
	why := c.Unused(template, newest)
	if why == "" {
		return job.Refusal{}
	}
	remedy := "" // several of that name: whoever made them knows which one is meant
	switch at, several := c.Template(template); {
	case at < 0:
		remedy = fmt.Sprintf(" (%s --all-nodes)", job.BuildTemplate)
	case several:
	case c.Templates[at].Build == "":
		remedy = fmt.Sprintf(" (rename or remove it by hand, then %s --all-nodes)", job.BuildTemplate)
	default:
		remedy = fmt.Sprintf(" (remove it, then %s --all-nodes)", job.BuildTemplate)
	}
	return job.Refusal{Reason: job.RefusedTemplate, Never: true, Text: "template " + template + " " + why + remedy}
}

// draw returns the index of the candidate for the VM, or -1. Of the two that it compares, one is
// drawn in proportion to memory, so that a large node among small ones gets its share, and the
// other evenly, so that a small node does.
func (l candidateList) draw(random func() float64) int {
	var able []int
	total := 0
	for i, c := range l {
		if c.refusal.Reason == "" {
			able = append(able, i)
			total += c.MemoryMB
		}
	}
	if len(able) == 0 {
		return -1
	}
	a, b := able[len(able)-1], able[int(random()*float64(len(able)))]
	point := random() * float64(total)
	for _, i := range able {
		if point -= float64(l[i].MemoryMB); point < 0 {
			a = i
			break
		}
	}
	if l[b].left() > l[a].left() {
		return b
	}
	return a
}

// left is the share of the node's memory that is free once it has the VM.
func (c candidate) left() float64 { return float64(c.free-c.needs) / float64(c.MemoryMB) }

func (l candidateList) refusals() []job.Refusal {
	var list []job.Refusal
	for _, c := range l {
		if c.refusal.Reason != "" {
			list = append(list, c.refusal)
		}
	}
	return list
}

// mostNamed is how many other nodes of a kind why names.
const mostNamed = 3

// why says, for people, what the chosen node has left, and what the other nodes do.
func (l candidateList) why(chosen int) string {
	if len(l) == 1 {
		return "the only one there is"
	}
	room := func(c candidate) string { return gib(c.free) + " GiB free of " + gib(c.MemoryMB) }
	var able, unable []string
	for i, c := range l {
		switch {
		case i == chosen:
		case c.refusal.Reason == "":
			able = append(able, c.Name+" ("+room(c)+")")
		default:
			unable = append(unable, c.Name+" ("+c.refusal.Text+")")
		}
	}
	text := room(l[chosen])
	some := func(what string, nodes []string) {
		if len(nodes) > 0 {
			text += "; " + what + ": " + strings.Join(nodes[:min(mostNamed, len(nodes))], ", ")
		}
		if more := len(nodes) - mostNamed; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
	}
	some("also possible", able)
	some("not possible", unable)
	return text
}

// gib returns a size in GiB, with one decimal where it is needed.
func gib(mib int) string {
	return strings.TrimSuffix(strconv.FormatFloat(float64(mib)/1024, 'f', 1, 64), ".0")
}

type bridgeOn struct{ node, bridge string }

// sight is what was seen of a bridge, and until when that counts.
type sight struct {
	refusal job.Refusal
	until   time.Time
}

// How long a result counts: that all was well, and that it was not.
const (
	okTTL   = 5 * time.Minute
	failTTL = 30 * time.Second
)

// look checks over SSH that the node can be reached, and has the bridge.
func (p *Provider) look(ctx context.Context, n job.Node, bridge string) job.Refusal {
	key := bridgeOn{n.Name, bridge}
	p.mu.Lock()
	seen := p.bridges[key]
	p.mu.Unlock()
	if time.Now().Before(seen.until) {
		return seen.refusal
	}
	there := false
	node, err := p.node(ctx, n.Name)
	if err == nil {
		there, err = node.HasBridge(ctx, bridge)
	}
	seen = sight{until: time.Now().Add(okTTL)}
	switch {
	case err != nil:
		seen = sight{job.Refusal{Node: n.Name, Reason: job.RefusedUnreachable, Text: err.Error()}, time.Now().Add(failTTL)}
	case !there:
		seen = sight{job.Refusal{Node: n.Name, Reason: job.RefusedBridge, Text: "bridge " + bridge + " not there", Never: true}, time.Now().Add(failTTL)}
	}
	if ctx.Err() == nil {
		p.mu.Lock()
		p.bridges[key] = seen
		p.mu.Unlock()
	}
	return seen.refusal
}
