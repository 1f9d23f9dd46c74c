-- Evidence for the check, and a way for the engine's own exceptions to the rules.

-- A digest of the step's row. The journal repeats what it is made of, so that an edited response is found.
ALTER TABLE steps ADD COLUMN seal TEXT NOT NULL DEFAULT '';

-- How long each step may take that may take longer than the job's other steps: JSON, position → milliseconds.
ALTER TABLE jobs ADD COLUMN stall_limits TEXT;

-- An exception to a rule, for one job: there is a row only inside a transaction of the engine that needs one.
CREATE TABLE permits (
    job_id TEXT COLLATE "C" NOT NULL,
    act TEXT NOT NULL,
    PRIMARY KEY (job_id, act)
);
CREATE TRIGGER permits_is_not_truncated BEFORE TRUNCATE ON permits
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('permits is emptied by nobody');
-- Whoever may remove steps may need one.
DO $$
DECLARE
    role TEXT;
BEGIN
    -- Not information_schema, which reads the rights on every table of the server's database.
    FOR role IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class AS c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'steps'::regclass AND a.privilege_type = 'DELETE'
    LOOP
        EXECUTE format('GRANT SELECT, INSERT, DELETE ON permits TO %s', role);
    END LOOP;
END $$;

-- A step is finished by the execution that is in progress. That one is the only one that is not aborted.
CREATE OR REPLACE FUNCTION guard_new_steps() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM finished AS n
        WHERE (SELECT j.job_id FROM jobs AS j WHERE j.job_id = n.job_id FOR KEY SHARE) IS NULL
            OR (SELECT CASE e.status WHEN 'in_progress' THEN e.exec_id END
                    FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL)
                IS DISTINCT FROM n.exec_id
    ) THEN
        RAISE EXCEPTION 'holdfast: a step is finished once, by the execution that is in progress'
            USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION guard_old_steps() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
        AND (
            NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'forget-steps')
            OR EXISTS (
                SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN ('committed', 'done')
            )
        ) THEN
        RAISE EXCEPTION 'holdfast: finished steps are removed by a rewind, a cleanup or retention only'
            USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;

-- A repair sets a job right that somebody has written past the rules. Whatever it writes, the state is the projection.
CREATE FUNCTION refuse_unless_repaired() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'repair') THEN
        RAISE EXCEPTION 'holdfast: %', TG_ARGV[0] USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER jobs_that_succeeded_are_final ON jobs;
DROP TRIGGER jobs_move_legally ON jobs;
DROP TRIGGER jobs_count_upwards ON jobs;
DROP TRIGGER jobs_keep_their_identity ON jobs;
CREATE TRIGGER jobs_that_succeeded_are_final AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (OLD.state = 'succeeded')
    EXECUTE FUNCTION refuse_unless_repaired('a succeeded job does not change');
CREATE TRIGGER jobs_move_legally AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
        'pending>running',
        'running>succeeded', 'running>failed', 'running>pending',
        'failed>pending', 'failed>quarantined',
        'quarantined>pending'
    ))
    EXECUTE FUNCTION refuse_unless_repaired('illegal job transition');
CREATE TRIGGER jobs_count_upwards AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes)
    EXECUTE FUNCTION refuse_unless_repaired('attempts only grow');
-- Nor does what it was submitted with.
CREATE TRIGGER jobs_keep_their_identity AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS DISTINCT FROM OLD.key
        OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.run_after IS DISTINCT FROM OLD.run_after
        OR NEW.created_at <> OLD.created_at OR NEW.queue <> OLD.queue OR NEW.priority <> OLD.priority
        OR NEW.failure_limit <> OLD.failure_limit OR NEW.crash_limit <> OLD.crash_limit OR NEW.stall_ms <> OLD.stall_ms
        OR NEW.stall_limits IS DISTINCT FROM OLD.stall_limits)
    EXECUTE FUNCTION refuse_unless_repaired('what identifies a job does not change');

CREATE TRIGGER children_are_final BEFORE UPDATE ON children
    FOR EACH ROW EXECUTE FUNCTION refuse('a child stays the child of its parent');
CREATE FUNCTION keep_children() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.parent OR p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: children are removed by retention only' USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER children_are_kept BEFORE DELETE ON children FOR EACH ROW EXECUTE FUNCTION keep_children();
