-- Every statement of the PostgreSQL store, under the same names as the SQLite store's.
-- A batch goes in as one JSON array and is applied by one statement: one round trip, however many rows. Rows that it
-- names are looked up by `= ANY (ARRAY(...))` or LATERAL with a LIMIT: those stay look-ups in an index, whereas a join is
-- planned by what the tables were like when the connection was new, and that plan is kept.
-- `finished_at IS NULL` stands for "under way": the condition of the index of what is leased, running or committed.
-- Each transaction locks the rows of the jobs it is about first (lock_jobs, or the claim itself), in order of their
-- ids; after that nobody else can change what belongs to those jobs, and the fence is a plain comparison.

-- name: insert_definitions
-- Remember what a fingerprint stood for, so that `flows plan` can compare.
INSERT INTO definitions (fingerprint, flow, definition, first_seen_at)
VALUES (:fingerprint, :flow, :definition, :now)
ON CONFLICT DO NOTHING;

-- name: insert_queue
-- A queue exists as soon as a job names it.
INSERT INTO queues (name) VALUES (:name) ON CONFLICT DO NOTHING;

-- name: insert_jobs
-- [job_id, flow, fingerprint, key, queue, priority, hold, not_before, run_after, waits_for, parent,
--  failure_limit, crash_limit, stall_ms]
INSERT INTO jobs (job_id, flow, fingerprint, key, queue, priority, hold, not_before, run_after, waits_for, parent,
    failure_limit, crash_limit, stall_ms, created_at, updated_at)
SELECT w.value->>0, w.value->>1, w.value->>2, w.value->>3, w.value->>4, (w.value->>5)::bigint, w.value->>6,
    (w.value->>7)::bigint, w.value->>8, w.value->>9, w.value->>10, (w.value->>11)::bigint, (w.value->>12)::bigint,
    (w.value->>13)::bigint, :now, :now
FROM jsonb_array_elements(:batch::jsonb) AS w (value);

-- name: insert_requests
-- [job_id, request]
INSERT INTO requests (job_id, request)
SELECT w.value->>0, w.value->>1 FROM jsonb_array_elements(:batch::jsonb) AS w (value);

-- name: insert_child
-- One child per parent, name and round.
INSERT INTO children (parent, name, round, job_id, ordinal)
SELECT :parent, :name, :round, :job_id, count(*) FROM children AS c WHERE c.parent = :parent;

-- name: find_child
-- The child that a crashed parent has submitted already, or one of an earlier round that is still under way.
SELECT c.job_id FROM children AS c
WHERE c.parent = :parent AND c.name = :name AND (
    c.round = :round OR EXISTS (SELECT 1 FROM jobs AS j WHERE j.job_id = c.job_id AND j.state IN ('pending', 'running'))
)
ORDER BY c.round DESC LIMIT 1;

-- name: find_unfinished_key
-- The one unfinished job of a flow with this key.
SELECT job_id FROM jobs WHERE flow = :flow AND key = :key AND key IS NOT NULL AND state IN ('pending', 'running');

-- name: job_state
-- Where a predecessor stands.
SELECT state FROM jobs WHERE job_id = :job_id;

-- name: ancestors
-- A job and its parents up to the root: none of them may be waited for by a descendant that they wait for.
WITH RECURSIVE up (job_id) AS (
    SELECT :job_id::text COLLATE "C"
    UNION
    SELECT jobs.parent FROM up JOIN jobs USING (job_id) WHERE jobs.parent IS NOT NULL
)
SELECT job_id FROM up;

-- name: waits_on
-- Everything a job waits for, directly or through others.
WITH RECURSIVE chain (job_id) AS (
    SELECT :job_id::text COLLATE "C"
    UNION
    SELECT jobs.waits_for FROM chain JOIN jobs USING (job_id) WHERE jobs.waits_for IS NOT NULL
)
SELECT job_id FROM chain;

