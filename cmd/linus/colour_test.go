package main

import (
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestColours_OnATerminalUnlessNoColorIsSet(t *testing.T) {
	_, shown, ended := onTerminal(t, "bash", "-c", `
		unset NO_COLOR; export TERM=xterm
		linus host check; linus job status nobody
		echo plain:; linus host check | cat; NO_COLOR=1 linus host check; TERM=dumb linus host check`)
	endsWith(t, ended, 0, shown)
	coloured, plain, _ := strings.Cut(shown.String(), "plain:")
	if !strings.Contains(coloured, "\x1b[32mok\x1b[39m  ") || !strings.Contains(coloured, "\x1b[31mlinus:\x1b[39m Job not found") {
		t.Errorf("on a terminal: %q", coloured)
	}
	if strings.Contains(plain, "\x1b") || strings.Count(plain, "ok  ") < 3 {
		t.Errorf("in a pipe, with NO_COLOR and on a dumb terminal: %q", plain)
	}
}

func TestColours_AreEquallyLongSoThatColumnsStay(t *testing.T) {
	for _, word := range []string{"STATUS", "", string(job.Success), string(job.Failed), string(job.Pending), string(vm.Running), "-"} {
		if got, want := len(colours(true).paint(word))-len(word), len("\x1b[39m\x1b[39m"); got != want {
			t.Errorf("%q has codes of %d bytes, want %d", word, got, want)
		}
	}
}
