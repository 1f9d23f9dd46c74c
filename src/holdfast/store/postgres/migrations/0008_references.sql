-- A foreign key locks what it refers to, once more with every second change of a row in one transaction: a forgotten shell
-- that held the row of a queue or of a definition kept all jobs that name it from being claimed or ended. What a job names
-- is looked at when the job is made, and when it is given another name; definitions are never removed, and a queue only
-- when no job is in it.
ALTER TABLE jobs DROP CONSTRAINT jobs_fingerprint_fkey;
ALTER TABLE jobs DROP CONSTRAINT jobs_queue_fkey;

CREATE FUNCTION guard_new_jobs() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- The queue is locked as the key did: or it could be removed between this look and the end of the transaction.
    IF EXISTS (
        SELECT 1 FROM (SELECT DISTINCT n.queue FROM added AS n) AS n
        WHERE (SELECT q.name FROM queues AS q WHERE q.name = n.queue FOR KEY SHARE) IS NULL
    ) OR EXISTS (
        SELECT 1 FROM (SELECT DISTINCT n.fingerprint FROM added AS n) AS n
        WHERE (SELECT d.fingerprint FROM definitions AS d WHERE d.fingerprint = n.fingerprint) IS NULL
    ) THEN
        RAISE EXCEPTION 'holdfast: a job names a queue and a definition that are there'
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_name_what_is_there AFTER INSERT ON jobs REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION guard_new_jobs();

CREATE FUNCTION guard_renamed_jobs() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM queues AS q WHERE q.name = NEW.queue)
        OR NOT EXISTS (SELECT 1 FROM definitions AS d WHERE d.fingerprint = NEW.fingerprint) THEN
        RAISE EXCEPTION 'holdfast: a job names a queue and a definition that are there'
            USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_go_on_naming_what_is_there AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.queue <> OLD.queue OR NEW.fingerprint <> OLD.fingerprint)
    EXECUTE FUNCTION guard_renamed_jobs();

CREATE FUNCTION guard_old_queues() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM jobs AS j WHERE j.queue = OLD.name) THEN
        RAISE EXCEPTION 'holdfast: a queue is removed after its jobs' USING ERRCODE = 'foreign_key_violation';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER queues_with_jobs_are_kept BEFORE DELETE ON queues FOR EACH ROW EXECUTE FUNCTION guard_old_queues();
CREATE TRIGGER queues_keep_their_names BEFORE UPDATE ON queues FOR EACH ROW
    WHEN (NEW.name <> OLD.name) EXECUTE FUNCTION refuse('a queue keeps its name');
