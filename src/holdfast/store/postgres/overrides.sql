-- What only PostgreSQL says in this way.
-- A batch goes in as one JSON array and is applied by one statement: one round trip, however many rows. Rows that it
-- names are looked up by `= ANY (ARRAY(...))` or LATERAL with a LIMIT: those stay look-ups in an index, whereas a join is
-- planned by what the tables were like when the connection was new, and that plan is kept.
-- Each transaction locks the rows of the jobs it is about first (lock_jobs, or the claim itself), in order of their
-- ids; after that nobody else can change what belongs to those jobs, and the fence is a plain comparison.

-- spelling: greatest
-- The larger of two numbers.
greatest

-- spelling: in_batch
-- The ids of a batch, which goes in as a JSON array; looked up in an index, whatever the tables are like.
= ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))

-- spelling: seals
-- The seals of all steps of a job, in their order.
string_agg(s.seal, ',' ORDER BY s.position)

-- spelling: lock_jobs
-- Those that nobody else holds, until the end of the transaction.
FOR NO KEY UPDATE OF j SKIP LOCKED

-- spelling: binary
-- The order of ids, whatever the language of the database.
"C"

-- spelling: under_way
-- Leased, running or committed: the condition of the index of these.
finished_at IS NULL

-- name: insert_definitions
-- Two may remember the same one at once.
INSERT INTO definitions (fingerprint, flow, definition, first_seen_at)
VALUES (:fingerprint, :flow, :definition, :now)
ON CONFLICT DO NOTHING;

-- name: insert_jobs
-- [job_id, flow, fingerprint, key, queue, priority, hold, not_before, run_after, waits_for, parent,
--  failure_limit, crash_limit, stall_ms, stall_limits]
INSERT INTO jobs (job_id, flow, fingerprint, key, queue, priority, hold, not_before, run_after, waits_for, parent,
    failure_limit, crash_limit, stall_ms, stall_limits, created_at, updated_at)
SELECT w.value->>0, w.value->>1, w.value->>2, w.value->>3, w.value->>4, (w.value->>5)::bigint, w.value->>6,
    (w.value->>7)::bigint, w.value->>8, w.value->>9, w.value->>10, (w.value->>11)::bigint, (w.value->>12)::bigint,
    (w.value->>13)::bigint, w.value->>14, :now, :now
FROM jsonb_array_elements(:batch::jsonb) AS w (value);

-- name: insert_requests
-- [job_id, request]
INSERT INTO requests (job_id, request)
SELECT w.value->>0, w.value->>1 FROM jsonb_array_elements(:batch::jsonb) AS w (value);

-- name: free_expired_keys
-- [flow, key] are about to be taken again.
DELETE FROM keys WHERE expires_at <= :now AND (flow, key) IN (
    SELECT w.value->>0, w.value->>1 FROM jsonb_array_elements(:batch::jsonb) AS w (value)
);

-- name: insert_keys
-- [flow, key, job_id, request_digest, expires_at]. The primary key makes it the only job of its key for as long as the key
-- lasts.
INSERT INTO keys (flow, key, job_id, request_digest, taken_at, expires_at)
SELECT w.value->>0, w.value->>1, w.value->>2, w.value->>3, :now, (w.value->>4)::bigint
FROM jsonb_array_elements(:batch::jsonb) AS w (value);

-- name: promote_due
-- One statement, so that a due job is either still waiting or ready, never neither. Some of them: the next claim goes on.
UPDATE jobs SET hold = 'none' WHERE job_id = ANY (ARRAY(
    SELECT j.job_id FROM jobs AS j WHERE j.state = 'pending' AND j.hold = 'until' AND j.not_before <= :now
    ORDER BY j.not_before LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
));

