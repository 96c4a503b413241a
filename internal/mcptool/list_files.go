package mcptool

import (
	"context"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type listFilesInput struct {
	VMID   string `json:"vm_id" jsonschema_description:"The VM's name or ID, or the ID of a job that runs in it."`
	Path   string `json:"path,omitempty" jsonschema_description:"Absolute, or relative to the home of the VM's user. Default: that."`
	Offset int    `json:"offset,omitempty" jsonschema:"minimum=0" jsonschema_description:"Entries to skip: next_offset of the previous call."`
	Limit  *int   `json:"limit,omitempty" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Entries. Default 200."`
}

type listFilesOutput struct {
	Entries    []fileOutput `json:"entries" jsonschema_description:"By name."`
	Total      int          `json:"total"`
	NextOffset int          `json:"next_offset,omitempty" jsonschema_description:"Absent on the last page."`
}

type fileOutput struct {
	Name     string       `json:"name"`
	Type     job.FileType `json:"type" jsonschema:"enum=file,enum=directory,enum=symlink,enum=other"`
	Size     int64        `json:"size"`
	Mode     string       `json:"mode"`
	Modified time.Time    `json:"modified_at"`
	Inexact  bool         `json:"inexact_name,omitempty" jsonschema_description:"The name is not UTF-8: only a command in the VM can use it."`
}

// defaultEntries is how many entries list_files returns unless it is told.
const defaultEntries = 200

func listFiles(e job.Engine) server.ServerTool {
	return define("list_files", "List files",
		"The entries of a directory in a running VM, or one file's.",
		hints{readOnly: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in listFilesInput) (listFilesOutput, error) {
			bad := fileFaults(in.VMID, in.Path+".")
			limit := bad.number("limit", in.Limit, defaultEntries, 1, job.MaxFileList)
			if err := bad.err(); err != nil {
				return listFilesOutput{}, err
			}
			page, err := e.ListFiles(ctx, job.FileList{VM: in.VMID, Path: in.Path, Offset: in.Offset, Limit: limit})
			if err != nil {
				return listFilesOutput{}, fileError(err)
			}
			out := listFilesOutput{Entries: make([]fileOutput, len(page.Entries)), Total: page.Total, NextOffset: page.Next}
			for i, f := range page.Entries {
				out.Entries[i] = fileOutput{Name: f.Name, Type: f.Type, Size: f.Size, Mode: f.Mode, Modified: f.ModTime, Inexact: len(f.RawName) > 0}
			}
			return out, nil
		})
}
