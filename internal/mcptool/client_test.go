package mcptool

import (
	"context"
	"testing"

	"github.com/mark3labs/mcp-go/client"

	"linus/internal/job"
	"linus/internal/vm"
)

// asked notes who asks for StopVM.
type asked struct {
	*engine
	by string
}

func (a *asked) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	a.by = job.ClientFrom(ctx)
	return a.engine.StopVM(ctx, ref)
}

func TestTools_PassTheClientToTheEngine(t *testing.T) {
	e := &asked{engine: &engine{vm: job.VMInfo{VM: vm.VM{ID: 105, Name: "dev"}}}}
	c, err := client.NewInProcessClient(inProcess(t, e))
	callTool(t, begin(t, c, err), "stop_vm", map[string]any{"vm_id": "dev"})
	if e.by != "mcp:a-client-1" {
		t.Errorf("%q asked, want the name the client gave itself", e.by)
	}
}