-- name: ready_queues
-- Where there are ready jobs of these flows, the pair of flow and queue with the best job first, and the free slots of the
-- queue, counted from leases; NULL is no limit. From pair to pair by one look each at the index, however many jobs a pair
-- has. Nothing is locked yet: whoever takes from a limited queue locks it, and counts again (open_slots).
WITH RECURSIVE pairs (flow, queue) AS (
    SELECT f.value, (
        SELECT j.queue FROM jobs AS j WHERE j.flow = f.value AND j.state = 'pending' AND j.hold = 'none'
        ORDER BY j.queue LIMIT 1
    )
    FROM jsonb_array_elements_text(:flows::jsonb) AS f (value)
    UNION ALL
    SELECT p.flow, (
        SELECT j.queue FROM jobs AS j
        WHERE j.flow = p.flow AND j.queue > p.queue AND j.state = 'pending' AND j.hold = 'none'
        ORDER BY j.queue LIMIT 1
    )
    FROM pairs AS p WHERE p.queue IS NOT NULL
)
SELECT o.flow, o.queue, o.free FROM (
    SELECT p.flow, p.queue, h.priority, h.job_id, CASE WHEN q.max_running IS NOT NULL THEN q.max_running - (
        SELECT count(*) FROM executions AS e
        WHERE e.queue = q.name AND e.finished_at IS NULL AND e.status IN ('leased', 'in_progress')
    ) END AS free
    FROM pairs AS p
    CROSS JOIN LATERAL (
        SELECT j.priority, j.job_id FROM jobs AS j
        WHERE j.flow = p.flow AND j.queue = p.queue AND j.state = 'pending' AND j.hold = 'none'
        ORDER BY j.priority DESC, j.job_id LIMIT 1
    ) AS h
    LEFT JOIN LATERAL (SELECT * FROM queues AS l WHERE l.name = p.queue LIMIT 1) AS q ON true
    WHERE p.queue IS NOT NULL AND q.paused_at IS NULL
) AS o
WHERE o.free IS NULL OR o.free > 0
ORDER BY o.priority DESC, o.job_id LIMIT :limit;

-- name: insert_executions
-- [job_id, exec_id]: one new lease each. It is told of an interruption, also of one that the execution before was told
-- of and gave the job back without having finished a step. Before the first there was none. A stored state is not
-- believed: the execution before must have given the job back, and none may be live or have committed.
INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at, started_at,
    interrupted)
SELECT w.value->>1, j.job_id, j.attempt + 1, j.queue, 'leased', :worker, :expires, :now, :now, j.attempt > 0 AND coalesce((
    SELECT p.code = ANY (ARRAY(SELECT jsonb_array_elements_text(:interrupting::jsonb)))
        OR p.interrupted AND p.code = ANY (ARRAY(SELECT jsonb_array_elements_text(:carrying::jsonb)))
            AND (SELECT s.job_id FROM steps AS s WHERE s.job_id = p.job_id AND s.exec_id = p.exec_id LIMIT 1) IS NULL
    FROM executions AS p WHERE p.job_id = j.job_id AND p.attempt = j.attempt
), false)
FROM jsonb_array_elements(:batch::jsonb) AS w (value)
CROSS JOIN LATERAL (SELECT * FROM jobs AS l WHERE l.job_id = w.value->>0 LIMIT 1) AS j
WHERE j.state = 'pending' AND (
    j.attempt = 0
    OR (SELECT p.disposition FROM executions AS p WHERE p.job_id = j.job_id AND p.attempt = j.attempt) = 'retry'
        AND (SELECT c.job_id FROM executions AS c WHERE c.job_id = j.job_id AND c.disposition IS NULL LIMIT 1) IS NULL
);

-- name: begin_matching
-- [job_id, exec_id]: those pinned to the very definition that the worker has can start at once.
UPDATE executions SET status = 'in_progress'
WHERE exec_id = ANY (ARRAY(SELECT w.value->>1 FROM jsonb_array_elements(:batch::jsonb) AS w (value)))
    AND status = 'leased' AND (SELECT j.fingerprint FROM jobs AS j WHERE j.job_id = executions.job_id)
        = ANY (ARRAY(SELECT jsonb_array_elements_text(:fingerprints::jsonb)));

-- name: claimed
-- All that a worker needs to go on with its new leases, in the order they were chosen. A first attempt finds no steps.
SELECT CASE WHEN e.attempt > 1 THEN (
        SELECT {seals} FROM steps AS s WHERE s.job_id = e.job_id
    ) END,
    e.exec_id, e.attempt, e.status, e.interrupted, r.request, s.position, s.response, p.code, p.position, p.tries, j.*
