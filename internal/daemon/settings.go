package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/policy"
	"linus/internal/secret"
)

// policies returns the check of submissions against the settings ALLOWED_*.
func policies(c config.Config) (func(job.Submission) error, error) {
	commands, err := policy.New(c.AllowedCommands)
	if err != nil {
		return nil, err
	}
	bounds, err := policy.NewBounds(policy.Choices{
		Bridges: c.AllowedBridges, VLANs: c.AllowedVLANs, Templates: c.AllowedTemplates, Secrets: c.AllowedSecrets,
		Network:  job.Network{Bridge: c.ProxmoxBridge, VLAN: c.ProxmoxVLANTag, IP: c.VMIPConfig, Gateway: c.VMGateway},
		Template: c.DefaultVMTemplate,
	})
	if err != nil {
		return nil, err
	}
	return func(s job.Submission) error {
		if err := bounds.Check(s); err != nil || s.Kind == job.KindVM { // no command to check
			return err
		}
		return commands.Check(s.Manifest)
	}, nil
}

// secrets returns the configured source of secrets.
func secrets(c config.Config) *secret.Source {
	o := secret.Options{File: c.SecretsFile, Credentials: c.CredentialsDirectory}
	for name, value := range c.Secrets {
		o.Environment = append(o.Environment, secret.NewValue(name, value.Reveal()))
	}
	return secret.New(o)
}

// Problems returns everything wrong with settings that are valid one by one: their
// combinations, and the files they name.
func Problems(c config.Config) []config.Problem {
	var wrong *config.Error
	var problems []config.Problem
	add := func(name, text, remedy string) {
		p := config.Problem{Name: name, Text: text, Remedy: remedy}
		for _, v := range c.Values() {
			if v.Name == name {
				p.From = v.From
			}
		}
		problems = append(problems, p)
	}
	if err := c.NeedHost(); errors.As(err, &wrong) {
		problems = append(problems, wrong.Problems...)
	}
	var refused *job.FieldError
	if _, err := policies(c); errors.As(err, &refused) {
		add(refused.Field, refused.Problem, refused.Remedy)
	}
	for _, file := range []struct{ name, path, remedy string }{
		{"PROXMOX_SSH_KEY_PATH", c.ProxmoxSSHKeyPath, "give the path of a private key, or unset it to use the SSH agent"},
		{"PROXMOX_KNOWN_HOSTS", c.ProxmoxKnownHosts, "linus host trust creates it with the host's key"},
	} {
		if file.path == "" {
			continue
		}
		f, err := os.Open(file.path)
		if err != nil {
			var at *fs.PathError
			if errors.As(err, &at) {
				err = at.Err
			}
			add(file.name, fmt.Sprintf("%s cannot be read: %v", file.path, err), file.remedy)
			continue
		}
		_ = f.Close()
	}
	if err := secrets(c).Check(); err != nil {
		add("LINUS_SECRETS_FILE", strings.ReplaceAll(err.Error(), "\n", "; "), "each secret needs a name and a value of 4 bytes or more")
	}
	return problems
}
