package store

import (
	"database/sql"
	"encoding/json"
	"reflect"

	"linus/internal/job"
	"linus/internal/vm"
)

// heldAs is how a job has its VM: what its document says of it. The VM's row has the rest.
type heldAs struct {
	State  vm.State  `json:"state,omitempty"` // another's VM's, to the job
	Source vm.Source `json:"source,omitempty"`
	Lent   bool      `json:"lent,omitempty"`
}

// heldVM returns the VM of a job as the VM's row and the job's document have it; nil: it
// has none.
func heldVM(id string, doc sql.NullString, h *heldAs) (*vm.VM, error) {
	if !doc.Valid || h == nil {
		return nil, nil
	}
	v, err := decodeVM(doc.String)
	if err != nil {
		return nil, err
	}
	v.Source, v.Lent = h.Source, h.Lent
	if v.Job != id {
		v.State = h.State
	}
	return &v, nil
}

// machine is the document of a VM's row.
type machine struct {
	vm.VM
	As vm.Made `json:"made"`
}

func decodeVM(doc string) (vm.VM, error) {
	var m machine
	err := json.Unmarshal([]byte(doc), &m)
	m.Made = m.As
	return m.VM, err
}

// updateVM writes the VM that a job has made, if it differs from what it was; nil: there
// was none. That of another job is that job's to change.
func updateVM(tx *tx, was *vm.VM, j job.Job) error {
	if j.VM == nil || j.VM.Job != j.ID || was != nil && reflect.DeepEqual(*was, *j.VM) {
		return nil
	}
	v := *j.VM
	v.Source, v.Lent = "", false
	doc, err := json.Marshal(machine{v, v.Made})
	if err != nil {
		return err
	}
	tx.post(`INSERT INTO vms (id, state, doc) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET state = excluded.state, doc = excluded.doc`,
		v.Job, string(v.State), string(doc))
	return nil
}
