-- Add image_locks table for concurrency control

CREATE TABLE IF NOT EXISTS image_locks (
    host TEXT NOT NULL,
    image_id TEXT NOT NULL,
    locked_at BIGINT NOT NULL,
    locked_by TEXT NOT NULL,
    PRIMARY KEY (host, image_id)
);

CREATE INDEX IF NOT EXISTS idx_image_locks_locked_at ON image_locks(host, locked_at);
