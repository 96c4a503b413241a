-- +goose Up
-- Disks of ours that outlive VMs. The row is there before the volume can be.
CREATE TABLE volumes (
  id        text COLLATE "C" PRIMARY KEY, -- UUID: the one in its holder's marker
  name      text COLLATE "C" NOT NULL UNIQUE,
  principal text COLLATE "C" NOT NULL,    -- '': the operator's
  doc       text NOT NULL                 -- vm.Volume
);
CREATE INDEX volumes_principal ON volumes (principal) WHERE principal <> '';
