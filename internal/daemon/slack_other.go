//go:build !linux

package daemon

func slackened(start func() error) error { return start() }
