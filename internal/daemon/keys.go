package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"linus/internal/config"
	"linus/internal/guest"
	"linus/internal/store"
)

// loginKeys returns the VMs' login keys, in the state directory. With a database that other engines
// may share, keys are derived from the installation key, if it exists yet.
func loginKeys(c config.Config) (guest.Keys, error) {
	keys := guest.Keys{Dir: filepath.Join(c.StateDir, "keys")}
	if c.DatabaseURL.Reveal() == "" {
		return keys, nil
	}
	var err error
	if keys.Installation, err = guest.ReadInstallationKey(keys.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	return keys, nil
}

// engineKeys is loginKeys for an engine. The first engine of a database makes the installation key,
// whose fingerprint the database stores; all others must have the same key.
func engineKeys(ctx context.Context, c config.Config, st *store.Store) (guest.Keys, error) {
	keys, err := loginKeys(c)
	if err != nil || c.DatabaseURL.Reveal() == "" {
		return keys, err
	}
	const name = "installation_key"
	known, err := st.Remember(ctx, name, "")
	if err != nil {
		return keys, err
	}
	if keys.Installation == nil && known == "" {
		if keys.Installation, err = guest.MakeInstallationKey(keys.Dir); err != nil {
			return keys, err
		}
	}
	path := filepath.Join(keys.Dir, "installation")
	if keys.Installation == nil {
		return keys, fmt.Errorf("%s, from which the keys of the database's VMs are derived, is missing; copy it from the machine of an existing engine", path)
	}
	own, err := keys.Installation.Fingerprint()
	if err == nil {
		known, err = st.Remember(ctx, name, own)
	}
	if err == nil && known != own {
		err = fmt.Errorf("%s is not the key of the database's other engines; replace it with that of the machine of an existing engine", path)
	}
	return keys, err
}
