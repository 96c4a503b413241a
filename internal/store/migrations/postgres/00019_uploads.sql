-- +goose Up
-- What builds of templates copy: each upload is rows of pieces without a gap.
CREATE TABLE uploads (
  id    text COLLATE "C" PRIMARY KEY,
  owner text COLLATE "C" NOT NULL,
  hash  text COLLATE "C" NOT NULL, -- '': it is not whole
  size  bigint NOT NULL,
  used  text COLLATE "C" NOT NULL
);
CREATE INDEX uploads_owner ON uploads (owner, hash);
CREATE TABLE upload_data (
  upload_id text COLLATE "C" NOT NULL REFERENCES uploads (id) ON DELETE CASCADE,
  at        bigint NOT NULL, -- offset of the piece's first byte
  data      bytea NOT NULL, -- at most 256 KiB
  PRIMARY KEY (upload_id, at)
);
