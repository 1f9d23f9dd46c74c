-- Add new content of images, and what their sources said

-- NULL: not known, recorded by an older version, or the source has none.
ALTER TABLE image_verifications ADD COLUMN etag TEXT;
ALTER TABLE image_verifications ADD COLUMN asked_at DATETIME;

-- New content of an image that has a device: downloaded and verified, in a file of its own. It takes the place of the
-- old content when its device is ready, in one transaction; until then the image is what it was.
CREATE TABLE image_updates (
    image_id TEXT PRIMARY KEY REFERENCES images(image_id) ON DELETE CASCADE,
    checksum TEXT NOT NULL,
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    inode INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    ctime_ns INTEGER NOT NULL,
    policy TEXT NOT NULL,
    warnings TEXT NOT NULL DEFAULT '[]',
    origin TEXT NOT NULL DEFAULT '',
    etag TEXT,
    verified_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP
);
