package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/mcptool"
	"linus/internal/oauth"
	"linus/internal/vm"
	"linus/internal/web"
)

const issuerSecret = "a-secret-of-this-test"

// runIssuer runs an OpenID Connect server that others have made, and returns its URL.
func (c clients) runIssuer(t *testing.T, dir string, settings ...string) string {
	t.Helper()
	cmd := exec.Command(c.node, filepath.Join(dir, "issuer.mjs"))
	cmd.Env, cmd.Stderr = append(append(os.Environ(), "ISSUER_SECRET="+issuerSecret), settings...), t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(stdin.Close(), cmd.Wait()); err != nil {
			t.Errorf("the issuer: %v", err)
		}
	})
	issuer, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the issuer tells no URL: %v", err)
	}
	return strings.TrimSpace(issuer)
}

// whoAsks is an engine that tells for whom it was asked.
type whoAsks struct{ engine }

func (whoAsks) VM(ctx context.Context, _ string) (job.VMInfo, error) {
	p, _ := job.PrincipalFrom(ctx)
	return job.VMInfo{VM: vm.VM{Name: p.Name, Owner: string(p.Role)}}, nil
}

func (whoAsks) Cleanup(context.Context, time.Duration) (int, error) { return 7, nil }

// Clients that know nothing but the server's URL and their own secret find the issuer,
// get a token of an OpenID Connect server for it, and are let in with the role of its
// scopes; one that uses a tool beyond them gets a token with more. The API takes the same
// tokens.
func TestOAuth_WithAnIssuerOfOthers(t *testing.T) {
	t.Parallel()
	c := npmClients(t)
	dir := c.scripts(t, "issuer.mjs", "oauth.mjs")
	issuer := c.runIssuer(t, dir)

	s := httptest.NewUnstartedServer(nil)
	at := "http://" + s.Listener.Addr().String()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	tokens := oauth.New(oauth.Options{Issuer: issuer, Audience: at + "/mcp", Log: log})
	resource := &web.OAuth{Issuer: issuer, Resource: at + "/mcp"}
	mcp := mcptool.NewHTTP(mcptool.Options{Engine: whoAsks{}, Version: "test", Log: log, Challenge: resource.Insufficient})
	s.Config.Handler = web.Handler(web.Options{
		MCP: mcp, API: control.API(whoAsks{}, control.APIOptions{Version: "test"}), Token: "a-token-of-this-test",
		Authenticate: tokens.Authenticate, OAuth: resource, Log: log,
	})
	s.Start()
	t.Cleanup(func() {
		s.CloseClientConnections()
		if err := mcp.Close(t.Context()); err != nil {
			t.Log(err)
		}
		s.Close()
		tokens.Close()
	})

	// The package client asks for the scope that the server names, whatever it was told: this
	// issuer gives a reader no linus:run.
	for _, test := range []struct {
		generation, client, scope string
		cleanup                   bool   // calls the tool for admins
		has, hasNot               string // tools; empty: it is refused, and says so
	}{
		{"sdk", "ci", "linus:run", false, "submit_job", "cleanup_completed_jobs"},
		{"sdk", "ci", "linus:run", true, "", "upscoping"}, // it asks for one that ci cannot have
		{"sdk", "reader", "linus:read", false, "list_jobs", "submit_job"},
		{"sdk", "nobody", "other", false, "", "upscoping"},
		{"client", "ci", "linus:run", false, "submit_job", "cleanup_completed_jobs"},
		{"client", "boss", "linus:run", true, "submit_job", "cleanup_completed_jobs"},
		{"client", "nobody", "other", false, "", "invalid_scope"},
	} {
		t.Run(fmt.Sprintf("%s as %s, %v", test.generation, test.client, test.cleanup), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			args := []string{filepath.Join(dir, "oauth.mjs"), test.generation, test.client, test.scope}
			if test.cleanup {
				args = append(args, "cleanup")
			}
			cmd := exec.CommandContext(ctx, c.node, args...)
			cmd.Env = append(os.Environ(), "ISSUER_SECRET="+issuerSecret, "ISSUER_URL="+issuer, "LINUS_URL="+at+"/mcp")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if test.has == "" {
				if err == nil || !strings.Contains(stderr.String(), test.hasNot) {
					t.Fatalf("without the scope: %v %s%s", err, out, stderr.String())
				}
				return
			}
			var got struct {
				Tools  []string
				Result struct{ Count int }
			}
			if err := errors.Join(err, json.Unmarshal(out, &got)); err != nil {
				t.Fatalf("%v: %s%s", err, out, stderr.String())
			}
			if !slices.Contains(got.Tools, test.has) || slices.Contains(got.Tools, test.hasNot) {
				t.Errorf("tools %q, want %s and not %s", got.Tools, test.has, test.hasNot)
			}
			if test.cleanup != (got.Result.Count == 7) {
				t.Errorf("the tool returned %+v", got.Result)
			}
		})
	}

	token := clientToken(t, issuer, "ci", "linus:read linus:run", at+"/mcp")
	var vm struct{ Name, Owner string }
	if code := getJSON(t, at+"/api/v1/vms/x", token, &vm); code != http.StatusOK || !strings.HasPrefix(vm.Name, "oauth:") || !strings.HasSuffix(vm.Name, ":ci") || vm.Owner != "run" {
		t.Errorf("the API: %d, %+v", code, vm)
	}
	other := clientToken(t, issuer, "ci", "linus:run", "http://127.0.0.1:1/mcp")
	if code := getJSON(t, at+"/api/v1/vms/x", other, nil); code != http.StatusUnauthorized {
		t.Errorf("a token for another server: %d", code)
	}
}

// clientToken gets a token for a resource by the client credentials grant.
func clientToken(t *testing.T, issuer, client, scope, resource string) string {
	t.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {scope}, "resource": {resource}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, issuer+"/token", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(client, issuerSecret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	var got struct {
		AccessToken string `json:"access_token"`
	}
	if err := errors.Join(err, json.Unmarshal(body, &got)); err != nil || got.AccessToken == "" {
		t.Fatalf("no token: %v %s", err, body)
	}
	return got.AccessToken
}

func getJSON(t *testing.T, at, token string, into any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err == nil && into != nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return resp.StatusCode
}
