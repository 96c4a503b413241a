package job

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"linus/internal/vm"
)

// Action is something that a text asks people to do, for which each face has another name: a tool, a
// command, a page. The text contains the action's code, which is also its name on the command line;
// a face replaces the code with its own name.
type Action string

// The actions.
const (
	ListVMs       Action = "{vm list}"
	ListPools     Action = "{pool list}"
	ListVolumes   Action = "{volume list}"
	ShowJob       Action = "{job status}"
	EnterVM       Action = "{vm enter}"   // followed by the VM's name
	StartVM       Action = "{vm start}"   // followed by the VM's name
	ResumeVM      Action = "{vm resume}"  // followed by the VM's name
	DestroyVM     Action = "{vm destroy}" // followed by the VM's name
	ForgetVM      Action = "{vm forget}"  // followed by the VM's name
	BuildTemplate Action = "{template build}"
	ListTemplates Action = "{template list}"
	TrustHost     Action = "{host trust}"
	ProveHost     Action = "{host test}"

	BuildCheckpoint Action = "{template checkpoint build}"
	ListCheckpoints Action = "{template checkpoint list}"

	// Parameters of BuildTemplate.
	TemplateName   Action = "{template build name}"
	TemplateOS     Action = "{template build os}"
	TemplateImage  Action = "{template build image}"
	TemplateSHA256 Action = "{template build sha256}"
	TemplateParts  Action = "{template build bootstrap}"
)

// Actions are all actions.
var Actions = []Action{
	ListVMs, ListPools, ListVolumes, ShowJob, EnterVM, StartVM, ResumeVM, DestroyVM, ForgetVM, BuildTemplate, ListTemplates, TrustHost, ProveHost, BuildCheckpoint, ListCheckpoints,
	TemplateName, TemplateOS, TemplateImage, TemplateSHA256, TemplateParts,
}

// command returns the action's name on the command line; parameters of BuildTemplate are options there.
func (a Action) command() string {
	code := strings.Trim(string(a), "{}")
	if option, is := strings.CutPrefix(code, "template build "); is {
		return "--" + option
	}
	return "linus " + strings.Replace(code, "enter", "ssh", 1)
}

// Words are a face's names for actions. Actions without a name there keep that of the command line.
type Words map[Action]string

// In returns a text with its actions replaced by the face's words.
func (w Words) In(text string) string {
	if !strings.Contains(text, "{") {
		return text
	}
	for _, action := range Actions {
		if strings.Contains(text, string(action)) {
			text = strings.ReplaceAll(text, string(action), cmp.Or(w[action], action.command()))
		}
	}
	return text
}

// Phrased returns e with the texts of jobs, VMs, events and reports in a face's words. Errors stay
// as they are: a face phrases them when it prints them.
func Phrased(e Engine, w Words) Engine {
	return Through(func(ctx context.Context, v *Verb, in any) (any, error) {
		out, err := v.Do(ctx, e, in)
		return w.Phrase(out), err
	})
}

// Phrase returns a verb's result with its texts in the face's words. Its argument is not modified.
func (w Words) Phrase(out any) any {
	if j, is := out.(Job); is && j.Outcome == nil && j.VM == nil {
		return out // none of its texts comes from the engine, and it is large
	}
	switch out := out.(type) {
	case Job:
		return w.job(out)
	case WatchedJob:
		out.Events = each(out.Events, func(e Event) Event {
			e.Text = w.In(e.Text)
			return e
		})
		out.Job = w.job(out.Job)
		return out
	case Result:
		out.Error = w.In(out.Error)
		return out
	case VMInfo:
		return w.vm(out)
	case []VMInfo:
		return each(out, w.vm)
	case Forked:
		out.VMs = each(out.VMs, w.vm)
		out.Failed = each(out.Failed, func(f ForkError) ForkError {
			f.Error = w.In(f.Error)
			return f
		})
		return out
	case PoolInfo:
		return w.pool(out)
	case []PoolInfo:
		return each(out, w.pool)
	case CheckpointInfo:
		out.Text = w.In(out.Text)
		return out
	case []CheckpointInfo:
		return each(out, func(c CheckpointInfo) CheckpointInfo {
			c.Text = w.In(c.Text)
			return c
		})
	case []EngineInfo:
		return each(out, func(e EngineInfo) EngineInfo {
			e.Problem = w.In(e.Problem)
			return e
		})
	case HostReport:
		out.Checks = each(out.Checks, func(c Check) Check {
			c.Text, c.Remedy = w.In(c.Text), w.In(c.Remedy)
			return c
		})
		return out
	case HostTest:
		return w.hostTest(out)
	case []HostTest:
		return each(out, w.hostTest)
	case Schedule:
		return w.schedule(out)
	case []Schedule:
		return each(out, w.schedule)
	}
	return out
}

// each returns the list with every element changed, and nil for nil.
func each[T any](list []T, change func(T) T) []T {
	list = slices.Clone(list)
	for i := range list {
		list[i] = change(list[i])
	}
	return list
}

func (w Words) job(j Job) Job {
	if j.Outcome != nil {
		outcome := *j.Outcome
		outcome.Error = w.In(outcome.Error)
		j.Outcome = &outcome
	}
	if j.VM != nil {
		vm := *j.VM
		vm.Reason, vm.Remedy = w.In(vm.Reason), w.In(vm.Remedy)
		j.VM = &vm
	}
	return j
}

func (w Words) pool(p PoolInfo) PoolInfo {
	p.State = w.In(p.State)
	if p.Failure != nil {
		failure := *p.Failure
		failure.Error = w.In(failure.Error)
		p.Failure = &failure
	}
	p.Members = each(p.Members, func(m vm.MemberInfo) vm.MemberInfo {
		m.Why = w.In(m.Why)
		return m
	})
	return p
}

func (w Words) hostTest(t HostTest) HostTest {
	t.Steps = each(t.Steps, func(s HostTestStep) HostTestStep {
		s.Text, s.Remedy = w.In(s.Text), w.In(s.Remedy)
		return s
	})
	return t
}

func (w Words) schedule(s Schedule) Schedule {
	s.Problem = w.In(s.Problem)
	s.Runs = each(s.Runs, func(r Run) Run {
		r.Why = w.In(r.Why)
		return r
	})
	return s
}

func (w Words) vm(v VMInfo) VMInfo {
	v.Reason, v.Remedy = w.In(v.Reason), w.In(v.Remedy)
	return v
}
