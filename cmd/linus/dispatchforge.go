package main

import (
	"cmp"
	"context"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/dispatch"
	"linus/internal/dispatch/forge"
)

// dispatchForgeCommand serves the Actions of Forgejo or Gitea.
func (a *app) dispatchForgeCommand(kind forge.Kind, name, tokens string) *cobra.Command {
	var f dispatchFlags
	o := forge.Options{Kind: kind}
	var tokenFile string
	var hook hookFlags
	cmd := &cobra.Command{
		Use:   string(kind) + " --url URL --token-file FILE (--repository OWNER/NAME | --organization NAME | --instance)",
		Short: "Serve jobs of " + name + " Actions, each by a runner in a VM of its own",
		Long: "Looks for jobs of workflows that wait for a runner with the labels of --runs-on, and gives each one a VM with a runner for one\n" +
			"job, until it is interrupted. The API's token stays with this command: a VM gets its own runner's identity, which is good for\n" +
			"one job, into its memory. The runner runs the job on the VM itself, so that the VM has all that the job needs. The options for VMs\n" +
			"are those of linus job submit; a VM has to reach the forge.\n\n" +
			"The token: " + tokens + "\n\n" +
			"After an interrupt it takes no more jobs and waits for its sessions; after a second one it lists those that keep running in their\n" +
			"VMs without it. The next dispatcher of the same name takes them up.",
		Example: "  linus dispatch " + string(kind) + " --url https://forge.example.com --token-file api.token --repository acme/app --template ci --egress internet",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Token, err = a.secretLine(cmd.Context(), "--token-file", tokenFile); err != nil {
				return err
			}
			if o.HookSecret, err = hook.secret(cmd.Context(), a); err != nil {
				return err
			}
			var q dispatch.Queue
			return f.run(cmd, a, func(d dispatch.Options) (err error) {
				o.Log = d.Log
				for _, s := range d.Shapes {
					o.Labels = append(o.Labels, s.Label)
				}
				q, err = forge.New(o)
				return err
			}, func(ctx context.Context, d dispatch.Options) error {
				u, _ := url.Parse(o.URL) // it was parsed before
				queue := u.Host + "/" + cmp.Or(o.Repository, o.Organization)
				a.note("serving jobs of %s as %s: at most %d at once", queue, d.Name, d.Sessions)
				return hook.serve(ctx, a, d, string(kind), queue, q)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.URL, "url", "", "URL of the forge (required)")
	flags.StringVar(&tokenFile, "token-file", "", "file with the API's token alone, that only you can read; - is stdin (required)")
	flags.StringVar(&o.Repository, "repository", "", "serve this repository, as owner/name")
	flags.StringVar(&o.Organization, "organization", "", "serve the repositories of this organization")
	flags.BoolVar(&o.Instance, "instance", false, "serve all repositories of the forge; the token is an administrator's")
	flags.StringSliceVar(&o.Labels, "runs-on", []string{"linus"}, "labels that jobs may ask for; a job is served if all its labels are among them")
	flags.DurationVar(&o.Idle, "idle-timeout", 10*time.Minute, "how long a runner waits for its job, which another runner may have taken")
	f.register(a, cmd, 4, "jobs at the same time, each in a VM")
	f.registerMap(cmd)
	if kind == forge.Gitea {
		hook.register(cmd)
	}
	_ = cmd.MarkFlagFilename("token-file")
	for _, name := range []string{"url", "repository", "organization", "runs-on", "idle-timeout"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

func (a *app) dispatchForgejoCommand() *cobra.Command {
	return a.dispatchForgeCommand(forge.Forgejo, "Forgejo", "it needs write access to repository, organization or admin, whichever it is for. Forgejo 15 or later.")
}

func (a *app) dispatchGiteaCommand() *cobra.Command {
	return a.dispatchForgeCommand(forge.Gitea, "Gitea", "it needs write access to repository, organization or admin, whichever it is for. Gitea 1.25 or later, or 1.24 with --webhook.")
}
