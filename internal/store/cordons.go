package store

import (
	"context"
	"strings"
)

// cordonKey is the prefix of the keys in meta for nodes without new VMs.
const cordonKey = "cordoned/"

// Cordons returns the nodes that get no new VMs, by name.
func (s *Store) Cordons(ctx context.Context) ([]string, error) {
	nodes, err := query(ctx, s.read, scanValue[string], `SELECT key FROM meta WHERE key LIKE 'cordoned/%' ORDER BY key`)
	for i, key := range nodes {
		nodes[i] = strings.TrimPrefix(key, cordonKey)
	}
	return nodes, tried(err, "read cordoned nodes")
}

// SetCordon adds a node to those that get no new VMs, or removes it.
func (s *Store) SetCordon(ctx context.Context, node string, cordoned bool) error {
	change := `DELETE FROM meta WHERE key = ?`
	if cordoned {
		change = `INSERT INTO meta (key, value) VALUES (?, '') ON CONFLICT DO NOTHING`
	}
	_, err := execCounted(ctx, s.transaction, "", change, cordonKey+node)
	return tried(err, "record whether node %s is cordoned", node)
}
