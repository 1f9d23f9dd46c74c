-- The engine's tables. Rules that must never be broken are kept here, by constraint or trigger,
-- so that neither a bug nor a stray database shell can break them.
-- Lists of states and legal transitions repeat core/states.py; a test compares them.

CREATE TABLE definitions (
    fingerprint TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    definition TEXT NOT NULL,
    first_seen_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    max_running INTEGER CHECK (max_running IS NULL OR max_running >= 0),
    limit_by TEXT,
    paused_at INTEGER,
    paused_by TEXT,
    paused_reason TEXT,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL) AND (paused_at IS NULL) = (paused_reason IS NULL))
) WITHOUT ROWID;

CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    fingerprint TEXT NOT NULL REFERENCES definitions (fingerprint),
    state TEXT NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'quarantined')),
    key TEXT,
    queue TEXT NOT NULL DEFAULT '' REFERENCES queues (name),
    priority INTEGER NOT NULL DEFAULT 0,
    hold TEXT NOT NULL DEFAULT 'none' CHECK (hold IN ('none', 'until', 'after', 'child')),
    not_before INTEGER NOT NULL DEFAULT 0,
    run_after TEXT,
    waits_for TEXT CHECK ((waits_for IS NOT NULL) = (hold IN ('after', 'child'))),
    parent TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failures_forgiven INTEGER NOT NULL DEFAULT 0,
    failure_limit INTEGER NOT NULL DEFAULT 1 CHECK (failure_limit >= 1),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    crashes_forgiven INTEGER NOT NULL DEFAULT 0,
    crash_limit INTEGER NOT NULL DEFAULT 5 CHECK (crash_limit >= 1),
    stall_ms INTEGER NOT NULL DEFAULT 600000 CHECK (stall_ms > 0),
    cancel_reason TEXT,
    ending TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;

-- What a claim reads: ready jobs of a queue, best first. Finished jobs are in none of these indexes.
CREATE INDEX jobs_ready ON jobs (queue, priority DESC, job_id, flow) WHERE state = 'pending' AND hold = 'none';
CREATE INDEX jobs_due ON jobs (not_before) WHERE state = 'pending' AND hold = 'until';
CREATE INDEX jobs_waiting ON jobs (waits_for) WHERE waits_for IS NOT NULL;
CREATE INDEX jobs_unsettled ON jobs (state, flow) WHERE state <> 'succeeded';
CREATE INDEX jobs_dependents ON jobs (run_after) WHERE run_after IS NOT NULL;
CREATE UNIQUE INDEX jobs_key ON jobs (flow, key) WHERE key IS NOT NULL AND state IN ('pending', 'running');

-- Apart from jobs, because every change of a row rewrites all of it.
CREATE TABLE requests (
    job_id TEXT PRIMARY KEY REFERENCES jobs (job_id),
    request TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE executions (
    exec_id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    queue TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('leased', 'in_progress', 'committed', 'done', 'aborted')),
    disposition TEXT CHECK (disposition IN ('retry', 'failed', 'quarantined')),
    code TEXT,
    error TEXT,
    lease_owner TEXT NOT NULL,
    lease_expires_at INTEGER NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
    interrupted INTEGER NOT NULL DEFAULT 0 CHECK (interrupted IN (0, 1)),
    retry_at INTEGER,
    progressed_at INTEGER NOT NULL,
    progress TEXT,
    started_at INTEGER NOT NULL,
    finished_at INTEGER,
    PRIMARY KEY (job_id, attempt),
    CHECK ((status = 'aborted') = (disposition IS NOT NULL)),
    CHECK ((status IN ('aborted', 'done')) = (finished_at IS NOT NULL))
) WITHOUT ROWID;

-- INV_001: one committed-or-done execution per job, for ever.
CREATE UNIQUE INDEX executions_one_commit ON executions (job_id) WHERE status IN ('committed', 'done');
-- One live lease per job.
CREATE UNIQUE INDEX executions_one_live ON executions (job_id) WHERE status IN ('leased', 'in_progress');
-- What queue limits count and what recovery looks through: only what is under way.
CREATE INDEX executions_under_way ON executions (queue, lease_owner, lease_expires_at)
    WHERE status IN ('leased', 'in_progress', 'committed');