FROM jsonb_array_elements(:batch::jsonb) WITH ORDINALITY AS w (value, key)
CROSS JOIN LATERAL (SELECT * FROM executions AS l WHERE l.exec_id = w.value->>1 LIMIT 1) AS e
CROSS JOIN LATERAL (SELECT * FROM jobs AS l WHERE l.job_id = e.job_id LIMIT 1) AS j
LEFT JOIN LATERAL (SELECT l.request FROM requests AS l WHERE l.job_id = e.job_id LIMIT 1) AS r ON true
LEFT JOIN LATERAL (
    SELECT l.position, l.response FROM steps AS l WHERE e.attempt > 1 AND l.job_id = e.job_id
    ORDER BY l.position DESC LIMIT 1
) AS s ON true
LEFT JOIN LATERAL (
    SELECT l.code, l.position, l.tries FROM executions AS l
    WHERE e.attempt > 1 AND l.job_id = e.job_id AND l.attempt = e.attempt - 1 LIMIT 1
) AS p ON true
ORDER BY w.key;

-- name: live
-- Which of these executions are live and ours, the fence of a commit; and whether their jobs are to be cancelled.
SELECT exec_id, (SELECT {seals} FROM steps AS s WHERE s.job_id = executions.job_id),
    (SELECT j.cancel_reason FROM jobs AS j WHERE j.job_id = executions.job_id)
FROM executions WHERE exec_id {in_batch}
    AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now;

-- name: finish_steps
-- [job_id, exec_id, position, step, tries, started_at, response, seal], fenced. A step that is there already stays.
INSERT INTO steps (job_id, position, step, exec_id, tries, started_at, finished_at, response, seal)
SELECT e.job_id, (w.value->>2)::bigint, w.value->>3, e.exec_id, (w.value->>4)::bigint, (w.value->>5)::bigint, :now,
    w.value->>6, w.value->>7
FROM jsonb_array_elements(:batch::jsonb) AS w (value)
CROSS JOIN LATERAL (SELECT * FROM executions AS l WHERE l.exec_id = w.value->>1 LIMIT 1) AS e
WHERE e.status = 'in_progress' AND e.lease_owner = :worker AND e.lease_expires_at > :now
ON CONFLICT (job_id, position) DO NOTHING
RETURNING exec_id;

-- name: mark_committed
-- [exec_id, code], fenced. The unique index makes it the only one of its job.
UPDATE executions SET status = 'committed', progressed_at = {greatest}(progressed_at, :now), code = (
        SELECT jsonb_object_agg(w.value->>0, w.value->>1) FROM jsonb_array_elements(:batch::jsonb) AS w (value)
    ) ->> exec_id
WHERE exec_id = ANY (ARRAY(SELECT w.value->>0 FROM jsonb_array_elements(:batch::jsonb) AS w (value)))
    AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: mark_done
-- [exec_id]; whoever finds a committed execution may finish it, because nothing is left to be done twice.
UPDATE executions SET status = 'done', finished_at = {greatest}(:now, progressed_at)
WHERE exec_id {in_batch} AND status = 'committed'
RETURNING exec_id, job_id;

-- name: release_waiting
-- [job_id] have succeeded: those that waited for them may start, unless their time has not come. For whom somebody still
-- waits then, because there are too many or because another holds them, is kept in pending_releases.
WITH due AS MATERIALIZED (
    SELECT j.job_id FROM jobs AS j
    WHERE j.waits_for {in_batch} AND j.state = 'pending'
    LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
),
released AS (
    UPDATE jobs SET waits_for = NULL, hold = CASE WHEN not_before > :now THEN 'until' ELSE 'none' END
    WHERE job_id = ANY (ARRAY(SELECT due.job_id FROM due))
)
INSERT INTO pending_releases
SELECT DISTINCT j.waits_for FROM jobs AS j
WHERE j.waits_for {in_batch} AND j.state = 'pending'
    AND j.job_id <> ALL (ARRAY(SELECT due.job_id FROM due))
ON CONFLICT DO NOTHING;

