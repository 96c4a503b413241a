package proxmox

import (
	"strings"
	"testing"

	"linus/internal/result"
)

// Whatever a host's scripts say in their answer is read without harm, and no
// VM comes out of it that cannot be named again.
func FuzzAnswer(f *testing.F) {
	f.Add("LINUS_VM:id=101 node=pve name=linus-job-1 status=running job=a owner=b")
	f.Add("LINUS_CHECK:storage:fail:storage 'x' does not exist\nLINUS_REMEDY:set PROXMOX_STORAGE")
	f.Add("LINUS_STEP:3/9:create_vm:creating the VM\nLINUS_STEP:::\nLINUS_STEP:x/y")
	f.Add("LINUS_VM:id=99999999999999999999\nLINUS_REMEDY:of nothing\nLINUS_CHECK:")
	f.Fuzz(func(t *testing.T, text string) {
		res, err := result.Parse(strings.NewReader("LINUS_BEGIN:n\n"+text+"\nLINUS_END:n\n"), "n", func(key, value string) {
			if key == result.KeyStep {
				readStep(value)
			}
		})
		if err != nil {
			return
		}
		if checks := readChecks(res); len(checks) > len(res.Lines) {
			t.Errorf("%d checks from %d lines", len(checks), len(res.Lines))
		}
		for _, line := range res.All("LINUS_VM") {
			if vm, err := readVM(line); err == nil && (vm.ID < 100 || strings.ContainsAny(vm.Name+vm.Job+vm.Owner+vm.Node, " \t\n\x1b")) {
				t.Errorf("%q gave %+v", line, vm)
			}
		}
	})
}
