package store

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"linus/internal/job"
)

// InsertToken adds a token. hash is its hex SHA-256, the only part of the secret that is stored.
func (s *Store) InsertToken(ctx context.Context, t job.Token, hash string) error {
	doc, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = execCounted(ctx, s.transaction, "", `INSERT INTO tokens (id, hash, doc) VALUES (?, ?, ?)`, t.ID, hash, string(doc))
	return tried(err, "write token %s to %s", t.ID, s.name)
}

// Tokens returns all tokens, by name and then oldest first.
func (s *Store) Tokens(ctx context.Context) ([]job.Token, error) {
	all, err := query(ctx, s.read, scanDoc[job.Token], `SELECT doc FROM tokens`)
	slices.SortFunc(all, func(a, b job.Token) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), a.CreatedAt.Compare(b.CreatedAt))
	})
	return all, tried(err, "read the tokens")
}

// TokenByHash returns the token with a hex SHA-256; job.ErrNotFound.
func (s *Store) TokenByHash(ctx context.Context, hash string) (job.Token, error) {
	return s.token(ctx, `SELECT doc FROM tokens WHERE hash = ?`, hash)
}

// Token returns the token with an ID; job.ErrNotFound.
func (s *Store) Token(ctx context.Context, id string) (job.Token, error) {
	return s.token(ctx, `SELECT doc FROM tokens WHERE id = ?`, id)
}

func (s *Store) token(ctx context.Context, text, arg string) (job.Token, error) {
	t, err := only(query(ctx, s.read, scanDoc[job.Token], text, arg))
	return t, tried(err, "read a token")
}

// DeleteTokens removes the token with an ID, or all tokens of a name, and returns them;
// job.ErrNotFound.
func (s *Store) DeleteTokens(ctx context.Context, ref string) ([]job.Token, error) {
	var gone []job.Token
	err := s.transaction(ctx, func(tx *tx) error {
		all, err := query(ctx, tx, scanDoc[job.Token], `SELECT doc FROM tokens`)
		if err != nil {
			return err
		}
		gone = slices.DeleteFunc(all, func(t job.Token) bool { return t.ID != ref && t.Name != ref })
		for _, t := range gone {
			if _, err := tx.ExecContext(ctx, `DELETE FROM tokens WHERE id = ?`, t.ID); err != nil {
				return err
			}
		}
		if len(gone) == 0 {
			return job.ErrNotFound
		}
		tx.tell(job.NoticeTokens, "")
		return nil
	})
	return gone, tried(err, "remove token %s from %s", ref, s.name)
}
