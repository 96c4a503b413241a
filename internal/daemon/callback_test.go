package daemon

import (
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"linus/internal/callback"
	"linus/internal/config"
	"linus/internal/providertest"
)

// What VMs are told leads to what is listened on, or is nothing.
func TestCallbackURL_IsWhatIsListenedOn(t *testing.T) {
	tests := []struct{ listen, setting, host string }{
		{"0.0.0.0", "", "192.0.2.1"}, // the fake provider's near end
		{"::", "", "192.0.2.1"},
		{"127.0.0.1", "", ""},
		{"127.0.0.5", "", ""},
		{"::1", "", ""},
		{"localhost", "", ""},
		{"127.0.0.1", "https://proxy.example/", "https://proxy.example"},
	}
	if own := ownAddress(); own != "" {
		tests = append(tests, struct{ listen, setting, host string }{own, "", own})
	}
	for _, tt := range tests {
		t.Run(tt.listen, func(t *testing.T) {
			c := config.Config{CallbackHost: tt.listen, CallbackURL: tt.setting}
			server, err := callback.Listen(t.Context(), c.CallbackHost, 0, nil, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Skip(err) // no IPv6 here
			}
			t.Cleanup(func() { _ = server.Close(t.Context()) })
			e := &engine{callbacks: server, backend: Backend{Provider: providertest.NewFake()}}
			want := tt.host
			if want != "" && tt.setting == "" {
				want = "http://" + net.JoinHostPort(tt.host, strconv.Itoa(server.Port()))
			}
			if got, err := e.callbackURL(t.Context(), c); err != nil || got != want {
				t.Errorf("callbackURL() = %q, %v; want %q", got, err, want)
			}
		})
	}
}

// ownAddress is an address of this machine that others can reach, empty where it
// has none.
func ownAddress() string {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	return ""
}
