package web

import (
	"slices"

	"linus/internal/field"
	"linus/internal/job"
)

// grouped returns the parts of a form of the manifest's fields that it has, in the order of the
// table.
func grouped(has func(field.Field) bool) (groups []group) {
	for _, f := range field.All() {
		if f.Group == "" || !has(f) {
			continue
		}
		at := slices.IndexFunc(groups, func(g group) bool { return g.Title == f.Group })
		if at < 0 {
			at = len(groups)
			groups = append(groups, group{Title: f.Group, Rare: f.Group != field.Task && f.Group != field.Machine})
		}
		groups[at].fields = append(groups[at].fields, f)
	}
	return groups
}

// jobGroups are the form of a job: all of its manifest.
func jobGroups() []group {
	var groups []group
	for _, g := range grouped(func(field.Field) bool { return true }) {
		switch g.Title {
		case field.Network:
			g.When = field.Where
		case field.Within:
			g.Extra = "env"
		}
		groups = append(groups, g)
		if g.Title == field.Task {
			groups = append(groups, group{Title: "Files", Extra: "files"})
		}
	}
	return groups
}

// machine are the form of a VM with the fields that a command has options for: one part, and its
// network.
func machine(title string, c field.Commands, more ...field.Field) []group {
	network, all := group{Title: field.Network, Rare: true, When: field.Where}, group{Title: title, fields: more}
	for _, f := range field.For(c) {
		if f.Group == field.Network {
			network.fields = append(network.fields, f)
		} else {
			all.fields = append(all.fields, f)
		}
	}
	return []group{all, network}
}

// vmGroups are the form of a persistent VM.
func vmGroups() []group { return machine("VM", field.CreateVM, field.Some("vmName")...) }

// poolDraft is a pool that does not exist yet.
type poolDraft struct {
	Name string `json:"name"`
	job.Manifest
	job.PoolSize
}

// poolGroups are the form of a pool.
func poolGroups() []group {
	groups := machine("Pool", field.CreatePool, field.Field{Name: "name", Label: "Name", Hint: "lower-case letters, digits and dashes"})
	return slices.Insert(groups, 1, poolSize()...)
}

// poolSize is the form of how many VMs a pool keeps.
func poolSize() []group { return []group{{Title: "Size", fields: field.PoolSize()}} }
