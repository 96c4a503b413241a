package remote_test

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"linus/internal/remote"
)

// What somebody gives as a public key gets into a file in which a line can do more than let a key in.
func TestPublicKey_IsOneKeyAlone(t *testing.T) {
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(newAuthority(t).PublicKey())))
	for name, text := range map[string]string{
		"alone": key, "with a comment": key + " ada@laptop of ada", "with blanks around it": "  " + key + "\r\n",
	} {
		if got, err := remote.PublicKey(text); err != nil || got != key {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	certificate := certify(t, newAuthority(t), newAuthority(t).PublicKey(), ssh.UserCert, "root", time.Now().Add(time.Hour))
	for name, text := range map[string]string{
		"nothing": "", "text": "a key", "a kind alone": "ssh-ed25519", "half of one": key[:len(key)-9], "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
		"with an option":        `command="id" ` + key,
		"of an authority":       "cert-authority " + key,
		"two":                   key + "\n" + key,
		"one in a second line":  "# \n" + key,
		"a line after it":       key + "\ncommand=\"id\"",
		"one after an odd end":  key + "\r" + key,
		"a certificate":         strings.TrimSpace(string(ssh.MarshalAuthorizedKey(certificate))),
		"an end inside of it":   key[:30] + "\x00" + key[30:],
		"a second with options": key + "\ncert-authority " + key,
	} {
		if got, err := remote.PublicKey(text); err == nil {
			t.Errorf("%s is taken: %q", name, got)
		}
	}
}
