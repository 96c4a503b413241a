package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/vm"
)

// offersTime limits the time for reading what there is. If it runs out, the form offers fewer
// choices.
const offersTime = 2 * time.Second

// offers are the choices of a form that the viewer may see.
type offers struct {
	templates, vms []string
	pools          []job.PoolInfo
}

type poolOffer struct {
	Name, Text string
	Fill       string // the form fields that ask for such a VM, as a query
}

// offers reads the templates, VMs and pools that there are.
func (p *pages) offers(r *http.Request) (o offers) {
	ctx, cancel := context.WithTimeout(r.Context(), offersTime)
	defer cancel()
	who := p.viewer(r).Who
	var all sync.WaitGroup
	look := func(verb job.AnyVerb, f func()) {
		if who.May(verb) {
			all.Go(f)
		}
	}
	look(job.VerbVMs, func() {
		infos, _ := p.Engine.VMs(ctx)
		for _, info := range infos {
			if (vmRow{VMInfo: info}).CanGo() {
				o.vms = append(o.vms, info.Name)
			}
		}
	})
	look(job.VerbPools, func() { o.pools, _ = p.Engine.Pools(ctx) })
	look(job.VerbNodes, func() {
		nodes, _ := p.Engine.Nodes(ctx)
		for _, n := range nodes {
			o.templates = append(o.templates, n.Templates...)
		}
	})
	all.Wait()
	if !who.Admin() { // those who may not list nodes may still have been granted template names
		o.templates = slices.DeleteFunc(slices.Clone(who.Templates), func(name string) bool {
			return strings.ContainsAny(name, "*?") || slices.Contains(vm.Systems, name)
		})
	}
	slices.Sort(o.templates)
	o.templates = slices.Compact(o.templates)
	return o
}

// offer adds the choices to a form.
func (v *formView) offer(o offers) {
	for i := range v.Groups {
		for j := range v.Groups[i].Controls {
			c := &v.Groups[i].Controls[j]
			c.Choose = map[field.Offer][]string{field.Templates: o.templates, field.VMs: o.vms}[c.Offers]
		}
	}
	for _, p := range o.pools {
		v.Pools = append(v.Pools, poolOffer{Name: p.Name, Text: poolText(p), Fill: poolFill(p.Pool).Encode()})
	}
}

func poolText(p job.PoolInfo) string {
	ready := p.Count(vm.MemberWarm) + p.Count(vm.MemberHibernated)
	return fmt.Sprintf("%s, %d CPU, %s, %s disk; %d ready", p.VMTemplate+p.OS, p.Resources.CPU, p.Resources.Memory, p.Resources.Disk, ready)
}

// asking returns the manifest of a job that asks for a VM of the pool.
func asking(p job.Pool) job.Manifest {
	return job.Manifest{VMTemplate: p.VMTemplate, OS: p.OS, Resources: p.Resources, Network: p.Network}
}

// poolFill returns the form fields of the manifest that asking returns.
func poolFill(p job.Pool) url.Values {
	fill, m := url.Values{}, asking(p)
	for _, f := range field.For(field.CreatePool) {
		if f.Group == field.Machine || f.Group == field.Network {
			fill.Set(f.Name, shown(f, m))
		}
	}
	return fill
}
