package proxmox

import (
	"regexp"
	"strings"

	"linus/internal/job"
	"linus/internal/result"
)

// inputName is a name that may be one of a script's inputs.
var inputName = regexp.MustCompile(`\b(?:VM|TEMPLATE)_[A-Z0-9_]+\b`)

// settingNames are what users of linus call inputs of the scripts; the others
// have the same name here and there.
var settingNames = map[string]string{
	"VM_ID_RANGE": "PROXMOX_VMID_RANGE",
	"VM_VLAN_TAG": "PROXMOX_VLAN_TAG",
	"VM_TEMPLATE": "DEFAULT_VM_TEMPLATE",
	"VM_CPU":      "DEFAULT_CPU",
	"VM_RAM":      "DEFAULT_MEMORY",
	"VM_DISK":     "DEFAULT_DISK",
	"VM_OS":       "os",
}

// ownNames are those that mean something else to one script's callers: a field of
// the manifest, an option of the command.
var ownNames = map[string]map[string]string{
	"create-vm": {
		"VM_TEMPLATE": "vmTemplate (DEFAULT_VM_TEMPLATE)", "VM_OS": "os", "VM_NAME": "vmName",
		"VM_CPU": "resources.cpu", "VM_RAM": "resources.memory", "VM_DISK": "resources.disk",
	},
	"build-template": {
		"TEMPLATE_NAME": string(job.TemplateName), "VM_OS": string(job.TemplateOS), "VM_IMAGE_URL": string(job.TemplateImage),
		"VM_IMAGE_SHA256": string(job.TemplateSHA256), "VM_BOOTSTRAP": string(job.TemplateParts),
	},
}

// inSettings is a script's text for people in the names they set things by. By
// hand the script's own names are the right ones, so it speaks in those.
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

// scriptActions are what to do instead of running a script by hand.
var scriptActions = strings.NewReplacer("build-template.sh", string(job.BuildTemplate), "list-vms.sh", string(job.ListVMs))

// spoken is a line's value as people are to read it.
func spoken(script, key, value string) string {
	switch key {
	case result.KeyError, result.KeyRemedy, "LINUS_WARNING", "LINUS_CHECK":
		return scriptActions.Replace(inSettings(script, value))
	}
	return value
}
