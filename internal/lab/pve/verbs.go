package pve

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// The option lists of the real qm: names, types, bounds and keys of each version.
//
//go:embed qm-options-8.2.json qm-options-9.2.json
var optionLists embed.FS

// vmOptions are the options that describe a VM, which create and set both take.
const vmOptions = `agent acpi autostart balloon bios boot cicustom cipassword citype ciupgrade ciuser cores cpu cpulimit cpuunits description
	ide[n] ipconfig[n] kvm lock machine memory name nameserver net[n] numa onboot ostype protection reboot rng0 sata[n] scsi[n] scsihw
	searchdomain serial[n] sockets sshkeys tablet tags vga virtio[n] vmgenid`

// played returns the lab's qm commands with the options that the lab simulates; it treats the real
// qm's other options as unknown. An option marked ? is not in every version.
func played() map[string]command {
	return map[string]command{
		"create":      {qmCreate, vmOptions + " start storage pool"},
		"set":         {qmSet, vmOptions + " delete digest skiplock template"},
		"clone":       {qmClone, "description format full name pool snapname storage target"},
		"resize":      {qmResize, "skiplock"},
		"template":    {qmTemplate, ""},
		"config":      {qmConfig, "current snapshot"},
		"start":       {qmStart, "skiplock timeout stateuri machine force-cpu nets-host-mtu?"},
		"stop":        {qmStop, "skiplock keepActive overrule-shutdown timeout"},
		"shutdown":    {qmShutdown, "forceStop keepActive skiplock timeout"},
		"suspend":     {qmSuspend, "skiplock statestorage todisk"},
		"resume":      {qmResume, "nocheck skiplock"},
		"reboot":      {qmReboot, "timeout"},
		"status":      {qmStatus, "verbose"},
		"destroy":     {qmDestroy, "destroy-unreferenced-disks purge skiplock"},
		"snapshot":    {qmSnapshot, "description vmstate"},
		"rollback":    {qmRollback, ""},
		"delsnapshot": {qmDelsnapshot, "force"},
		"migrate":     {qmMigrate, "online with-local-disks"},
		"list":        {qmList, "full"},
		"unlock":      {qmUnlock, ""},
		"guest exec":  {qmGuestExec, "pass-stdin synchronous timeout"},
		"guest cmd":   {qmGuestCmd, ""},
		"agent":       {qmGuestCmd, ""},
	}
}

type command struct {
	run     func(c *call) error
	options string
}

// qmVerb returns a simulated command as one PVE version takes it. A test checks the simulated
// commands against the option lists.
func qmVerb(version, name string) (*verb, error) {
	raw, err := optionLists.ReadFile("qm-options-" + version + ".json")
	if err != nil {
		return nil, err
	}
	var lists map[string]json.RawMessage // decoding all of the lists would take longer than a command
	if err := json.Unmarshal(raw, &lists); err != nil {
		return nil, err
	}
	var real struct {
		Alias      string            `json:"alias"`
		Positional []string          `json:"positional"`
		Options    map[string]option `json:"options"`
	}
	for of := name; of != ""; of = real.Alias {
		real.Alias = ""
		if err := json.Unmarshal(lists[of], &real); err != nil {
			return nil, fmt.Errorf("qm %s in %s: %w", of, version, err)
		}
	}
	p := played()[name]
	v := &verb{name: "qm " + name, run: p.run, options: map[string]option{}, extra: slices.Contains(real.Positional, "extra-args")}
	v.positional = slices.DeleteFunc(real.Positional, func(name string) bool { return name == "extra-args" })
	for _, option := range slices.Concat(strings.Fields(p.options), v.positional) {
		option, new := strings.CutSuffix(option, "?")
		described, known := real.Options[option]
		if known {
			v.options[option] = described
		} else if !new {
			return nil, fmt.Errorf("qm %s --%s does not exist in %s", name, option, version)
		}
	}
	return v, nil
}
