// Package tlstest makes TLS certificates, and sites that use them, for tests.
package tlstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// Pair is a certificate and its private key, as PEM.
type Pair struct{ Cert, Key []byte }

// New returns a self-signed certificate for host names and IP addresses, which can also serve as the CA
// that a client trusts. The first host is its common name. It is valid for an hour.
func New(t testing.TB, hosts ...string) Pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: hosts[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// Write writes the pair to two files that only their owner can read.
func (p Pair) Write(t testing.TB, certFile, keyFile string) {
	t.Helper()
	for path, data := range map[string][]byte{certFile: p.Cert, keyFile: p.Key} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Serve serves a site over TLS on 127.0.0.1, with a new certificate for the hosts, until the test ends.
// It also returns that certificate.
func Serve(t testing.TB, site http.Handler, hosts ...string) (*httptest.Server, Pair) {
	t.Helper()
	pair := New(t, hosts...)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(site)
	server.TLS, server.EnableHTTP2 = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, pair
}
