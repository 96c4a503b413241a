// Package handover is what a dispatcher gives to the worker in a session's VM, and what that
// says by its exit code. It knows neither.
package handover

import "time"

// Item is one claimed item of work of Claude Managed Agents, with its own secret.
type Item struct {
	API           string        `json:"api,omitempty"` // empty: Anthropic's
	Environment   string        `json:"environment"`
	Work          string        `json:"work"`
	Session       string        `json:"session"`
	Secret        string        `json:"secret"`
	LastHeartbeat string        `json:"last_heartbeat"`
	MaxIdle       time.Duration `json:"max_idle,omitempty"` // 0: the SDK's minute
}

// LeaseLost is a worker's exit code when its session is no longer its own, as is that of a
// task which has got no work: sysexits.h calls it a temporary failure.
const LeaseLost = 75
