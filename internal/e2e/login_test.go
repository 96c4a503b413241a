package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"linus/internal/browsertest"
	"linus/internal/loops"
)

// People log in to the page by an OpenID Connect server of others, at another site: in a real
// browser, with a real linus serve, which has no host.
func TestLogin_ByAnIssuerOfOthers(t *testing.T) {
	loops.AtNightOnly(t, "TestLogin_ProvesItself and TestLogin_IsAPersonWithARole have an issuer of their own")
	t.Parallel()
	ctx := browsertest.Start(t)
	c := npmClients(t)
	port := freePort(t)
	url := "http://localhost:" + port // another site than the issuer's 127.0.0.1
	issuer := c.runIssuer(t, c.scripts(t, "issuer.mjs"), "REDIRECT_URI="+url+"/login/issuer")
	h := &host{state: filepath.Join(t.TempDir(), "linus")}
	h.env = append(os.Environ(), "LINUS_STATE_DIR="+h.state, "CALLBACK_PORT=0", "LINUS_LOG_LEVEL=debug", "PROXMOX_HOST=127.0.0.1", "PROXMOX_SSH_PORT=1", "LINUS_ENV_FILE=", clientsToken,
		"HTTP_URL="+url, "OIDC_ISSUER="+issuer, "OIDC_CLIENT_ID=page", "OIDC_CLIENT_SECRET="+issuerSecret, "OIDC_SCOPES=openid profile groups", "OIDC_ROLES=admins=admin, devs=run")
	t.Cleanup(func() { h.stop(t) })
	h.serveAt(t, "127.0.0.1:"+port)

	click := func(selector string) {
		t.Helper()
		browsertest.Do(t, ctx, chromedp.Click(chromedp.CSS(selector)))
	}
	// comesAs opens a page as somebody whom the issuer does not know yet.
	comesAs := func(name, path string) {
		t.Helper()
		browsertest.Do(t, ctx, func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
			_, err := cdp.Call(ctx, target, network.ClearBrowserCookies, cdp.Empty{})
			return chromedp.Void{}, err
		}, chromedp.Navigate(url+path))
		click("#issuer")
		browsertest.Shows(t, ctx, "h1", "Who are you?")
		browsertest.Do(t, ctx, chromedp.SendKeys(chromedp.CSS("#name"), name))
		click("#say")
	}
	links := func() string {
		t.Helper()
		return browsertest.Read(t, ctx, chromedp.Evaluate[string](`document.querySelector("nav").textContent.replace(/\s+/g, " ").trim()`))
	}

	comesAs("alice", "/vms?sort=name")
	browsertest.Shows(t, ctx, "h1", "VMs")
	if got := browsertest.Read(t, ctx, chromedp.Evaluate[string](`location.href`)); got != url+"/vms?sort=name" {
		t.Errorf("she comes to %s", got)
	}
	browsertest.Shows(t, ctx, ".who", "alice")
	if got := links(); got != "Jobs VMs Volumes Queues Schedules Usage Host Help" {
		t.Errorf("with the role run she sees %q", got)
	}
	m := regexp.MustCompile(`(?m)^([0-9a-f]{16}) +(oauth:[0-9a-f]{8}:alice) \(login of alice\) +run +20`).FindStringSubmatch(h.cli(t, "token", "list"))
	if m == nil {
		t.Fatalf("the list: %s", h.cli(t, "token", "list"))
	}

	// A revoke of her name ends what she has open. The issuer still knows her.
	browsertest.Do(t, ctx, chromedp.Navigate(url+"/jobs"))
	browsertest.Shows(t, ctx, "#connection", "Live")
	if got, want := h.cli(t, "token", "revoke", m[2]), "login "+m[1]+" of alice ("+m[2]+") is ended\n"; got != want {
		t.Errorf("the revoke says %q, want %q", got, want)
	}
	browsertest.Shows(t, ctx, "h1", "Log in")
	click("#issuer")
	browsertest.Shows(t, ctx, "h1", "Jobs")
	browsertest.Shows(t, ctx, ".who", "alice")

	// Her logout ends the login, not only the cookie.
	click(`form[action="/logout"] button`)
	browsertest.Shows(t, ctx, "h1", "Log in")
	if got := h.cli(t, "token", "list"); strings.Contains(got, "alice") {
		t.Errorf("after the logout: %s", got)
	}
	click("#leave") // and the issuer forgets her, too, if she wants that
	browsertest.Shows(t, ctx, "h1", "Do you want to sign-out from")

	comesAs("carol", "/jobs")
	browsertest.Shows(t, ctx, ".error", "carol (oauth:")
	browsertest.Shows(t, ctx, ".error", "is in none of the groups that may log in: admins, devs.")
	comesAs("", "/jobs")
	browsertest.Shows(t, ctx, ".error", "You are not logged in: the issuer says access_denied: nobody.")

	comesAs("boss", "/tokens")
	browsertest.Shows(t, ctx, "td.main", "login of boss")
	if got := links(); got != "Jobs VMs Volumes Queues Pools Nodes Tokens Templates Checkpoints Credentials Schedules Usage Host Help" {
		t.Errorf("with the role admin he sees %q", got)
	}
}
