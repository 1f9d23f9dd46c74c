-- Every statement that both stores run as it is. Where one has to say it otherwise, its overrides.sql has a statement of
-- the same name. `{name}` stands for what a store calls it: see the spellings at the head of its overrides.sql.

-- name: insert_definitions
-- Remember what a fingerprint stood for, so that `flows plan` can compare.
INSERT INTO definitions (fingerprint, flow, definition, first_seen_at)
SELECT :fingerprint, :flow, :definition, :now
WHERE NOT EXISTS (SELECT 1 FROM definitions AS d WHERE d.fingerprint = :fingerprint);

-- name: insert_queue
-- A queue exists as soon as a job names it.
INSERT INTO queues (name) VALUES (:name) ON CONFLICT DO NOTHING;

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

-- name: find_key
-- The job that a key stands for: the unfinished one, the one it lasts for, or, if the flow makes keys last by now, the last
-- one submitted after `since`. With its request, or what is left of that in the record of the key.
WITH found AS (
    SELECT coalesce(
        (SELECT j.job_id FROM jobs AS j
            WHERE j.flow = :flow AND j.key = :key AND j.key IS NOT NULL AND j.state IN ('pending', 'running')),
        (SELECT k.job_id FROM keys AS k
            WHERE k.flow = :flow AND k.key = :key AND (k.expires_at IS NULL OR k.expires_at > :now)),
        (SELECT l.job_id FROM (
            SELECT j.job_id, j.created_at FROM jobs AS j WHERE j.flow = :flow AND j.key = :key AND j.key IS NOT NULL
            ORDER BY j.job_id DESC LIMIT 1
        ) AS l WHERE l.created_at > CAST(:since AS BIGINT))
    ) AS job_id
)
SELECT f.job_id, (SELECT r.request FROM requests AS r WHERE r.job_id = f.job_id),
    (SELECT k.request_digest FROM keys AS k WHERE k.flow = :flow AND k.key = :key AND k.job_id = f.job_id)
FROM found AS f WHERE f.job_id IS NOT NULL;

-- name: find_unfinished_key
-- The one unfinished job of a flow with this key.
SELECT job_id FROM jobs WHERE flow = :flow AND key = :key AND key IS NOT NULL AND state IN ('pending', 'running');

-- name: job_state
-- Where a predecessor stands.
SELECT state FROM jobs WHERE job_id = :job_id;

-- name: ancestors
-- A job and its parents up to the root: none of them may be waited for by a descendant that they wait for.
WITH RECURSIVE up (job_id) AS (
    SELECT CAST(:job_id AS TEXT) COLLATE {binary}
    UNION
    SELECT jobs.parent FROM up JOIN jobs USING (job_id) WHERE jobs.parent IS NOT NULL
)
SELECT job_id FROM up;

-- name: waits_on
-- Everything a job waits for, directly or through others.
WITH RECURSIVE chain (job_id) AS (
    SELECT CAST(:job_id AS TEXT) COLLATE {binary}
    UNION
    SELECT jobs.waits_for FROM chain JOIN jobs USING (job_id) WHERE jobs.waits_for IS NOT NULL
)
SELECT job_id FROM chain;

-- name: promote_due
-- One statement, so that a due job is either still waiting or ready, never neither. Some of them: the next claim goes on.
UPDATE jobs SET hold = 'none' WHERE job_id IN (
    SELECT j.job_id FROM jobs AS j WHERE j.state = 'pending' AND j.hold = 'until' AND j.not_before <= :now LIMIT :limit
);

-- name: due_jobs
-- The same jobs one by one, for when one of them cannot be promoted.
SELECT job_id FROM jobs WHERE state = 'pending' AND hold = 'until' AND not_before <= :now ORDER BY not_before LIMIT :limit;

-- name: promote
-- One of them.
UPDATE jobs SET hold = 'none' WHERE job_id = :job_id AND state = 'pending' AND hold = 'until';

-- name: ready_jobs
-- The best ready jobs of one flow in one queue, straight from the index.
SELECT j.job_id, j.priority FROM jobs AS j
WHERE j.flow = :flow AND j.queue = :queue AND j.state = 'pending' AND j.hold = 'none'
ORDER BY j.priority DESC, j.job_id LIMIT :limit {lock_jobs};

