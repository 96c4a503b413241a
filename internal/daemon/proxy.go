package daemon

import (
	"context"
	"net"

	"linus/internal/credential"
	"linus/internal/egress"
	"linus/internal/executor"
)

// jobProxy is a job's egress proxy, with a leg in which the connections to its credentials' hosts
// end.
type jobProxy struct {
	*egress.Proxy
	leg *credential.TLSProxy // nil: the job names no credentials
}

// proxies returns the function that makes jobs' proxies.
func proxies(k *credential.Keeper) func(context.Context, executor.ProxyOptions) (executor.NamesProxy, error) {
	return func(ctx context.Context, o executor.ProxyOptions) (executor.NamesProxy, error) {
		way := egress.Options{Names: o.Names, Record: o.Record, Anywhere: o.Anywhere}
		if len(o.Credentials) == 0 {
			return jobProxy{egress.New(way), nil}, nil
		}
		var p *egress.Proxy
		leg, err := k.TLSProxy(ctx, credential.TLSProxyOptions{Names: o.Credentials, Record: o.Used, Wide: o.Anywhere != nil, Reach: func(ctx context.Context, address string) (net.Conn, error) {
			return p.Connect(ctx, address)
		}})
		if err != nil {
			return nil, err
		}
		way.Ends = leg.Ends
		p = egress.New(way)
		return jobProxy{p, leg}, nil
	}
}

// CA returns the certificate authority that the VM is to trust.
func (p jobProxy) CA() []byte {
	if p.leg == nil {
		return nil
	}
	return p.leg.CA()
}

// Close ends the proxy, and what the VM has begun with credentials.
func (p jobProxy) Close() {
	p.Proxy.Close()
	if p.leg != nil {
		p.leg.Close()
	}
}
