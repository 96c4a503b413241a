package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/vm"
)

// A connection to the URL's port resumes a VM that was suspended as it was idle, and keeps it awake.
func TestPort_ResumesItsVM(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.PortURL = func(id string) string { return "https://" + id + ".vm.example" }
		r.start()
		id := r.napping("dev")
		web, err := r.ExposePort(context.Background(), job.PortSpec{VM: "dev", Port: 3000, Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		r.pass(12 * time.Minute)
		r.sleeps(id, true)
		if all, err := r.ListPorts(context.Background(), job.PortRef+web.ID); err != nil || len(all) != 1 {
			t.Fatalf("while it is suspended: %+v, %v", all, err)
		}
		r.sleeps(id, true)
		tunnel, err := r.DialVM(context.Background(), job.PortRef+web.ID, 3000)
		if err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		r.sleeps(id, false)
		if err := tunnel.Close(); err != nil {
			t.Error(err)
		}
		r.pass(12 * time.Minute)
		r.sleeps(id, true)
	})
}

func TestPort_HasAURLUntilItsVMGoes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.PortURL = func(id string) string { return "https://" + id + ".vm.example" }
		r.start()
		id := r.ask("dev")
		r.ask("other")
		r.pass(time.Minute)
		ctx := context.Background()
		web, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: 3000, Name: "web"})
		if err != nil || web.Name != "web" || !strings.HasPrefix(web.ID, "web-") || web.URL != "https://"+web.ID+".vm.example" {
			t.Fatalf("%+v, %v", web, err)
		}
		if again, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: 3000, Name: "web"}); err != nil || again.ID != web.ID {
			t.Errorf("again: %+v, %v", again, err)
		}
		plain, err := r.ExposePort(ctx, job.PortSpec{VM: id, Port: 8080})
		if err != nil || plain.Name != "8080" {
			t.Errorf("without a name: %+v, %v", plain, err)
		}
		other, err := r.ExposePort(ctx, job.PortSpec{VM: "other", Port: 3000, Name: "web"})
		if err != nil || other.ID == web.ID {
			t.Errorf("another VM's: %+v, %v", other, err)
		}
		for _, ref := range []string{"dev", id, job.PortRef + web.ID} {
			if all, err := r.ListPorts(ctx, ref); err != nil || len(all) != 2 || all[0] != web || all[1] != plain {
				t.Errorf("ports of %s: %+v, %v", ref, all, err)
			}
		}
		if info, err := r.VM(ctx, "dev"); err != nil || len(info.Ports) != 2 || info.Ports[0] != web {
			t.Errorf("the VM: %+v, %v", info.Ports, err)
		}
		tunnel, err := r.DialVM(ctx, job.PortRef+web.ID, 3000)
		if err != nil {
			t.Fatal(err)
		}
		if err := tunnel.Close(); err != nil {
			t.Error(err)
		}
		var field *job.FieldError
		for want, spec := range map[string]job.PortSpec{
			"port": {VM: "dev", Port: 65536}, "name": {VM: "dev", Port: 3001, Name: "web"}, "vm": {VM: "none", Port: 80},
		} {
			if _, err := r.ExposePort(ctx, spec); !errors.As(err, &field) || field.Field != want {
				t.Errorf("%+v: %v", spec, err)
			}
		}
		for _, name := range []string{"Web", "a.b", "-a", "80", strings.Repeat("x", 33), "port:x", "a b", "xn--80ak6aa92e"} {
			if _, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: 3001, Name: name}); !errors.As(err, &field) || field.Field != "name" {
				t.Errorf("name %q: %v", name, err)
			}
		}
		if gone, err := r.UnexposePort(ctx, "dev", "8080"); err != nil || gone != plain {
			t.Errorf("%+v, %v", gone, err)
		}
		if _, err := r.UnexposePort(ctx, "dev", "8080"); !errors.As(err, &field) || field.Field != "port" {
			t.Errorf("twice: %v", err)
		}
		if next, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: 8080}); err != nil || next.ID == plain.ID {
			t.Errorf("its ID came again: %+v, %v", next, err)
		}
		for i := range job.MaxPorts - 2 {
			if _, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: 9000 + i}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: 9999}); !errors.As(err, &field) || field.Fault != job.FaultLimit {
			t.Errorf("one too many: %v", err)
		}
		r.stop()
		r.start() // another engine
		if all, err := r.ListPorts(ctx, job.PortRef+web.ID); err != nil || len(all) != job.MaxPorts {
			t.Errorf("afterwards: %+v, %v", all, err)
		}
		if _, err := r.DestroyVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}
		if all, err := r.ListPorts(ctx, job.PortRef+web.ID); !errors.As(err, &field) {
			t.Errorf("of a VM that goes: %+v, %v", all, err)
		}
		if _, err := r.DialVM(ctx, job.PortRef+web.ID, 3000); !errors.As(err, &field) {
			t.Errorf("a VM that goes is reached: %v", err)
		}
	})
}

