-- Add verified files, refusals and reserved device ids

-- What was verified, under which policy, and how to tell without reading it again that the file is still that one.
CREATE TABLE image_verifications (
    image_id TEXT PRIMARY KEY REFERENCES images(image_id) ON DELETE CASCADE,
    checksum TEXT NOT NULL,
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    inode INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    policy TEXT NOT NULL,
    warnings TEXT NOT NULL DEFAULT '[]',
    verified_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP
);

-- What was refused, so that the same content gets the same answer at once. The object's ETag or checksum says
-- whether it is the same content; another policy may judge otherwise.
CREATE TABLE image_refusals (
    s3_key TEXT NOT NULL,
    policy TEXT NOT NULL,
    etag TEXT,
    checksum TEXT,
    code TEXT NOT NULL,
    detail TEXT NOT NULL,
    entry TEXT NOT NULL DEFAULT '',
    byte_offset INTEGER,
    hint TEXT,
    refused_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (s3_key, policy),
    CHECK (etag IS NOT NULL OR checksum IS NOT NULL)
);

-- A device id is taken here before the device is made. Devices and snapshots share the ids of a pool. No foreign
-- key: a reservation is given up when the device is gone, not when a row is.
CREATE TABLE device_reservations (
    device_id INTEGER PRIMARY KEY CHECK (device_id BETWEEN 0 AND 16777215),
    image_id TEXT NOT NULL,
    snapshot_name TEXT NOT NULL DEFAULT '',
    reserved_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP,
    UNIQUE (image_id, snapshot_name)
);

CREATE UNIQUE INDEX idx_device_reservations_snapshot_name
    ON device_reservations(snapshot_name) WHERE snapshot_name <> '';
