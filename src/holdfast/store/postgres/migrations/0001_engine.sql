-- The engine's tables. Rules that must never be broken are kept here, by constraint or trigger,
-- so that neither a bug nor a stray database shell can break them.
-- Lists of states and legal transitions repeat core/states.py; a test compares them. Runs with the store's schema as
-- the search path.

CREATE TABLE definitions (
    fingerprint TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    definition TEXT NOT NULL,
    first_seen_at BIGINT NOT NULL
);

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    max_running BIGINT CHECK (max_running IS NULL OR max_running >= 0),
    limit_by TEXT,
    paused_at BIGINT,
    paused_by TEXT,
    paused_reason TEXT,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL) AND (paused_at IS NULL) = (paused_reason IS NULL))
);

CREATE TABLE jobs (
    job_id TEXT COLLATE "C" PRIMARY KEY,
    flow TEXT NOT NULL,
    fingerprint TEXT NOT NULL REFERENCES definitions (fingerprint),
    state TEXT NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'quarantined')),
    key TEXT,
    queue TEXT NOT NULL DEFAULT '' REFERENCES queues (name),
    priority BIGINT NOT NULL DEFAULT 0,
    hold TEXT NOT NULL DEFAULT 'none' CHECK (hold IN ('none', 'until', 'after', 'child')),
    not_before BIGINT NOT NULL DEFAULT 0,
    run_after TEXT COLLATE "C",
    waits_for TEXT COLLATE "C" CHECK ((waits_for IS NOT NULL) = (hold IN ('after', 'child'))),
    parent TEXT COLLATE "C",
    attempt BIGINT NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures BIGINT NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failures_forgiven BIGINT NOT NULL DEFAULT 0,
    failure_limit BIGINT NOT NULL DEFAULT 1 CHECK (failure_limit >= 1),
    crashes BIGINT NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    crashes_forgiven BIGINT NOT NULL DEFAULT 0,
    crash_limit BIGINT NOT NULL DEFAULT 5 CHECK (crash_limit >= 1),
    stall_ms BIGINT NOT NULL DEFAULT 600000 CHECK (stall_ms > 0),
    cancel_reason TEXT,
    ending TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

-- What a claim reads: ready jobs of a queue, best first. Finished jobs are in none of these indexes.
CREATE INDEX jobs_ready ON jobs (queue, priority DESC, job_id, flow) WHERE state = 'pending' AND hold = 'none';
CREATE INDEX jobs_due ON jobs (not_before) WHERE state = 'pending' AND hold = 'until';
CREATE INDEX jobs_waiting ON jobs (waits_for) WHERE waits_for IS NOT NULL;
CREATE INDEX jobs_unsettled ON jobs (state, flow) WHERE state <> 'succeeded';
CREATE INDEX jobs_dependents ON jobs (run_after) WHERE run_after IS NOT NULL;
CREATE UNIQUE INDEX jobs_key ON jobs (flow, key) WHERE key IS NOT NULL AND state IN ('pending', 'running');

-- Apart from jobs, because every change of a row rewrites all of it.
CREATE TABLE requests (
    job_id TEXT COLLATE "C" PRIMARY KEY REFERENCES jobs (job_id),
    request TEXT NOT NULL
);

CREATE TABLE executions (
    exec_id TEXT NOT NULL UNIQUE,
    job_id TEXT COLLATE "C" NOT NULL REFERENCES jobs (job_id),
    attempt BIGINT NOT NULL CHECK (attempt >= 1),
    queue TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('leased', 'in_progress', 'committed', 'done', 'aborted')),
    disposition TEXT CHECK (disposition IN ('retry', 'failed', 'quarantined')),
    code TEXT,
    error TEXT,
    lease_owner TEXT NOT NULL,
    lease_expires_at BIGINT NOT NULL,
    position BIGINT NOT NULL DEFAULT 0,
    tries BIGINT NOT NULL DEFAULT 0 CHECK (tries >= 0),
    interrupted BOOLEAN NOT NULL DEFAULT false,
    retry_at BIGINT,
    progressed_at BIGINT NOT NULL,
    progress TEXT,
    started_at BIGINT NOT NULL,
    finished_at BIGINT,
    PRIMARY KEY (job_id, attempt),
    CHECK ((status = 'aborted') = (disposition IS NOT NULL)),
    CHECK ((status IN ('aborted', 'done')) = (finished_at IS NOT NULL))
);

