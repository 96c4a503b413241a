package store

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// pipeline runs statements on a PostgreSQL connection, all statements of a call in one round trip:
// waiting for an answer, and being woken for it, costs an engine more than its work for a
// statement. If a statement fails, the server skips those after it.
type pipeline struct {
	conn  *sql.Conn
	texts map[string]string // with numbered parameters, by the original text
}

func (p *pipeline) run(ctx context.Context, all []statement, read func(scanner) error) (changed int64, failed int, err error) {
	batch := &pgx.Batch{}
	for _, s := range all {
		if p.texts[s.text] == "" {
			p.texts[s.text] = number(s.text)
		}
		batch.Queue(p.texts[s.text], storable(s.args)...)
	}
	err = raw(p.conn, func(c *pgx.Conn) (err error) {
		results := c.SendBatch(ctx, batch)
		defer func() { err = errors.Join(err, results.Close()) }()
		for ; failed < len(all)-1; failed++ {
			if _, err := results.Exec(); err != nil {
				return all[failed].meaning(err)
			}
		}
		if read == nil {
			tag, err := results.Exec()
			changed = tag.RowsAffected()
			return all[failed].meaning(err)
		}
		rows, err := results.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return changed, failed, err
}

// meaning returns what an error of the statement means: s.zero for a division by zero.
func (s statement) meaning(err error) error {
	var refused *pgconn.PgError
	if s.zero != nil && errors.As(err, &refused) && refused.Code == "22012" {
		return s.zero
	}
	return err
}
