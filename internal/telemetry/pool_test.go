package telemetry

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestMetrics_OfPools(t *testing.T) {
	member := func(pool string, state vm.MemberState) vm.VM {
		return vm.VM{Member: &vm.Member{Pool: pool, State: state}}
	}
	m := NewMetrics("v1", jobs{
		members: []vm.VM{member("p", vm.MemberWarm), member("p", vm.MemberWarm), member("p", vm.MemberClaimed), member("q", vm.MemberMaking)},
	}, slog.New(slog.DiscardHandler))
	m.Observe(job.PoolEvent{Pool: "p", Kind: job.PoolHit, Took: 20 * time.Millisecond})
	m.Observe(job.PoolEvent{Pool: "p", Kind: job.PoolMiss})
	m.Observe(job.PoolEvent{Pool: "p", Kind: job.PoolFell})
	m.Observe(job.PoolEvent{Pool: "q", Kind: job.PoolFailed})
	wantSamples(t, m, map[string]string{
		`linus_pool_members{pool="p",state="warm"}`:               "2",
		`linus_pool_members{pool="p",state="claimed"}`:            "1",
		`linus_pool_members{pool="p",state="doomed"}`:             "0",
		`linus_pool_members{pool="q",state="making"}`:             "1",
		`linus_pool_claims_total{pool="p",result="hit"}`:          "1",
		`linus_pool_claims_total{pool="p",result="miss"}`:         "1",
		`linus_pool_claims_total{pool="p",result="fell_through"}`: "1",
		`linus_pool_claim_seconds_count{pool="p"}`:                "1",
		`linus_pool_refill_failures_total{pool="q"}`:              "1",
		`linus_pool_claim_seconds_bucket{pool="p",le="0.01"}`:     "0",
		`linus_pool_claim_seconds_bucket{pool="p",le="0.025"}`:    "1",
	})
}

func TestAudit_OfPools(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a := NewAudit(AuditOptions{Path: path, Log: slog.New(slog.DiscardHandler)})
	a.Observe(job.PoolEvent{Pool: "p", Kind: job.PoolCreated, By: job.Caller{Client: "cli"}, Detail: "2 warm"})
	a.Observe(job.PoolEvent{Pool: "p", Kind: job.PoolMiss, Job: "j1"}) // nothing was done
	a.Observe(job.PoolEvent{Pool: "p", Kind: job.PoolHit, Job: "j2", VM: vm.VM{ID: 105, Name: "vm"}, Took: time.Second})
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []Record
	for line := range strings.Lines(string(data)) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, r)
	}
	if len(rows) != 2 || rows[0].Action != "create_pool" || rows[0].Who != "cli" || rows[0].Pool != "p" || rows[0].Detail != "2 warm" {
		t.Fatalf("rows %+v", rows)
	}
	if r := rows[1]; r.Action != "claim_vm" || r.Who != engineName || r.Job != "j2" || r.VMID != 105 || r.Pool != "p" || r.Result != ResultOK {
		t.Errorf("row %+v", r)
	}
}
