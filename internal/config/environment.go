package config

// Variable is a variable of the environment.
type Variable struct{ Name, Text string }

// Environment returns the variables that linus reads besides its settings, in the order of
// their names.
func Environment() []Variable {
	return []Variable{
		{"CREDENTIALS_DIRECTORY", "Directory of systemd's credentials (`LoadCredential=`), which are secrets of manifests by their names."},
		{"GOMAXPROCS", "Processors that linus uses. Unset: an engine uses one while that is enough, and then all."},
		{"LINUS_SECRET_NAME", "The secret `NAME` that a manifest may ask for (`secrets`), for any name."},
		{"LocalAppData", "On Windows: directory of linus's own directory for its state."},
		{"NO_COLOR", "Anything but empty: no colours, as on a terminal that is `dumb` (`TERM`)."},
		{"NOTIFY_SOCKET", "Socket on which systemd is told that `linus serve` is ready."},
		{"SSH_AUTH_SOCK", "Socket of the SSH agent that may hold the key for the Proxmox host."},
		{"TERM", "The terminal's type."},
		{"XDG_CONFIG_HOME", "Directory of `linus/env`, the env file. Unset: `~/.config`."},
		{"XDG_STATE_HOME", "Directory of linus's own directory for its state. Unset: `~/.local/state`."},
	}
}
