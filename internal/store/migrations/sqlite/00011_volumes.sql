-- +goose Up
-- Disks of ours that outlive VMs. The row is there before the volume can be.
CREATE TABLE volumes (
  id        TEXT PRIMARY KEY,     -- UUID: the one in its holder's marker
  name      TEXT NOT NULL UNIQUE,
  principal TEXT NOT NULL,        -- '': the operator's
  doc       TEXT NOT NULL         -- vm.Volume
) STRICT;
CREATE INDEX volumes_principal ON volumes (principal) WHERE principal <> '';