-- name: release_waiters
-- [job_id] need wait no longer.
UPDATE jobs SET waits_for = NULL, hold = CASE WHEN not_before > :now AND hold = 'after' THEN 'until' ELSE 'none' END
WHERE job_id {in_batch} AND state = 'pending';

-- name: settle_ends
-- [job_id]: what goes with that.
UPDATE jobs SET failures = failures + 1, not_before = 0, hold = 'none', waits_for = NULL, cancel_reason = NULL
WHERE job_id {in_batch};

-- name: next_releases
-- Ended jobs for which somebody still waits, and how they stand now.
SELECT p.job_id, j.state FROM pending_releases AS p LEFT JOIN jobs AS j ON j.job_id = p.job_id
ORDER BY p.job_id LIMIT :limit;

-- name: has_releases
-- Is there anybody who waits for a job that has ended?
SELECT EXISTS (SELECT 1 FROM pending_releases);

-- name: drop_releases
-- [job_id]: those for which nobody waits any more, and those that have not ended after all.
DELETE FROM pending_releases WHERE job_id {in_batch} AND (
    NOT EXISTS (SELECT 1 FROM jobs AS w WHERE w.waits_for = pending_releases.job_id AND w.state = 'pending')
    OR (SELECT j.state FROM jobs AS j WHERE j.job_id = pending_releases.job_id) IN ('pending', 'running')
);

-- name: begin
-- leased → in_progress, fenced.
UPDATE executions SET status = 'in_progress', progressed_at = {greatest}(progressed_at, :now)
WHERE exec_id = :exec_id AND status = 'leased' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: pin_definition
-- A compatible definition takes the place of the old one.
UPDATE jobs SET fingerprint = :fingerprint WHERE job_id = :job_id;

-- name: record_try
-- A failed try, shown by `explain` and remembered across a crash; fenced.
UPDATE executions SET position = :position, tries = :tries, error = :error, retry_at = :retry_at,
    traceback = :traceback, failure = :failure, progressed_at = {greatest}(progressed_at, :now)
WHERE exec_id = :exec_id AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: touch
-- Fence for writes to other tables: live and ours, or no row comes back.
UPDATE executions SET progressed_at = {greatest}(progressed_at, :now)
WHERE exec_id = :exec_id AND status IN ('leased', 'in_progress') AND lease_owner = :worker AND lease_expires_at > :now
RETURNING status;

-- name: report_progress
-- Shown to operators; keeps the stall detector away; fenced.
UPDATE executions SET progress = :progress, tries = CASE position WHEN :position THEN tries ELSE 0 END,
    position = :position, progressed_at = {greatest}(progressed_at, :now)
WHERE exec_id = :exec_id AND status = 'in_progress' AND lease_owner = :worker AND lease_expires_at > :now
RETURNING exec_id;

-- name: permit
-- From here on the rule that forbids this act does not hold for the job; taken back before the transaction ends.
INSERT INTO permits (job_id, act) VALUES (:job_id, :act) ON CONFLICT DO NOTHING;

-- name: end_permit
-- The rule holds again.
DELETE FROM permits WHERE job_id = :job_id AND act = :act;

-- name: step_seals
-- The seals of the finished steps, in order.
SELECT {seals} FROM steps AS s WHERE s.job_id = :job_id;

-- name: forget_steps
-- Steps that will run again.
DELETE FROM steps WHERE job_id = :job_id AND position >= :position;

-- name: plan_ending
-- From now on the job is on its way down, whoever works on it.
UPDATE jobs SET ending = :ending WHERE job_id = :job_id;

-- name: keep_failure
-- What the job is going to end with; the caller has passed the fence.
UPDATE executions SET traceback = coalesce(:traceback, traceback), failure = coalesce(:failure, failure)
WHERE exec_id = :exec_id;

-- name: abort_execution
-- → aborted; the caller has passed the fence.
UPDATE executions SET status = 'aborted', disposition = :disposition, code = :code, error = coalesce(:error, error),
    position = :position, tries = :tries, retry_at = NULL, traceback = coalesce(:traceback, traceback),
    failure = CASE WHEN :error IS NULL THEN failure ELSE :failure END,
    finished_at = {greatest}(:now, progressed_at)
WHERE exec_id = :exec_id AND status IN ('leased', 'in_progress')
RETURNING exec_id, (SELECT {seals} FROM steps AS s WHERE s.job_id = executions.job_id);

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
WHERE status IN ('leased', 'in_progress', 'committed') AND lease_owner = :worker AND lease_expires_at > :now;

