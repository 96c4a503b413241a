package daemon

import (
	"strings"
	"testing"

	"linus/internal/job"
)

// A volume is where its maker may have one, whoever that is and however it asks.
func TestCreateVolume_IsBoundedByThePolicysStorages(t *testing.T) {
	for setting, tests := range map[string][]struct {
		who             job.TokenSpec // without a role it is the operator
		client, storage string
		says            string // "": allowed
	}{
		"": {
			{client: "cli", storage: "other"},
			{who: job.TokenSpec{Role: job.RoleAdmin}, client: "api", storage: "other"},
			{client: "mcp:claude", storage: "other", says: "MCP clients and tokens get only"},
			{who: job.TokenSpec{Role: job.RoleRun}, client: "cli", storage: "other", says: "MCP clients and tokens get only"},
			{who: job.TokenSpec{Role: job.RoleRun, Storages: []string{"other"}}, client: "cli", storage: "other", says: "MCP clients and tokens get only"},
			{who: job.TokenSpec{Role: job.RoleRun}, client: "api"},
		},
		"nfs-*": {
			{client: "cli", storage: "other", says: "ALLOWED_STORAGES allows nfs-*, and local-lvm is configured"},
			{who: job.TokenSpec{Role: job.RoleRun}, client: "api", storage: "nfs-1"},
			{who: job.TokenSpec{Role: job.RoleRun, Storages: []string{"nfs-2"}}, client: "api", storage: "nfs-1", says: "this token allows nfs-2"},
			{who: job.TokenSpec{Role: job.RoleRun, Storages: []string{"nfs-2"}}, client: "api", storage: "nfs-2"},
		},
	} {
		t.Run("ALLOWED_STORAGES="+setting, func(t *testing.T) {
			t.Setenv("ALLOWED_STORAGES", setting)
			e := newEngine(t)
			if err := e.start(t.Context(), func(error) {}); err != nil {
				t.Fatal(err)
			}
			defer e.close(t.Context()) //nolint:errcheck // the test is over
			for _, tt := range tests {
				p := job.Operator()
				if tt.who.Role != "" {
					tt.who.Name = "somebody"
					made, err := e.CreateToken(t.Context(), tt.who)
					if err == nil {
						p, err = e.Authenticate(t.Context(), made.Secret)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				ctx := job.WithClient(job.WithPrincipal(t.Context(), p), tt.client)
				_, err := e.guarded.CreateVolume(ctx, job.VolumeSpec{Name: "v", Size: "1G", Storage: tt.storage})
				if err == nil {
					if _, removeErr := e.guarded.RemoveVolume(ctx, "v"); removeErr != nil {
						t.Fatal(removeErr)
					}
				}
				if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
					t.Errorf("%+v as %s on %q: %v; want %q", tt.who, tt.client, tt.storage, err, tt.says)
				}
			}
		})
	}
}