-- name: waiting_chain
-- [job_id] have ended: who waits for them, for whom and how (for success, or for the end); with `through` also who waits for
-- the success of those, and so on. Not those that are set apart, nor who waits for them.
WITH RECURSIVE down (job_id, waits_for, hold) AS (
    SELECT j.job_id, j.waits_for, j.hold FROM jobs AS j
    WHERE j.waits_for {in_batch} AND j.state = 'pending'
        AND j.job_id <> ALL (ARRAY(SELECT jsonb_array_elements_text(:apart::jsonb)))
    UNION ALL
    SELECT j.job_id, j.waits_for, j.hold FROM down AS d CROSS JOIN LATERAL (
        SELECT * FROM jobs AS l WHERE l.waits_for = d.job_id AND l.state = 'pending'
            AND l.job_id <> ALL (ARRAY(SELECT jsonb_array_elements_text(:apart::jsonb)))
    ) AS j
    WHERE :through = 1 AND d.hold = 'after'
)
SELECT job_id, waits_for, hold FROM down LIMIT :limit;

-- name: insert_ends
-- [job_id, exec_id]: executions of the engine's own, to take waiting jobs out through legal transitions.
INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at, started_at)
SELECT w.value->>1, j.job_id, j.attempt + 1, j.queue, 'leased', :actor, :now, :now, :now
FROM jsonb_array_elements(:batch::jsonb) AS w (value)
CROSS JOIN LATERAL (SELECT * FROM jobs AS l WHERE l.job_id = w.value->>0 LIMIT 1) AS j;

-- name: abort_ends
-- [exec_id, error]: leased → aborted, each for its own reason.
UPDATE executions SET status = 'aborted', disposition = 'failed', code = :code, finished_at = {greatest}(:now, progressed_at),
    error = (
        SELECT jsonb_object_agg(w.value->>0, w.value->>1) FROM jsonb_array_elements(:batch::jsonb) AS w (value)
    ) ->> exec_id
WHERE exec_id = ANY (ARRAY(SELECT w.value->>0 FROM jsonb_array_elements(:batch::jsonb) AS w (value)))
    AND status = 'leased'
RETURNING exec_id, (SELECT {seals} FROM steps AS s WHERE s.job_id = executions.job_id);

-- name: keep_releases
-- [job_id] have ended: those for which somebody waits are kept, until nobody does.
INSERT INTO pending_releases SELECT w.value FROM jsonb_array_elements_text(:batch::jsonb) AS w (value)
WHERE EXISTS (SELECT 1 FROM jobs AS j WHERE j.waits_for = w.value)
ON CONFLICT DO NOTHING;

-- name: next_releases
-- Ended jobs for which somebody still waits, and nobody else deals with that at the moment, and how they stand now.
SELECT p.job_id, (SELECT j.state FROM jobs AS j WHERE j.job_id = p.job_id) FROM pending_releases AS p
ORDER BY p.job_id LIMIT :limit FOR UPDATE OF p SKIP LOCKED;

-- name: extend_leases
-- Every lease of this worker that has not run out.
UPDATE executions SET lease_expires_at = :expires
WHERE exec_id = ANY (ARRAY(
    SELECT e.exec_id FROM executions AS e
    WHERE e.finished_at IS NULL AND e.lease_owner = :worker AND e.lease_expires_at > :now
    ORDER BY e.exec_id FOR NO KEY UPDATE SKIP LOCKED
));

-- name: renew_leases
-- [exec_id]: just these of this worker's leases, if they have not run out.
UPDATE executions SET lease_expires_at = :expires
WHERE exec_id = ANY (ARRAY(
    SELECT e.exec_id FROM executions AS e
    WHERE e.exec_id {in_batch}
        AND e.lease_owner = :worker AND e.lease_expires_at > :now AND e.status IN ('leased', 'in_progress', 'committed')
    ORDER BY e.exec_id FOR NO KEY UPDATE SKIP LOCKED
));

-- name: held
-- What this worker still holds, and what operators want of it.
SELECT e.exec_id, (SELECT j.cancel_reason FROM jobs AS j WHERE j.job_id = e.job_id) FROM executions AS e
WHERE e.finished_at IS NULL AND e.lease_owner = :worker AND e.lease_expires_at > :now;

-- name: orphaned
-- Executions nobody is working on. Both rows are locked: had the execution moved on since this statement began, the
-- lock makes the server judge its newest version, not the one that the statement saw first.
SELECT e.exec_id, e.status, e.lease_owner, e.position, e.tries, j.* FROM executions AS e JOIN jobs AS j ON j.job_id = e.job_id
WHERE e.finished_at IS NULL
    AND (e.lease_expires_at <= :now OR e.lease_owner IN (SELECT jsonb_array_elements_text(:dead::jsonb)))
