package credential

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
	"slices"
	"time"
)

// caLife is longer than any job takes.
const caLife = 60 * 24 * time.Hour

// certify makes the CA and the targets' certificates, and does not keep the CA's key.
func (l *TLSProxy) certify() error {
	from, until := time.Now().Add(-24*time.Hour), time.Now().Add(caLife) // a VM's clock may be wrong
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial := func() *big.Int {
		n := make([]byte, 16)
		_, _ = rand.Read(n) // it never fails
		return new(big.Int).SetBytes(n)
	}
	var hosts []string
	for _, t := range l.targets {
		hosts = append(hosts, t.host)
	}
	slices.Sort(hosts)
	everywhere := []*net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}, {IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}
	ca := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "linus: credentials of one job"}, NotBefore: from, NotAfter: until,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: slices.Compact(hosts), ExcludedIPRanges: everywhere,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return err
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	l.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for _, t := range l.targets {
		own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		leaf := &x509.Certificate{
			SerialNumber: serial(), Subject: pkix.Name{CommonName: t.host[:min(len(t.host), 64)]}, DNSNames: []string{t.host}, NotBefore: from, NotAfter: until,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, ca, own.Public(), key)
		if err != nil {
			return err
		}
		t.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
	}
	return nil
}
