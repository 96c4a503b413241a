package web

import (
	"slices"

	"linus/internal/field"
	"linus/internal/job"
)

// grouped returns form groups with the manifest's fields that has accepts, in the order of the
// field table.
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

// jobGroups returns the form of a job, which has all fields of the manifest.
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

// machine returns the form of a VM with the fields that command c has options for: one group, and
// one for the network.
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

func vmGroups() []group { return machine("VM", field.CreateVM, field.Some("vmName")...) }

// poolDraft is a pool that does not exist yet.
type poolDraft struct {
	Name string `json:"name"`
	job.Manifest
	job.PoolSize
}

func poolGroups() []group {
	groups := machine("Pool", field.CreatePool, field.Field{Name: "name", Label: "Name", Hint: "lower-case letters, digits and dashes"})
	return slices.Insert(groups, 1, poolSize()...)
}

func poolSize() []group { return []group{{Title: "Size", fields: field.PoolSize()}} }