-- name: promote_due
-- One statement, so that a due job is either still waiting or ready, never neither.
UPDATE jobs SET hold = 'none' WHERE job_id = ANY (ARRAY(
    SELECT j.job_id FROM jobs AS j WHERE j.state = 'pending' AND j.hold = 'until' AND j.not_before <= :now
    ORDER BY j.job_id FOR NO KEY UPDATE SKIP LOCKED
));

-- name: open_queues
-- Free slots of every queue that is not paused, counted from leases; NULL is no limit.
SELECT q.name, CASE WHEN q.max_running IS NOT NULL THEN q.max_running - (
    SELECT count(*) FROM executions AS e
    WHERE e.queue = q.name AND e.finished_at IS NULL AND e.status IN ('leased', 'in_progress')
) END AS free
FROM queues AS q WHERE q.paused_at IS NULL;

-- name: ready_jobs
-- The best ready jobs of one queue, straight from the index.
SELECT job_id, priority FROM jobs
WHERE queue = :queue AND state = 'pending' AND hold = 'none'
    AND flow = ANY (ARRAY(SELECT jsonb_array_elements_text(:flows::jsonb)))
ORDER BY priority DESC, job_id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED;

-- name: insert_executions
-- [job_id, exec_id]: one new lease each. It is told of an interruption, also of one that the execution before was told
-- of and gave the job back without having finished a step. Before the first there was none.
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
WHERE j.state = 'pending';

-- name: begin_matching
-- [job_id, exec_id]: those pinned to the very definition that the worker has can start at once.
UPDATE executions SET status = 'in_progress'
WHERE exec_id = ANY (ARRAY(SELECT w.value->>1 FROM jsonb_array_elements(:batch::jsonb) AS w (value)))
    AND status = 'leased' AND (SELECT j.fingerprint FROM jobs AS j WHERE j.job_id = executions.job_id)
        = ANY (ARRAY(SELECT jsonb_array_elements_text(:fingerprints::jsonb)));

-- name: claimed
-- All that a worker needs to go on with its new leases, in the order they were chosen. A first attempt finds no steps.
SELECT e.exec_id, e.attempt, e.status, e.interrupted, r.request, s.position, s.response, p.code, p.position, p.tries, j.*
FROM jsonb_array_elements(:batch::jsonb) WITH ORDINALITY AS w (value, key)
CROSS JOIN LATERAL (SELECT * FROM executions AS l WHERE l.exec_id = w.value->>1 LIMIT 1) AS e
CROSS JOIN LATERAL (SELECT * FROM jobs AS l WHERE l.job_id = e.job_id LIMIT 1) AS j
CROSS JOIN LATERAL (SELECT l.request FROM requests AS l WHERE l.job_id = e.job_id LIMIT 1) AS r
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
-- Which of these executions are live and ours: the fence that every write passes.
SELECT exec_id FROM executions WHERE exec_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
    AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now;

-- name: finish_steps
-- [job_id, exec_id, position, step, tries, started_at, response], fenced. A step that is there already stays.
INSERT INTO steps (job_id, position, step, exec_id, tries, started_at, finished_at, response)
SELECT e.job_id, (w.value->>2)::bigint, w.value->>3, e.exec_id, (w.value->>4)::bigint, (w.value->>5)::bigint, :now,
    w.value->>6
FROM jsonb_array_elements(:batch::jsonb) AS w (value)
CROSS JOIN LATERAL (SELECT * FROM executions AS l WHERE l.exec_id = w.value->>1 LIMIT 1) AS e
WHERE e.status = 'in_progress' AND e.lease_owner = :worker AND e.lease_expires_at > :now
ON CONFLICT (job_id, position) DO NOTHING
RETURNING exec_id;

-- name: mark_committed
-- [exec_id, code], fenced. The unique index makes it the only one of its job.
UPDATE executions SET status = 'committed', progressed_at = greatest(progressed_at, :now), code = (
        SELECT jsonb_object_agg(w.value->>0, w.value->>1) FROM jsonb_array_elements(:batch::jsonb) AS w (value)
    ) ->> exec_id
WHERE exec_id = ANY (ARRAY(SELECT w.value->>0 FROM jsonb_array_elements(:batch::jsonb) AS w (value)))
    AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: mark_done
