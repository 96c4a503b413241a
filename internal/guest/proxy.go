package guest

import (
	"bytes"
	"context"
	"maps"
	"net"
	"time"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// maxProxied bounds a job's concurrent connections to its proxy.
const maxProxied = 64

// Proxy carries connections to a port of the VM's loopback to the connections that dial returns. It
// calls opened once it forwards, and returns when the connection to the VM is lost or ctx ends:
// call it again until the job is over.
func (g *Guest) Proxy(ctx context.Context, j job.Job, port int, dial func(context.Context) (net.Conn, error), opened func()) error {
	timed, cancel := context.WithTimeout(ctx, waysTimeout)
	defer cancel()
	var t *remote.Tunnel
	err := g.retry(timed, j, func(pool *remote.Pool) (err error) {
		t, err = pool.TunnelFrom(timed, port, maxProxied, dial)
		return err
	})
	if err != nil {
		return g.fault(ctx, "open the way to the proxy from", j, result.Result{}, err)
	}
	opened()
	select {
	case <-ctx.Done():
		select {
		case <-t.Close(): // the next tunnel has the same port
		case <-time.After(time.Second):
		}
	case <-t.Ended():
	}
	return nil
}

// Connect connects to an address from a job's VM.
func (g *Guest) Connect(ctx context.Context, j job.Job, address string) (net.Conn, error) {
	pool, err := g.pool(ctx, j)
	if err != nil {
		return nil, err
	}
	return pool.DialFrom(ctx, address)
}

// bundleFile holds the CAs that a job's task must trust: those of the system and those of Trust.
const bundleFile = "/ca-bundle.pem"

// bundleVariables are the variables in which programs look for bundleFile.
var bundleVariables = []string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO", "DENO_CERT",
}

// trusting returns a payload whose task finds bundleFile, unless the payload sets a variable itself.
func (g *Guest) trusting(j job.Job, p job.Payload) job.Payload {
	if !p.Trusts {
		return p
	}
	env := map[string]string{}
	for _, name := range bundleVariables {
		if _, secret := p.Secrets[name]; !secret {
			env[name] = g.place(j).home + bundleFile
		}
	}
	maps.Copy(env, p.Manifest.Env)
	p.Manifest.Env = env
	return p
}

// bundle writes bundleFile atomically, from the system's CAs and stdin.
const bundle = `set -eu
umask 077
new=$1.$$
trap 'rm -f -- "$new"' EXIT
{
  for roots in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
    if [ -r "$roots" ]; then
      cat -- "$roots"
      echo
      break
    fi
  done
  cat
} >"$new"
mv -f -- "$new" "$1"`

// Trust writes, or replaces, the file of CAs that the job's task finds.
func (g *Guest) Trust(ctx context.Context, j job.Job, ca []byte) error {
	timed, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := g.retry(timed, j, func(pool *remote.Pool) error {
		return pool.Run(timed, remote.Command{Name: "trust a CA", Line: remote.Quote("sh", "-c", bundle, "trust", g.place(j).home+bundleFile), Stdin: bytes.NewReader(ca)})
	})
	return g.fault(ctx, "write the CAs into", j, result.Result{}, err)
}
