package web

import (
	"linus/internal/field"
	"linus/internal/job"
)

// machineFields say what a new VM is made from and how large it is.
func machineFields() []field.Field {
	return field.Some("vmTemplate", "os", "resources.cpu", "resources.memory", "resources.disk")
}

func networkGroup() group {
	return group{
		Title: "Network", Rare: true, When: field.NewVM,
		fields: field.Some("network.bridge", "network.vlan", "network.ip", "network.gateway", "network.egress", "network.allow"),
	}
}

// jobGroups are the form of a job: all of its manifest.
func jobGroups() []group {
	return []group{
		{Title: "Task", fields: field.Some("agentType", "task", "agent.command", "agent.model", "agent.claudeModel", "timeout", "artifacts")},
		{Title: "Files", Extra: "files"},
		{Title: "Repository", Rare: true, fields: field.Some("repository.url", "repository.ref", "repository.path", "repository.credential", "repository.submodules", "repository.lfs", "push.branch")},
		{Title: "VM", fields: append(field.Some("vm"), machineFields()...)},
		networkGroup(),
		{Title: "Environment", Rare: true, Extra: "env", fields: field.Some("secrets", "credentials", "cwd", "sudo")},
		{Title: "Terminal and input", Rare: true, fields: field.Some("tty", "ttySize", "stdin", "statusMode")},
		{Title: "Afterwards", Rare: true, fields: field.Some("lifecycle", "vmName", "ttl", "keep", "keepFor", "idleSuspend", "start", "volumes", "retry", "retries", "labels", "notify.url")},
	}
}

// vmGroups are the form of a persistent VM.
func vmGroups() []group {
	return []group{{Title: "VM", fields: append(append(field.Some("vmName", "ttl", "idleSuspend"), machineFields()...), field.Some("labels")...)}, networkGroup()}
}

// poolDraft is a pool that does not exist yet.
type poolDraft struct {
	Name string `json:"name"`
	job.Manifest
	job.PoolSize
}

// poolGroups are the form of a pool.
func poolGroups() []group {
	name := field.Field{Name: "name", Label: "Name", Hint: "lower-case letters, digits and dashes"}
	return append([]group{{Title: "Pool", fields: append(append([]field.Field{name}, machineFields()...), field.Some("labels")...)}}, append(poolSize(), networkGroup())...)
}

// poolSize is the form of how many VMs a pool keeps.
func poolSize() []group { return []group{{Title: "Size", fields: field.PoolSize()}} }
