package policy_test

import (
	"errors"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/policy"
	"linus/internal/vm"
)

func sized(cpu int, memory string, timeout int) job.Manifest {
	return job.Manifest{AgentType: job.AgentScript, Resources: vm.Resources{CPU: cpu, Memory: memory}, Timeout: timeout}
}

func disk(size string) job.Manifest { return job.Manifest{Resources: vm.Resources{Disk: size}} }

func TestLimits_RefuseByRuleWithWhatIsLeft(t *testing.T) {
	has := func(manifests ...job.Manifest) (jobs []job.Job) {
		for _, m := range manifests {
			jobs = append(jobs, job.Job{Status: job.Running, Manifest: m})
		}
		return jobs
	}
	two := has(sized(2, "2G", 60), sized(4, "512M", 60))
	ended := has(sized(2, "2G", 60), sized(4, "512M", 60))
	ended[0].Status, ended[0].VM = job.Success, &vm.VM{State: vm.Created}
	kept := has(sized(2, "2G", 60), sized(4, "512M", 60))
	kept[0].Status, kept[0].VM = job.Success, &vm.VM{State: vm.Created, Made: vm.Made{Lifecycle: vm.Persistent}}
	all := policy.Limits{Jobs: 3, CPU: 8, MemoryMB: 4096, Seconds: 600}
	shared := sized(4, "2G", 60)
	shared.VM = "dev"
	parent := sized(4, "2G", 60)
	parent.Shards = 2
	tests := []struct {
		name   string
		limits policy.Limits
		has    []job.Job
		next   job.Manifest
		field  string // empty: allowed
		wants  []string
	}{
		{"no limits", policy.Limits{}, two, sized(32, "512G", 86400), "", nil},
		{"within all, to the last", all, two, sized(2, "1536M", 600), "", nil},
		{"one job too many", policy.Limits{Jobs: 2}, two, sized(1, "1G", 1), "manifest", []string{"LIMIT_JOBS", "2 jobs", "2 are unfinished", "cancel one"}},
		{"a job too many besides a persistent VM", policy.Limits{Jobs: 2}, kept, sized(1, "1G", 1), "manifest", []string{"1 is unfinished", "1 VM is persistent"}},
		{"one has ended, its VM is not gone", policy.Limits{Jobs: 2}, ended, sized(1, "1G", 1), "", nil},
		{"the VM of one that has ended takes cores", policy.Limits{CPU: 6}, ended, sized(1, "1G", 1), "manifest.resources.cpu", []string{"6 are in use"}},
		{"the VM of one that has ended takes memory", policy.Limits{MemoryMB: 3000}, ended, sized(1, "1G", 1), "manifest.resources.memory", []string{"2560 are in use"}},
		{"one core too many", all, two, sized(3, "1G", 1), "manifest.resources.cpu", []string{"LIMIT_CPU allows a client 8 cores", "6 are in use", "asks for 3", "at most 2"}},
		{"no core left", policy.Limits{CPU: 6}, two, sized(1, "1G", 1), "manifest.resources.cpu", []string{"LIMIT_CPU", "wait for a job to finish, or cancel one"}},
		{"one MiB too many", all, two, sized(1, "1537M", 1), "manifest.resources.memory", []string{"LIMIT_MEMORY allows a client 4096 MiB", "2560 are in use", "asks for 1537", "at most 1536"}},
		{"one KiB too many", all, two, sized(1, "1572865K", 1), "manifest.resources.memory", []string{"LIMIT_MEMORY"}},
		{"one MiB of disk too many", policy.Limits{DiskMB: 30 << 10}, has(disk("10G"), disk("10G")), disk("10241M"), "manifest.resources.disk", []string{"LIMIT_DISK allows a client 30720 MiB", "20480 are in use (VMs 20480), this asks for 10241", "at most 10240"}},
		{"all of the disk", policy.Limits{DiskMB: 30 << 10}, has(disk("10G"), disk("10G")), disk("10G"), "", nil},
		{"one second too long", all, nil, sized(1, "1G", 601), "manifest.timeout", []string{"LIMIT_SECONDS allows a job 600 seconds", "601"}},
		{"no VM of its own where all is taken", policy.Limits{CPU: 6, MemoryMB: 2560}, two, shared, "", nil},
		{"no VM of its own where more is taken than there is", policy.Limits{CPU: 1, MemoryMB: 1, DiskMB: 1}, append(two, has(disk("10G"))...), shared, "", nil},
		{"any disk where none is limited", policy.Limits{CPU: 8}, has(disk("10G")), disk("10G"), "", nil},
		{"a parent has no VM", policy.Limits{CPU: 8, MemoryMB: 4096}, append(two, has(parent)...), sized(2, "1G", 60), "", nil},
		{"jobs in one VM count once", policy.Limits{CPU: 8, MemoryMB: 4096}, append(two, has(shared, shared)...), sized(2, "1G", 60), "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.limits.Check(tt.has, tt.next)
			if tt.field == "" {
				if err != nil {
					t.Errorf("Check() = %v, want nil", err)
				}
				return
			}
			var refused *job.FieldError
			if !errors.As(err, &refused) || refused.Field != tt.field {
				t.Fatalf("Check() = %v, want a *job.FieldError of %s", err, tt.field)
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// Who waits for room waits for none that there never is.
func TestLimits_MoreThanThereEverIsIsNotWaitedFor(t *testing.T) {
	l := policy.Limits{CPU: 8, MemoryMB: 4096, DiskMB: 30 << 10}
	for fault, sizes := range map[job.Fault][]vm.Resources{
		"":             {{CPU: 9, Memory: "1G", Disk: "1G"}, {CPU: 1, Memory: "1024G", Disk: "1G"}, {CPU: 1, Memory: "1G", Disk: "31G"}},
		job.FaultLimit: {{CPU: 8, Memory: "1G", Disk: "1G"}, {CPU: 1, Memory: "4G", Disk: "1G"}, {CPU: 1, Memory: "1G", Disk: "30G"}},
	} {
		for _, size := range sizes {
			has := job.Job{ID: "a", Status: job.Running, Manifest: job.Manifest{AgentType: job.AgentScript, Resources: vm.Resources{CPU: 1, Memory: "1G", Disk: "1G"}}}
			err := l.Check([]job.Job{has}, job.Manifest{AgentType: job.AgentScript, Resources: size})
			if field, is := errors.AsType[*job.FieldError](err); !is || field.Fault != fault {
				t.Errorf("%+v: %v", size, err)
			}
		}
	}
}

// The memory of a client's VMs that is on disk counts, too: of one that is suspended, and of
// snapshots.
func TestLimits_OfMemoryOnDisk(t *testing.T) {
	l := policy.Limits{DiskMB: 25 << 10}
	size := vm.Resources{Memory: "1G", Disk: "10G"}
	kept := job.Job{ID: "a", Status: job.Success, Manifest: job.Manifest{Resources: size}, VM: &vm.VM{Job: "a", State: vm.Created, Made: vm.Made{Resources: size}, Memories: []vm.Memory{{}, {Snapshot: "x"}}}}
	shares := job.Job{ID: "b", Status: job.Running, Manifest: job.Manifest{VM: "dev", Resources: size}, VM: kept.VM}
	if err := l.Check([]job.Job{kept, shares}, job.DiskAlone(25<<10-10<<10-2*2548)); err != nil {
		t.Errorf("what fits: %v", err)
	}
	if err := l.Check([]job.Job{kept, shares}, job.DiskAlone(25<<10-10<<10-2*2548+1)); err == nil || !strings.Contains(err.Error(), "15336 are in use (VMs 10240, memory of VMs 5096), this asks for 10265") ||
		!strings.Contains(err.Error(), "or resume a suspended VM, or remove a snapshot with memory") {
		t.Errorf("what does not: %v", err)
	}
}

// A volume, which no agent runs in, counts as its disk alone, beside all that takes disk; the
// error says what takes how much.
func TestLimits_OfAVolume(t *testing.T) {
	l := policy.Limits{Jobs: 1, DiskMB: 25 << 10}
	has := []job.Job{{Status: job.Running, Manifest: job.Manifest{Resources: vm.Resources{Disk: "10G"}}}, job.Disk(job.KindVolume, 4<<10), job.Disk(job.KindCheckpoint, 3<<10), job.Disk(job.KindSaved, 3<<10)}
	if err := l.Check(has, job.Manifest{Resources: vm.Resources{Disk: "5G"}}); err != nil {
		t.Errorf("one that fits: %v", err)
	}
	if err := l.Check(has, job.Manifest{Resources: vm.Resources{Disk: "6G"}}); err == nil || !strings.Contains(err.Error(), "20480 are in use (VMs 10240, volumes 4096, checkpoints 3072, saved templates 3072), this asks for 6144") ||
		!strings.Contains(err.Error(), "or remove a volume, or remove a checkpoint, or remove a saved template") {
		t.Errorf("one that does not: %v", err)
	}
}