CREATE TABLE steps (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    position INTEGER NOT NULL CHECK (position >= 0),
    step TEXT NOT NULL,
    exec_id TEXT NOT NULL,
    tries INTEGER NOT NULL CHECK (tries >= 1),
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    response TEXT NOT NULL,
    PRIMARY KEY (job_id, position)
) WITHOUT ROWID;

CREATE TABLE children (
    parent TEXT NOT NULL REFERENCES jobs (job_id),
    name TEXT NOT NULL,
    round INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    PRIMARY KEY (parent, name, round)
) WITHOUT ROWID;
CREATE INDEX children_job ON children (job_id);

CREATE TABLE journal (
    job_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    exec_id TEXT,
    job_from TEXT,
    job_to TEXT NOT NULL,
    exec_from TEXT,
    exec_to TEXT,
    step TEXT,
    reason TEXT NOT NULL,
    metadata TEXT NOT NULL,
    prev_hash TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (job_id, seq)
) WITHOUT ROWID;

CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY,
    flows TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;

-- The chain heads of jobs that retention has removed: history may be forgotten, but never silently.
CREATE TABLE pruned (
    job_id TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    state TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    head TEXT NOT NULL,
    pruned_at INTEGER NOT NULL,
    pruned_by TEXT NOT NULL
) WITHOUT ROWID;

-- Job state as a function of executions; core/states.py says the same in Python.
CREATE VIEW job_projection AS
SELECT
    job_id,
    coalesce((
        SELECT CASE
            WHEN e.status = 'done' THEN 'succeeded'
            WHEN e.status = 'aborted' THEN CASE e.disposition WHEN 'retry' THEN 'pending' ELSE e.disposition END
            ELSE 'running'
        END
        FROM executions AS e
        WHERE e.job_id = jobs.job_id
        ORDER BY CASE e.status WHEN 'done' THEN 2 WHEN 'committed' THEN 1 ELSE 0 END DESC, e.attempt DESC
        LIMIT 1
    ), 'pending') AS state
FROM jobs;

CREATE TRIGGER jobs_start_pending BEFORE INSERT ON jobs
WHEN NEW.state <> 'pending' OR NEW.attempt <> 0
BEGIN
    SELECT raise(ABORT, 'holdfast: a job starts as pending, with no attempts');
END;

-- INSERT OR REPLACE deletes the old row without firing delete triggers, so it is refused before it does.
CREATE TRIGGER jobs_are_not_replaced BEFORE INSERT ON jobs
WHEN EXISTS (SELECT 1 FROM jobs AS j WHERE j.job_id = NEW.job_id)
    OR (NEW.key IS NOT NULL AND EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.flow = NEW.flow AND j.key = NEW.key AND j.state IN ('pending', 'running')
    ))
BEGIN
    SELECT raise(ABORT, 'holdfast: a job with this id, or an unfinished one with this key, exists already');
END;

CREATE TRIGGER journal_is_not_replaced BEFORE INSERT ON journal
WHEN EXISTS (SELECT 1 FROM journal AS j WHERE j.job_id = NEW.job_id AND j.seq = NEW.seq)
BEGIN
    SELECT raise(ABORT, 'holdfast: the journal is append-only');
END;

CREATE TRIGGER requests_are_not_replaced BEFORE INSERT ON requests
WHEN EXISTS (SELECT 1 FROM requests AS r WHERE r.job_id = NEW.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: a request does not change');
END;

CREATE TRIGGER executions_are_not_replaced BEFORE INSERT ON executions
WHEN EXISTS (SELECT 1 FROM executions AS e WHERE e.exec_id = NEW.exec_id)
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('leased', 'in_progress'))
BEGIN
    SELECT raise(ABORT, 'holdfast: an execution is not replaced');
END;

CREATE TRIGGER pruned_is_not_replaced BEFORE INSERT ON pruned
WHEN EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = NEW.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: the record of pruned jobs is append-only');
END;

CREATE TRIGGER jobs_state_is_projection BEFORE UPDATE OF state ON jobs
WHEN NEW.state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: job state must equal the projection of its executions');
END;

