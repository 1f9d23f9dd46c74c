-- Evidence for the check, and a way for the engine's own exceptions to the rules.

-- A digest of the step's row. The journal repeats what it is made of, so that an edited response is found.
ALTER TABLE steps ADD COLUMN seal TEXT NOT NULL DEFAULT '';

-- How long each step may take that may take longer than the job's other steps: JSON, position → milliseconds.
ALTER TABLE jobs ADD COLUMN stall_limits TEXT;

-- An exception to a rule, for one job: there is a row only inside a transaction of the engine that needs one.
CREATE TABLE permits (
    job_id TEXT NOT NULL,
    act TEXT NOT NULL,
    PRIMARY KEY (job_id, act)
) STRICT, WITHOUT ROWID;

-- A step is finished by the execution that is in progress. That one is the only one that is not aborted.
DROP TRIGGER steps_are_added;
CREATE TRIGGER steps_are_added BEFORE INSERT ON steps
WHEN EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = NEW.job_id AND s.position = NEW.position)
    OR NOT EXISTS (
        SELECT 1 FROM executions AS e
        WHERE e.job_id = NEW.job_id AND +e.exec_id = NEW.exec_id AND e.status = 'in_progress'
    )
BEGIN
    SELECT raise(ABORT, 'holdfast: a step is finished once, by the execution that is in progress');
END;

DROP TRIGGER steps_are_kept;
CREATE TRIGGER steps_are_kept BEFORE DELETE ON steps
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
    AND (
        NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'forget-steps')
        OR EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN ('committed', 'done'))
    )
BEGIN
    SELECT raise(ABORT, 'holdfast: finished steps are removed by a rewind, a cleanup or retention only');
END;

-- A repair sets a job right that somebody has written past the rules. Whatever it writes, the state is the projection.
DROP TRIGGER jobs_transition_is_legal;
CREATE TRIGGER jobs_transition_is_legal BEFORE UPDATE OF state ON jobs
WHEN NEW.state <> OLD.state AND CASE OLD.state || '>' || NEW.state
    WHEN 'pending>running' THEN false
    WHEN 'running>succeeded' THEN false
    WHEN 'running>failed' THEN false
    WHEN 'running>pending' THEN false
    WHEN 'failed>pending' THEN false
    WHEN 'failed>quarantined' THEN false
    WHEN 'quarantined>pending' THEN false
    ELSE NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'repair')
END
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal job transition');
END;

DROP TRIGGER jobs_succeeded_is_final;
CREATE TRIGGER jobs_succeeded_is_final BEFORE UPDATE ON jobs
WHEN OLD.state = 'succeeded'
    AND NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'repair')
BEGIN
    SELECT raise(ABORT, 'holdfast: a succeeded job does not change');
END;

DROP TRIGGER jobs_counts_only_grow;
CREATE TRIGGER jobs_counts_only_grow BEFORE UPDATE OF attempt, failures, crashes ON jobs
WHEN (NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes)
    AND NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'repair')
BEGIN
    SELECT raise(ABORT, 'holdfast: attempts only grow');
END;

DROP TRIGGER jobs_identity_is_fixed;
CREATE TRIGGER jobs_identity_is_fixed
BEFORE UPDATE OF job_id, flow, key, parent, run_after, created_at ON jobs
WHEN (NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS NOT OLD.key
    OR NEW.parent IS NOT OLD.parent OR NEW.run_after IS NOT OLD.run_after OR NEW.created_at <> OLD.created_at)
    AND NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'repair')
BEGIN
    SELECT raise(ABORT, 'holdfast: what identifies a job does not change');
END;

-- What a job was submitted with stays as it is.
CREATE TRIGGER jobs_terms_are_fixed
BEFORE UPDATE OF queue, priority, failure_limit, crash_limit, stall_ms, stall_limits ON jobs
WHEN (NEW.queue IS NOT OLD.queue OR NEW.priority IS NOT OLD.priority OR NEW.failure_limit IS NOT OLD.failure_limit
    OR NEW.crash_limit IS NOT OLD.crash_limit OR NEW.stall_ms IS NOT OLD.stall_ms
    OR NEW.stall_limits IS NOT OLD.stall_limits)
    AND NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'repair')
BEGIN
    SELECT raise(ABORT, 'holdfast: what a job was submitted with does not change');
END;

CREATE TRIGGER children_are_final BEFORE UPDATE ON children
BEGIN
    SELECT raise(ABORT, 'holdfast: a child stays the child of its parent');
END;

CREATE TRIGGER children_are_kept BEFORE DELETE ON children
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.parent OR p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: children are removed by retention only');
END;

CREATE TRIGGER queues_are_kept BEFORE DELETE ON queues
WHEN EXISTS (SELECT 1 FROM jobs AS j WHERE j.queue = OLD.name)
BEGIN
    SELECT raise(ABORT, 'holdfast: a queue that has jobs is not removed');
END;
