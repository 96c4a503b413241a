package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"linus/internal/config"
	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/policy"
	"linus/internal/secret"
	"linus/internal/vm"
	"linus/internal/webhook"
)

// rules are the checks against the settings ALLOWED_*: of submissions, of volumes, and of files to
// be written in VMs.
type rules struct {
	commands *policy.Policy
	bounds   *policy.Bounds
}

func policies(c config.Config) (rules, error) {
	commands, err := policy.New(c.AllowedCommands)
	if err != nil {
		return rules{}, err
	}
	bounds, err := policy.NewBounds(policy.Choices{
		Bridges: c.AllowedBridges, VLANs: c.AllowedVLANs, Storages: c.AllowedStorages, Templates: c.AllowedTemplates, Secrets: c.AllowedSecrets, Credentials: c.AllowedCredentials,
		Webhooks: c.AllowedWebhooks, Signs: c.WebhookSecret.Reveal() != "",
		Network:  vm.Network{Bridge: c.ProxmoxBridge, VLAN: c.ProxmoxVLANTag, IP: c.VMIPConfig, Gateway: c.VMGateway},
		Storage:  c.ProxmoxStorage,
		Template: c.DefaultVMTemplate,
		Egress:   c.AllowedEgress, EgressNames: c.AllowedNames,
		DefaultEgress: vm.Egress(c.DefaultEgress), DefaultNames: c.EgressNames(),
	})
	return rules{commands, bounds}, err
}

func (r rules) check(s job.Submission) error {
	if err := r.bounds.Check(s); err != nil || s.Manifest.Task == "" { // no command to check
		return err
	}
	return r.commands.Check(s.Manifest)
}

// webhooks returns how jobs send webhooks; nil: they send none.
func webhooks(c config.Config, r rules, version string) (*executor.Webhooks, error) {
	if c.WebhookSecret.Reveal() == "" {
		return nil, nil
	}
	key, err := job.WebhookKey(c.WebhookSecret.Reveal())
	if err != nil {
		return nil, fmt.Errorf("WEBHOOK_SECRET: %w", err)
	}
	sender := webhook.New(webhook.Options{URL: c.WebhookURL.Reveal(), Key: key, Version: version})
	return &executor.Webhooks{Send: sender.Send, Installation: c.WebhookURL.Reveal() != "", Private: r.bounds.NotifyPrivate, Page: c.WebhookLink}, nil
}

func secrets(c config.Config) *secret.Source {
	o := secret.Options{File: c.SecretsFile, Credentials: c.CredentialsDirectory}
	for name, value := range c.Secrets {
		o.Environment = append(o.Environment, secret.NewValue(name, value.Reveal()))
	}
	return secret.New(o)
}

// Problems returns everything wrong with settings that are valid one by one: their combinations,
// and the files they name.
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
		{"PROXMOX_SSH_KEY_PATH", c.ProxmoxSSHKeyPath, "give the path of a private key, or unset it to use the SSH agent and the keys in ~/.ssh"},
		{"PROXMOX_KNOWN_HOSTS", c.ProxmoxKnownHosts, "linus host trust creates it with the host's key"},
	} {
		if file.path == "" {
			continue
		}
		if info, err := os.Stat(file.path); err == nil && info.Mode()&fs.ModeNamedPipe != 0 { // opening it would wait
			add(file.name, file.path+" is a pipe", file.remedy)
			continue
		}
		f, err := os.Open(file.path)
		if err != nil {
			if at, ok := errors.AsType[*fs.PathError](err); ok {
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

// defaultsOf returns the values of fields that manifests leave out.
func defaultsOf(c config.Config) job.Defaults {
	return job.Defaults{VMTemplate: c.DefaultVMTemplate, Timeout: c.DefaultTimeout, CPU: c.DefaultCPU, Memory: c.DefaultMemory, Disk: c.DefaultDisk, Egress: defaultEgress(c), EgressNames: c.EgressNames()}
}

// defaultEgress returns the egress mode of jobs that choose none; empty if their manifests need not
// name one.
func defaultEgress(c config.Config) vm.Egress {
	if c.DefaultEgress == string(vm.EgressLAN) {
		return ""
	}
	return vm.Egress(c.DefaultEgress)
}
