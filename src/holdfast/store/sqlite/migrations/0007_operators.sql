-- What operators leave behind: cancellations that have yet to reach children, and the history of each queue.

-- The children of a job, to be cancelled with it.
CREATE INDEX jobs_parent ON jobs (parent) WHERE parent IS NOT NULL;

-- A job that was cancelled while it had unfinished children; `before` is the last of them that was looked at, as they are
-- taken from the newest to the oldest. The row goes when there is none left.
CREATE TABLE cancellations (
    job_id TEXT PRIMARY KEY,
    waited_for TEXT,
    before TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    metadata TEXT NOT NULL,
    requested_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE queue_events (
    queue TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action = 'pause' OR action = 'resume' OR action = 'limit'),
    before TEXT,
    after TEXT,
    reason TEXT NOT NULL,
    metadata TEXT NOT NULL,
    PRIMARY KEY (queue, seq)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER queue_events_are_added BEFORE INSERT ON queue_events
WHEN NEW.seq <> 1 + coalesce((SELECT max(e.seq) FROM queue_events AS e WHERE e.queue = NEW.queue), 0)
BEGIN
    SELECT raise(ABORT, 'holdfast: the history of a queue is append-only');
END;

CREATE TRIGGER queue_events_are_final BEFORE UPDATE ON queue_events
BEGIN
    SELECT raise(ABORT, 'holdfast: the history of a queue is append-only');
END;

CREATE TRIGGER queue_events_are_kept BEFORE DELETE ON queue_events
BEGIN
    SELECT raise(ABORT, 'holdfast: the history of a queue is append-only');
END;

-- The queue and the priority of a job that waits are an operator's to change, by rescheduling it.
DROP TRIGGER jobs_terms_are_fixed;
CREATE TRIGGER jobs_terms_are_fixed
BEFORE UPDATE OF queue, priority, failure_limit, crash_limit, stall_ms, stall_limits ON jobs
WHEN (NEW.queue IS NOT OLD.queue OR NEW.priority IS NOT OLD.priority OR NEW.failure_limit IS NOT OLD.failure_limit
    OR NEW.crash_limit IS NOT OLD.crash_limit OR NEW.stall_ms IS NOT OLD.stall_ms
    OR NEW.stall_limits IS NOT OLD.stall_limits)
    AND NOT EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'repair')
    AND NOT (
        OLD.state = 'pending' AND NEW.failure_limit IS OLD.failure_limit AND NEW.crash_limit IS OLD.crash_limit
        AND NEW.stall_ms IS OLD.stall_ms AND NEW.stall_limits IS OLD.stall_limits
        AND EXISTS (SELECT 1 FROM permits AS p WHERE p.job_id = OLD.job_id AND p.act = 'reschedule')
    )
BEGIN
    SELECT raise(ABORT, 'holdfast: what a job was submitted with does not change');
END;