-- name: held
-- What this worker still holds, and what operators want of it.
SELECT e.exec_id, j.cancel_reason FROM executions AS e JOIN jobs AS j ON j.job_id = e.job_id
WHERE e.status IN ('leased', 'in_progress', 'committed') AND e.lease_owner = :worker AND e.lease_expires_at > :now;

-- name: owners
-- Who holds leases at the moment, and when the first of each runs out.
SELECT lease_owner, min(lease_expires_at) FROM executions
WHERE {under_way} GROUP BY lease_owner;

-- name: announce
-- A worker, and the flows it knows.
INSERT INTO workers (worker_id, flows, started_at, seen_at) VALUES (:worker, :flows, :now, :now) ON CONFLICT DO NOTHING;

-- name: announce_again
-- The worker is still there.
UPDATE workers SET flows = :flows, seen_at = :now WHERE worker_id = :worker RETURNING worker_id;

-- name: retire
-- A worker that is gone.
DELETE FROM workers WHERE worker_id = :worker;

-- name: next_due
-- When to look again.
SELECT min(not_before) FROM jobs WHERE state = 'pending' AND hold = 'until';

-- name: request_cancel
-- The worker that holds the job, or the next one, will see it.
UPDATE jobs SET cancel_reason = :reason, hold = 'none', waits_for = NULL, not_before = 0 WHERE job_id = :job_id;

-- name: forgive
-- A fresh budget for a job that an operator wants tried again, as soon as its predecessor allows.
UPDATE jobs SET failures_forgiven = failures, crashes_forgiven = crashes, not_before = 0, hold = :hold,
    waits_for = :waits_for, ending = NULL, cancel_reason = NULL
WHERE job_id = :job_id;

-- name: parent_state
-- May a job still have children?
SELECT state, cancel_reason FROM jobs WHERE job_id = :parent;

-- name: insert_cancellation
-- The job is cancelled, and its children are still to be; also once more, if they were left alone the first time.
INSERT INTO cancellations (job_id, waited_for, before, actor, reason, metadata, requested_at)
SELECT CAST(:job_id AS TEXT), CAST(:waited_for AS TEXT), '~', CAST(:actor AS TEXT), CAST(:reason AS TEXT), CAST(:metadata AS TEXT), CAST(:now AS BIGINT)
WHERE CAST(:waited_for AS TEXT) IS NOT NULL
    OR EXISTS (SELECT 1 FROM jobs AS j WHERE j.parent = :job_id AND j.state IN ('pending', 'running'))
    OR EXISTS (
        SELECT 1 FROM children AS c JOIN jobs AS j ON j.job_id = c.job_id
        WHERE c.parent = :job_id AND j.state IN ('pending', 'running')
    )
ON CONFLICT (job_id) DO UPDATE SET before = '~', waited_for = coalesce(excluded.waited_for, cancellations.waited_for);

-- name: has_cancellations
-- Has anybody been kept from cancelling all children of a job?
SELECT EXISTS (SELECT 1 FROM cancellations);

-- name: next_cancellation
-- The one that has waited longest.
SELECT job_id, waited_for, before, actor, reason, metadata FROM cancellations ORDER BY requested_at, job_id LIMIT 1;

-- name: cancellable
-- Unfinished jobs that only this one has asked for: its own children, those it shares with parents that are gone, whoever
-- waits for them, and what it waited for itself if no other job does. Not what no job has submitted.
SELECT y.job_id, y.parent = :job_id OR EXISTS (
    SELECT 1 FROM children AS c WHERE c.parent = :job_id AND c.job_id = y.job_id
) AS is_child
FROM jobs AS y
WHERE y.job_id IN (
        SELECT j.job_id FROM jobs AS j WHERE j.parent = :job_id
        UNION SELECT c.job_id FROM children AS c WHERE c.parent = :job_id
        UNION SELECT CAST(:waited_for AS TEXT)
    )
    AND y.state IN ('pending', 'running') AND y.job_id < :before AND y.parent IS NOT NULL AND y.cancel_reason IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM jobs AS r
        WHERE r.job_id = y.parent AND r.job_id <> :job_id AND r.state IN ('pending', 'running') AND r.cancel_reason IS NULL
    )
    AND NOT EXISTS (
        SELECT 1 FROM children AS c JOIN jobs AS r ON r.job_id = c.parent
        WHERE c.job_id = y.job_id AND r.job_id <> :job_id AND r.state IN ('pending', 'running') AND r.cancel_reason IS NULL
    )
    AND (y.parent = :job_id OR EXISTS (
        SELECT 1 FROM children AS c WHERE c.parent = :job_id AND c.job_id = y.job_id
    ) OR NOT EXISTS (
        SELECT 1 FROM jobs AS r
        WHERE r.waits_for = y.job_id AND r.job_id <> :job_id AND r.state = 'pending' AND r.cancel_reason IS NULL
    ))