-- INV_001: one committed-or-done execution per job, for ever.
CREATE UNIQUE INDEX executions_one_commit ON executions (job_id) WHERE status IN ('committed', 'done');
-- One live lease per job.
CREATE UNIQUE INDEX executions_one_live ON executions (job_id) WHERE status IN ('leased', 'in_progress');
-- What queue limits count and what recovery looks through: only what is under way.
CREATE INDEX executions_under_way ON executions (queue, lease_owner, lease_expires_at)
    WHERE status IN ('leased', 'in_progress', 'committed');

CREATE TABLE steps (
    job_id TEXT COLLATE "C" NOT NULL REFERENCES jobs (job_id),
    position BIGINT NOT NULL CHECK (position >= 0),
    step TEXT NOT NULL,
    exec_id TEXT NOT NULL,
    tries BIGINT NOT NULL CHECK (tries >= 1),
    started_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    response TEXT NOT NULL,
    PRIMARY KEY (job_id, position)
);

CREATE TABLE children (
    parent TEXT COLLATE "C" NOT NULL REFERENCES jobs (job_id),
    name TEXT NOT NULL,
    round BIGINT NOT NULL,
    job_id TEXT COLLATE "C" NOT NULL,
    ordinal BIGINT NOT NULL,
    PRIMARY KEY (parent, name, round)
);
CREATE INDEX children_job ON children (job_id);

CREATE TABLE journal (
    job_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL CHECK (seq >= 1),
    at BIGINT NOT NULL,
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
);

CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY,
    flows TEXT NOT NULL,
    started_at BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
);

-- The chain heads of jobs that retention has removed: history may be forgotten, but never silently.
CREATE TABLE pruned (
    job_id TEXT COLLATE "C" PRIMARY KEY,
    flow TEXT NOT NULL,
    state TEXT NOT NULL,
    finished_at BIGINT NOT NULL,
    entries BIGINT NOT NULL,
    head TEXT NOT NULL,
    pruned_at BIGINT NOT NULL,
    pruned_by TEXT NOT NULL
);

-- Job state as a function of executions; core/states.py says the same in Python.
CREATE FUNCTION projected_state(job TEXT) RETURNS TEXT LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT coalesce((
        SELECT CASE
            WHEN e.status = 'done' THEN 'succeeded'
            WHEN e.status = 'aborted' THEN CASE e.disposition WHEN 'retry' THEN 'pending' ELSE e.disposition END
            ELSE 'running'
        END
        FROM executions AS e
        WHERE e.job_id = job
        ORDER BY CASE e.status WHEN 'done' THEN 2 WHEN 'committed' THEN 1 ELSE 0 END DESC, e.attempt DESC
        LIMIT 1
    ), 'pending')
$$;

CREATE VIEW job_projection AS SELECT job_id, projected_state(job_id) AS state FROM jobs;

CREATE FUNCTION guard_jobs() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'pending' OR NEW.attempt <> 0 THEN
            RAISE EXCEPTION 'holdfast: a job starts as pending, with no attempts' USING ERRCODE = 'HF001';
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
            RAISE EXCEPTION 'holdfast: jobs are removed by retention only' USING ERRCODE = 'HF001';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.state = 'succeeded' THEN
        RAISE EXCEPTION 'holdfast: a succeeded job does not change' USING ERRCODE = 'HF001';
    END IF;
    IF NEW.state <> OLD.state THEN
        IF (OLD.state || '>' || NEW.state) NOT IN (
            'pending>running',
            'running>succeeded', 'running>failed', 'running>pending',
            'failed>pending', 'failed>quarantined',
            'quarantined>pending'
        ) THEN
            RAISE EXCEPTION 'holdfast: illegal job transition' USING ERRCODE = 'HF001';
        END IF;
        IF NEW.state <> projected_state(NEW.job_id) THEN
            RAISE EXCEPTION 'holdfast: job state must equal the projection of its executions' USING ERRCODE = 'HF001';
        END IF;
    END IF;
    IF NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes THEN
        RAISE EXCEPTION 'holdfast: attempts only grow' USING ERRCODE = 'HF001';
    END IF;
    IF NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS DISTINCT FROM OLD.key
        OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.run_after IS DISTINCT FROM OLD.run_after
        OR NEW.created_at <> OLD.created_at THEN
        RAISE EXCEPTION 'holdfast: what identifies a job does not change' USING ERRCODE = 'HF001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER jobs_keep_the_rules BEFORE INSERT OR UPDATE OR DELETE ON jobs
    FOR EACH ROW EXECUTE FUNCTION guard_jobs();