-- [exec_id]; whoever finds a committed execution may finish it, because nothing is left to be done twice.
UPDATE executions SET status = 'done', finished_at = greatest(:now, progressed_at)
WHERE exec_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb))) AND status = 'committed'
RETURNING exec_id, job_id;

-- name: release_waiting
-- [job_id] have succeeded: those that waited for them may start, unless their time has not come.
UPDATE jobs SET waits_for = NULL, hold = CASE WHEN not_before > :now THEN 'until' ELSE 'none' END
WHERE waits_for = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb))) AND state = 'pending';

-- name: release_parents
-- The job has ended without success: those that wait for its end, whatever it is, may go on.
UPDATE jobs SET waits_for = NULL, hold = 'none' WHERE waits_for = :job_id AND hold = 'child' AND state = 'pending';

-- name: dependents
-- Jobs that can never start, because their predecessor has ended without success.
SELECT job_id FROM jobs WHERE waits_for = :job_id AND hold = 'after' AND state = 'pending'
ORDER BY job_id FOR NO KEY UPDATE;

-- name: begin
-- leased → in_progress, fenced.
UPDATE executions SET status = 'in_progress', progressed_at = greatest(progressed_at, :now)
WHERE exec_id = :exec_id AND status = 'leased' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: pin_definition
-- A compatible definition takes the place of the old one.
UPDATE jobs SET fingerprint = :fingerprint WHERE job_id = :job_id;

-- name: record_try
-- A failed try, shown by `explain` and remembered across a crash; fenced.
UPDATE executions SET position = :position, tries = :tries, error = :error, retry_at = :retry_at,
    progressed_at = greatest(progressed_at, :now)
WHERE exec_id = :exec_id AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: touch
-- Fence for writes to other tables: live and ours, or no row comes back.
UPDATE executions SET progressed_at = greatest(progressed_at, :now)
WHERE exec_id = :exec_id AND status IN ('leased', 'in_progress') AND lease_owner = :worker AND lease_expires_at > :now
RETURNING status;

-- name: report_progress
-- Shown to operators; keeps the stall detector away; fenced.
UPDATE executions SET progress = :progress, tries = CASE position WHEN :position THEN tries ELSE 0 END,
    position = :position, progressed_at = greatest(progressed_at, :now)
WHERE exec_id = :exec_id AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: forget_steps
-- Steps that will run again.
DELETE FROM steps WHERE job_id = :job_id AND position >= :position;

-- name: plan_ending
-- From now on the job is on its way down, whoever works on it.
UPDATE jobs SET ending = :ending WHERE job_id = :job_id;

-- name: abort_execution
-- → aborted; the caller has passed the fence.
UPDATE executions SET status = 'aborted', disposition = :disposition, code = :code, error = coalesce(:error, error),
    position = :position, tries = :tries, retry_at = NULL, finished_at = greatest(:now, progressed_at)
WHERE exec_id = :exec_id AND status IN ('leased', 'in_progress')
RETURNING exec_id;

-- name: change_disposition
-- An aborted execution comes to mean something else for its job: a retry, or giving up.
UPDATE executions SET disposition = :disposition WHERE exec_id = :exec_id AND status = 'aborted';

-- name: settle_job
-- What goes with the end of an execution: the counts, when and after what the job may start again. A cleanup that has
-- begun and not finished stays on record: then nothing is known of what the finished steps have left. A job that was
-- cancelled meanwhile waits for nothing before its cleanup.
UPDATE jobs SET failures = failures + :failed, crashes = crashes + :crashed,
    not_before = CASE WHEN cancel_reason IS NOT NULL AND ending IS NULL THEN 0 ELSE :not_before END,
    hold = CASE WHEN cancel_reason IS NOT NULL AND ending IS NULL THEN 'none' ELSE :hold END,
    waits_for = CASE WHEN cancel_reason IS NOT NULL AND ending IS NULL THEN NULL ELSE :waits_for END,
    ending = CASE WHEN :cleaned = 1 THEN NULL ELSE ending END,
    cancel_reason = CASE WHEN :settled = 1 THEN NULL ELSE cancel_reason END