ORDER BY y.job_id DESC LIMIT :limit;

-- name: advance_cancellation
-- The children from here on have been looked at.
UPDATE cancellations SET before = :before WHERE job_id = :job_id;

-- name: drop_cancellation
-- All children have been looked at, or the job is wanted again.
DELETE FROM cancellations WHERE job_id = :job_id;

-- name: reschedule
-- Another time, place or rank for a job that waits. What it waits for stays.
UPDATE jobs SET not_before = :not_before, priority = :priority, queue = :queue,
    hold = CASE WHEN waits_for IS NOT NULL THEN hold WHEN :not_before > :now THEN 'until' ELSE 'none' END,
    updated_at = {greatest}(updated_at, :now)
WHERE job_id = :job_id;

-- name: queue_settings
-- What an operator is about to change.
SELECT max_running, limit_by, paused_at FROM queues WHERE name = :name;

-- name: insert_queue_event
-- Who changed a queue, when, from what to what, and why.
INSERT INTO queue_events (queue, seq, at, actor, action, before, after, reason, metadata)
SELECT CAST(:queue AS TEXT), 1 + coalesce((SELECT max(e.seq) FROM queue_events AS e WHERE e.queue = :queue), 0), CAST(:now AS BIGINT), CAST(:actor AS TEXT), CAST(:action AS TEXT),
    CAST(:before AS TEXT), CAST(:after AS TEXT), CAST(:reason AS TEXT), CAST(:metadata AS TEXT);

-- name: queue_events
-- The latest changes of a queue, newest first.
SELECT * FROM queue_events WHERE queue = :queue ORDER BY seq DESC LIMIT :limit;

-- name: touch_job
-- When an ended job was last moved by somebody.
UPDATE jobs SET updated_at = {greatest}(updated_at, :now) WHERE job_id = :job_id;

-- name: latest_execution
-- The attempt that speaks for the job.
SELECT * FROM executions WHERE job_id = :job_id ORDER BY attempt DESC LIMIT 1;

-- name: latest_status
-- Its id and where it stands, for a job of which nothing else is believed.
SELECT exec_id, status FROM executions WHERE job_id = :job_id ORDER BY attempt DESC LIMIT 1;

-- name: execution
-- One execution by its id.
SELECT * FROM executions WHERE exec_id = :exec_id;

-- name: default_limit
-- What the code says; an operator's word (limit_by) stays above it.
INSERT INTO queues (name, max_running) VALUES (:name, :max_running)
ON CONFLICT (name) DO UPDATE SET max_running = excluded.max_running
WHERE queues.limit_by IS NULL AND coalesce(queues.max_running, -1) <> coalesce(excluded.max_running, -1);

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

-- name: job_ids_between
-- Those whose ids begin with the same letters: of a prefix filled up with the lowest, and with the highest, of them.
SELECT job_id FROM jobs WHERE job_id BETWEEN :first AND :last ORDER BY job_id LIMIT :limit;

-- name: request
-- What it was submitted with.
SELECT request FROM requests WHERE job_id = :job_id;

-- name: executions
-- All attempts of a job.
SELECT * FROM executions WHERE job_id = :job_id ORDER BY attempt;

-- name: steps
-- The finished steps of a job.
SELECT * FROM steps WHERE job_id = :job_id ORDER BY position;

-- name: executions_of
-- All attempts of these jobs.
SELECT * FROM executions WHERE job_id {in_batch} ORDER BY job_id, attempt;

-- name: steps_of
-- The finished steps of these jobs, for their times; responses may be large, and nobody reads them here.
SELECT job_id, position, step, exec_id, tries, started_at, finished_at, '' AS response FROM steps
WHERE job_id {in_batch} ORDER BY job_id, position;

