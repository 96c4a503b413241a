package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
)

// A report tells what did not work, and not whose host it is.
func TestHostReport_HasNoNamesAddressesOrKeys(t *testing.T) {
	secrets := []string{
		"pve7", "fast-ssd", "golden", "10.1.2.3", "fe80::be24:11ff:fe6d:1e5e", "bc:24:11:6d:1e:5e", "root@pve7", "pve7.corp.example", "vmbr9", "admin-laptop",
		"AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAA", "/var/lib/vz/images", "01a21c66-76b3-79d8-9eef-e80ca678712b", "host-test-e80ca678712b-main", "ada@corp.example", "tank", "vmbr7", "pve8", "web",
	}
	report := hostReport([]job.HostTest{{
		Status: job.HostTestFailed, Node: "pve7", Storage: "fast-ssd", Template: "golden", CreatedAt: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
		Of: job.HostFacts{Node: "pve7", Proxmox: "9.1.1", Storage: "lvmthin,dir", Template: "ab12"},
		Steps: []job.HostTestStep{
			{Name: "boot", Result: job.StepPassed, Seconds: 12.34, Text: "on pve7"},
			{Name: "volume", Result: job.StepFailed, Seconds: 1, Text: "create volume on root@pve7:22: storage 'fast-ssd' on node pve7 (fast-ssd, golden) with bridge 'vmbr9' of \"admin-laptop\": 10.1.2.3 fe80::be24:11ff:fe6d:1e5e bc:24:11:6d:1e:5e pve7.corp.example " +
				"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAA at /var/lib/vz/images of job 01a21c66-76b3-79d8-9eef-e80ca678712b in VM host-test-e80ca678712b-main by ada@corp.example", Remedy: "look at: pvesm status"},
			{Name: "fork", Result: job.StepSkipped, Text: "storage tank has no snapshots, and bridge vmbr7 on pve8 is not that of VM web: the node is busy"},
		},
	}}, []string{"pve7", "pve8"})
	for _, secret := range secrets {
		if strings.Contains(report, secret) {
			t.Errorf("it has %s:\n%s", secret, report)
		}
	}
	for _, want := range []string{"Proxmox VE 9.1.1, VMs on lvmthin,dir: failed on 2026-03-04", "boot             passed     12.3 s\n", "volume           failed      1.0 s  create volume on", "look at: pvesm status", "has no snapshots, and bridge … on … is not that of VM …: the node is busy"} {
		if !strings.Contains(report, want) {
			t.Errorf("it lacks %q:\n%s", want, report)
		}
	}
	if regexp.MustCompile(`[0-9]{1,3}(\.[0-9]{1,3}){3}`).MatchString(report) {
		t.Errorf("it has an address:\n%s", report)
	}
}
