package config

import (
	"fmt"
	"io"
	"os"

	"linus/internal/envfile"
)

// maxEnvFile bounds the size of an env file, in bytes.
const maxEnvFile = 1 << 20

// readEnvFile reads an env file. If it contains a secret, nobody else may be able to read the file.
func readEnvFile(path string) ([]envfile.Line, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the env file cannot be read: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, fmt.Errorf("the env file cannot be read: %w", err)
	}
	if len(data) > maxEnvFile {
		return nil, fmt.Errorf("the env file %s is larger than 1 MiB", path)
	}
	lines := envfile.Parse(data)
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("the env file cannot be read: %w", err)
	}
	for _, l := range lines {
		if isSecret(l.Name) && l.Value != "" && othersMayRead(info) {
			return nil, fmt.Errorf("the env file %s contains a secret (%s) and others can read it (mode %04o): chmod 600 it", path, l.Name, info.Mode().Perm())
		}
	}
	return lines, nil
}
