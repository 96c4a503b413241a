package fleet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// ExposePort gives a port of a VM a URL.
func (f *Fleet) ExposePort(ctx context.Context, spec job.PortSpec) (job.ExposedPort, error) {
	name, err := spec.Check()
	if err != nil {
		return job.ExposedPort{}, err
	}
	if f.portURL("") == "" {
		return job.ExposedPort{}, &job.FieldError{Field: "port", Problem: "there is no server at which it could have a URL", Remedy: "set HTTP_ADDR and start linus serve, or HTTP_URL if another engine serves HTTP", Fault: job.FaultState}
	}
	v, err := f.fileVM(ctx, spec.VM)
	if err != nil {
		return job.ExposedPort{}, err
	}
	port := vm.Port{Name: name, Port: spec.Port, ID: name + "-" + strings.ToLower(rand.Text()[:12]), At: now()}
	_, err = f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
		at := portNamed(*v, name)
		switch {
		case v.State != vm.Created || v.Unwanted:
			return nil, noVM(v.Name, "is being destroyed")
		case at >= 0 && v.Ports[at].Port == spec.Port:
			port = v.Ports[at]
			return nil, nil
		case at >= 0:
			return nil, &job.FieldError{Field: "name", Problem: fmt.Sprintf("%q is port %d of VM %s already", name, v.Ports[at].Port, v.Name), Remedy: "give another, or take that one away first", Fault: job.FaultState}
		case len(v.Ports) >= job.MaxPorts:
			return nil, &job.FieldError{Field: "port", Problem: fmt.Sprintf("VM %s has %d exposed ports, which is the limit", v.Name, len(v.Ports)), Remedy: "take one away first", Fault: job.FaultLimit}
		}
		v.Ports = append(slices.Clone(v.Ports), port)
		return []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("port %d of VM %d is exposed as %s", port.Port, v.ID, port.ID)}}, nil
	})
	out := f.exposedPort(port)
	if err == nil {
		out.Note = f.unheard(ctx, v, port.Port)
	}
	return out, err
}

// portSeen bounds how long it takes to find out whether something listens at a port.
const portSeen = 3 * time.Second

// unheard tries one connection to a port of a VM, and returns why nothing answers there yet; empty:
// something does. A suspended VM is not resumed.
func (f *Fleet) unheard(ctx context.Context, v vm.VM, port int) string {
	if !v.SuspendedAt.IsZero() {
		return fmt.Sprintf("VM %s is suspended; the first request resumes it", v.Name)
	}
	timed, cancel := context.WithTimeout(ctx, portSeen)
	defer cancel()
	err := f.enter(timed, v, func(ctx context.Context) error {
		t, err := f.o.Guest.Dial(ctx, v, port)
		if err == nil {
			err = t.Close()
		}
		return err
	})
	field, ours := errors.AsType[*job.FieldError](err)
	switch {
	case err == nil:
		return ""
	case ours && field.Field == "port":
		return fmt.Sprintf("nothing listens at port %d of VM %s's localhost yet; start the server there", port, v.Name)
	case ours:
		return fmt.Sprintf("it is not known whether anything listens there: %s; %s", field.Problem, field.Remedy)
	}
	return fmt.Sprintf("it is not known whether anything listens there: VM %s did not say within %s", v.Name, portSeen)
}

// ListPorts returns the exposed ports of a VM.
func (f *Fleet) ListPorts(ctx context.Context, ref string) ([]job.ExposedPort, error) {
	v, err := f.fileVM(ctx, ref)
	return f.exposed(v), err
}

// UnexposePort removes a port's URL.
func (f *Fleet) UnexposePort(ctx context.Context, ref, name string) (job.ExposedPort, error) {
	v, err := f.fileVM(ctx, ref)
	if err != nil {
		return job.ExposedPort{}, err
	}
	var port vm.Port
	_, err = f.update(ctx, v.Job, func(v *vm.VM) ([]job.Event, error) {
		at := portNamed(*v, name)
		if at < 0 {
			return nil, &job.FieldError{Field: "port", Problem: fmt.Sprintf("VM %s has no exposed port %.80q", v.Name, name), Remedy: "its ports are listed with it", Fault: job.FaultUnknown}
		}
		port = v.Ports[at]
		v.Ports = slices.Delete(slices.Clone(v.Ports), at, at+1)
		return []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("port %d of VM %d is no longer exposed", port.Port, v.ID)}}, nil
	})
	return f.exposedPort(port), err
}

func portNamed(v vm.VM, name string) int {
	return slices.IndexFunc(v.Ports, func(p vm.Port) bool { return p.Name == name })
}

func (f *Fleet) exposed(v vm.VM) (all []job.ExposedPort) {
	for _, p := range v.Ports {
		all = append(all, f.exposedPort(p))
	}
	return all
}

func (f *Fleet) exposedPort(p vm.Port) job.ExposedPort {
	return job.ExposedPort{Name: p.Name, Port: p.Port, ID: p.ID, URL: f.portURL(p.ID), CreatedAt: p.At}
}

func (f *Fleet) portURL(id string) string {
	if f.o.PortURL == nil {
		return ""
	}
	return f.o.PortURL(id)
}
