-- Add the identity of the catalog

-- One row: what tells this catalog from every other. A data directory is marked with it, and then is nobody else's.
CREATE TABLE catalog_identity (
    only_one INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_one = 1),
    store_id TEXT NOT NULL
);

INSERT INTO catalog_identity (store_id) VALUES (lower(hex(randomblob(16))));
