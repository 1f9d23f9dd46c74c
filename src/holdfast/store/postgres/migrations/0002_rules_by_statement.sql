-- The same rules, kept at a tenth of the cost. What a row alone can tell is a condition of its trigger, judged without
-- calling anything. What needs a look at other rows is looked up once for all rows of a statement.

-- --- plans ---
-- The functions below keep their plans for the life of a connection, also when tables have grown a thousandfold since.
-- They therefore have the planner look rows up by index, one by one, however few there are at first. Other tables are
-- asked by subqueries that depend on the row: those are never turned into a join.

-- --- what a row alone can tell ---

DROP TRIGGER jobs_keep_the_rules ON jobs;
DROP FUNCTION guard_jobs();
CREATE TRIGGER jobs_begin_as_pending BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.state <> 'pending' OR NEW.attempt <> 0)
    EXECUTE FUNCTION refuse('a job starts as pending, with no attempts');
CREATE TRIGGER jobs_that_succeeded_are_final BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (OLD.state = 'succeeded')
    EXECUTE FUNCTION refuse('a succeeded job does not change');
CREATE TRIGGER jobs_move_legally BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
        'pending>running',
        'running>succeeded', 'running>failed', 'running>pending',
        'failed>pending', 'failed>quarantined',
        'quarantined>pending'
    ))
    EXECUTE FUNCTION refuse('illegal job transition');
CREATE TRIGGER jobs_count_upwards BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes)
    EXECUTE FUNCTION refuse('attempts only grow');
CREATE TRIGGER jobs_keep_their_identity BEFORE UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS DISTINCT FROM OLD.key
        OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.run_after IS DISTINCT FROM OLD.run_after
        OR NEW.created_at <> OLD.created_at)
    EXECUTE FUNCTION refuse('what identifies a job does not change');

DROP TRIGGER executions_keep_the_rules ON executions;
DROP FUNCTION guard_executions();
CREATE TRIGGER executions_begin_as_leased BEFORE INSERT ON executions FOR EACH ROW
    WHEN (NEW.status <> 'leased')
    EXECUTE FUNCTION refuse('an execution starts as leased, as the next attempt of an uncommitted job');
CREATE TRIGGER executions_move_legally BEFORE UPDATE ON executions FOR EACH ROW
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
CREATE TRIGGER executions_keep_their_identity BEFORE UPDATE ON executions FOR EACH ROW
    WHEN (NEW.exec_id <> OLD.exec_id OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt
        OR NEW.queue <> OLD.queue OR NEW.lease_owner <> OLD.lease_owner OR NEW.started_at <> OLD.started_at
        OR NEW.interrupted <> OLD.interrupted)
    EXECUTE FUNCTION refuse('what identifies an execution does not change');
CREATE TRIGGER executions_that_ended_are_final BEFORE UPDATE ON executions FOR EACH ROW
    WHEN (OLD.status IN ('done', 'aborted') AND (
        NEW.status <> OLD.status OR NEW.finished_at IS DISTINCT FROM OLD.finished_at
        OR NEW.code IS DISTINCT FROM OLD.code OR NEW.error IS DISTINCT FROM OLD.error
        OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position OR NEW.tries <> OLD.tries
        OR NEW.retry_at IS DISTINCT FROM OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
        OR NEW.progress IS DISTINCT FROM OLD.progress
    ))
    EXECUTE FUNCTION refuse('an ended execution does not change');

-- --- what only retention may remove; rare, so row by row ---

CREATE FUNCTION refuse_unless_pruned() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: %', TG_ARGV[0] USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
DROP TRIGGER requests_are_kept ON requests;
DROP FUNCTION guard_requests();
DROP TRIGGER journal_keeps_the_rules ON journal;
DROP FUNCTION guard_journal();
CREATE TRIGGER jobs_are_kept BEFORE DELETE ON jobs FOR EACH ROW
    EXECUTE FUNCTION refuse_unless_pruned('jobs are removed by retention only');
CREATE TRIGGER requests_are_kept BEFORE DELETE ON requests FOR EACH ROW
    EXECUTE FUNCTION refuse_unless_pruned('requests are removed by retention only');
CREATE TRIGGER executions_are_kept BEFORE DELETE ON executions FOR EACH ROW
    EXECUTE FUNCTION refuse_unless_pruned('executions are removed by retention only');
CREATE TRIGGER journal_is_kept BEFORE DELETE ON journal FOR EACH ROW
    EXECUTE FUNCTION refuse_unless_pruned('the journal is append-only');

-- --- executions move their jobs ---

-- At most one execution of a job is not aborted: one live lease, and INV_001, one commit for ever. None of the columns
-- here changes while an execution goes from leased to committed, so those updates write no index at all.
DROP INDEX executions_one_commit;
DROP INDEX executions_one_live;
CREATE UNIQUE INDEX executions_one_commit ON executions (job_id) WHERE disposition IS NULL;
-- What queue limits count and what recovery looks through: only what has not ended.
DROP INDEX executions_under_way;
CREATE INDEX executions_under_way ON executions (queue, lease_owner) WHERE finished_at IS NULL;
-- Room for the versions of a row that an execution goes through.
ALTER TABLE executions SET (fillfactor = 50);

