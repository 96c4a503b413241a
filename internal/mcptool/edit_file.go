package mcptool

import (
	"context"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type editFileInput struct {
	VMID string `json:"vm_id" jsonschema_description:"The VM's name or ID, or the ID of a job that runs in it."`
	Path string `json:"path" jsonschema_description:"Absolute, or relative to the home of the VM's user."`
	Old  string `json:"old_string" jsonschema_description:"Text that is there exactly once, blanks and line ends included."`
	New  string `json:"new_string" jsonschema_description:"What replaces it."`
	All  bool   `json:"replace_all,omitempty" jsonschema_description:"Replace every occurrence."`
}

type editFileOutput struct {
	Replaced int   `json:"replaced" jsonschema_description:"Occurrences."`
	Line     int   `json:"line" jsonschema_description:"Of the first one."`
	Size     int64 `json:"size" jsonschema_description:"Bytes of the file now."`
}

func editFile(e job.Engine) server.ServerTool {
	return define("edit_file", "Edit a file",
		"Replace text in a file in a running VM, as the VM's user. If old_string is not there exactly once, nothing changes and the error says how often it is.",
		hints{destructive: true, openWorld: true},
		func(ctx context.Context, in editFileInput) (editFileOutput, error) {
			bad := fileFaults(in.VMID, in.Path)
			bad.required("old_string", in.Old, "give text that is in the file; write_file writes a new one")
			if err := bad.err(); err != nil {
				return editFileOutput{}, err
			}
			edited, err := e.EditFile(ctx, job.FileEdit{VM: in.VMID, Path: in.Path, Old: in.Old, New: in.New, All: in.All})
			if err != nil {
				return editFileOutput{}, fileError(err)
			}
			return editFileOutput(edited), nil
		})
}