WHERE job_id = :job_id;

-- name: insert_execution
-- An execution of the operator's or the engine's own, to take a waiting job out through legal transitions.
INSERT INTO executions (exec_id, job_id, attempt, queue, status, lease_owner, lease_expires_at, progressed_at, started_at)
SELECT :exec_id, job_id, attempt + 1, queue, 'leased', :actor, :now, :now, :now FROM jobs WHERE job_id = :job_id;

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
    WHERE e.exec_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
        AND e.lease_owner = :worker AND e.lease_expires_at > :now AND e.status IN ('leased', 'in_progress', 'committed')
    ORDER BY e.exec_id FOR NO KEY UPDATE SKIP LOCKED
));

-- name: held
-- What this worker still holds, and what operators want of it.
SELECT e.exec_id, (SELECT j.cancel_reason FROM jobs AS j WHERE j.job_id = e.job_id) FROM executions AS e
WHERE e.finished_at IS NULL AND e.lease_owner = :worker AND e.lease_expires_at > :now;

-- name: owners
-- Who holds leases at the moment, and when the first of each runs out.
SELECT lease_owner, min(lease_expires_at) FROM executions WHERE finished_at IS NULL GROUP BY lease_owner;

-- name: orphaned
-- Executions nobody is working on. Both rows are locked: had the execution moved on since this statement began, the
-- lock makes the server judge its newest version, not the one that the statement saw first.
SELECT e.exec_id, e.status, e.lease_owner, e.position, e.tries, j.* FROM executions AS e JOIN jobs AS j ON j.job_id = e.job_id
WHERE e.finished_at IS NULL
    AND (e.lease_expires_at <= :now OR e.lease_owner IN (SELECT jsonb_array_elements_text(:dead::jsonb)))
ORDER BY e.started_at, e.job_id LIMIT :limit FOR NO KEY UPDATE OF j, e SKIP LOCKED;

-- name: announce
-- A worker, and the flows it knows.
INSERT INTO workers (worker_id, flows, started_at, seen_at) VALUES (:worker, :flows, :now, :now);

-- name: announce_again
-- The worker is still there.
UPDATE workers SET flows = :flows, seen_at = :now WHERE worker_id = :worker RETURNING worker_id;

-- name: retire
-- A worker that is gone.
DELETE FROM workers WHERE worker_id = :worker;

-- name: next_due
-- When to look again.
SELECT min(not_before) FROM jobs WHERE state = 'pending' AND hold = 'until';

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

-- name: request_cancel
-- The worker that holds the job, or the next one, will see it.
UPDATE jobs SET cancel_reason = :reason, hold = 'none', waits_for = NULL, not_before = 0 WHERE job_id = :job_id;

-- name: forgive
-- A fresh budget for a job that an operator wants tried again, as soon as its predecessor allows.
UPDATE jobs SET failures_forgiven = failures, crashes_forgiven = crashes, not_before = 0, hold = :hold,
    waits_for = :waits_for, ending = NULL, cancel_reason = NULL
WHERE job_id = :job_id;

-- name: touch_job
-- When an ended job was last moved by somebody.
UPDATE jobs SET updated_at = greatest(updated_at, :now) WHERE job_id = :job_id;

-- name: latest_execution
-- The attempt that speaks for the job.
SELECT * FROM executions WHERE job_id = :job_id ORDER BY attempt DESC LIMIT 1;

-- name: execution
-- One execution by its id.
SELECT * FROM executions WHERE exec_id = :exec_id;

-- name: default_limit
-- What the code says; an operator's word (limit_by) stays above it.
INSERT INTO queues (name, max_running) VALUES (:name, :max_running)
ON CONFLICT (name) DO UPDATE SET max_running = excluded.max_running
WHERE queues.limit_by IS NULL AND queues.max_running IS DISTINCT FROM excluded.max_running;

