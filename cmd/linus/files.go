package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"linus/internal/job"
	shown "linus/internal/term"
)

// inVMArg checks that there is one argument, NAME:PATH.
func inVMArg(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || inVM.FindStringSubmatch(args[0]) == nil {
		return usage("%s takes a path in a VM, NAME:PATH, with the VM's name or ID, or the ID of a job that runs in it", cmd.CommandPath())
	}
	return nil
}

func (a *app) vmListFilesCommand() *cobra.Command {
	return a.completePaths(&cobra.Command{
		Use:   "ls NAME:PATH",
		Short: "List a directory in a running VM",
		Long: "Lists a directory, or one file, as the VM's SSH user sees it. NAME is the VM's name or ID, or the ID of a job that runs in it; a PATH\n" +
			"without a leading / is relative to the user's home.",
		Example: "  linus vm ls dev:\n  linus vm ls dev:/var/log -o json",
		Args:    inVMArg,
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			m := inVM.FindStringSubmatch(args[0])
			q := job.FileList{VM: m[1], Path: m[2]}
			var all []job.FileInfo
			for {
				page, err := s.ListFiles(ctx, q)
				if err != nil {
					return err
				}
				all = append(all, page.Entries...)
				if page.Next <= q.Offset {
					break
				}
				q.Offset = page.Next
			}
			return printAll(a, all, "the directory is empty", "TYPE\tMODE\tUID\tGID\tSIZE\tMODIFIED\tNAME", func(f job.FileInfo) string {
				return fmt.Sprintf("%s\t%s\t%d\t%d\t%d\t%s\t%s", oneLine(string(f.Type), 20), oneLine(f.Mode, 8), f.UID, f.GID, f.Size, local(f.ModTime), oneLine(f.Name, 255))
			})
		}),
	})
}

func (a *app) vmCatCommand() *cobra.Command {
	return a.completePaths(&cobra.Command{
		Use:   "cat NAME:PATH",
		Short: "Print a file from a running VM",
		Long: "Prints a regular file as it is, byte for byte; to a terminal without escape sequences. NAME is the VM's name or ID, or the ID of a\n" +
			"job that runs in it; a PATH without a leading / is relative to the user's home.",
		Example: "  linus vm cat dev:/etc/os-release\n  linus vm cat dev:core.gz > core.gz",
		Args:    inVMArg,
		RunE: a.attached(func(ctx context.Context, s *session, args []string) error {
			m := inVM.FindStringSubmatch(args[0])
			to, flush := io.Writer(a.stdout), func() error { return nil }
			if isTerminal(a.stdout) {
				p := &shown.Printer{To: a.stdout}
				to, flush = p, p.Flush
			}
			for at, end := int64(0), false; !end; {
				chunk, err := s.ReadFile(ctx, job.FileRange{VM: m[1], Path: m[2], Offset: at})
				if err != nil {
					return err
				}
				if _, err := to.Write(chunk.Data); err != nil {
					return err
				}
				end, at = chunk.End || chunk.Next <= at, chunk.Next
			}
			return flush()
		}),
	})
}
