package job

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	spec "linus/internal/field"
	"linus/internal/lazyregexp"
	"linus/internal/vm"
)

// MaxChildren bounds the jobs that one manifest creates.
const MaxChildren = 256

// Variables in the environment of a child's task.
const (
	shardEnv  = "LINUS_SHARD"  // its number, from 1
	shardsEnv = "LINUS_SHARDS" // how many there are
	matrixEnv = "MATRIX_"      // prefix of a matrix's name in upper case; holds its value
)

var matrixValue = lazyregexp.New(`^[A-Za-z0-9_+-][A-Za-z0-9_+.-]*$`) // it is part of paths

// FansOut reports whether the manifest is that of a parent: a job that has children instead of a VM
// and a task of its own.
func (m Manifest) FansOut() bool { return len(m.Matrix) > 0 || m.Shards > 0 }

// WantsVM reports whether the job gets a VM of its own, and a slot for it.
func (j Job) WantsVM() bool { return !j.Shares() && !j.Manifest.FansOut() }

// Child is one of a parent's jobs, as recorded in the parent.
type Child struct {
	Name     string        `json:"name"` // its place in the matrix: os=debian,shard=2
	ID       string        `json:"job_id" api:"id"`
	Status   Status        `json:"status"`
	Reason   Reason        `json:"reason,omitempty"`
	ExitCode *int          `json:"exit_code,omitempty"`
	Duration time.Duration `json:"duration,omitempty" api:"duration_seconds"` // how long its task ran
	EndedAt  time.Time     `json:"ended_at,omitzero"`
}

// Ended records how the child ended.
func (c *Child) Ended(j Job) {
	c.ID, c.Status, c.Reason, c.ExitCode, c.Duration, c.EndedAt = j.ID, j.Status, j.Outcome.Reason, j.Outcome.ExitCode, j.Ran(), j.CompletedAt
}

// How describes in a word or two how the child ended, or its status.
func (c Child) How() string {
	switch {
	case !c.Status.Terminal() || c.Reason == ReasonTimeout:
		return string(c.Status)
	case c.Reason == ReasonExitStatus && c.ExitCode != nil && *c.ExitCode != 0:
		return fmt.Sprintf("exit code %d", *c.ExitCode)
	case c.Reason == ReasonExitStatus:
		return string(c.Status)
	}
	return string(c.Reason)
}

// JoinChildren returns the outcome of a parent: that of the first child that did not succeed, or success.
func JoinChildren(children []Child) Outcome {
	o := Outcome{Status: Success, Reason: ReasonExitStatus, ExitCode: new(int), At: time.Now().UTC()}
	var first Child
	failed := 0
	for _, c := range children {
		if c.Status == Success {
			continue
		}
		if failed++; first.Name == "" || c.EndedAt.Before(first.EndedAt) {
			first = c
		}
	}
	if failed > 0 {
		o.Status, o.Reason, o.ExitCode = first.Status, first.Reason, first.ExitCode
		o.Error = fmt.Sprintf("%s: %s; %d of %d did not succeed", first.Name, first.How(), failed, len(children))
	}
	return o
}

// axis is one dimension of a matrix.
type axis struct {
	name   string
	values []string
}

