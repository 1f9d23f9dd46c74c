-- What only SQLite says in this way. A batch is applied by one statement, so that the interpreter lock is given up once
-- per batch and not once per row. Ids go in as a JSON array. Rows go in as they are, because taking them out of JSON cost
-- more than writing them: `VALUES (?, ...)` is repeated for each of them, and stands before all named parameters.

-- spelling: greatest
-- The larger of two numbers.
max

-- spelling: in_batch
-- The ids of a batch, which goes in as a JSON array.
IN (SELECT value FROM json_each(:batch))

-- spelling: seals
-- The seals of all steps of a job, in their order.
group_concat(s.seal)

-- spelling: binary
-- The order of ids.
BINARY

-- spelling: lock_jobs
-- A transaction is alone already.


-- spelling: under_way
-- Leased, running or committed: the condition of the index of these.
status IN ('leased', 'in_progress', 'committed')

-- name: insert_jobs
-- What is not among the values has its default.
WITH w AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO jobs (job_id, flow, fingerprint, key, queue, priority, hold, not_before, run_after, waits_for, parent,
    failure_limit, crash_limit, stall_ms, stall_limits, created_at, updated_at)
SELECT w.*, :now, :now FROM w;

-- name: insert_requests
-- Apart from jobs: read once, while a job is rewritten with every change.
INSERT INTO requests (job_id, request) VALUES (?, ?);

-- name: free_expired_keys
-- [flow, key] are about to be taken again.
DELETE FROM keys WHERE expires_at <= :now AND (flow, key) IN (
    SELECT json_extract(w.value, '$[0]'), json_extract(w.value, '$[1]') FROM json_each(:batch) AS w
);

-- name: insert_keys
-- The primary key makes it the only job of its key for as long as the key lasts.
WITH w (flow, key, job_id, request_digest, expires_at) AS (VALUES (?, ?, ?, ?, ?))
INSERT INTO keys (flow, key, job_id, request_digest, taken_at, expires_at)
SELECT w.flow, w.key, w.job_id, w.request_digest, :now, w.expires_at FROM w;

-- name: ready_queues
-- Where there are ready jobs of these flows, the pair of flow and queue with the best job first, and the free slots of the
-- queue, counted from leases; NULL is no limit. From pair to pair by one look each at the index, however many jobs a pair
-- has. A limit that is not a whole number is taken for the next below.
WITH RECURSIVE pairs (flow, queue) AS (
    SELECT f.value, (
        SELECT min(j.queue) FROM jobs AS j WHERE j.flow = f.value AND j.state = 'pending' AND j.hold = 'none'
    )
    FROM json_each(:flows) AS f
    UNION ALL
    SELECT p.flow, (
        SELECT min(j.queue) FROM jobs AS j
        WHERE j.flow = p.flow AND j.queue > p.queue AND j.state = 'pending' AND j.hold = 'none'
    )
    FROM pairs AS p WHERE p.queue IS NOT NULL
),
heads (flow, queue, job_id) AS (
    SELECT p.flow, p.queue, (
        SELECT j.job_id FROM jobs AS j
        WHERE j.flow = p.flow AND j.queue = p.queue AND j.state = 'pending' AND j.hold = 'none'
        ORDER BY j.priority DESC, j.job_id LIMIT 1
    )
    FROM pairs AS p WHERE p.queue IS NOT NULL
)
SELECT h.flow, h.queue, cast(q.max_running AS INTEGER) - CASE WHEN q.max_running IS NOT NULL THEN (
    SELECT count(*) FROM executions AS e
    WHERE e.queue = q.name AND e.status IN ('leased', 'in_progress', 'committed') AND e.status <> 'committed'
) END AS free
FROM heads AS h CROSS JOIN jobs AS j ON j.job_id = h.job_id LEFT JOIN queues AS q ON q.name = h.queue
WHERE q.paused_at IS NULL AND (free IS NULL OR free > 0)
ORDER BY j.priority DESC, j.job_id LIMIT :limit;