CREATE TRIGGER jobs_transition_is_legal BEFORE UPDATE OF state ON jobs
WHEN NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
    'pending>running',
    'running>succeeded', 'running>failed', 'running>pending',
    'failed>pending', 'failed>quarantined',
    'quarantined>pending'
)
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal job transition');
END;

-- UPDATE OR REPLACE would remove the other job instead of failing.
CREATE TRIGGER jobs_key_is_free BEFORE UPDATE OF state ON jobs
WHEN NEW.key IS NOT NULL AND OLD.state NOT IN ('pending', 'running') AND NEW.state IN ('pending', 'running')
    AND EXISTS (
        SELECT 1 FROM jobs AS j
        WHERE j.flow = NEW.flow AND j.key = NEW.key AND j.state IN ('pending', 'running') AND j.job_id <> NEW.job_id
    )
BEGIN
    SELECT raise(ABORT, 'holdfast: another unfinished job has this key');
END;

CREATE TRIGGER jobs_succeeded_is_final BEFORE UPDATE ON jobs
WHEN OLD.state = 'succeeded'
BEGIN
    SELECT raise(ABORT, 'holdfast: a succeeded job does not change');
END;

CREATE TRIGGER jobs_counts_only_grow BEFORE UPDATE OF attempt, failures, crashes ON jobs
WHEN NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes
BEGIN
    SELECT raise(ABORT, 'holdfast: attempts only grow');
END;

CREATE TRIGGER jobs_identity_is_fixed BEFORE UPDATE OF job_id, flow, key, parent, run_after, created_at ON jobs
WHEN NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS NOT OLD.key
    OR NEW.parent IS NOT OLD.parent OR NEW.run_after IS NOT OLD.run_after OR NEW.created_at <> OLD.created_at
BEGIN
    SELECT raise(ABORT, 'holdfast: what identifies a job does not change');
END;

CREATE TRIGGER executions_start_leased BEFORE INSERT ON executions
WHEN NEW.status <> 'leased'
    OR NEW.attempt <> 1 + (SELECT j.attempt FROM jobs AS j WHERE j.job_id = NEW.job_id)
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('committed', 'done'))
BEGIN
    SELECT raise(ABORT, 'holdfast: an execution starts as leased, as the next attempt of an uncommitted job');
END;

CREATE TRIGGER executions_move_job AFTER INSERT ON executions
BEGIN
    UPDATE jobs
    SET attempt = NEW.attempt, updated_at = NEW.started_at, hold = 'none', waits_for = NULL,
        state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
    WHERE job_id = NEW.job_id;
END;

CREATE TRIGGER executions_transition_is_legal BEFORE UPDATE OF status, disposition ON executions
WHEN (NEW.status <> OLD.status AND (OLD.status || '>' || NEW.status) NOT IN (
        'leased>in_progress', 'leased>aborted',
        'in_progress>committed', 'in_progress>aborted',
        'committed>done'
    ))
    OR (NEW.status = OLD.status AND NEW.disposition IS NOT OLD.disposition
        AND (OLD.disposition || '>' || NEW.disposition) NOT IN (
            'failed>retry', 'failed>quarantined', 'quarantined>retry'
        ))
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal execution transition');
END;

CREATE TRIGGER executions_change_job AFTER UPDATE OF status, disposition ON executions
WHEN NEW.status <> OLD.status OR NEW.disposition IS NOT OLD.disposition
BEGIN
    UPDATE jobs
    SET updated_at = max(updated_at, coalesce(NEW.finished_at, NEW.progressed_at)),
        state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
    WHERE job_id = NEW.job_id
        AND state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id);
END;

CREATE TRIGGER executions_identity_is_fixed
BEFORE UPDATE OF exec_id, job_id, attempt, queue, lease_owner, started_at, interrupted ON executions
WHEN NEW.exec_id <> OLD.exec_id OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt OR NEW.queue <> OLD.queue
    OR NEW.lease_owner <> OLD.lease_owner OR NEW.started_at <> OLD.started_at OR NEW.interrupted <> OLD.interrupted
BEGIN
    SELECT raise(ABORT, 'holdfast: what identifies an execution does not change');
END;