-- name: set_limit
-- What an operator says.
UPDATE queues SET max_running = :max_running, limit_by = :actor WHERE name = :name RETURNING name;

-- name: pause_queue
-- One row says it all: paused, by whom, why.
UPDATE queues SET paused_at = :now, paused_by = :actor, paused_reason = :reason WHERE name = :name RETURNING name;

-- name: resume_queue
-- And the same row takes it back.
UPDATE queues SET paused_at = NULL, paused_by = NULL, paused_reason = NULL WHERE name = :name RETURNING name;

-- name: job
-- One job.
SELECT * FROM jobs WHERE job_id = :job_id;

-- name: request
-- What it was submitted with.
SELECT request FROM requests WHERE job_id = :job_id;

-- name: executions
-- All attempts of a job.
SELECT * FROM executions WHERE job_id = :job_id ORDER BY attempt;

-- name: steps
-- The finished steps of a job.
SELECT * FROM steps WHERE job_id = :job_id ORDER BY position;

-- name: journal_of
-- The journal of one job.
SELECT * FROM journal WHERE job_id = :job_id ORDER BY seq;

-- name: journal_page
-- The journal of all jobs, a page at a time, so that it need not fit into memory.
SELECT * FROM journal WHERE (job_id, seq) > (:job_id, :seq) ORDER BY job_id, seq LIMIT :limit;

-- name: children
-- The latest round of a job's children.
SELECT c.name, c.job_id, j.flow, j.state FROM children AS c JOIN jobs AS j ON j.job_id = c.job_id
WHERE c.parent = :parent
    AND c.round = (SELECT max(l.round) FROM children AS l WHERE l.parent = c.parent AND l.name = c.name)
ORDER BY c.ordinal;

-- name: under_way
-- Everything that is leased, running or being finalized.
SELECT * FROM executions WHERE finished_at IS NULL;

-- name: last_progress
-- When a running job last got anywhere.
SELECT greatest(e.progressed_at, coalesce((SELECT max(s.finished_at) FROM steps AS s WHERE s.job_id = e.job_id), 0))
FROM executions AS e WHERE e.exec_id = :exec_id;

-- name: queues
-- All queues, with their present load.
SELECT q.*, (
    SELECT count(*) FROM executions AS e
    WHERE e.queue = q.name AND e.finished_at IS NULL AND e.status IN ('leased', 'in_progress')
) AS running, (
    SELECT count(*) FROM jobs AS j WHERE j.queue = q.name AND j.state = 'pending' AND j.state <> 'succeeded'
) AS pending
FROM queues AS q ORDER BY q.name;

-- name: workers
-- All announced workers.
SELECT * FROM workers ORDER BY started_at;

-- name: definitions
-- All definitions a job was ever pinned to.
SELECT fingerprint, definition FROM definitions;

-- name: counts
-- Jobs by flow and state.
SELECT flow, state, count(*) FROM jobs GROUP BY flow, state;

-- name: prunable
-- Ended before the cutoff, oldest first, and no unfinished job refers to them.
SELECT j.* FROM jobs AS j
WHERE j.state IN ('succeeded', 'failed', 'quarantined') AND j.updated_at < :before
    AND NOT EXISTS (SELECT 1 FROM jobs AS d WHERE d.run_after = j.job_id AND d.state IN ('pending', 'running'))
    AND NOT EXISTS (SELECT 1 FROM jobs AS d WHERE d.waits_for = j.job_id)
    AND NOT EXISTS (
        SELECT 1 FROM children AS c JOIN jobs AS p ON p.job_id = c.parent
        WHERE c.job_id = j.job_id AND p.state IN ('pending', 'running')
    )
    AND NOT EXISTS (
        SELECT 1 FROM children AS c JOIN jobs AS d ON d.job_id = c.job_id
        WHERE c.parent = j.job_id AND d.state IN ('pending', 'running')
    )
ORDER BY j.job_id LIMIT :limit FOR NO KEY UPDATE OF j SKIP LOCKED;

