-- Add which machine has the name of a host

-- Devices are local to a machine, and rows to the name of a host. Written when a machine first uses a name; another
-- machine, or another data directory, that comes with the same name is refused.
CREATE TABLE catalog_hosts (
    host TEXT PRIMARY KEY,
    machine TEXT NOT NULL,
    data_id TEXT NOT NULL,
    directory TEXT NOT NULL,
    claimed_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP
);
