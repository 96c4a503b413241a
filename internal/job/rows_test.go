package job_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestSelect_FindsAndSortsRows(t *testing.T) {
	at := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	made := func(id int, name, node, principal string, status vm.Status, day int) job.VMInfo {
		v := job.VMInfo{VM: vm.VM{ID: id, Name: name, Node: node, Status: status}, Principal: principal, CreatedAt: at.AddDate(0, 0, day)}
		if day > 1 {
			v.ExpiresAt = at.AddDate(0, 1, -day)
		}
		if id > 100 {
			v.Labels = map[string]string{"team": name, "site": "north"}
		}
		return v
	}
	all := []job.VMInfo{
		made(100, "web", "pve1", "", vm.Running, 0), made(101, "Build", "pve2", "alice", vm.Stopped, 1),
		made(120, "db", "pve1", "alice", vm.Running, 2), made(103, "cache", "pve2", "", vm.Unproven, 3),
	}
	for _, tt := range []struct {
		name string
		q    job.Query
		want string
	}{
		{"all, as they are", job.Query{}, "web Build db cache"},
		{"status", job.Query{Status: "running"}, "web db"},
		{"text, in any case", job.Query{Text: "BUI"}, "Build"},
		{"text in the ID", job.Query{Text: "10"}, "web Build cache"},
		{"node", job.Query{Node: "pve2"}, "Build cache"},
		{"owner", job.Query{Principal: "alice"}, "Build db"},
		{"the operator's", job.Query{Principal: job.OperatorName}, "web cache"},
		{"since then, before then", job.Query{Since: at.AddDate(0, 0, 1), Before: at.AddDate(0, 0, 3)}, "Build db"},
		{"a label", job.Query{Label: []string{"team=db"}}, "db"},
		{"labels, all of which it has", job.Query{Label: []string{"site=north", "team=cache"}}, "cache"},
		{"a label that none has", job.Query{Label: []string{"site="}}, ""},
		{"several", job.Query{Principal: "alice", Status: "running"}, "db"},
		{"none", job.Query{Node: "pve3"}, ""},
		{"by name", job.Query{Sort: "name"}, "Build cache db web"},
		{"backwards by number", job.Query{Sort: "-vm_id"}, "db cache Build web"},
		{"by time, where never is last", job.Query{Sort: "expires_at"}, "cache db web Build"},
		{"equal ones stay in order", job.Query{Sort: "node"}, "web db Build cache"},
		{"by status, of some", job.Query{Sort: "-status", Node: "pve2"}, "Build cache"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := job.Select(all, tt.q)
			var names []string
			for _, v := range got {
				names = append(names, v.Name)
			}
			if err != nil || strings.Join(names, " ") != tt.want {
				t.Errorf("%v, %v; want %s", names, err, tt.want)
			}
		})
	}
	for _, wrong := range []string{"team", "Team=web", "team=a\tb", "=x", "a" + strings.Repeat("b", 63) + "=x", "a=" + strings.Repeat("ü", 64)} {
		var bad *job.FieldError
		if _, err := job.Select(all, job.Query{Label: []string{wrong}}); !errors.As(err, &bad) || bad.Field != "label" || bad.Remedy == "" {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	for field, q := range map[string]job.Query{"label": {Label: make([]string, job.MaxLabels+1)}, "status": {Status: "up"}, "sort": {Sort: "-ip"}, "text": {Text: strings.Repeat("x", job.MaxSearch+1)}} {
		_, err := job.Select(all, q)
		var bad *job.FieldError
		if !errors.As(err, &bad) || bad.Field != field || bad.Problem == "" || bad.Remedy == "" {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// What is more than one status, or the beginning of a sentence, is found by its words.
func TestSelect_StatusesOfOtherRows(t *testing.T) {
	check := func(what string, n int, err error) {
		t.Helper()
		if n != 1 || err != nil {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	nodes, err := job.Select([]job.NodeInfo{{Name: "a", Status: job.NodeOnline, Cordoned: true}, {Name: "b", Status: job.NodeOffline}}, job.Query{Status: "cordoned"})
	check("nodes", len(nodes), err)
	nodes, err = job.Select(nodes, job.Query{Status: "online"})
	check("a cordoned node", len(nodes), err)
	pools, err := job.Select([]job.PoolInfo{{State: "stopped after 3 identical failures: x"}, {State: "paused: y"}, {State: "ready"}}, job.Query{Status: "paused"})
	check("pools", len(pools), err)
	tokens, err := job.Select([]job.Token{{ID: "a", ExpiresAt: time.Now().Add(-time.Hour)}, {ID: "b"}}, job.Query{Status: "expired"})
	check("tokens", len(tokens), err)
	engines, err := job.Select([]job.EngineInfo{{ID: "1", Host: "pve-a"}, {ID: "2"}}, job.Query{Text: "pve"})
	check("engines", len(engines), err)
}

// A list can be asked only for what its rows have.
func TestListing_HasWhatItsRowsHave(t *testing.T) {
	for _, tt := range []struct {
		name   string
		of     job.Listing
		params string
	}{
		{"VMs", job.ListingOf[job.VMInfo](), "before cursor label limit node principal since sort status text"},
		{"tokens", job.ListingOf[job.Token](), "before cursor limit since sort status text"},
		{"engines", job.ListingOf[job.EngineInfo](), "cursor limit sort text"},
	} {
		slices.Sort(tt.of.Params)
		if got := strings.Join(tt.of.Params, " "); got != tt.params {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
}