-- name: insert_pruned
-- The head of the chain stays on record.
INSERT INTO pruned (job_id, flow, state, finished_at, entries, head, pruned_at, pruned_by)
SELECT j.job_id, j.flow, j.state, j.updated_at, h.seq, h.hash, :now, :actor
FROM jobs AS j JOIN journal AS h ON h.job_id = j.job_id
    AND h.seq = (SELECT max(l.seq) FROM journal AS l WHERE l.job_id = j.job_id)
WHERE j.job_id = :job_id;

-- name: pruned_heads
-- What remains of pruned jobs.
SELECT job_id, head FROM pruned;

-- name: fact_jobs
-- Jobs for the guard, in order; a page at a time.
SELECT * FROM jobs WHERE job_id > :after ORDER BY job_id LIMIT :limit;

-- name: fact_running
-- Only what is running, for the quick check at open.
SELECT * FROM jobs WHERE state = 'running' AND state <> 'succeeded' AND job_id > :after ORDER BY job_id LIMIT :limit;

-- name: job_flow
-- Whose definition it is.
SELECT flow FROM jobs WHERE job_id = :job_id;

-- name: has_ready
-- Is there anything to claim at all? Answered from two partial indexes, without a lock.
SELECT EXISTS (SELECT 1 FROM jobs WHERE state = 'pending' AND hold = 'none')
    OR EXISTS (SELECT 1 FROM jobs WHERE state = 'pending' AND hold = 'until' AND not_before <= :now);

-- name: evidence
-- Where an execution stands.
SELECT e.status, e.tries, e.position, j.ending FROM executions AS e JOIN jobs AS j ON j.job_id = e.job_id
WHERE e.exec_id = :exec_id;

-- name: evidence_step
-- Was this step finished by this execution?
SELECT EXISTS (SELECT 1 FROM steps WHERE job_id = :job_id AND position = :position AND exec_id = :exec_id);

-- name: evidence_unwound
-- Are there finished steps at or after this position?
SELECT EXISTS (SELECT 1 FROM steps WHERE job_id = :job_id AND position >= :position);

-- name: projected_state
-- What the executions say.
SELECT state FROM job_projection WHERE job_id = :job_id;

-- name: reproject
-- Put a stored state right that somebody has written past the rules.
UPDATE jobs SET state = :state WHERE job_id = :job_id;

-- name: journaled_state
-- What the journal says.
SELECT job_to FROM journal WHERE job_id = :job_id ORDER BY seq DESC LIMIT 1;

-- name: taken_job_id
-- An id of the batch that is in use already, or was: a journal begins only once.
SELECT job_id FROM jobs WHERE job_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
UNION ALL
SELECT job_id FROM pruned WHERE job_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
LIMIT 1;

-- name: delete_children
-- Of a pruned job, in both directions.
DELETE FROM children WHERE parent = :job_id OR job_id = :job_id;

-- name: delete_steps
-- Of a pruned job.
DELETE FROM steps WHERE job_id = :job_id;

-- name: delete_requests
-- Of a pruned job.
DELETE FROM requests WHERE job_id = :job_id;

-- name: delete_executions
-- Of a pruned job.
DELETE FROM executions WHERE job_id = :job_id;

-- name: delete_journal
-- Of a pruned job; its head is in pruned.
DELETE FROM journal WHERE job_id = :job_id;

-- name: delete_job
-- And the job itself.
DELETE FROM jobs WHERE job_id = :job_id;

-- name: lock_jobs
-- Keep others from changing these jobs; always in the same order, so that two transactions never wait for each other.
SELECT job_id FROM jobs WHERE job_id = ANY (ARRAY(SELECT jsonb_array_elements_text(:batch::jsonb)))
ORDER BY job_id FOR NO KEY UPDATE;

-- name: lock_queues
-- Slots of a limited queue are counted by one worker at a time, after the one before has committed its claims. A row
-- that somebody else holds, be it a forgotten shell, keeps nobody from the other queues.
SELECT name FROM queues WHERE max_running IS NOT NULL AND paused_at IS NULL ORDER BY name
FOR NO KEY UPDATE SKIP LOCKED;
