package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/config"
)

// Beside the packaged service, root is told whose engine answers.
func TestService_RootIsToldWhichEngineAnswers(t *testing.T) {
	service := t.TempDir()
	for _, tt := range []struct {
		name   string
		begun  bool // the service has state
		config config.Config
		want   string
	}{
		{"there is no service", false, config.Config{StateDir: "/root/.local/state/linus"}, ""},
		{"beside the service", true, config.Config{StateDir: "/root/.local/state/linus"}, "your own engine, with its state in /root/.local/state/linus; the service has another: runuser -u linus -- linus"},
		{"the service itself", true, config.Config{StateDir: filepath.Join(service, ".local", "state", "linus")}, ""},
		{"a server elsewhere", true, config.Config{StateDir: "/root/.local/state/linus", Server: "https://linus.example"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.begun {
				if err := os.MkdirAll(filepath.Join(service, ".local", "state", "linus"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			var said bytes.Buffer
			a := &app{stderr: &said, service: service}
			a.noteService(tt.config)
			if got := said.String(); tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("it says %q, want %q", got, tt.want)
			}
		})
	}
}
