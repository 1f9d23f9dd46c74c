-- Add image_locks table for concurrency control

CREATE TABLE IF NOT EXISTS image_locks (
    image_id TEXT PRIMARY KEY,
    locked_at INTEGER NOT NULL,
    locked_by TEXT NOT NULL
);

CREATE INDEX IF NOT EXISTS idx_image_locks_locked_at ON image_locks(locked_at);