CREATE FUNCTION guard_executions() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.status <> 'leased'
            OR NEW.attempt <> 1 + (SELECT j.attempt FROM jobs AS j WHERE j.job_id = NEW.job_id)
            OR EXISTS (
                SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('committed', 'done')
            ) THEN
            RAISE EXCEPTION 'holdfast: an execution starts as leased, as the next attempt of an uncommitted job'
                USING ERRCODE = 'HF001';
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
            RAISE EXCEPTION 'holdfast: executions are removed by retention only' USING ERRCODE = 'HF001';
        END IF;
        RETURN OLD;
    END IF;
    IF (NEW.status <> OLD.status AND (OLD.status || '>' || NEW.status) NOT IN (
            'leased>in_progress', 'leased>aborted',
            'in_progress>committed', 'in_progress>aborted',
            'committed>done'
        ))
        OR (NEW.status = OLD.status AND NEW.disposition IS DISTINCT FROM OLD.disposition
            AND (OLD.disposition || '>' || NEW.disposition) NOT IN (
                'failed>retry', 'failed>quarantined', 'quarantined>retry'
            )) THEN
        RAISE EXCEPTION 'holdfast: illegal execution transition' USING ERRCODE = 'HF001';
    END IF;
    IF NEW.exec_id <> OLD.exec_id OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt
        OR NEW.queue <> OLD.queue OR NEW.lease_owner <> OLD.lease_owner OR NEW.started_at <> OLD.started_at
        OR NEW.interrupted <> OLD.interrupted THEN
        RAISE EXCEPTION 'holdfast: what identifies an execution does not change' USING ERRCODE = 'HF001';
    END IF;
    IF OLD.status IN ('done', 'aborted') AND (
        NEW.status <> OLD.status OR NEW.finished_at IS DISTINCT FROM OLD.finished_at
        OR NEW.code IS DISTINCT FROM OLD.code OR NEW.error IS DISTINCT FROM OLD.error
        OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position OR NEW.tries <> OLD.tries
        OR NEW.retry_at IS DISTINCT FROM OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
        OR NEW.progress IS DISTINCT FROM OLD.progress
    ) THEN
        RAISE EXCEPTION 'holdfast: an ended execution does not change' USING ERRCODE = 'HF001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER executions_keep_the_rules BEFORE INSERT OR UPDATE OR DELETE ON executions
    FOR EACH ROW EXECUTE FUNCTION guard_executions();

CREATE FUNCTION move_job() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    projected TEXT := projected_state(NEW.job_id);
BEGIN
    IF TG_OP = 'INSERT' THEN
        UPDATE jobs SET attempt = NEW.attempt, updated_at = NEW.started_at, hold = 'none', waits_for = NULL,
            state = projected
        WHERE job_id = NEW.job_id;
    ELSE
        UPDATE jobs SET updated_at = greatest(updated_at, coalesce(NEW.finished_at, NEW.progressed_at)), state = projected
        WHERE job_id = NEW.job_id AND state <> projected;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER executions_move_job AFTER INSERT ON executions FOR EACH ROW EXECUTE FUNCTION move_job();
CREATE TRIGGER executions_change_job AFTER UPDATE OF status, disposition ON executions FOR EACH ROW
    WHEN (NEW.status <> OLD.status OR NEW.disposition IS DISTINCT FROM OLD.disposition)
    EXECUTE FUNCTION move_job();

CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    RAISE EXCEPTION 'holdfast: %', TG_ARGV[0] USING ERRCODE = 'HF001';
END $$;
CREATE TRIGGER requests_are_final BEFORE UPDATE ON requests
    FOR EACH ROW EXECUTE FUNCTION refuse('a request does not change');
CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON journal
    FOR EACH ROW EXECUTE FUNCTION refuse('the journal is append-only');
CREATE TRIGGER steps_are_final BEFORE UPDATE ON steps
    FOR EACH ROW EXECUTE FUNCTION refuse('a finished step does not change');
CREATE TRIGGER definitions_are_final BEFORE UPDATE OR DELETE ON definitions
    FOR EACH ROW EXECUTE FUNCTION refuse('a definition does not change');
CREATE TRIGGER pruned_is_append_only BEFORE UPDATE OR DELETE ON pruned
    FOR EACH ROW EXECUTE FUNCTION refuse('the record of pruned jobs is append-only');

CREATE FUNCTION guard_journal() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
            RAISE EXCEPTION 'holdfast: the journal is append-only' USING ERRCODE = 'HF001';
        END IF;
        RETURN OLD;
    END IF;
    IF NEW.prev_hash IS DISTINCT FROM (CASE NEW.seq WHEN 1 THEN '' ELSE (
        SELECT j.hash FROM journal AS j WHERE j.job_id = NEW.job_id AND j.seq = NEW.seq - 1
    ) END) THEN
        RAISE EXCEPTION 'holdfast: a journal entry must follow the one before it' USING ERRCODE = 'HF001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER journal_keeps_the_rules BEFORE INSERT OR DELETE ON journal
    FOR EACH ROW EXECUTE FUNCTION guard_journal();

CREATE FUNCTION guard_requests() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: requests are removed by retention only' USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER requests_are_kept BEFORE DELETE ON requests FOR EACH ROW EXECUTE FUNCTION guard_requests();

-- A step is written once by the execution that finished it, and a job that has committed has all of its steps.
CREATE FUNCTION guard_steps() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('committed', 'done')) THEN
            RAISE EXCEPTION 'holdfast: a finished step does not change' USING ERRCODE = 'HF001';
        END IF;
        RETURN NEW;
    END IF;
    IF EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN ('committed', 'done'))
        AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: the steps of a committed job are removed by retention only' USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER steps_keep_the_rules BEFORE INSERT OR DELETE ON steps FOR EACH ROW EXECUTE FUNCTION guard_steps();

CREATE FUNCTION guard_pruned() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM jobs AS j JOIN journal AS l ON l.job_id = j.job_id
        WHERE j.job_id = NEW.job_id AND j.state IN ('succeeded', 'failed', 'quarantined') AND j.state = NEW.state
            AND l.seq = NEW.entries AND l.hash = NEW.head
            AND NOT EXISTS (SELECT 1 FROM journal AS later WHERE later.job_id = l.job_id AND later.seq > l.seq)
    ) THEN
        RAISE EXCEPTION 'holdfast: only an ended job is pruned, under the true head of its journal' USING ERRCODE = 'HF001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER pruned_is_true BEFORE INSERT ON pruned FOR EACH ROW EXECUTE FUNCTION guard_pruned();

-- TRUNCATE asks no row whether it may go.
CREATE TRIGGER jobs_is_not_truncated BEFORE TRUNCATE ON jobs
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('jobs is emptied by nobody');
CREATE TRIGGER requests_is_not_truncated BEFORE TRUNCATE ON requests
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('requests is emptied by nobody');
CREATE TRIGGER executions_is_not_truncated BEFORE TRUNCATE ON executions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('executions is emptied by nobody');
CREATE TRIGGER steps_is_not_truncated BEFORE TRUNCATE ON steps
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('steps is emptied by nobody');
CREATE TRIGGER children_is_not_truncated BEFORE TRUNCATE ON children
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('children is emptied by nobody');
CREATE TRIGGER journal_is_not_truncated BEFORE TRUNCATE ON journal
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('journal is emptied by nobody');
CREATE TRIGGER definitions_is_not_truncated BEFORE TRUNCATE ON definitions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('definitions is emptied by nobody');
CREATE TRIGGER pruned_is_not_truncated BEFORE TRUNCATE ON pruned
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('pruned is emptied by nobody');