// axes returns the dimensions of the fan-out, shards last, and everything wrong with them.
func (m Manifest) axes() (all []axis, bad []*FieldError) {
	const form = "give NAME=VALUE,VALUE, as in go=1.25,1.26"
	n, seen := 1, map[string]bool{}
	for i, text := range m.Matrix {
		at := fmt.Sprintf("manifest.matrix[%d]", i)
		name, list, _ := strings.Cut(text, "=")
		a := axis{name, strings.Split(list, ",")}
		variable := matrixEnv + strings.ToUpper(name)
		_, given := m.Env[variable]
		switch {
		case !fits(envName, name, 40):
			bad = append(bad, field(at, form+"; a name has letters, digits and _", "%.80q is not a name", name))
		case seen[variable]:
			bad = append(bad, field(at, "give all its values at once, separated by commas", "%q is given twice", name))
		case given:
			bad = append(bad, field("manifest.env."+variable, "remove it, or give the matrix another name", "is set by manifest.matrix"))
		}
		seen[variable] = true
		for j, v := range a.values {
			if !fits(matrixValue, v, 64) {
				bad = append(bad, field(at, form+"; values have at most 64 letters, digits, or any of _ + . - and do not begin with a dot", "%.80q is not a value", v))
			} else if slices.Contains(a.values[:j], v) {
				bad = append(bad, field(at, "remove one of the two", "has %q twice", v))
			}
		}
		all, n = append(all, a), min(n*len(a.values), MaxChildren+1)
	}
	if m.Shards > 0 {
		a := axis{name: "shard"}
		for i := range m.Shards {
			a.values = append(a.values, strconv.Itoa(i+1))
		}
		for _, name := range []string{shardEnv, shardsEnv} {
			if _, given := m.Env[name]; given {
				bad = append(bad, field("manifest.env."+name, "remove it", "is set by manifest.shards"))
			}
		}
		if seen[matrixEnv+"SHARD"] {
			bad = append(bad, field("manifest.shards", "give the matrix another name", "is given together with a matrix named shard"))
		}
		all, n = append(all, a), min(n*m.Shards, MaxChildren+1)
	}
	if n > MaxChildren && bad == nil {
		bad = append(bad, field("manifest.matrix", "give fewer values or shards", "makes more than %d jobs", MaxChildren))
	}
	if n > 1 {
		bad = append(bad, m.forOne()...)
	}
	return all, bad
}

// forOne returns faults for what only one VM at a time can have, such as a writable volume.
func (m Manifest) forOne() (bad []*FieldError) {
	for i, v := range m.Volumes {
		if v.Mode != vm.MountRO {
			bad = append(bad, field(fmt.Sprintf("manifest.volumes[%d]", i), "mount it ro, as any number of VMs may", "can be written by only one VM at a time, and the jobs of a matrix run at the same time"))
		}
	}
	if a, err := ParseAddresses(m.Network.IP); m.Network.IP != "" && err == nil && a.Fixed() && a.First == a.Last {
		bad = append(bad, field("manifest.network.ip", "give dhcp, or a pool of addresses as in 10.0.0.50-10.0.0.99/24", "%q is one address, and the jobs of a matrix have a VM each", m.Network.IP))
	}
	return bad
}

// Variant is the manifest of a child.
type Variant struct {
	Name     string
	Manifest Manifest
}

// Variants returns the manifests of the children of a valid manifest that fans out, in order. A
// matrix named like a VM option (template, os, cpu, memory, disk) also sets that field.
func (m Manifest) Variants() ([]Variant, error) {
	axes, _ := m.axes()
	all := []Variant{{Manifest: m}}
	all[0].Manifest.Matrix, all[0].Manifest.Shards, all[0].Manifest.FailFast, all[0].Manifest.Notify = nil, 0, false, nil
	for _, a := range axes {
		var next []Variant
		for _, before := range all {
			for _, value := range a.values {
				v := before
				v.Name = strings.TrimPrefix(before.Name+","+a.name+"="+value, ",")
				v.Manifest.Env = maps.Clone(before.Manifest.Env)
				if v.Manifest.Env == nil {
					v.Manifest.Env = map[string]string{}
				}
				if a.name == "shard" && m.Shards > 0 {
					v.Manifest.Env[shardEnv], v.Manifest.Env[shardsEnv] = value, strconv.Itoa(m.Shards)
				} else {
					v.Manifest.Env[matrixEnv+strings.ToUpper(a.name)] = value
					if err := v.Manifest.choose(a.name, value); err != nil {
						return nil, err
					}
				}
				next = append(next, v)
			}
		}
		all = next
	}
	return all, nil
}

// choose sets the VM field whose option has the name of a matrix, if there is one.
func (m *Manifest) choose(option, value string) error {
	for _, f := range spec.For(spec.Submit) {
		if f.Group != spec.Machine || f.Flag != option || f.Name == "vm" {
			continue
		}
		at := f.Of(m)
		if at.CanInt() {
			n, err := strconv.Atoi(value)
			if err != nil {
				return field("manifest.matrix", "give whole numbers", "%s is a number, and %q is not", option, value)
			}
			at.SetInt(int64(n))
			return nil
		}
		at.SetString(value)
	}
	return nil
}
