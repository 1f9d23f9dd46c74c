-- Keys that last beyond the end of their job: for ever, or until a time. The row outlives the job, so that retention does
-- not make a key free again.

CREATE TABLE keys (
    flow TEXT NOT NULL,
    key TEXT NOT NULL,
    job_id TEXT NOT NULL,
    request_digest TEXT NOT NULL,
    taken_at INTEGER NOT NULL,
    expires_at INTEGER CHECK (expires_at IS NULL OR expires_at > taken_at),
    PRIMARY KEY (flow, key)
) WITHOUT ROWID;
CREATE INDEX keys_expiring ON keys (expires_at) WHERE expires_at IS NOT NULL;

-- The last job that had a key, whatever has become of it.
CREATE INDEX jobs_by_key ON jobs (flow, key, job_id) WHERE key IS NOT NULL;

CREATE TRIGGER jobs_key_lasts BEFORE INSERT ON jobs
WHEN NEW.key IS NOT NULL AND EXISTS (
    SELECT 1 FROM keys AS k WHERE k.flow = NEW.flow AND k.key = NEW.key AND k.job_id <> NEW.job_id
        AND (k.expires_at IS NULL OR k.expires_at > NEW.created_at)
)
BEGIN
    SELECT raise(ABORT, 'holdfast: this key lasts, and stands for another job');
END;

CREATE TRIGGER keys_are_true BEFORE INSERT ON keys
WHEN NOT EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.job_id = NEW.job_id AND j.flow = NEW.flow AND j.key = NEW.key
)
BEGIN
    SELECT raise(ABORT, 'holdfast: a key stands for a job that was submitted with it');
END;

CREATE TRIGGER keys_are_not_replaced BEFORE INSERT ON keys
WHEN EXISTS (SELECT 1 FROM keys AS k WHERE k.flow = NEW.flow AND k.key = NEW.key)
BEGIN
    SELECT raise(ABORT, 'holdfast: a key that lasts does not change');
END;

CREATE TRIGGER keys_are_final BEFORE UPDATE ON keys
BEGIN
    SELECT raise(ABORT, 'holdfast: a key that lasts does not change');
END;

CREATE TRIGGER keys_are_kept BEFORE DELETE ON keys
WHEN OLD.expires_at IS NULL
BEGIN
    SELECT raise(ABORT, 'holdfast: a key that lasts for ever is kept');
END;
