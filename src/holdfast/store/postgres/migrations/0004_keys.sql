-- Keys that last beyond the end of their job: for ever, or until a time. The row outlives the job, so that retention does
-- not make a key free again.

CREATE TABLE keys (
    flow TEXT NOT NULL,
    key TEXT NOT NULL,
    job_id TEXT COLLATE "C" NOT NULL,
    request_digest TEXT NOT NULL,
    taken_at BIGINT NOT NULL,
    expires_at BIGINT CHECK (expires_at IS NULL OR expires_at > taken_at),
    PRIMARY KEY (flow, key)
);
CREATE INDEX keys_expiring ON keys (expires_at) WHERE expires_at IS NOT NULL;

-- The last job that had a key, whatever has become of it.
CREATE INDEX jobs_by_key ON jobs (flow, key, job_id) WHERE key IS NOT NULL;

-- Somebody may take the key between a look and this insert. That is a lost race like that for the index jobs_key, and has
-- the same SQLSTATE: the submit is made again, and finds the job.
CREATE FUNCTION guard_lasting_keys() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM keys AS k WHERE k.flow = NEW.flow AND k.key = NEW.key AND k.job_id <> NEW.job_id
            AND (k.expires_at IS NULL OR k.expires_at > NEW.created_at)
    ) THEN
        RAISE EXCEPTION 'holdfast: this key lasts, and stands for another job' USING ERRCODE = 'unique_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER jobs_key_lasts BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.key IS NOT NULL)
    EXECUTE FUNCTION guard_lasting_keys();

CREATE FUNCTION guard_new_keys() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.job_id = NEW.job_id AND j.flow = NEW.flow AND j.key = NEW.key
    ) THEN
        RAISE EXCEPTION 'holdfast: a key stands for a job that was submitted with it' USING ERRCODE = 'HF001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER keys_are_true BEFORE INSERT ON keys FOR EACH ROW EXECUTE FUNCTION guard_new_keys();
CREATE TRIGGER keys_are_final BEFORE UPDATE ON keys FOR EACH ROW
    EXECUTE FUNCTION refuse('a key that lasts does not change');
CREATE TRIGGER keys_are_kept BEFORE DELETE ON keys FOR EACH ROW
    WHEN (OLD.expires_at IS NULL)
    EXECUTE FUNCTION refuse('a key that lasts for ever is kept');
CREATE TRIGGER keys_is_not_truncated BEFORE TRUNCATE ON keys
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('keys is emptied by nobody');