CREATE TRIGGER executions_ended_are_final BEFORE UPDATE ON executions
WHEN OLD.status IN ('done', 'aborted') AND (
    NEW.status <> OLD.status OR NEW.finished_at IS NOT OLD.finished_at OR NEW.code IS NOT OLD.code
    OR NEW.error IS NOT OLD.error OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position
    OR NEW.tries <> OLD.tries OR NEW.retry_at IS NOT OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
    OR NEW.progress IS NOT OLD.progress
)
BEGIN
    SELECT raise(ABORT, 'holdfast: an ended execution does not change');
END;

CREATE TRIGGER requests_are_final BEFORE UPDATE ON requests
BEGIN
    SELECT raise(ABORT, 'holdfast: a request does not change');
END;

CREATE TRIGGER requests_are_kept BEFORE DELETE ON requests
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: requests are removed by retention only');
END;

-- A step is written once by the execution that finished it, and a job that has committed has all of its steps.
CREATE TRIGGER steps_are_added BEFORE INSERT ON steps
WHEN EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = NEW.job_id AND s.position = NEW.position)
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('committed', 'done'))
BEGIN
    SELECT raise(ABORT, 'holdfast: a finished step does not change');
END;

CREATE TRIGGER steps_are_final BEFORE UPDATE ON steps
BEGIN
    SELECT raise(ABORT, 'holdfast: a finished step does not change');
END;

CREATE TRIGGER steps_are_kept BEFORE DELETE ON steps
WHEN EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN ('committed', 'done'))
    AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: the steps of a committed job are removed by retention only');
END;

CREATE TRIGGER definitions_are_not_replaced BEFORE INSERT ON definitions
WHEN EXISTS (SELECT 1 FROM definitions AS d WHERE d.fingerprint = NEW.fingerprint)
BEGIN
    SELECT raise(ABORT, 'holdfast: a definition does not change');
END;

CREATE TRIGGER definitions_are_final BEFORE UPDATE ON definitions
BEGIN
    SELECT raise(ABORT, 'holdfast: a definition does not change');
END;

CREATE TRIGGER definitions_are_kept BEFORE DELETE ON definitions
BEGIN
    SELECT raise(ABORT, 'holdfast: a definition does not change');
END;

CREATE TRIGGER journal_follows BEFORE INSERT ON journal
WHEN NEW.prev_hash IS NOT CASE NEW.seq WHEN 1 THEN '' ELSE (
    SELECT j.hash FROM journal AS j WHERE j.job_id = NEW.job_id AND j.seq = NEW.seq - 1
) END
BEGIN
    SELECT raise(ABORT, 'holdfast: a journal entry must follow the one before it');
END;

CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON journal
BEGIN
    SELECT raise(ABORT, 'holdfast: the journal is append-only');
END;

-- Rows of a job go only after its chain head was put on record in pruned.
CREATE TRIGGER journal_is_kept BEFORE DELETE ON journal
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: the journal is append-only');
END;

CREATE TRIGGER jobs_are_kept BEFORE DELETE ON jobs
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: jobs are removed by retention only');
END;

CREATE TRIGGER executions_are_kept BEFORE DELETE ON executions
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: executions are removed by retention only');
END;

CREATE TRIGGER pruned_is_true BEFORE INSERT ON pruned
WHEN NOT EXISTS (
    SELECT 1 FROM jobs AS j JOIN journal AS l ON l.job_id = j.job_id
    WHERE j.job_id = NEW.job_id AND j.state IN ('succeeded', 'failed', 'quarantined') AND j.state = NEW.state
        AND l.seq = NEW.entries AND l.hash = NEW.head
        AND NOT EXISTS (SELECT 1 FROM journal AS later WHERE later.job_id = l.job_id AND later.seq > l.seq)
)
BEGIN
    SELECT raise(ABORT, 'holdfast: only an ended job is pruned, under the true head of its journal');
END;

CREATE TRIGGER pruned_is_append_only BEFORE UPDATE ON pruned
BEGIN
    SELECT raise(ABORT, 'holdfast: the record of pruned jobs is append-only');
END;

CREATE TRIGGER pruned_is_kept BEFORE DELETE ON pruned
BEGIN
    SELECT raise(ABORT, 'holdfast: the record of pruned jobs is append-only');
END;