-- name: insert_executions
-- One new lease each. It is told of an interruption, also of one that the execution before was told
-- of and gave the job back without having finished a step. A stored state is not believed: the execution before must have
-- given the job back, and none may have committed.
WITH w (job_id, exec_id) AS (VALUES (?, ?))
INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at, started_at,
    interrupted)
SELECT w.exec_id, j.job_id, j.attempt + 1, j.queue, 'leased', :worker, :expires, :now, :now,
    j.attempt > 0 AND EXISTS (
        SELECT 1 FROM executions AS p WHERE p.job_id = j.job_id AND p.attempt = j.attempt AND (
            p.code IN (SELECT value FROM json_each(:interrupting))
            OR p.interrupted = 1 AND p.code IN (SELECT value FROM json_each(:carrying))
                AND NOT EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = p.job_id AND s.exec_id = p.exec_id)
        )
    )
FROM w CROSS JOIN jobs AS j ON j.job_id = w.job_id
WHERE j.state = 'pending' AND (
    j.attempt = 0
    OR (SELECT p.disposition FROM executions AS p WHERE p.job_id = j.job_id AND p.attempt = j.attempt) = 'retry'
        AND NOT EXISTS (SELECT 1 FROM executions AS c WHERE c.job_id = j.job_id AND c.status IN ('committed', 'done'))
);

-- name: begin_matching
-- [job_id, exec_id]: those pinned to the very definition that the worker has can start at once.
UPDATE executions SET status = 'in_progress'
FROM json_each(:batch) AS w
WHERE executions.exec_id = json_extract(w.value, '$[1]') AND executions.status = 'leased'
    AND (SELECT j.fingerprint FROM jobs AS j WHERE j.job_id = executions.job_id) IN (SELECT value FROM json_each(:fingerprints));

-- name: claimed
-- All that a worker needs to go on with its new leases, in the order they were chosen.
SELECT CASE WHEN e.attempt > 1 THEN (SELECT {seals} FROM steps AS s WHERE s.job_id = e.job_id) END,
    e.exec_id, e.attempt, e.status, e.interrupted, r.request, s.position, s.response, p.code, p.position, p.tries, j.*
FROM json_each(:batch) AS w
CROSS JOIN executions AS e ON e.exec_id = json_extract(w.value, '$[1]')
JOIN jobs AS j ON j.job_id = e.job_id
LEFT JOIN requests AS r ON r.job_id = e.job_id
LEFT JOIN steps AS s ON s.job_id = e.job_id
    AND s.position = (SELECT max(l.position) FROM steps AS l WHERE l.job_id = e.job_id)
LEFT JOIN executions AS p ON e.attempt > 1 AND p.job_id = e.job_id AND p.attempt = e.attempt - 1
ORDER BY w.key;

-- name: live
-- Which of these executions are live and ours, the fence of a commit; and whether their jobs are to be cancelled.
SELECT e.exec_id, (SELECT {seals} FROM steps AS s WHERE s.job_id = e.job_id),
    (SELECT j.cancel_reason FROM jobs AS j WHERE j.job_id = e.job_id)
FROM json_each(:batch) AS w CROSS JOIN executions AS e ON e.exec_id = w.value
WHERE e.status = 'in_progress' AND e.lease_owner = :worker AND e.lease_expires_at > :now;

-- name: finish_steps
-- Fenced. Found by its job, whose executions lie together: by its id alone it would have to be looked up twice.
WITH w (job_id, exec_id, position, step, tries, started_at, response, seal) AS (VALUES (?, ?, ?, ?, ?, ?, ?, ?))
INSERT INTO steps (job_id, position, step, exec_id, tries, started_at, finished_at, response, seal)
SELECT e.job_id, w.position, w.step, e.exec_id, w.tries, w.started_at, :now, w.response, w.seal
FROM w CROSS JOIN executions AS e ON e.job_id = w.job_id AND +e.exec_id = w.exec_id
WHERE e.status = 'in_progress' AND e.lease_owner = :worker AND e.lease_expires_at > :now
    AND NOT EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = e.job_id AND s.position = w.position)
