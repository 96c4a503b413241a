package config

import (
	"os"
	"strings"
)

// GitLab returns what GitLab Runner passes to a custom executor in its environment: the job's own
// variables, prefixed with CUSTOM_ENV_, and the runner's.
func GitLab() map[string]string {
	told := map[string]string{}
	for _, line := range os.Environ() {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "BUILD_FAILURE_EXIT_CODE", "SYSTEM_FAILURE_EXIT_CODE", "BUILD_EXIT_CODE_FILE", "JOB_RESPONSE_FILE":
			told[name] = value
		default:
			if strings.HasPrefix(name, "CUSTOM_ENV_") {
				told[name] = value
			}
		}
	}
	return told
}

// Cursor returns what Cursor's worker controller passes to its spawn hook in its environment.
func Cursor() map[string]string {
	told := map[string]string{}
	for _, line := range os.Environ() {
		if name, value, _ := strings.Cut(line, "="); strings.HasPrefix(name, "CURSOR_") {
			told[name] = value
		}
	}
	return told
}
