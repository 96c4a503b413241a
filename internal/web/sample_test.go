package web_test

import (
	"fmt"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

const doneID = "0197a1b2-0000-7000-8000-0000000000d1"

// sample is an engine with something to see on every page.
func sample() *engine {
	now := time.Now()
	ago := func(s float64) time.Time { return now.Add(-time.Duration(s * float64(time.Second))) }
	code := 0
	e := &engine{
		echoes: true,
		outputs: map[string]string{
			job.Stdout: "\x1b[1mBuilding 214 packages\x1b[0m\n\x1b[32m✓\x1b[0m vet\n\x1b[32m✓\x1b[0m unit tests\n\x1b[33m!\x1b[0m integration: " +
				strings.Repeat("a-long-name/", 20) + "\n  compiling  10%\r  compiling  64%",
			job.Stderr: "\x1b[31merror:\x1b[0m cannot find <package> \"x\"\n",
		},
		report: job.HostReport{Host: "root@pve.example.lan:22", Node: "pve", Checks: []job.Check{
			{Name: "ssh", Level: "ok", Text: "logged in as root"},
			{Name: "version", Level: "ok", Text: "Proxmox VE 9.2"},
			{Name: "storage", Level: "warn", Text: "local-lvm has 11 GiB free of 400 GiB", Remedy: "free space, or set PROXMOX_STORAGE to another storage"},
			{Name: "template", Level: "fail", Text: "there is no template agent-template", Remedy: string(job.BuildTemplate) + " makes one"},
		}},
		pools: []job.PoolInfo{{
			Pool: job.Pool{
				Name: "ready", VMTemplate: "agent-template", Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"},
				Labels: map[string]string{"team": "web"}, PoolSize: job.PoolSize{Warm: 2, Hibernated: 1}, Hits: 9, Misses: 1,
			},
			State: "paused: <b>jobs</b> wait, and go first",
			Members: []vm.MemberInfo{
				{VM: vm.VM{ID: 106}, State: vm.MemberWarm, Since: time.Now().Add(-time.Hour), Maker: doneID},
				{VM: vm.VM{ID: 107}, State: vm.MemberClaimed, Since: time.Now().Add(-time.Minute), Maker: doneID, Claimer: id},
			},
		}},
		files: map[string]string{
			"README.md": "# Read me\n\n" + strings.Repeat("A line that is rather long, so that it does not fit into a narrow window. ", 6) + "\n", "notes/": "",
			"a-very-long-name-" + strings.Repeat("x", 200) + ".tar.gz": "x", "core.sock": "", "to.lnk": "", "\u202egnp.<exe>": "", "data.bin": "\x00\xff", "empty/": "",
			"notes/today.txt": "buy milk\n",
		},
		nodes: []job.NodeInfo{
			{Name: "pve1", Status: job.NodeOnline, Spread: true, MemoryMB: 64 << 10, UsedMB: 21 << 10, CommittedMB: 40 << 10, FreeMB: 17 << 10, VMs: 12, Templates: []string{"agent-template", "<b>ci"}, Unused: map[string]string{"<b>ci": "was not built by linus, as on other nodes"}},
			{Name: "pve2", Status: job.NodeMaintenance, Spread: true, Cordoned: true},
		},
		engines: []job.EngineInfo{
			{ID: "019aa000-0000-7000-8000-00000000e001", Host: "linus1.example.lan", PID: 812, Version: "v1.4.0", StartedAt: ago(90000), Lease: 13 * time.Second, Jobs: 12, Leads: true, Self: true},
			{ID: "019aa000-0000-7000-8000-00000000e002", Host: "linus2.example.lan", PID: 790, Version: "v1.3.9", StartedAt: ago(900), Lease: 9 * time.Second, Jobs: 3, Draining: true},
			{ID: "019aa000-0000-7000-8000-00000000e003", Host: "<b>linus3", PID: 4711, Version: "v1.4.0", StartedAt: ago(9000), Lease: -95 * time.Second, Jobs: 2, Problem: "node pve2 is <offline>: it cannot be fenced there"},
		},
		tokens: []job.Token{
			{ID: "a1b2c3d4e5f6", TokenSpec: job.TokenSpec{Name: "ci", Role: job.RoleRun, Secrets: []string{"CI_*"}, Limits: job.Limits{Jobs: 10, MemoryMB: 65536}}, CreatedAt: ago(90000), CreatedBy: "operator", ExpiresAt: now.Add(700 * time.Hour)},
			{ID: "f6e5d4c3b2a1", TokenSpec: job.TokenSpec{Name: "dashboard", Role: job.RoleRead}, CreatedAt: ago(900), CreatedBy: "alice"},
			{ID: "00aa00bb00cc", TokenSpec: job.TokenSpec{Name: "old", Role: job.RoleAdmin}, CreatedAt: ago(9e6), CreatedBy: "<b>bob", ExpiresAt: now.Add(-time.Hour)},
			{ID: "0a0b0c0d0e0f", TokenSpec: job.TokenSpec{Name: "oauth:1a2b3c4d:0f81", Role: job.RoleRun}, Login: "Carol <b>", CreatedAt: ago(900), CreatedBy: "oauth:1a2b3c4d:0f81", ExpiresAt: now.Add(11 * time.Hour)},
		},
		vms: []job.VMInfo{
			{
				VM:        vm.VM{ID: 105, Name: "dev", Node: "pve", IP: "10.0.0.5", Job: doneID, State: vm.Created, Status: vm.Running, ExpiresAt: now.Add(5 * time.Hour)},
				Lifecycle: vm.Persistent, Resources: vm.Resources{CPU: 4, Memory: "8G", Disk: "40G"}, Source: "agent-template", CreatedAt: ago(90000),
				Labels: map[string]string{"team": "web", "note": "<b>&"}, Sandbox: &vm.Sandbox{Metadata: map[string]string{"User ID": "<i>"}, Env: []string{"API_KEY"}},
				Ports: []job.ExposedPort{{Name: "web", Port: 3000, ID: "web-abcdefghijkl", URL: "https://web-abcdefghijkl.vms.example/"}},
			},
			{
				VM:        vm.VM{ID: 112, Name: "linus-job-000000000001", Node: "pve2", IP: "fd00:10:77::1:5aff:fe01:2345", Job: id, State: vm.Created, Status: vm.Running},
				Lifecycle: vm.Ephemeral, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}, Source: "debian-13", CreatedAt: ago(75), Jobs: []string{id},
			},
			{
				VM:        vm.VM{Name: "fresh", Job: "0197a1b2-0000-7000-8000-0000000000f1", State: vm.Intended, Status: vm.Provisioning},
				Lifecycle: vm.Persistent, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}, Source: "agent-template", CreatedAt: ago(4),
			},
			{
				VM: vm.VM{
					ID: 117, Name: "kept", Node: "pve", Job: "0197a1b2-0000-7000-8000-0000000000f2", State: vm.LeftAlone, Status: vm.Unproven,
					Reason: "its description does not carry linus-job=<...>", Remedy: "destroy it by hand (qm destroy 117)",
				},
				Lifecycle: vm.Persistent, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}, Source: "agent-template", CreatedAt: ago(9000),
			},
		},
	}
	running := job.Job{
		ID: id, Kind: job.KindTask, Status: job.Running, Phase: "run", Progress: "compiling", Client: "mcp:claude-code",
		Manifest: job.Manifest{Task: "#!/bin/bash\nset -e\ncd /srv/project && make all\n", AgentType: job.AgentScript, Stdin: job.StdinOpen, Lifecycle: vm.Ephemeral, Timeout: 3600, Env: map[string]string{"CI": "true"}, Labels: map[string]string{"team": "web", "note": "<b>&"}},
		VM:       &vm.VM{ID: 112, Name: "linus-job-000000000001", Node: "pve2", IP: "10.0.0.12", Job: id, State: vm.Created}, CreatedAt: ago(75), StartedAt: ago(30),
	}
	done := job.Job{
		ID: doneID, Kind: job.KindTask, Status: job.Success, Phase: "destroy", Client: "cli",
		Manifest: job.Manifest{Task: "uname -a", AgentType: job.AgentScript, Lifecycle: vm.Ephemeral},
		Outcome:  &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus, ExitCode: &code, Duration: 42 * time.Second},
		VM:       &vm.VM{ID: 101, Name: "linus-job-0000000000d1", Node: "pve", State: vm.Destroyed}, CreatedAt: ago(600), StartedAt: ago(560), CompletedAt: ago(515),
		Artifacts:        []job.Artifact{{Path: "dist/app-linux-amd64.tar.gz", Size: 14 << 20, Mode: "0644", SHA256: strings.Repeat("ab12", 16)}, {Path: "odd name #1?.txt", Size: 12, Mode: "0600", SHA256: strings.Repeat("cd34", 16)}},
		SkippedArtifacts: job.SkippedArtifacts{ArtifactsSkipped: []job.SkippedArtifact{{Path: "core.<1>", Reason: "its 9 bytes are more than the 8 a file may have"}}, ArtifactsSkippedCount: 7},
		Stdout:           job.OutputInfo{Incomplete: true, Why: "collecting was cancelled by user"},
	}
	e.jobs = []job.Job{running, done}
	for i, status := range []job.Status{job.Pending, job.Provisioning, job.Failed, job.Timeout} {
		e.jobs = append(e.jobs, job.Job{
			ID: fmt.Sprintf("0197a1b2-0000-7000-8000-00000000001%d", i), Kind: job.KindTask, Status: status, Phase: "provision", Client: "mcp:gemini",
			Manifest: job.Manifest{Task: "echo " + strings.Repeat("long-", 30)}, CreatedAt: ago(float64(1000 * (i + 1))),
		})
	}
	tell := func(jobID string, events ...job.Event) {
		for i, ev := range events {
			ev.Seq, ev.JobID = int64(i+1), jobID
			e.events[jobID] = append(e.events[jobID], ev)
		}
	}
	e.events = map[string][]job.Event{}
	life := func(from time.Time) []job.Event {
		at := func(s float64) time.Time { return from.Add(time.Duration(s * float64(time.Second))) }
		return []job.Event{
			{At: at(0), Kind: job.EventStatus, Text: "pending"},
			{At: at(1.5), Kind: job.EventPhaseStarted, Phase: "provision"},
			{At: at(1.6), Kind: job.EventStatus, Text: "provisioning"},
			{At: at(1.7), Kind: job.EventProgress, Phase: "validate_environment", Text: "checking the inputs and the host"},
			{At: at(2.1), Kind: job.EventProgress, Phase: "create_vm", Text: "creating the VM"},
			{At: at(4), Kind: job.EventProgress, Phase: "start_vm", Text: "starting the VM"},
			{At: at(5), Kind: job.EventProgress, Phase: "wait_for_network", Text: "waiting for its address"},
			{At: at(33), Kind: job.EventProgress, Phase: "verify_ssh_ready", Text: "waiting until it is ready"},
			{At: at(40), Kind: job.EventPhaseEnded, Phase: "provision"},
			{At: at(40), Kind: job.EventPhaseStarted, Phase: "push"},
			{At: at(40.2), Kind: job.EventWarning, Phase: "push", Text: "the guest's host key could not be read through the hypervisor: trusted on first use"},
			{At: at(43), Kind: job.EventPhaseEnded, Phase: "push"},
			{At: at(43), Kind: job.EventPhaseStarted, Phase: "start"},
			{At: at(45), Kind: job.EventPhaseEnded, Phase: "start"},
			{At: at(45), Kind: job.EventPhaseStarted, Phase: "run"},
			{At: at(45), Kind: job.EventStatus, Text: "running"},
		}
	}
	tell(id, life(running.CreatedAt)...)
	end := func(s float64) time.Time { return done.CreatedAt.Add(time.Duration(s * float64(time.Second))) }
	tell(doneID, append(life(done.CreatedAt),
		job.Event{At: end(82), Kind: job.EventDecided, Text: "exit_status"},
		job.Event{At: end(82), Kind: job.EventPhaseEnded, Phase: "run"},
		job.Event{At: end(82), Kind: job.EventPhaseStarted, Phase: "collect"},
		job.Event{At: end(84), Kind: job.EventStatus, Text: "success"},
		job.Event{At: end(84), Kind: job.EventPhaseEnded, Phase: "collect"},
		job.Event{At: end(84), Kind: job.EventPhaseStarted, Phase: "destroy"},
		job.Event{At: end(88), Kind: job.EventPhaseEnded, Phase: "destroy", Text: ""},
	)...)
	return e
}
