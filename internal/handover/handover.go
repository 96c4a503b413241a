// Package handover defines what a dispatcher gives to the worker in a session's VM, and what the
// worker's exit code says. It knows neither of the two.
package handover

import "time"

// Item is one claimed work item of Claude Managed Agents, with its own secret.
type Item struct {
	API           string        `json:"api,omitempty"` // empty: Anthropic's API
	Environment   string        `json:"environment"`
	Work          string        `json:"work"`
	Session       string        `json:"session"`
	Secret        string        `json:"secret"`
	LastHeartbeat string        `json:"last_heartbeat"`
	MaxIdle       time.Duration `json:"max_idle,omitempty"` // 0: the SDK's default of a minute
}

// LeaseLost is a worker's exit code when its session is no longer its own. A task that got no work
// uses it, too. sysexits.h calls it a temporary failure.
const LeaseLost = 75
