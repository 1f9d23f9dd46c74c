-- The same rules once more, for fewer looks at other rows: what was asked row by row is asked once for a statement.

-- --- what a row alone can tell ---

-- Judged when the row is written. Were it judged before, each row would be fetched and locked for that first.
DROP TRIGGER jobs_that_succeeded_are_final ON jobs;
DROP TRIGGER jobs_move_legally ON jobs;
DROP TRIGGER jobs_count_upwards ON jobs;
DROP TRIGGER jobs_keep_their_identity ON jobs;
CREATE TRIGGER jobs_that_succeeded_are_final AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (OLD.state = 'succeeded')
    EXECUTE FUNCTION refuse('a succeeded job does not change');
CREATE TRIGGER jobs_move_legally AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
        'pending>running',
        'running>succeeded', 'running>failed', 'running>pending',
        'failed>pending', 'failed>quarantined',
        'quarantined>pending'
    ))
    EXECUTE FUNCTION refuse('illegal job transition');
CREATE TRIGGER jobs_count_upwards AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes)
    EXECUTE FUNCTION refuse('attempts only grow');
CREATE TRIGGER jobs_keep_their_identity AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS DISTINCT FROM OLD.key
        OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.run_after IS DISTINCT FROM OLD.run_after
        OR NEW.created_at <> OLD.created_at)
    EXECUTE FUNCTION refuse('what identifies a job does not change');

DROP TRIGGER executions_move_legally ON executions;
DROP TRIGGER executions_keep_their_identity ON executions;
DROP TRIGGER executions_that_ended_are_final ON executions;
CREATE TRIGGER executions_move_legally AFTER UPDATE ON executions FOR EACH ROW
    WHEN ((NEW.status <> OLD.status AND (OLD.status || '>' || NEW.status) NOT IN (
            'leased>in_progress', 'leased>aborted',
            'in_progress>committed', 'in_progress>aborted',
            'committed>done'
        ))
        OR (NEW.status = OLD.status AND NEW.disposition IS DISTINCT FROM OLD.disposition
            AND (OLD.disposition || '>' || NEW.disposition) NOT IN (
                'failed>retry', 'failed>quarantined', 'quarantined>retry'
            )))
    EXECUTE FUNCTION refuse('illegal execution transition');
CREATE TRIGGER executions_keep_their_identity AFTER UPDATE ON executions FOR EACH ROW
    WHEN (NEW.exec_id <> OLD.exec_id OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt
        OR NEW.queue <> OLD.queue OR NEW.lease_owner <> OLD.lease_owner OR NEW.started_at <> OLD.started_at
        OR NEW.interrupted <> OLD.interrupted)
    EXECUTE FUNCTION refuse('what identifies an execution does not change');
CREATE TRIGGER executions_that_ended_are_final AFTER UPDATE ON executions FOR EACH ROW
    WHEN (OLD.status IN ('done', 'aborted') AND (
        NEW.status <> OLD.status OR NEW.finished_at IS DISTINCT FROM OLD.finished_at
        OR NEW.code IS DISTINCT FROM OLD.code OR NEW.error IS DISTINCT FROM OLD.error
        OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position OR NEW.tries <> OLD.tries
        OR NEW.retry_at IS DISTINCT FROM OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
        OR NEW.progress IS DISTINCT FROM OLD.progress
    ))
    EXECUTE FUNCTION refuse('an ended execution does not change');

-- --- executions and steps belong to a job ---

-- A foreign key looks its job up for each row, and once more when a row of the same transaction changes. Instead:
-- a new execution moves its job (lease_jobs refuses one without), a new step locks its job as the key did
-- (guard_new_steps), and a job goes only when nothing of it is left (leave_nothing_behind).
ALTER TABLE executions DROP CONSTRAINT executions_job_id_fkey;
ALTER TABLE steps DROP CONSTRAINT steps_job_id_fkey;

CREATE FUNCTION leave_nothing_behind() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- A snapshot from before could hide what others have added to the job meanwhile.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'holdfast: jobs are removed under READ COMMITTED only' USING ERRCODE = 'HF001';
    END IF;
    IF EXISTS (
        SELECT 1 FROM gone AS o
        WHERE EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = o.job_id)
            OR EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = o.job_id)
    ) THEN
        RAISE EXCEPTION 'holdfast: a job is removed after its executions and steps' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_leave_nothing_behind AFTER DELETE ON jobs REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION leave_nothing_behind();

CREATE OR REPLACE FUNCTION guard_new_steps() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM finished AS n
        WHERE (SELECT j.job_id FROM jobs AS j WHERE j.job_id = n.job_id FOR KEY SHARE) IS NULL
            OR (SELECT e.status FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL)
                IN ('committed', 'done')
    ) THEN
        RAISE EXCEPTION 'holdfast: a finished step does not change, and belongs to a job' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;

-- --- executions move their jobs ---

DROP TRIGGER executions_settle_jobs ON executions;
CREATE OR REPLACE FUNCTION settle_jobs() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = 'done') THEN
        UPDATE jobs SET state = 'succeeded',
            updated_at = greatest(updated_at, (SELECT max(n.finished_at) FROM ended AS n))
        WHERE job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = 'done')) AND state <> 'succeeded';
    END IF;
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = 'aborted') THEN
        UPDATE jobs AS j SET state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id),
            updated_at = greatest(j.updated_at, (SELECT max(n.finished_at) FROM ended AS n))
        WHERE j.job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = 'aborted'))
            AND j.state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER executions_settle_jobs AFTER UPDATE ON executions REFERENCING NEW TABLE AS ended
    FOR EACH STATEMENT EXECUTE FUNCTION settle_jobs();

-- An execution that is not aborted is the only such one of its job, and speaks for it: that is looked up by its index.
-- All others are projected. Only a state that is not what it should be has to be compared with what it was.
CREATE OR REPLACE FUNCTION check_projection() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM changed AS n
        WHERE CASE
            WHEN n.state = coalesce(
                (SELECT CASE e.status WHEN 'done' THEN 'succeeded' ELSE 'running' END
                    FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL),
                (SELECT p.state FROM job_projection AS p WHERE p.job_id = n.job_id)
            ) THEN false
            ELSE n.state <> (SELECT o.state FROM before AS o WHERE o.job_id = n.job_id)
        END
    ) THEN
        RAISE EXCEPTION 'holdfast: job state must equal the projection of its executions' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