RETURNING exec_id;

-- name: mark_committed
-- Fenced. The unique index makes it the only one of its job.
WITH w (exec_id, code) AS (VALUES (?, ?))
UPDATE executions SET status = 'committed', code = w.code, progressed_at = {greatest}(progressed_at, :now)
FROM w
WHERE executions.exec_id = w.exec_id
    AND executions.status = 'in_progress' AND executions.lease_owner = :worker AND executions.lease_expires_at > :now
RETURNING exec_id;

-- name: mark_done
-- [exec_id]; whoever finds a committed execution may finish it, because nothing is left to be done twice.
UPDATE executions SET status = 'done', finished_at = {greatest}(:now, progressed_at)
FROM json_each(:batch) AS w
WHERE executions.exec_id = w.value AND executions.status = 'committed'
RETURNING exec_id, job_id;

-- name: release_waiting
-- [job_id] have succeeded: those that waited for them may start, unless their time has not come.
UPDATE jobs SET waits_for = NULL, hold = CASE WHEN not_before > :now THEN 'until' ELSE 'none' END
WHERE job_id IN (
    SELECT j.job_id FROM jobs AS j
    WHERE j.waits_for {in_batch} AND j.state = 'pending' LIMIT :limit
)
RETURNING job_id;

-- name: waiting_chain
-- [job_id] have ended: who waits for them, for whom and how (for success, or for the end); with `through` also who waits for
-- the success of those, and so on. Not those that are set apart, nor who waits for them.
WITH RECURSIVE down (job_id, waits_for, hold) AS (
    SELECT j.job_id, j.waits_for, j.hold FROM json_each(:batch) AS w CROSS JOIN jobs AS j ON j.waits_for = w.value
    WHERE j.state = 'pending' AND j.job_id NOT IN (SELECT value FROM json_each(:apart))
    UNION ALL
    SELECT j.job_id, j.waits_for, j.hold FROM down AS d CROSS JOIN jobs AS j ON j.waits_for = d.job_id
    WHERE :through = 1 AND d.hold = 'after' AND j.state = 'pending'
        AND j.job_id NOT IN (SELECT value FROM json_each(:apart))
    LIMIT :limit
)
SELECT job_id, waits_for, hold FROM down;

-- name: insert_ends
-- Executions of the engine's own, to take waiting jobs out through legal transitions.
WITH w (job_id, exec_id) AS (VALUES (?, ?))
INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at, started_at)
SELECT w.exec_id, j.job_id, j.attempt + 1, j.queue, 'leased', :actor, :now, :now, :now
FROM w CROSS JOIN jobs AS j ON j.job_id = w.job_id;

-- name: abort_ends
-- leased → aborted, each for its own reason.
WITH w (exec_id, error) AS (VALUES (?, ?))
UPDATE executions SET status = 'aborted', disposition = 'failed', code = :code, error = w.error,
    finished_at = {greatest}(:now, progressed_at)
FROM w WHERE executions.exec_id = w.exec_id AND executions.status = 'leased'
RETURNING exec_id, (SELECT {seals} FROM steps AS s WHERE s.job_id = executions.job_id);

-- name: keep_releases
-- [job_id] have ended: those for which somebody waits are kept, until nobody does.
INSERT INTO pending_releases SELECT w.value FROM json_each(:batch) AS w
WHERE EXISTS (SELECT 1 FROM jobs AS j WHERE j.waits_for = w.value)
    AND NOT EXISTS (SELECT 1 FROM pending_releases AS p WHERE p.job_id = w.value);

-- name: renew_leases
-- [exec_id]: just these of this worker's leases, if they have not run out.
UPDATE executions SET lease_expires_at = :expires
WHERE exec_id {in_batch} AND lease_owner = :worker AND lease_expires_at > :now
    AND status IN ('leased', 'in_progress', 'committed');