-- Job state as a function of executions; core/states.py says the same in Python.
DROP VIEW job_projection;
CREATE VIEW job_projection AS
SELECT j.job_id, coalesce((
    SELECT CASE
        WHEN e.status = 'done' THEN 'succeeded'
        WHEN e.status = 'aborted' THEN CASE e.disposition WHEN 'retry' THEN 'pending' ELSE e.disposition END
        ELSE 'running'
    END
    FROM executions AS e
    WHERE e.job_id = j.job_id
    ORDER BY CASE e.status WHEN 'done' THEN 2 WHEN 'committed' THEN 1 ELSE 0 END DESC, e.attempt DESC
    LIMIT 1
), 'pending') AS state
FROM jobs AS j;

DROP TRIGGER executions_move_job ON executions;
DROP TRIGGER executions_change_job ON executions;
DROP FUNCTION move_job();
DROP FUNCTION projected_state(TEXT);

CREATE FUNCTION lease_jobs() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE jobs SET attempt = attempt + 1, updated_at = (SELECT max(n.started_at) FROM leased AS n),
        hold = 'none', waits_for = NULL, state = 'running'
    WHERE job_id = ANY (ARRAY(SELECT n.job_id FROM leased AS n));
    IF EXISTS (
        SELECT 1 FROM leased AS n
        WHERE n.attempt IS DISTINCT FROM (SELECT j.attempt FROM jobs AS j WHERE j.job_id = n.job_id)
    ) THEN
        RAISE EXCEPTION 'holdfast: an execution starts as leased, as the next attempt of an uncommitted job'
            USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER executions_lease_jobs AFTER INSERT ON executions REFERENCING NEW TABLE AS leased
    FOR EACH STATEMENT EXECUTE FUNCTION lease_jobs();

-- Only the end of an execution, or a new meaning of its end, moves its job: until then the job is running.
CREATE FUNCTION settle_jobs() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    -- Nearly all of them end so.
    UPDATE jobs SET state = 'succeeded', updated_at = greatest(updated_at, (SELECT max(n.finished_at) FROM ended AS n))
    WHERE job_id = ANY (ARRAY(
        SELECT n.job_id FROM ended AS n WHERE n.status = 'done'
        EXCEPT
        SELECT o.job_id FROM before AS o WHERE o.status = 'done'
    ));
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = 'aborted') THEN
        UPDATE jobs AS j SET state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id),
            updated_at = greatest(j.updated_at, (SELECT max(n.finished_at) FROM ended AS n))
        WHERE j.job_id = ANY (ARRAY(
            SELECT n.job_id FROM (
                SELECT e.job_id, e.disposition FROM ended AS e WHERE e.status = 'aborted'
                EXCEPT
                SELECT e.job_id, e.disposition FROM before AS e WHERE e.status = 'aborted'
            ) AS n
            WHERE (SELECT p.state FROM job_projection AS p WHERE p.job_id = n.job_id)
                <> (SELECT s.state FROM jobs AS s WHERE s.job_id = n.job_id)
        ));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER executions_settle_jobs AFTER UPDATE ON executions REFERENCING OLD TABLE AS before NEW TABLE AS ended
    FOR EACH STATEMENT EXECUTE FUNCTION settle_jobs();

CREATE FUNCTION check_projection() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_nestloop = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM changed AS n JOIN before AS o ON o.job_id = n.job_id
        WHERE n.state <> o.state
            AND n.state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = n.job_id)
    ) THEN
        RAISE EXCEPTION 'holdfast: job state must equal the projection of its executions' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_follow_their_executions AFTER UPDATE ON jobs REFERENCING OLD TABLE AS before NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION check_projection();

-- --- steps and journal ---

-- A step is written once by the execution that finished it, and a job that has committed has all of its steps.
DROP TRIGGER steps_keep_the_rules ON steps;
DROP FUNCTION guard_steps();
CREATE FUNCTION guard_new_steps() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM finished AS n
        WHERE (SELECT e.status FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL)
            IN ('committed', 'done')
    ) THEN
        RAISE EXCEPTION 'holdfast: a finished step does not change' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER steps_end_with_the_commit AFTER INSERT ON steps REFERENCING NEW TABLE AS finished
    FOR EACH STATEMENT EXECUTE FUNCTION guard_new_steps();
CREATE FUNCTION guard_old_steps() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN ('committed', 'done'))
        AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: the steps of a committed job are removed by retention only' USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER steps_are_kept BEFORE DELETE ON steps FOR EACH ROW EXECUTE FUNCTION guard_old_steps();

CREATE FUNCTION guard_chain() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM written AS n
        WHERE n.prev_hash IS DISTINCT FROM (CASE n.seq WHEN 1 THEN '' ELSE (
            SELECT j.hash FROM journal AS j WHERE j.job_id = n.job_id AND j.seq = n.seq - 1
        ) END)
    ) THEN
        RAISE EXCEPTION 'holdfast: a journal entry must follow the one before it' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER journal_is_a_chain AFTER INSERT ON journal REFERENCING NEW TABLE AS written
    FOR EACH STATEMENT EXECUTE FUNCTION guard_chain();
