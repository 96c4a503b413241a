package main

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"linus/internal/dispatch"
	"linus/internal/dispatch/actions"
	"linus/internal/secret"
)

type githubKey struct {
	tokenFile, appKeyFile string
	app, installation     int64
}

func (k githubKey) read(ctx context.Context, a *app) (key actions.Key, err error) {
	switch {
	case (k.tokenFile == "") == (k.appKeyFile == ""):
		return key, usage("give one key: --token-file, or --app-id and --app-key-file")
	case (k.app > 0) != (k.appKeyFile != "") || k.app < 0 || k.installation < 0 || k.installation > 0 && k.app == 0:
		return key, usage("--app-id and --app-key-file go together, and --installation is of an App")
	case k.tokenFile != "":
		key.Token, err = a.secretLine(ctx, "--token-file", k.tokenFile)
		return key, err
	}
	data, err := secret.ReadGiven(ctx, k.appKeyFile)
	if err != nil {
		return key, usage("--app-key-file: %w", err)
	}
	private, err := actions.ParseAppKey(data)
	if err != nil {
		return key, usage("--app-key-file: %s %w", k.appKeyFile, err)
	}
	return actions.Key{App: &actions.App{ID: k.app, Key: private, Installation: k.installation}}, nil
}

func (a *app) dispatchGitHubCommand() *cobra.Command {
	var f dispatchFlags
	var o actions.Options
	var key githubKey
	var hook hookFlags
	cmd := &cobra.Command{
		Use:   "github (--repository OWNER/NAME | --organization NAME) (--token-file FILE | --app-id N --app-key-file FILE)",
		Short: "Serve jobs of GitHub Actions, each by a runner in a VM of its own",
		Long: "Looks for jobs of workflows that wait for a self-hosted runner, and gives each one a VM with a just-in-time runner, until it is\n" +
			"interrupted. It serves jobs whose labels (runs-on) are all among self-hosted, linux, x64 and those of --runs-on, but not just\n" +
			"linux and x64. The key stays with this command: a VM gets its own runner's configuration, which is good for one job, into\n" +
			"its memory. The template needs GitHub's runner: linus template build --bootstrap github-runner puts it there. The options for VMs\n" +
			"are those of linus job submit; a VM has to reach GitHub.\n\n" +
			"The key is a GitHub App's, or a token. It needs Administration, write, and Actions, read, of repositories; with --organization\n" +
			"it needs Self-hosted runners, write, of the organization, and Actions, read, of its repositories.\n\n" +
			"After an interrupt it takes no more jobs and waits for its sessions; after a second one it lists those that keep running in their\n" +
			"VMs without it. The next dispatcher of the same name takes them up.",
		Example: "  linus dispatch github --organization acme --app-id 1234 --app-key-file app.pem --template runner --egress internet\n" +
			"  linus dispatch github --repository acme/web --token-file github.token --template runner --runs-on large --memory 16G --egress internet",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if o.Key, err = key.read(cmd.Context(), a); err != nil {
				return err
			}
			if o.HookSecret, err = hook.secret(cmd.Context(), a); err != nil {
				return err
			}
			slices.Sort(o.Repositories)
			var q dispatch.Queue
			return f.run(cmd, a, func(d dispatch.Options) (err error) {
				o.Log = d.Log
				for _, s := range d.Shapes {
					o.Labels = append(o.Labels, s.Label)
				}
				q, err = actions.New(o)
				return err
			}, func(ctx context.Context, d dispatch.Options) error {
				queue := githubQueue(o)
				a.note("serving jobs of %s as %s: at most %d at once", queue, d.Name, d.Sessions)
				return hook.serve(ctx, a, d, "github", queue, q)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.Repositories, "repository", nil, "serve this repository, as owner/name; repeatable. With --organization: these of its repositories only")
	flags.StringVar(&o.Organization, "organization", "", "serve an organization's repositories, by runners of the organization")
	flags.StringVar(&o.Group, "runner-group", "", "the organization's group of runners, by name or ID (default: its default group)")
	flags.StringSliceVar(&o.Labels, "runs-on", []string{"linus"}, "labels that jobs may ask for, beside self-hosted, linux and x64")
	flags.BoolVar(&o.Forks, "allow-forks", false, "serve pull requests from forks, too: anybody can write what they run")
	flags.StringVar(&key.tokenFile, "token-file", "", "file with a token alone, that only you can read; - is stdin")
	flags.Int64Var(&key.app, "app-id", 0, "ID of a GitHub App that is installed there")
	flags.StringVar(&key.appKeyFile, "app-key-file", "", "file with the App's private key, that only you can read")
	flags.Int64Var(&key.installation, "installation", 0, "ID of the App's installation (default: it is looked up)")
	flags.StringVar(&o.API, "api", "", "URL of an enterprise server's API, as in https://HOST/api/v3 (default: github.com's)")
	flags.DurationVar(&o.Idle, "idle-timeout", 10*time.Minute, "how long a runner waits for its job, which another runner may have taken")
	f.register(a, cmd, 4, "jobs at the same time, each in a VM")
	f.registerMap(cmd)
	hook.register(cmd)
	_ = cmd.MarkFlagFilename("token-file")
	_ = cmd.MarkFlagFilename("app-key-file")
	for _, name := range []string{"repository", "organization", "runner-group", "runs-on", "app-id", "installation", "api", "idle-timeout"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

// githubQueue returns the queue's name, by which a dispatcher finds its sessions.
func githubQueue(o actions.Options) string {
	name := cmp.Or(o.Organization, strings.Join(o.Repositories, " "))
	if u, err := url.Parse(o.API); err == nil && o.API != "" {
		name = u.Host + " " + name
	}
	return name[:min(len(name), 150)] // it is ASCII
}
