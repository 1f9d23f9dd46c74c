-- Add new content of images, and what their sources said

-- NULL: not known, recorded by an older version, or the source has none.
ALTER TABLE image_verifications ADD COLUMN etag TEXT;
ALTER TABLE image_verifications ADD COLUMN asked_at TIMESTAMPTZ;

-- New content of an image that has a device: downloaded and verified, in a file of its own. It takes the place of the
-- old content when its device is ready, in one transaction; until then the image is what it was.
CREATE TABLE image_updates (
    host TEXT NOT NULL,
    image_id TEXT NOT NULL,
    checksum TEXT NOT NULL,
    size_bytes BIGINT NOT NULL CHECK (size_bytes >= 0),
    inode BIGINT NOT NULL,
    mtime_ns BIGINT NOT NULL,
    ctime_ns BIGINT NOT NULL,
    policy TEXT NOT NULL,
    warnings TEXT NOT NULL DEFAULT '[]',
    origin TEXT NOT NULL DEFAULT '',
    etag TEXT,
    verified_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP,
    PRIMARY KEY (host, image_id),
    FOREIGN KEY (host, image_id) REFERENCES images(host, image_id) ON DELETE CASCADE
);
