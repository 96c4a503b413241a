package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"linus/internal/config"
	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/secret"
)

// attachServer returns a client of the engine of LINUS_SERVER.
func attachServer(ctx context.Context, c config.Config) (*control.Client, error) {
	r := control.Remote{URL: c.Server, Token: func(ctx context.Context) (string, error) { return readToken(ctx, c.TokenFile) }}
	var err error
	if r.Roots, err = readRoots(ctx, "LINUS_CA_FILE", c.CAFile); err != nil {
		return nil, err
	}
	client, err := control.DialRemote(ctx, r)
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		err = fmt.Errorf("%w; if its certificate is your own, give --ca-file (LINUS_CA_FILE)", err)
	case errors.Is(err, job.ErrUnauthorized):
		err = fmt.Errorf("the token in %s is unknown or revoked, or has expired: get another one from whoever runs %s (linus token create)", c.TokenFile, c.Server)
	}
	return client, err
}

// readRoots returns the certificates in the PEM file that a setting names; nil, for the system's,
// if it names none.
func readRoots(ctx context.Context, setting, path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := secret.ReadPublic(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", setting, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %s has no PEM certificate", setting, path)
	}
	return roots, nil
}

// readToken returns the token in a file that only its owner can read.
func readToken(ctx context.Context, path string) (string, error) {
	if path == "" {
		return "", errors.New("there is no token for the server: give --token-file (LINUS_TOKEN_FILE)")
	}
	data, err := secret.ReadGiven(ctx, path)
	if err != nil {
		return "", fmt.Errorf("read the server's token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s does not contain a token alone", path)
	}
	return token, nil
}
