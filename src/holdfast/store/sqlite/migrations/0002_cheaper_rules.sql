-- The same rules for less work. For an `IN (...)` of three or more and for a sort SQLite makes a temporary table, in a trigger
-- once for every row: a quarter of the instructions of a one-step job. So lists are spelled with OR and CASE, and the
-- projection sorts nothing.

-- The lists in the CHECKs, in place: what they accept stays the same, and so does every row.
PRAGMA writable_schema = ON;

UPDATE sqlite_schema SET sql = replace(replace(sql,
    'state IN (''pending'', ''running'', ''succeeded'', ''failed'', ''quarantined'')',
    'state = ''pending'' OR state = ''running'' OR state = ''succeeded'' OR state = ''failed'' OR state = ''quarantined'''),
    'CHECK (hold IN (''none'', ''until'', ''after'', ''child''))',
    'CHECK (hold = ''none'' OR hold = ''until'' OR hold = ''after'' OR hold = ''child'')')
WHERE type = 'table' AND name = 'jobs';

UPDATE sqlite_schema SET sql = replace(replace(sql,
    'status IN (''leased'', ''in_progress'', ''committed'', ''done'', ''aborted'')',
    'status = ''leased'' OR status = ''in_progress'' OR status = ''committed'' OR status = ''done'' OR status = ''aborted'''),
    'disposition IN (''retry'', ''failed'', ''quarantined'')',
    'disposition = ''retry'' OR disposition = ''failed'' OR disposition = ''quarantined''')
WHERE type = 'table' AND name = 'executions';

PRAGMA writable_schema = RESET;

DROP VIEW job_projection;

-- Job state as a function of executions; core/states.py says the same in Python.
CREATE VIEW job_projection AS
SELECT
    job_id,
    coalesce(
        -- 'succeeded' is the greater text, so that a done execution outweighs a committed one.
        (
            SELECT max(CASE e.status WHEN 'done' THEN 'succeeded' ELSE 'running' END) FROM executions AS e
            WHERE e.job_id = jobs.job_id AND e.status IN ('committed', 'done')
        ),
        (
            SELECT CASE
                WHEN e.status <> 'aborted' THEN 'running'
                WHEN e.disposition = 'retry' THEN 'pending'
                ELSE e.disposition
            END
            FROM executions AS e WHERE e.job_id = jobs.job_id ORDER BY e.attempt DESC LIMIT 1
        ),
        'pending'
    ) AS state
FROM jobs;

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
    ELSE true
END
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal job transition');
END;

DROP TRIGGER executions_transition_is_legal;

CREATE TRIGGER executions_transition_is_legal BEFORE UPDATE OF status, disposition ON executions
WHEN CASE
    WHEN NEW.status <> OLD.status THEN CASE OLD.status || '>' || NEW.status
        WHEN 'leased>in_progress' THEN false
        WHEN 'leased>aborted' THEN false
        WHEN 'in_progress>committed' THEN false
        WHEN 'in_progress>aborted' THEN false
        WHEN 'committed>done' THEN false
        ELSE true
    END
    WHEN NEW.disposition IS NOT OLD.disposition THEN CASE OLD.disposition || '>' || NEW.disposition
        WHEN 'failed>retry' THEN false
        WHEN 'failed>quarantined' THEN false
        WHEN 'quarantined>retry' THEN false
        ELSE true
    END
    ELSE false
END
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal execution transition');
END;

DROP TRIGGER executions_are_not_replaced;
DROP TRIGGER executions_start_leased;

-- One look at the job in the place of three at executions: it is pending only while none of them is live or committed.
CREATE TRIGGER executions_start_leased BEFORE INSERT ON executions
WHEN NEW.status <> 'leased'
    OR NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.job_id = NEW.job_id AND j.state = 'pending' AND j.attempt = NEW.attempt - 1
    )
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.exec_id = NEW.exec_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: an execution starts as leased, under a new id, as the next attempt of a pending job');
END;

DROP TRIGGER executions_move_job;

-- That this is the projection is checked where the job is written.
CREATE TRIGGER executions_move_job AFTER INSERT ON executions
BEGIN
    UPDATE jobs SET attempt = NEW.attempt, updated_at = NEW.started_at, hold = 'none', waits_for = NULL, state = 'running'
    WHERE job_id = NEW.job_id;
END;

DROP TRIGGER executions_change_job;

-- Until it ends, an execution keeps its job running. One that ended before the job succeeded has no say any more.
CREATE TRIGGER executions_change_job AFTER UPDATE OF status, disposition ON executions
WHEN NEW.status IN ('done', 'aborted') AND (NEW.status <> OLD.status OR NEW.disposition IS NOT OLD.disposition)
BEGIN
    UPDATE jobs
    SET updated_at = max(updated_at, coalesce(NEW.finished_at, NEW.progressed_at)),
        state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
    WHERE job_id = NEW.job_id AND state <> 'succeeded';
END;

DROP TRIGGER journal_is_not_replaced;
DROP TRIGGER journal_follows;

-- What follows the last entry of its job, by number and by hash, replaces none.
CREATE TRIGGER journal_follows BEFORE INSERT ON journal
WHEN NEW.seq || ' ' || NEW.prev_hash IS NOT coalesce(
    (SELECT (j.seq + 1) || ' ' || j.hash FROM journal AS j WHERE j.job_id = NEW.job_id ORDER BY j.seq DESC LIMIT 1),
    '1 '
)
BEGIN
    SELECT raise(ABORT, 'holdfast: a journal entry must follow the one before it');
END;