-- name: orphaned
-- Executions nobody is working on.
SELECT e.exec_id, e.status, e.lease_owner, e.position, e.tries, j.* FROM executions AS e JOIN jobs AS j ON j.job_id = e.job_id
WHERE e.status IN ('leased', 'in_progress', 'committed')
    AND (e.lease_expires_at <= :now OR e.lease_owner IN (SELECT value FROM json_each(:dead)))
ORDER BY e.started_at, e.job_id LIMIT :limit;

-- name: journal_heads
-- The last entry of each of these jobs.
SELECT j.job_id, j.seq, j.hash FROM json_each(:batch) AS w CROSS JOIN journal AS j ON j.job_id = w.value
WHERE j.seq = (SELECT max(l.seq) FROM journal AS l WHERE l.job_id = w.value);

-- name: insert_journal
-- In the order of the columns.
INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: changes_after
-- What was committed behind that place, in the order of commits.
SELECT c.number, j.flow, j.queue, l.* FROM changes AS c
CROSS JOIN journal AS l ON l.job_id = c.job_id AND l.seq = c.seq
JOIN jobs AS j ON j.job_id = l.job_id
WHERE (c.number, c.job_id, c.seq) > (:place, :job_id, :seq) ORDER BY c.number LIMIT :limit;

-- name: last_change
-- The end of the order.
SELECT c.number, l.job_id, l.seq, l.hash FROM changes AS c
CROSS JOIN journal AS l ON l.job_id = c.job_id AND l.seq = c.seq ORDER BY c.number DESC LIMIT 1;

-- name: change_at
-- The entry of that place, if it is there.
SELECT l.hash FROM changes AS c JOIN journal AS l ON l.job_id = c.job_id AND l.seq = c.seq
WHERE c.number = :place AND c.job_id = :job_id AND c.seq = :seq;

-- name: change_ends
-- The first and the last place.
SELECT min(number), max(number) FROM changes;

-- name: forget_changes
-- So many from there on, of jobs that retention has removed; the last one stays, or its number would be given again.
DELETE FROM changes WHERE number IN (
    SELECT c.number FROM changes AS c
    WHERE c.number >= :beginning AND c.number < (SELECT max(m.number) FROM changes AS m) ORDER BY c.number LIMIT :limit
) AND NOT EXISTS (SELECT 1 FROM journal AS l WHERE l.job_id = changes.job_id AND l.seq = changes.seq);

-- name: journal_beyond
-- [job_id, seq]: what has been added to these journals behind those entries.
SELECT l.* FROM json_each(:batch) AS w
CROSS JOIN journal AS l ON l.job_id = json_extract(w.value, '$[0]') AND l.seq > json_extract(w.value, '$[1]')
ORDER BY l.job_id, l.seq;

-- name: running
-- Where these jobs are, of those that run: what is finished, what is tried, and under which definition.
SELECT e.job_id, e.exec_id, e.attempt, e.lease_owner, e.started_at, e.position, e.tries, e.retry_at, e.progressed_at,
    e.progress, j.ending, j.failures, j.crashes, d.definition, s.position AS last_position, s.finished_at AS last_finished_at,
    p.code AS code_before, p.position AS position_before, p.tries AS tries_before
FROM json_each(:batch) AS w
CROSS JOIN jobs AS j ON j.job_id = w.value
JOIN executions AS e ON e.job_id = j.job_id AND e.attempt = j.attempt
LEFT JOIN definitions AS d ON d.fingerprint = j.fingerprint
LEFT JOIN steps AS s ON s.job_id = j.job_id
    AND s.position = (SELECT max(l.position) FROM steps AS l WHERE l.job_id = j.job_id)
LEFT JOIN executions AS p ON p.job_id = j.job_id AND p.attempt = j.attempt - 1
WHERE j.state = 'running';

-- name: has_ready
-- Is there anything to claim for these flows? Answered from two partial indexes, without a lock.
SELECT EXISTS (SELECT 1 FROM jobs WHERE flow IN (SELECT value FROM json_each(:flows)) AND state = 'pending' AND hold = 'none')
    OR EXISTS (SELECT 1 FROM jobs WHERE state = 'pending' AND hold = 'until' AND not_before <= :now);
