-- What operators leave behind: cancellations that have yet to reach children, and the history of each queue.

-- The children of a job, to be cancelled with it.
CREATE INDEX jobs_parent ON jobs (parent) WHERE parent IS NOT NULL;

-- A job that was cancelled while it had unfinished children; `before` is the last of them that was looked at, as they are
-- taken from the newest to the oldest. The row goes when there is none left.
CREATE TABLE cancellations (
    job_id TEXT COLLATE "C" PRIMARY KEY,
    waited_for TEXT COLLATE "C",
    before TEXT COLLATE "C" NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    metadata TEXT NOT NULL,
    requested_at BIGINT NOT NULL
);

CREATE TABLE queue_events (
    queue TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL CHECK (seq >= 1),
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL CHECK (action IN ('pause', 'resume', 'limit')),
    before TEXT,
    after TEXT,
    reason TEXT NOT NULL,
    metadata TEXT NOT NULL,
    PRIMARY KEY (queue, seq)
);

CREATE TRIGGER queue_events_are_final BEFORE UPDATE OR DELETE ON queue_events
    FOR EACH ROW EXECUTE FUNCTION refuse('the history of a queue is append-only');
CREATE TRIGGER queue_events_is_not_truncated BEFORE TRUNCATE ON queue_events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('the history of a queue is append-only');

-- Whoever may write the journal may need to write these, and whoever may read it may read them.
DO $$
DECLARE
    held RECORD;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role,
            a.privilege_type AS privilege
        FROM pg_class AS c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'journal'::regclass AND a.privilege_type IN ('SELECT', 'INSERT')
    LOOP
        IF held.privilege = 'SELECT' THEN
            EXECUTE format('GRANT SELECT ON cancellations, queue_events TO %s', held.role);
        ELSE
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON cancellations TO %s', held.role);
            EXECUTE format('GRANT INSERT ON queue_events TO %s', held.role);
        END IF;
    END LOOP;
END $$;

-- The queue and the priority of a job that waits are an operator's to change, by rescheduling it.
CREATE FUNCTION refuse_unless_rescheduled() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM permits AS p
        WHERE p.job_id = OLD.job_id AND (p.act = 'repair' OR p.act = 'reschedule' AND OLD.state = 'pending')
    ) THEN
        RAISE EXCEPTION 'holdfast: %', TG_ARGV[0] USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER jobs_keep_their_identity ON jobs;
CREATE TRIGGER jobs_keep_their_identity AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS DISTINCT FROM OLD.key
        OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.run_after IS DISTINCT FROM OLD.run_after
        OR NEW.created_at <> OLD.created_at OR NEW.failure_limit <> OLD.failure_limit
        OR NEW.crash_limit <> OLD.crash_limit OR NEW.stall_ms <> OLD.stall_ms
        OR NEW.stall_limits IS DISTINCT FROM OLD.stall_limits)
    EXECUTE FUNCTION refuse_unless_repaired('what identifies a job does not change');
CREATE TRIGGER jobs_keep_their_place AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (NEW.queue <> OLD.queue OR NEW.priority <> OLD.priority)
    EXECUTE FUNCTION refuse_unless_rescheduled('what identifies a job does not change');
