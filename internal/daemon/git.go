package daemon

import (
	"context"
	"net"
	"sync"

	"linus/internal/credential"
	"linus/internal/egress"
	"linus/internal/git"
	"linus/internal/job"
)

// repositoryWays returns how repositories are reached: as a VM with egress "allow" and the
// credential would, or by SSH with the credential. A repository without a credential must be
// public, because clients choose it and it is reached from the engine's network. LFS servers keep
// large files elsewhere and say where: for repositories with LFS, everything public is reached.
func repositoryWays(k *credential.Keeper) func(context.Context, job.Repository, func(job.CredentialUse)) (git.Transport, error) {
	return func(ctx context.Context, r job.Repository, used func(job.CredentialUse)) (git.Transport, error) {
		at, err := r.Where()
		if err != nil {
			return git.Transport{}, err
		}
		if at.SSH {
			live, c, key, end, err := k.SSH(ctx, r)
			if err != nil {
				return git.Transport{}, err
			}
			used(job.CredentialUse{Name: r.Credential, Method: "SSH", Host: net.JoinHostPort(at.Host, at.Port), Path: at.Path})
			return git.Transport{Key: key, HostKey: c.HostKey, Reads: c.Reads, Live: live, Close: end}, nil
		}
		var mu sync.Mutex
		refused := ""
		o := egress.Options{Any: r.LFS, Record: func(c job.Connection) {
			mu.Lock()
			defer mu.Unlock()
			if !c.Allowed && !c.Ended {
				refused = c.Target() + " is not reached: " + c.Why
				if r.Credential == "" {
					refused += "; to reach more than the public port 443, a credential must cover it (linus credential add)"
				}
			}
		}}
		way := git.Transport{Refused: func() string {
			mu.Lock()
			defer mu.Unlock()
			return refused
		}}
		if r.Credential == "" {
			o.Names = []string{at.Host}
			proxy := egress.New(o)
			way.Dial, way.Close = proxy.Dial, proxy.Close
			return way, nil
		}
		c, err := k.For(ctx, r)
		if err != nil {
			return git.Transport{}, err
		}
		leg, err := k.TLSProxy(ctx, credential.TLSProxyOptions{Names: []string{r.Credential}, Record: used})
		if err != nil {
			return git.Transport{}, err
		}
		o.Ends = leg.Ends
		proxy := egress.New(o)
		way.Dial, way.CA, way.Reads = proxy.Dial, leg.CA(), c.Reads
		way.Close = func() { proxy.Close(); leg.Close() }
		return way, nil
	}
}
