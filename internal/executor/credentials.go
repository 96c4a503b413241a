package executor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// checkCredentials returns what is wrong with the credentials of a manifest that has every default.
func (e *Executor) checkCredentials(ctx context.Context, m job.Manifest) error {
	if err := reachable(m, m.Network); err != nil && m.VM == "" {
		return err
	}
	for i, name := range m.Credentials {
		at := fmt.Sprintf("manifest.credentials[%d]", i)
		if key, ok := job.KeyCredential(name); ok {
			return &job.FieldError{Field: at, Problem: fmt.Sprintf("%q is an agent's key, for that agent's jobs only", name), Remedy: "leave it out, and add a credential with the secret " + key.Secret + " for other jobs"}
		}
		c, err := e.credential(ctx, name)
		if errors.Is(err, job.ErrNotFound) {
			return unknownCredential(at, name)
		}
		if err != nil {
			return err
		}
		if c.SSH() {
			return &job.FieldError{Field: at, Problem: fmt.Sprintf("%q is an SSH key, which cannot be added to requests", name), Remedy: "name it in repository.credential"}
		}
		if _, given := m.Env[c.Env]; given || slices.Contains(m.Secrets, c.Env) {
			return &job.FieldError{Field: at, Problem: fmt.Sprintf("both %q and the manifest's env or secrets set %s", name, c.Env), Remedy: "leave it out of these"}
		}
	}
	return nil
}

func unknownCredential(at, name string) error {
	return &job.FieldError{Field: at, Problem: fmt.Sprintf("there is no credential %q", name), Remedy: "linus credential list shows those there are", Fault: job.FaultUnknown}
}

// reachable returns an error if a network makes a job's credentials useless.
func reachable(m job.Manifest, n vm.Network) error {
	if len(m.Credentials) == 0 || n.Mode() != vm.EgressNone {
		return nil
	}
	return &job.FieldError{Field: "manifest.credentials", Problem: "credentials need a network: the VM reaches no host (egress none)", Remedy: "use egress allow, which may list no other name, or leave them out"}
}

func (e *Executor) credential(ctx context.Context, name string) (job.Credential, error) {
	if e.o.Credentials == nil {
		return job.Credential{}, job.ErrNotFound
	}
	return e.o.Credentials.Credential(ctx, name)
}

// withPlaceholders returns a manifest whose task finds the placeholders of its credentials.
// Credentials that were removed meanwhile have none.
func (e *Executor) withPlaceholders(ctx context.Context, m job.Manifest) (job.Manifest, error) {
	env := map[string]string{}
	for _, name := range m.Credentials {
		c, err := e.credential(ctx, name)
		if err != nil && !errors.Is(err, job.ErrNotFound) {
			return m, err
		}
		if err == nil && c.Env != "" && !slices.Contains(m.Secrets, c.Env) {
			env[c.Env] = c.Placeholder()
		}
	}
	maps.Copy(env, m.Env)
	m.Env = env
	return m, nil
}

// provides reports whether one of a manifest's credentials sets one of the variables.
func (e *Executor) provides(ctx context.Context, m job.Manifest, variables []string) bool {
	return slices.ContainsFunc(m.Credentials, func(name string) bool {
		c, err := e.credential(ctx, name)
		return err != nil || slices.Contains(variables, c.Env)
	})
}
