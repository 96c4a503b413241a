package proxmox

import (
	"strings"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/result"
)

// inputName matches names that may be inputs of a script.
var inputName = lazyregexp.New(`\b(?:VM|TEMPLATE)_[A-Z0-9_]+\b`)

// settingNames maps inputs of scripts to settings with another name.
var settingNames = map[string]string{
	"VM_ID_RANGE": "PROXMOX_VMID_RANGE",
	"VM_VLAN_TAG": "PROXMOX_VLAN_TAG",
	"VM_TEMPLATE": "DEFAULT_VM_TEMPLATE",
	"VM_CPU":      "DEFAULT_CPU",
	"VM_RAM":      "DEFAULT_MEMORY",
	"VM_DISK":     "DEFAULT_DISK",
	"VM_OS":       "os",
}

// ownNames maps inputs, by script, to what callers of the script call them: a field of the manifest, or
// an option of the command.
var ownNames = map[string]map[string]string{
	"create-vm": {
		"VM_TEMPLATE": "vmTemplate (DEFAULT_VM_TEMPLATE)", "VM_OS": "os", "VM_NAME": "vmName",
		"VM_CPU": "resources.cpu", "VM_RAM": "resources.memory", "VM_DISK": "resources.disk",
	},
	"save-vm": {"TEMPLATE_NAME": "name"},
	"build-template": {
		"TEMPLATE_NAME": string(job.TemplateName), "VM_OS": string(job.TemplateOS), "VM_IMAGE_URL": string(job.TemplateImage),
		"VM_IMAGE_SHA256": string(job.TemplateSHA256), "VM_BOOTSTRAP": string(job.TemplateParts),
	},
}

// inSettings replaces the names of inputs in a script's text by those of settings. The script itself
// prints its own names, which are right when it is run by hand.
func inSettings(script, text string) string {
	return inputName.ReplaceAllStringFunc(text, func(name string) string {
		if own, ok := ownNames[script][name]; ok {
			return own
		}
		if setting, ok := settingNames[name]; ok {
			return setting
		}
		return name
	})
}

// scriptActions replaces names of scripts and inputs by the corresponding actions and options.
var scriptActions = strings.NewReplacer("SAVE_MODE=in-place", "--in-place", "LEAVE_VMS=true", "--leave-vms", "build-template.sh", string(job.BuildTemplate), "list-vms.sh", string(job.ListVMs))

// spoken returns the value of a line in the form shown to people.
func spoken(script, key, value string) string {
	switch key {
	case result.KeyError, result.KeyRemedy, "LINUS_WARNING", "LINUS_CHECK":
		return scriptActions.Replace(inSettings(script, value))
	}
	return value
}