// What belongs to another does not exist, also by a port's ID, and a VM's name is no port's ID.
func TestPort_IsItsOwners(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.PortURL = func(id string) string { return "http://127.0.0.1/ports/" + id + "/" }
		r.start()
		of := func(name string) func(*vm.VM) { return func(v *vm.VM) { v.Principal = name } }
		r.ask("dev", of("alice"))
		r.pass(time.Minute)
		as := func(name string, role job.Role) context.Context {
			return job.WithPrincipal(context.Background(), job.Principal{Name: name, Role: role})
		}
		web, err := r.ExposePort(as("alice", job.RoleRun), job.PortSpec{VM: "dev", Port: 3000})
		if err != nil {
			t.Fatal(err)
		}
		r.ask(web.ID, of("bob")) // a VM that has the port's ID as its name
		r.pass(time.Minute)
		var field *job.FieldError
		for _, ref := range []string{"dev", job.PortRef + web.ID} {
			if all, err := r.ListPorts(as("bob", job.RoleRun), ref); !errors.As(err, &field) {
				t.Errorf("%s: bob sees %+v, %v", ref, all, err)
			}
			if _, err := r.DialVM(as("bob", job.RoleRun), ref, 3000); !errors.As(err, &field) {
				t.Errorf("%s: bob reaches it: %v", ref, err)
			}
		}
		if all, err := r.ListPorts(as("operator", job.RoleAdmin), job.PortRef+web.ID); err != nil || fmt.Sprint(all) != fmt.Sprint([]job.ExposedPort{web}) {
			t.Errorf("an admin sees %+v, %v", all, err)
		}
	})
}

func TestPort_NeedsAServer(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.ask("dev")
		r.pass(time.Minute)
		var field *job.FieldError
		if _, err := r.ExposePort(context.Background(), job.PortSpec{VM: "dev", Port: 3000}); !errors.As(err, &field) || !strings.Contains(field.Remedy, "HTTP_ADDR") {
			t.Error(err)
		}
	})
}

// The URL is there before what is to be at it, so whoever gets it is told when nothing is. The VM,
// which may never answer, is asked once, for a time.
func TestPort_SaysWhenNothingListens(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.PortURL = func(id string) string { return "https://" + id + ".vm.example" }
		r.opts.Guest = silentPort{r.opts.Guest, 2}
		r.start()
		id := r.napping("dev")
		ctx := context.Background()
		for port, want := range map[int]string{1: "nothing listens at port 1", 2: "not known", 3000: ""} {
			began := time.Now()
			p, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: port})
			if err != nil || p.URL == "" || want == "" && p.Note != "" || !strings.Contains(p.Note, want) {
				t.Errorf("port %d: %+v, %v, want a URL and %q", port, p, err, want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("port %d: a VM that does not answer held the call up for %s", port, took)
			}
		}
		if all, err := r.ListPorts(ctx, "dev"); err != nil || len(all) != 3 || all[0].Note+all[1].Note+all[2].Note != "" {
			t.Errorf("what was seen once is listed later: %+v, %v", all, err)
		}
		r.pass(12 * time.Minute)
		r.sleeps(id, true)
		if p, err := r.ExposePort(ctx, job.PortSpec{VM: "dev", Port: 4}); err != nil || !strings.Contains(p.Note, "suspended") {
			t.Errorf("of a suspended VM: %+v, %v", p, err)
		}
		r.sleeps(id, true)
	})
}

// silentPort is a guest of whose ports one neither takes a connection nor refuses it.
type silentPort struct {
	fleet.Guest

	port int
}

func (s silentPort) Dial(ctx context.Context, v vm.VM, port int) (job.Tunnel, error) {
	if port != s.port {
		return s.Guest.Dial(ctx, v, port)
	}
	<-ctx.Done()
	return nil, ctx.Err()
}