ORDER BY e.started_at, e.job_id LIMIT :limit FOR NO KEY UPDATE OF j, e SKIP LOCKED;

-- name: announce_again
-- The worker is still there. Nobody waits for a shell that holds the row: it is told again soon.
UPDATE workers SET flows = :flows, seen_at = :now WHERE worker_id = (
    SELECT w.worker_id FROM workers AS w WHERE w.worker_id = :worker FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING worker_id;

-- name: retire
-- A worker that is gone; if another holds the row, whoever looks next removes it.
DELETE FROM workers WHERE worker_id = (
    SELECT w.worker_id FROM workers AS w WHERE w.worker_id = :worker FOR UPDATE SKIP LOCKED
);

-- name: journal_heads
-- The last entry of each of these jobs.
SELECT w.value, j.seq, j.hash FROM jsonb_array_elements_text(:batch::jsonb) AS w (value)
CROSS JOIN LATERAL (
    SELECT l.seq, l.hash FROM journal AS l WHERE l.job_id = w.value ORDER BY l.seq DESC LIMIT 1
) AS j;

-- name: insert_journal
-- [job_id, seq, at, actor, exec_id, job_from, job_to, exec_from, exec_to, step, reason, metadata, prev_hash, hash]
INSERT INTO journal
SELECT w.value->>0, (w.value->>1)::bigint, (w.value->>2)::bigint, w.value->>3, w.value->>4, w.value->>5, w.value->>6,
    w.value->>7, w.value->>8, w.value->>9, w.value->>10, w.value->>11, w.value->>12, w.value->>13
FROM jsonb_array_elements(:batch::jsonb) WITH ORDINALITY AS w (value, key) ORDER BY w.key;

-- name: parent_state
-- May a job still have children? Shared with other children, but not with who is about to cancel it.
SELECT state, cancel_reason FROM jobs WHERE job_id = :parent FOR SHARE;

-- name: next_cancellation
-- The one that has waited longest; whoever else continues it waits.
SELECT job_id, waited_for, before, actor, reason, metadata FROM cancellations ORDER BY requested_at, job_id LIMIT 1 FOR UPDATE;

-- name: queue_settings
-- What an operator is about to change, by one at a time.
SELECT max_running, limit_by, paused_at FROM queues WHERE name = :name FOR NO KEY UPDATE;

-- name: changes_after
-- What was committed behind that place, as far as nothing can be committed before it any more.
SELECT c.transaction::text, j.flow, j.queue, l.* FROM changes AS c
JOIN journal AS l ON l.job_id = c.job_id AND l.seq = c.seq
JOIN jobs AS j ON j.job_id = l.job_id
WHERE (c.transaction, c.job_id, c.seq) > (:place::text::xid8, :job_id, :seq::bigint)
    AND c.transaction < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY c.transaction, c.job_id, c.seq LIMIT :limit;

-- name: last_change
-- The end of what can be read: nothing will be committed before it any more.
SELECT c.transaction::text, l.job_id, l.seq, l.hash FROM changes AS c
JOIN journal AS l ON l.job_id = c.job_id AND l.seq = c.seq
WHERE c.transaction < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY c.transaction DESC, c.job_id DESC, c.seq DESC LIMIT 1;

-- name: change_at
-- The entry of that place, if it is there.
SELECT l.hash FROM changes AS c JOIN journal AS l ON l.job_id = c.job_id AND l.seq = c.seq
WHERE c.transaction = :place::text::xid8 AND c.job_id = :job_id AND c.seq = :seq::bigint;

-- name: change_ends
-- The first and the last place.
SELECT (SELECT transaction::text FROM changes ORDER BY transaction LIMIT 1),
    (SELECT transaction::text FROM changes ORDER BY transaction DESC LIMIT 1);

-- name: forget_changes
-- So many from there on, of jobs that retention has removed.
DELETE FROM changes AS c USING (
    SELECT o.transaction, o.job_id, o.seq FROM changes AS o WHERE o.transaction >= :beginning::text::xid8
    ORDER BY o.transaction, o.job_id, o.seq LIMIT :limit
) AS o
WHERE c.transaction = o.transaction AND c.job_id = o.job_id AND c.seq = o.seq
    AND NOT EXISTS (SELECT 1 FROM journal AS l WHERE l.job_id = c.job_id AND l.seq = c.seq);

-- name: journal_beyond
-- [job_id, seq]: what has been added to these journals behind those entries.
SELECT l.* FROM jsonb_array_elements(:batch::jsonb) AS w (value)
CROSS JOIN LATERAL (
    SELECT * FROM journal AS k WHERE k.job_id = w.value->>0 AND k.seq > (w.value->>1)::bigint ORDER BY k.seq LIMIT 1000000
) AS l
ORDER BY l.job_id, l.seq;

-- name: running
-- Where these jobs are, of those that run: what is finished, what is tried, and under which definition.
SELECT e.job_id, e.exec_id, e.attempt, e.lease_owner, e.started_at, e.position, e.tries, e.retry_at, e.progressed_at,
    e.progress, j.ending, j.failures, j.crashes, d.definition, s.position AS last_position, s.finished_at AS last_finished_at,
    p.code AS code_before, p.position AS position_before, p.tries AS tries_before
FROM jsonb_array_elements_text(:batch::jsonb) AS w (value)
JOIN jobs AS j ON j.job_id = w.value
JOIN executions AS e ON e.job_id = j.job_id AND e.attempt = j.attempt
LEFT JOIN definitions AS d ON d.fingerprint = j.fingerprint
LEFT JOIN steps AS s ON s.job_id = j.job_id
    AND s.position = (SELECT max(l.position) FROM steps AS l WHERE l.job_id = j.job_id)
LEFT JOIN executions AS p ON p.job_id = j.job_id AND p.attempt = j.attempt - 1
WHERE j.state = 'running';

-- name: delete_expired_keys
-- Keys whose time is over; a key that lasts for ever stays. One that is being taken again just now is left to who does.
DELETE FROM keys WHERE (flow, key) IN (
    SELECT k.flow, k.key FROM keys AS k WHERE k.expires_at <= :now FOR UPDATE SKIP LOCKED
);

-- name: has_ready
-- Is there anything to claim for these flows? Answered from two partial indexes, without a lock.
SELECT EXISTS (SELECT 1 FROM jobs WHERE flow = ANY (ARRAY(SELECT jsonb_array_elements_text(:flows::jsonb))) AND state = 'pending' AND hold = 'none')
    OR EXISTS (SELECT 1 FROM jobs WHERE state = 'pending' AND hold = 'until' AND not_before <= :now);

-- name: delete_idle_queues
-- No job is in them, and nobody has said anything about them.
DELETE FROM queues WHERE name = ANY (ARRAY(
    SELECT q.name FROM queues AS q
    WHERE q.max_running IS NULL AND q.limit_by IS NULL AND q.paused_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.queue = q.name)
    LIMIT :limit FOR UPDATE OF q SKIP LOCKED
));

-- name: lock_jobs
-- Keep others from changing these jobs; always in the same order, so that two transactions never wait for each other.
SELECT job_id FROM jobs WHERE job_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
ORDER BY job_id FOR NO KEY UPDATE;

-- name: lock_free_jobs
-- The same for those that nobody else has locked, without waiting for the others.
SELECT job_id FROM jobs WHERE job_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
ORDER BY job_id FOR NO KEY UPDATE SKIP LOCKED;

-- name: known_jobs
-- Those of them that exist.
SELECT job_id FROM jobs WHERE job_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)));

-- name: lock_queues
-- [name]: slots of a limited queue are counted by one worker at a time, after the one before has committed its claims. A
-- row that somebody else holds, be it a forgotten shell, keeps nobody from the other queues.
SELECT name FROM queues WHERE name = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
ORDER BY name FOR NO KEY UPDATE SKIP LOCKED;

-- name: open_slots
-- [name]: the free slots of limited queues that this transaction has locked.
SELECT q.name, q.max_running - (
    SELECT count(*) FROM executions AS e
    WHERE e.queue = q.name AND e.finished_at IS NULL AND e.status IN ('leased', 'in_progress')
) AS free
FROM queues AS q
WHERE q.name = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb))) AND q.paused_at IS NULL;