-- name: journal_of
-- The journal of one job.
SELECT * FROM journal WHERE job_id = :job_id ORDER BY seq;

-- name: journal_page
-- The journal of all jobs, a page at a time, so that it need not fit into memory.
SELECT * FROM journal WHERE (job_id, seq) > (:job_id, :seq) ORDER BY job_id, seq LIMIT :limit;

-- name: journal_ends
-- How far the journal of each job goes, and whether it may go further, a page at a time: one look-up for each job.
SELECT j.job_id, (SELECT max(l.seq) FROM journal AS l WHERE l.job_id = j.job_id) AS seq, j.state <> 'succeeded' FROM jobs AS j
WHERE j.job_id > :after ORDER BY j.job_id LIMIT :limit;

-- name: children
-- The latest round of a job's children.
SELECT c.name, c.job_id, j.flow, j.state FROM children AS c JOIN jobs AS j ON j.job_id = c.job_id
WHERE c.parent = :parent
    AND c.round = (SELECT max(l.round) FROM children AS l WHERE l.parent = c.parent AND l.name = c.name)
ORDER BY c.ordinal;

-- name: under_way
-- Everything that is leased, running or being finalized.
SELECT * FROM executions WHERE {under_way};

-- name: place_of
-- What the step that a job is in, or will go on with, follows from.
SELECT d.definition, (SELECT max(s.position) FROM steps AS s WHERE s.job_id = j.job_id), j.ending
FROM jobs AS j LEFT JOIN definitions AS d ON d.fingerprint = j.fingerprint WHERE j.job_id = :job_id;

-- name: last_progress
-- When a running job last got anywhere.
SELECT {greatest}(e.progressed_at, coalesce((SELECT max(s.finished_at) FROM steps AS s WHERE s.job_id = e.job_id), 0))
FROM executions AS e WHERE e.exec_id = :exec_id;

-- name: queues
-- All queues, with their present load: everything under way and waiting is counted once, not once for each queue; of what
-- waits no more than the oldest of these.
WITH running AS (
    SELECT queue, count(*) AS jobs FROM executions
    WHERE {under_way} AND status <> 'committed' GROUP BY queue
),
pending AS (
    SELECT w.queue, count(*) AS jobs FROM (
        SELECT j.queue FROM jobs AS j WHERE j.state = 'pending' AND j.state <> 'succeeded' ORDER BY j.job_id LIMIT :most
    ) AS w GROUP BY w.queue
)
SELECT q.*, coalesce(r.jobs, 0) AS running, coalesce(p.jobs, 0) AS pending
FROM queues AS q LEFT JOIN running AS r ON r.queue = q.name LEFT JOIN pending AS p ON p.queue = q.name
ORDER BY q.name;

-- name: workers
-- All announced workers.
SELECT * FROM workers ORDER BY started_at;

-- name: definitions
-- All definitions a job was ever pinned to.
SELECT fingerprint, definition FROM definitions;

-- name: flows_of
-- Which flows these jobs are of.
SELECT job_id, flow FROM jobs WHERE job_id {in_batch};

-- name: unfinished_by_definition
-- Which definitions the unfinished jobs of a flow are pinned to; not more of them than one wants to wait for.
SELECT f.fingerprint, count(*) FROM (
    SELECT j.fingerprint FROM jobs AS j
    WHERE j.state IN ('pending', 'running') AND j.state <> 'succeeded' AND j.flow = :flow LIMIT :most
) AS f GROUP BY f.fingerprint;

-- name: unsettled_counts
-- Jobs by flow and state, but for those that succeeded, which only ever grow in number: an index has all of it.
SELECT flow, state, count(*) FROM jobs WHERE state <> 'succeeded' GROUP BY state, flow;

-- name: backlog
-- What waits in each queue: jobs that could start now, and since when the first of them could; those whose time has not
-- come; those that wait for another job. No more than the oldest of these.
SELECT w.queue, sum(w.ready) AS ready, sum(w.scheduled) AS scheduled, sum(w.waiting) AS waiting,
    min(CASE w.ready WHEN 1 THEN w.since END) AS oldest_at
