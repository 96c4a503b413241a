package e2b

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// vmOf returns the ID in the marker of the VM whose vm.SandboxID is id; empty: id is malformed.
func vmOf(id string) string {
	if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" {
		return ""
	}
	return id[:8] + "-" + id[8:12] + "-" + id[12:16] + "-" + id[16:20] + "-" + id[20:]
}

// accessToken returns the token for a sandbox's programs and files. It is stored nowhere, and is
// valid for this sandbox only.
func (s *server) accessToken(id string) string { return s.mac("sandbox " + id) }

// trafficToken returns the token for a sandbox's ports only.
func (s *server) trafficToken(id string) string { return s.mac("traffic " + id) }

func (s *server) mac(text string) string {
	mac := hmac.New(sha256.New, s.Secret)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func (s *server) isAccessToken(id, token string) bool {
	return hmac.Equal([]byte(s.accessToken(id)), []byte(token))
}

// signed is a signed link to a file, which can be read or written by it without a token.
type signed struct {
	signature string
	rest      [2]string // the signed text before and after the token
	expires   time.Time // zero: when the sandbox ends
}

// signatureOf returns a request's signature; false: it has none, or one that cannot be valid.
func signatureOf(r *http.Request) (g signed, ok bool) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || r.URL.Path != "/files" || len(q["signature"]) != 1 || len(q["path"]) > 1 || len(q["username"]) > 1 || len(q["signature_expiration"]) > 1 {
		return g, false // the program in the VM could pick another value than this server
	}
	operation := "read"
	switch r.Method {
	case http.MethodPost:
		operation = "write"
	case http.MethodGet, http.MethodHead:
	default:
		return g, false
	}
	g.signature = q.Get("signature")
	g.rest[0] = q.Get("path") + ":" + operation + ":" + q.Get("username") + ":"
	if q.Has("signature_expiration") {
		at, err := strconv.ParseInt(q.Get("signature_expiration"), 10, 64)
		if err != nil {
			return g, false
		}
		g.expires, g.rest[1] = time.Unix(at, 0), ":"+strconv.FormatInt(at, 10)
	}
	return g, true
}

// by reports whether the signature was made with a token.
func (g signed) by(token string) bool {
	sum := sha256.Sum256([]byte(g.rest[0] + token + g.rest[1]))
	return hmac.Equal([]byte("v1_"+base64.RawStdEncoding.EncodeToString(sum[:])), []byte(g.signature))
}

func (g signed) expired() bool { return !g.expires.IsZero() && !time.Now().Before(g.expires) }
