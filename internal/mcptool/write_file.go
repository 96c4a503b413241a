package mcptool

import (
	"context"
	"encoding/base64"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type writeFileInput struct {
	VMID     string `json:"vm_id" jsonschema_description:"The VM's name or ID, or the ID of a job that runs in it."`
	Path     string `json:"path" jsonschema_description:"Absolute, or relative to the home of the VM's user."`
	Content  string `json:"content" jsonschema_description:"The whole file, at most 10 MiB."`
	Encoding string `json:"encoding,omitempty" jsonschema:"enum=text,enum=base64" jsonschema_description:"Of content. Default text."`
	Mode     string `json:"mode,omitempty" jsonschema_description:"Octal permissions. Default: those it has, 0644 if it is new."`
	Parents  bool   `json:"create_directories,omitempty" jsonschema_description:"Create missing directories."`
}

type writeFileOutput struct {
	Created bool   `json:"created" jsonschema_description:"There was no such file."`
	Size    int64  `json:"size"`
	Mode    string `json:"mode"`
}

func writeFile(e job.Engine) server.ServerTool {
	return define("write_file", "Write a file",
		"Create or replace a file in a running VM, as the VM's user, byte for byte and all at once. To change a part use edit_file.",
		hints{destructive: true, idempotent: true, openWorld: true},
		func(ctx context.Context, in writeFileInput) (writeFileOutput, error) {
			bad := fileFaults(in.VMID, in.Path)
			bad.word("encoding", in.Encoding, textEncoding, base64Encoding)
			data := []byte(in.Content)
			if in.Encoding == base64Encoding {
				var err error
				if data, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
					bad.add("content", err.Error(), "give base64, with padding, or encoding text")
				}
			}
			if err := bad.err(); err != nil {
				return writeFileOutput{}, err
			}
			w, err := e.WriteFile(ctx, job.FileWrite{VM: in.VMID, Path: in.Path, Data: data, Mode: in.Mode, Parents: in.Parents})
			if err != nil {
				return writeFileOutput{}, fileError(err)
			}
			return writeFileOutput(w), nil
		})
}