FROM (
    SELECT queue, {greatest}(not_before, updated_at) AS since,
        CASE WHEN hold = 'none' OR (hold = 'until' AND not_before <= :now) THEN 1 ELSE 0 END AS ready,
        CASE WHEN hold = 'until' AND not_before > :now THEN 1 ELSE 0 END AS scheduled,
        CASE WHEN hold IN ('after', 'child') THEN 1 ELSE 0 END AS waiting
    FROM (
        SELECT * FROM jobs AS j WHERE j.state = 'pending' AND j.state <> 'succeeded' ORDER BY j.job_id LIMIT :most
    ) AS o
) AS w GROUP BY w.queue;

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
ORDER BY j.job_id LIMIT :limit {lock_jobs};

-- name: insert_pruned
-- The head of the chain stays on record.
INSERT INTO pruned (job_id, flow, state, finished_at, entries, head, pruned_at, pruned_by)
SELECT j.job_id, j.flow, j.state, j.updated_at, h.seq, h.hash, :now, :actor
FROM jobs AS j JOIN journal AS h ON h.job_id = j.job_id
    AND h.seq = (SELECT max(l.seq) FROM journal AS l WHERE l.job_id = j.job_id)
WHERE j.job_id = :job_id;

-- name: delete_expired_keys
-- Keys whose time is over; a key that lasts for ever stays.
DELETE FROM keys WHERE expires_at <= :now;

-- name: pruned_job
-- What is known of a job that retention has removed.
SELECT state, finished_at, pruned_at FROM pruned WHERE job_id = :job_id;

-- name: pruned_head
-- What remains of the journal of one.
SELECT entries, head FROM pruned WHERE job_id = :job_id;

-- name: pruned_heads
-- What remains of pruned jobs.
SELECT job_id, head FROM pruned;

-- name: running_ids
-- What is running, for the guard.
SELECT job_id FROM jobs WHERE state = 'running' AND state <> 'succeeded' AND job_id > :after ORDER BY job_id LIMIT :limit;

-- name: oldest_id
-- Where a look at all jobs begins.
SELECT job_id FROM jobs ORDER BY job_id LIMIT 1;

-- name: newest_ids
-- What was submitted last, for the guard.
SELECT job_id FROM jobs ORDER BY job_id DESC LIMIT :limit;

-- name: job_flow
-- Whose definition it is.
SELECT flow FROM jobs WHERE job_id = :job_id;

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

-- name: evidence_rewound
-- Is this rewind the last thing that the execution has journaled?
SELECT EXISTS (
    SELECT 1 FROM journal AS l WHERE l.job_id = :job_id AND l.exec_id = :exec_id AND l.step = :step AND l.reason = :reason
        AND l.seq = (SELECT max(e.seq) FROM journal AS e WHERE e.job_id = :job_id AND e.exec_id = :exec_id)
);

-- name: projected_state
-- What the executions say.
SELECT state FROM job_projection WHERE job_id = :job_id;

-- name: reproject_state
-- Put a stored state right that does not exist.
UPDATE jobs SET state = :state WHERE job_id = :job_id;

-- name: reproject
-- Put a row right that somebody has written past the rules.
UPDATE jobs SET flow = :flow, fingerprint = :fingerprint, state = :state, key = :key, queue = :queue,
    priority = :priority, hold = :hold, not_before = :not_before, run_after = :run_after, waits_for = :waits_for,
    parent = :parent, attempt = :attempt, failures = :failures, failures_forgiven = :failures_forgiven,
    failure_limit = :failure_limit, crashes = :crashes, crashes_forgiven = :crashes_forgiven,
    crash_limit = :crash_limit, stall_ms = :stall_ms, stall_limits = :stall_limits, cancel_reason = :cancel_reason,
    ending = :ending, created_at = :created_at, updated_at = :updated_at
WHERE job_id = :job_id;

-- name: journaled_state
-- What the journal says.
SELECT job_to FROM journal WHERE job_id = :job_id ORDER BY seq DESC LIMIT 1;

-- name: taken_job_id
-- An id of the batch that is in use already, or was: a journal begins only once.
SELECT job_id FROM jobs WHERE job_id {in_batch}
UNION ALL
SELECT job_id FROM pruned WHERE job_id {in_batch}
LIMIT 1;

-- name: delete_idle_queues
-- No job is in them, and nobody has said anything about them.
DELETE FROM queues WHERE name IN (
    SELECT q.name FROM queues AS q
    WHERE q.max_running IS NULL AND q.limit_by IS NULL AND q.paused_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.queue = q.name)
    LIMIT :limit
);

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
