-- {"succeeded": "01JXT21Q006Z2PAT9ZV9Y27S6T", "failed": "01JXT21Q006Z2PAT9ZV9Y27S6W", "quarantined": "01JXT21Q006Z2PAT9ZV9Y27S6Y", "tried_again": {"job": {"job_id": "01JXT21Q006Z2PAT9ZV9Y27S70", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 2, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 1, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000000000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8RARPC7DRVQ995YP3W", "attempt": 2, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": true}, "leased": {"job": {"job_id": "01JXT22N8RARPC7DRVQ995YP3X", "flow": "demo", "fingerprint": "5e374847e0eb0716", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8RARPC7DRVQ995YP3Y", "attempt": 1, "status": "leased", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "running": {"job": {"job_id": "01JXT22N8RARPC7DRVQ995YP3Z", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8RARPC7DRVQ995YP40", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "committed": {"job": {"job_id": "01JXT22N8RARPC7DRVQ995YP41", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8RARPC7DRVQ995YP42", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "pending": "01JXT22N8RARPC7DRVQ995YP43", "waiting": "01JXT22N8RARPC7DRVQ995YP44", "now": 1750000031000}
CREATE SCHEMA older_schema;
CREATE FUNCTION older_schema.guard_executions() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
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
CREATE FUNCTION older_schema.guard_jobs() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
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
CREATE FUNCTION older_schema.guard_journal() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
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
CREATE FUNCTION older_schema.guard_pruned() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
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
CREATE FUNCTION older_schema.guard_requests() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: requests are removed by retention only' USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
CREATE FUNCTION older_schema.guard_steps() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
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
CREATE FUNCTION older_schema.move_job() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
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
CREATE FUNCTION older_schema.projected_state(job text) RETURNS text
    LANGUAGE sql STABLE
    SET search_path TO 'older_schema'
    AS $$
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
CREATE FUNCTION older_schema.refuse() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
BEGIN
    RAISE EXCEPTION 'holdfast: %', TG_ARGV[0] USING ERRCODE = 'HF001';
END $$;
CREATE TABLE older_schema.children (
    parent text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    round bigint NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
    ordinal bigint NOT NULL
);
CREATE TABLE older_schema.definitions (
    fingerprint text NOT NULL,
    flow text NOT NULL,
    definition text NOT NULL,
    first_seen_at bigint NOT NULL
);
CREATE TABLE older_schema.executions (
    exec_id text NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
    attempt bigint NOT NULL,
    queue text NOT NULL,
    status text NOT NULL,
    disposition text,
    code text,
    error text,
    lease_owner text NOT NULL,
    lease_expires_at bigint NOT NULL,
    "position" bigint DEFAULT 0 NOT NULL,
    tries bigint DEFAULT 0 NOT NULL,
    interrupted boolean DEFAULT false NOT NULL,
    retry_at bigint,
    progressed_at bigint NOT NULL,
    progress text,
    started_at bigint NOT NULL,
    finished_at bigint,
    CONSTRAINT executions_attempt_check CHECK ((attempt >= 1)),
    CONSTRAINT executions_check CHECK (((status = 'aborted'::text) = (disposition IS NOT NULL))),
    CONSTRAINT executions_check1 CHECK (((status = ANY (ARRAY['aborted'::text, 'done'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT executions_disposition_check CHECK ((disposition = ANY (ARRAY['retry'::text, 'failed'::text, 'quarantined'::text]))),
    CONSTRAINT executions_status_check CHECK ((status = ANY (ARRAY['leased'::text, 'in_progress'::text, 'committed'::text, 'done'::text, 'aborted'::text]))),
    CONSTRAINT executions_tries_check CHECK ((tries >= 0))
);
CREATE TABLE older_schema.holdfast_migrations (
    version bigint NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE older_schema.holdfast_rules (
    name text NOT NULL,
    definition text NOT NULL
);
CREATE TABLE older_schema.jobs (
    job_id text NOT NULL COLLATE pg_catalog."C",
    flow text NOT NULL,
    fingerprint text NOT NULL,
    state text DEFAULT 'pending'::text NOT NULL,
    key text,
    queue text DEFAULT ''::text NOT NULL,
    priority bigint DEFAULT 0 NOT NULL,
    hold text DEFAULT 'none'::text NOT NULL,
    not_before bigint DEFAULT 0 NOT NULL,
    run_after text COLLATE pg_catalog."C",
    waits_for text COLLATE pg_catalog."C",
    parent text COLLATE pg_catalog."C",
    attempt bigint DEFAULT 0 NOT NULL,
    failures bigint DEFAULT 0 NOT NULL,
    failures_forgiven bigint DEFAULT 0 NOT NULL,
    failure_limit bigint DEFAULT 1 NOT NULL,
    crashes bigint DEFAULT 0 NOT NULL,
    crashes_forgiven bigint DEFAULT 0 NOT NULL,
    crash_limit bigint DEFAULT 5 NOT NULL,
    stall_ms bigint DEFAULT 600000 NOT NULL,
    cancel_reason text,
    ending text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    CONSTRAINT jobs_attempt_check CHECK ((attempt >= 0)),
    CONSTRAINT jobs_check CHECK (((waits_for IS NOT NULL) = (hold = ANY (ARRAY['after'::text, 'child'::text])))),
    CONSTRAINT jobs_crash_limit_check CHECK ((crash_limit >= 1)),
    CONSTRAINT jobs_crashes_check CHECK ((crashes >= 0)),
    CONSTRAINT jobs_failure_limit_check CHECK ((failure_limit >= 1)),
    CONSTRAINT jobs_failures_check CHECK ((failures >= 0)),
    CONSTRAINT jobs_hold_check CHECK ((hold = ANY (ARRAY['none'::text, 'until'::text, 'after'::text, 'child'::text]))),
    CONSTRAINT jobs_stall_ms_check CHECK ((stall_ms > 0)),
    CONSTRAINT jobs_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'quarantined'::text])))
);
CREATE VIEW older_schema.job_projection AS
 SELECT job_id,
    older_schema.projected_state(job_id) AS state
   FROM older_schema.jobs;
CREATE TABLE older_schema.journal (
    job_id text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    at bigint NOT NULL,
    actor text NOT NULL,
    exec_id text,
    job_from text,
    job_to text NOT NULL,
    exec_from text,
    exec_to text,
    step text,
    reason text NOT NULL,
    metadata text NOT NULL,
    prev_hash text NOT NULL,
    hash text NOT NULL,
    CONSTRAINT journal_seq_check CHECK ((seq >= 1))
);
CREATE TABLE older_schema.pruned (
    job_id text NOT NULL COLLATE pg_catalog."C",
    flow text NOT NULL,
    state text NOT NULL,
    finished_at bigint NOT NULL,
    entries bigint NOT NULL,
    head text NOT NULL,
    pruned_at bigint NOT NULL,
    pruned_by text NOT NULL
);
CREATE TABLE older_schema.queues (
    name text NOT NULL,
    max_running bigint,
    limit_by text,
    paused_at bigint,
    paused_by text,
    paused_reason text,
    CONSTRAINT queues_check CHECK ((((paused_at IS NULL) = (paused_by IS NULL)) AND ((paused_at IS NULL) = (paused_reason IS NULL)))),
    CONSTRAINT queues_max_running_check CHECK (((max_running IS NULL) OR (max_running >= 0)))
);
CREATE TABLE older_schema.requests (
    job_id text NOT NULL COLLATE pg_catalog."C",
    request text NOT NULL
);
CREATE TABLE older_schema.steps (
    job_id text NOT NULL COLLATE pg_catalog."C",
    "position" bigint NOT NULL,
    step text NOT NULL,
    exec_id text NOT NULL,
    tries bigint NOT NULL,
    started_at bigint NOT NULL,
    finished_at bigint NOT NULL,
    response text NOT NULL,
    CONSTRAINT steps_position_check CHECK (("position" >= 0)),
    CONSTRAINT steps_tries_check CHECK ((tries >= 1))
);
CREATE TABLE older_schema.workers (
    worker_id text NOT NULL,
    flows text NOT NULL,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL
);
INSERT INTO older_schema.definitions VALUES ('da4fbd80c76eae7e', 'demo', '{"flow":"demo","version":"1","steps":["one","two","three"]}', 1750000000000);
INSERT INTO older_schema.definitions VALUES ('5e374847e0eb0716', 'demo', '{"flow":"demo","version":"0","steps":["one","two","three"]}', 1750000031000);
INSERT INTO older_schema.executions VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6V', '01JXT21Q006Z2PAT9ZV9Y27S6T', 1, '', 'done', NULL, 'completed', NULL, 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.executions VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6X', '01JXT21Q006Z2PAT9ZV9Y27S6W', 1, '', 'aborted', 'failed', 'error', NULL, 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.executions VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Z', '01JXT21Q006Z2PAT9ZV9Y27S6Y', 1, '', 'aborted', 'quarantined', 'error', NULL, 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.executions VALUES ('01JXT21Q006Z2PAT9ZV9Y27S71', '01JXT21Q006Z2PAT9ZV9Y27S70', 1, '', 'aborted', 'retry', 'crashed', 'pid 11 on host-a did not finish: its lease ran out (crash 1)', 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000031000);
INSERT INTO older_schema.executions VALUES ('01JXT22N8RARPC7DRVQ995YP3W', '01JXT21Q006Z2PAT9ZV9Y27S70', 2, '', 'in_progress', NULL, NULL, NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, true, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.executions VALUES ('01JXT22N8RARPC7DRVQ995YP3Y', '01JXT22N8RARPC7DRVQ995YP3X', 1, '', 'leased', NULL, NULL, NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, false, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.executions VALUES ('01JXT22N8RARPC7DRVQ995YP40', '01JXT22N8RARPC7DRVQ995YP3Z', 1, '', 'in_progress', NULL, NULL, NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, false, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.executions VALUES ('01JXT22N8RARPC7DRVQ995YP42', '01JXT22N8RARPC7DRVQ995YP41', 1, '', 'committed', NULL, 'completed', NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, false, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.holdfast_migrations VALUES (1, 'engine', '2026-11-16 19:02:48.664519+00');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger definitions_are_final', 'CREATE TRIGGER definitions_are_final BEFORE DELETE OR UPDATE ON older_schema.definitions FOR EACH ROW EXECUTE FUNCTION refuse(''a definition does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger definitions_is_not_truncated', 'CREATE TRIGGER definitions_is_not_truncated BEFORE TRUNCATE ON older_schema.definitions FOR EACH STATEMENT EXECUTE FUNCTION refuse(''definitions is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_keep_the_rules', 'CREATE TRIGGER jobs_keep_the_rules BEFORE INSERT OR DELETE OR UPDATE ON older_schema.jobs FOR EACH ROW EXECUTE FUNCTION guard_jobs()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_is_not_truncated', 'CREATE TRIGGER jobs_is_not_truncated BEFORE TRUNCATE ON older_schema.jobs FOR EACH STATEMENT EXECUTE FUNCTION refuse(''jobs is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger requests_are_final', 'CREATE TRIGGER requests_are_final BEFORE UPDATE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION refuse(''a request does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger requests_are_kept', 'CREATE TRIGGER requests_are_kept BEFORE DELETE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION guard_requests()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger requests_is_not_truncated', 'CREATE TRIGGER requests_is_not_truncated BEFORE TRUNCATE ON older_schema.requests FOR EACH STATEMENT EXECUTE FUNCTION refuse(''requests is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_keep_the_rules', 'CREATE TRIGGER executions_keep_the_rules BEFORE INSERT OR DELETE OR UPDATE ON older_schema.executions FOR EACH ROW EXECUTE FUNCTION guard_executions()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_move_job', 'CREATE TRIGGER executions_move_job AFTER INSERT ON older_schema.executions FOR EACH ROW EXECUTE FUNCTION move_job()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_change_job', 'CREATE TRIGGER executions_change_job AFTER UPDATE OF status, disposition ON older_schema.executions FOR EACH ROW WHEN (((new.status <> old.status) OR (new.disposition IS DISTINCT FROM old.disposition))) EXECUTE FUNCTION move_job()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_is_not_truncated', 'CREATE TRIGGER executions_is_not_truncated BEFORE TRUNCATE ON older_schema.executions FOR EACH STATEMENT EXECUTE FUNCTION refuse(''executions is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger steps_are_final', 'CREATE TRIGGER steps_are_final BEFORE UPDATE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION refuse(''a finished step does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger steps_keep_the_rules', 'CREATE TRIGGER steps_keep_the_rules BEFORE INSERT OR DELETE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION guard_steps()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger steps_is_not_truncated', 'CREATE TRIGGER steps_is_not_truncated BEFORE TRUNCATE ON older_schema.steps FOR EACH STATEMENT EXECUTE FUNCTION refuse(''steps is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger children_is_not_truncated', 'CREATE TRIGGER children_is_not_truncated BEFORE TRUNCATE ON older_schema.children FOR EACH STATEMENT EXECUTE FUNCTION refuse(''children is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger journal_is_append_only', 'CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION refuse(''the journal is append-only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger journal_keeps_the_rules', 'CREATE TRIGGER journal_keeps_the_rules BEFORE INSERT OR DELETE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION guard_journal()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger journal_is_not_truncated', 'CREATE TRIGGER journal_is_not_truncated BEFORE TRUNCATE ON older_schema.journal FOR EACH STATEMENT EXECUTE FUNCTION refuse(''journal is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger pruned_is_append_only', 'CREATE TRIGGER pruned_is_append_only BEFORE DELETE OR UPDATE ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION refuse(''the record of pruned jobs is append-only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger pruned_is_true', 'CREATE TRIGGER pruned_is_true BEFORE INSERT ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION guard_pruned()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger pruned_is_not_truncated', 'CREATE TRIGGER pruned_is_not_truncated BEFORE TRUNCATE ON older_schema.pruned FOR EACH STATEMENT EXECUTE FUNCTION refuse(''pruned is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_executions', 'CREATE OR REPLACE FUNCTION older_schema.guard_executions()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF TG_OP = ''INSERT'' THEN
        IF NEW.status <> ''leased''
            OR NEW.attempt <> 1 + (SELECT j.attempt FROM jobs AS j WHERE j.job_id = NEW.job_id)
            OR EXISTS (
                SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN (''committed'', ''done'')
            ) THEN
            RAISE EXCEPTION ''holdfast: an execution starts as leased, as the next attempt of an uncommitted job''
                USING ERRCODE = ''HF001'';
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = ''DELETE'' THEN
        IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
            RAISE EXCEPTION ''holdfast: executions are removed by retention only'' USING ERRCODE = ''HF001'';
        END IF;
        RETURN OLD;
    END IF;
    IF (NEW.status <> OLD.status AND (OLD.status || ''>'' || NEW.status) NOT IN (
            ''leased>in_progress'', ''leased>aborted'',
            ''in_progress>committed'', ''in_progress>aborted'',
            ''committed>done''
        ))
        OR (NEW.status = OLD.status AND NEW.disposition IS DISTINCT FROM OLD.disposition
            AND (OLD.disposition || ''>'' || NEW.disposition) NOT IN (
                ''failed>retry'', ''failed>quarantined'', ''quarantined>retry''
            )) THEN
        RAISE EXCEPTION ''holdfast: illegal execution transition'' USING ERRCODE = ''HF001'';
    END IF;
    IF NEW.exec_id <> OLD.exec_id OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt
        OR NEW.queue <> OLD.queue OR NEW.lease_owner <> OLD.lease_owner OR NEW.started_at <> OLD.started_at
        OR NEW.interrupted <> OLD.interrupted THEN
        RAISE EXCEPTION ''holdfast: what identifies an execution does not change'' USING ERRCODE = ''HF001'';
    END IF;
    IF OLD.status IN (''done'', ''aborted'') AND (
        NEW.status <> OLD.status OR NEW.finished_at IS DISTINCT FROM OLD.finished_at
        OR NEW.code IS DISTINCT FROM OLD.code OR NEW.error IS DISTINCT FROM OLD.error
        OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position OR NEW.tries <> OLD.tries
        OR NEW.retry_at IS DISTINCT FROM OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
        OR NEW.progress IS DISTINCT FROM OLD.progress
    ) THEN
        RAISE EXCEPTION ''holdfast: an ended execution does not change'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NEW;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_jobs', 'CREATE OR REPLACE FUNCTION older_schema.guard_jobs()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF TG_OP = ''INSERT'' THEN
        IF NEW.state <> ''pending'' OR NEW.attempt <> 0 THEN
            RAISE EXCEPTION ''holdfast: a job starts as pending, with no attempts'' USING ERRCODE = ''HF001'';
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = ''DELETE'' THEN
        IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
            RAISE EXCEPTION ''holdfast: jobs are removed by retention only'' USING ERRCODE = ''HF001'';
        END IF;
        RETURN OLD;
    END IF;
    IF OLD.state = ''succeeded'' THEN
        RAISE EXCEPTION ''holdfast: a succeeded job does not change'' USING ERRCODE = ''HF001'';
    END IF;
    IF NEW.state <> OLD.state THEN
        IF (OLD.state || ''>'' || NEW.state) NOT IN (
            ''pending>running'',
            ''running>succeeded'', ''running>failed'', ''running>pending'',
            ''failed>pending'', ''failed>quarantined'',
            ''quarantined>pending''
        ) THEN
            RAISE EXCEPTION ''holdfast: illegal job transition'' USING ERRCODE = ''HF001'';
        END IF;
        IF NEW.state <> projected_state(NEW.job_id) THEN
            RAISE EXCEPTION ''holdfast: job state must equal the projection of its executions'' USING ERRCODE = ''HF001'';
        END IF;
    END IF;
    IF NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes THEN
        RAISE EXCEPTION ''holdfast: attempts only grow'' USING ERRCODE = ''HF001'';
    END IF;
    IF NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS DISTINCT FROM OLD.key
        OR NEW.parent IS DISTINCT FROM OLD.parent OR NEW.run_after IS DISTINCT FROM OLD.run_after
        OR NEW.created_at <> OLD.created_at THEN
        RAISE EXCEPTION ''holdfast: what identifies a job does not change'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NEW;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_version_not_null of holdfast_migrations', 'NOT NULL version');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_name_not_null of holdfast_migrations', 'NOT NULL name');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_started_at_not_null of steps', 'NOT NULL started_at');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_journal', 'CREATE OR REPLACE FUNCTION older_schema.guard_journal()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF TG_OP = ''DELETE'' THEN
        IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
            RAISE EXCEPTION ''holdfast: the journal is append-only'' USING ERRCODE = ''HF001'';
        END IF;
        RETURN OLD;
    END IF;
    IF NEW.prev_hash IS DISTINCT FROM (CASE NEW.seq WHEN 1 THEN '''' ELSE (
        SELECT j.hash FROM journal AS j WHERE j.job_id = NEW.job_id AND j.seq = NEW.seq - 1
    ) END) THEN
        RAISE EXCEPTION ''holdfast: a journal entry must follow the one before it'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NEW;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_pruned', 'CREATE OR REPLACE FUNCTION older_schema.guard_pruned()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM jobs AS j JOIN journal AS l ON l.job_id = j.job_id
        WHERE j.job_id = NEW.job_id AND j.state IN (''succeeded'', ''failed'', ''quarantined'') AND j.state = NEW.state
            AND l.seq = NEW.entries AND l.hash = NEW.head
            AND NOT EXISTS (SELECT 1 FROM journal AS later WHERE later.job_id = l.job_id AND later.seq > l.seq)
    ) THEN
        RAISE EXCEPTION ''holdfast: only an ended job is pruned, under the true head of its journal'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NEW;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_requests', 'CREATE OR REPLACE FUNCTION older_schema.guard_requests()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION ''holdfast: requests are removed by retention only'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN OLD;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_steps', 'CREATE OR REPLACE FUNCTION older_schema.guard_steps()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF TG_OP = ''INSERT'' THEN
        IF EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN (''committed'', ''done'')) THEN
            RAISE EXCEPTION ''holdfast: a finished step does not change'' USING ERRCODE = ''HF001'';
        END IF;
        RETURN NEW;
    END IF;
    IF EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN (''committed'', ''done''))
        AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION ''holdfast: the steps of a committed job are removed by retention only'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN OLD;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function move_job', 'CREATE OR REPLACE FUNCTION older_schema.move_job()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
DECLARE
    projected TEXT := projected_state(NEW.job_id);
BEGIN
    IF TG_OP = ''INSERT'' THEN
        UPDATE jobs SET attempt = NEW.attempt, updated_at = NEW.started_at, hold = ''none'', waits_for = NULL,
            state = projected
        WHERE job_id = NEW.job_id;
    ELSE
        UPDATE jobs SET updated_at = greatest(updated_at, coalesce(NEW.finished_at, NEW.progressed_at)), state = projected
        WHERE job_id = NEW.job_id AND state <> projected;
    END IF;
    RETURN NULL;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function projected_state', 'CREATE OR REPLACE FUNCTION older_schema.projected_state(job text)
 RETURNS text
 LANGUAGE sql
 STABLE
 SET search_path TO ''older_schema''
AS $function$
    SELECT coalesce((
        SELECT CASE
            WHEN e.status = ''done'' THEN ''succeeded''
            WHEN e.status = ''aborted'' THEN CASE e.disposition WHEN ''retry'' THEN ''pending'' ELSE e.disposition END
            ELSE ''running''
        END
        FROM executions AS e
        WHERE e.job_id = job
        ORDER BY CASE e.status WHEN ''done'' THEN 2 WHEN ''committed'' THEN 1 ELSE 0 END DESC, e.attempt DESC
        LIMIT 1
    ), ''pending'')
$function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function refuse', 'CREATE OR REPLACE FUNCTION older_schema.refuse()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    RAISE EXCEPTION ''holdfast: %'', TG_ARGV[0] USING ERRCODE = ''HF001'';
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('index holdfast_migrations_pkey', 'CREATE UNIQUE INDEX holdfast_migrations_pkey ON older_schema.holdfast_migrations USING btree (version)');
INSERT INTO older_schema.holdfast_rules VALUES ('index definitions_pkey', 'CREATE UNIQUE INDEX definitions_pkey ON older_schema.definitions USING btree (fingerprint)');
INSERT INTO older_schema.holdfast_rules VALUES ('index queues_pkey', 'CREATE UNIQUE INDEX queues_pkey ON older_schema.queues USING btree (name)');
INSERT INTO older_schema.holdfast_rules VALUES ('index jobs_pkey', 'CREATE UNIQUE INDEX jobs_pkey ON older_schema.jobs USING btree (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index jobs_ready', 'CREATE INDEX jobs_ready ON older_schema.jobs USING btree (queue, priority DESC, job_id, flow) WHERE ((state = ''pending''::text) AND (hold = ''none''::text))');
INSERT INTO older_schema.holdfast_rules VALUES ('index jobs_due', 'CREATE INDEX jobs_due ON older_schema.jobs USING btree (not_before) WHERE ((state = ''pending''::text) AND (hold = ''until''::text))');
INSERT INTO older_schema.holdfast_rules VALUES ('index jobs_waiting', 'CREATE INDEX jobs_waiting ON older_schema.jobs USING btree (waits_for) WHERE (waits_for IS NOT NULL)');
INSERT INTO older_schema.holdfast_rules VALUES ('index jobs_unsettled', 'CREATE INDEX jobs_unsettled ON older_schema.jobs USING btree (state, flow) WHERE (state <> ''succeeded''::text)');
INSERT INTO older_schema.holdfast_rules VALUES ('index jobs_dependents', 'CREATE INDEX jobs_dependents ON older_schema.jobs USING btree (run_after) WHERE (run_after IS NOT NULL)');
INSERT INTO older_schema.holdfast_rules VALUES ('index jobs_key', 'CREATE UNIQUE INDEX jobs_key ON older_schema.jobs USING btree (flow, key) WHERE ((key IS NOT NULL) AND (state = ANY (ARRAY[''pending''::text, ''running''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('index requests_pkey', 'CREATE UNIQUE INDEX requests_pkey ON older_schema.requests USING btree (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index executions_pkey', 'CREATE UNIQUE INDEX executions_pkey ON older_schema.executions USING btree (job_id, attempt)');
INSERT INTO older_schema.holdfast_rules VALUES ('index executions_exec_id_key', 'CREATE UNIQUE INDEX executions_exec_id_key ON older_schema.executions USING btree (exec_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index executions_one_commit', 'CREATE UNIQUE INDEX executions_one_commit ON older_schema.executions USING btree (job_id) WHERE (status = ANY (ARRAY[''committed''::text, ''done''::text]))');
INSERT INTO older_schema.holdfast_rules VALUES ('index executions_one_live', 'CREATE UNIQUE INDEX executions_one_live ON older_schema.executions USING btree (job_id) WHERE (status = ANY (ARRAY[''leased''::text, ''in_progress''::text]))');
INSERT INTO older_schema.holdfast_rules VALUES ('index executions_under_way', 'CREATE INDEX executions_under_way ON older_schema.executions USING btree (queue, lease_owner, lease_expires_at) WHERE (status = ANY (ARRAY[''leased''::text, ''in_progress''::text, ''committed''::text]))');
INSERT INTO older_schema.holdfast_rules VALUES ('index steps_pkey', 'CREATE UNIQUE INDEX steps_pkey ON older_schema.steps USING btree (job_id, "position")');
INSERT INTO older_schema.holdfast_rules VALUES ('index children_pkey', 'CREATE UNIQUE INDEX children_pkey ON older_schema.children USING btree (parent, name, round)');
INSERT INTO older_schema.holdfast_rules VALUES ('index children_job', 'CREATE INDEX children_job ON older_schema.children USING btree (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index journal_pkey', 'CREATE UNIQUE INDEX journal_pkey ON older_schema.journal USING btree (job_id, seq)');
INSERT INTO older_schema.holdfast_rules VALUES ('index workers_pkey', 'CREATE UNIQUE INDEX workers_pkey ON older_schema.workers USING btree (worker_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index pruned_pkey', 'CREATE UNIQUE INDEX pruned_pkey ON older_schema.pruned USING btree (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_applied_at_not_null of holdfast_migrations', 'NOT NULL applied_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_pkey of holdfast_migrations', 'PRIMARY KEY (version)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_fingerprint_not_null of definitions', 'NOT NULL fingerprint');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_flow_not_null of definitions', 'NOT NULL flow');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_definition_not_null of definitions', 'NOT NULL definition');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_first_seen_at_not_null of definitions', 'NOT NULL first_seen_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_pkey of definitions', 'PRIMARY KEY (fingerprint)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_max_running_check of queues', 'CHECK (((max_running IS NULL) OR (max_running >= 0)))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_check of queues', 'CHECK ((((paused_at IS NULL) = (paused_by IS NULL)) AND ((paused_at IS NULL) = (paused_reason IS NULL))))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_name_not_null of queues', 'NOT NULL name');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_pkey of queues', 'PRIMARY KEY (name)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_state_check of jobs', 'CHECK ((state = ANY (ARRAY[''pending''::text, ''running''::text, ''succeeded''::text, ''failed''::text, ''quarantined''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crashes_not_null of jobs', 'NOT NULL crashes');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_hold_check of jobs', 'CHECK ((hold = ANY (ARRAY[''none''::text, ''until''::text, ''after''::text, ''child''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_check of jobs', 'CHECK (((waits_for IS NOT NULL) = (hold = ANY (ARRAY[''after''::text, ''child''::text]))))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_attempt_check of jobs', 'CHECK ((attempt >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_failures_check of jobs', 'CHECK ((failures >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_failure_limit_check of jobs', 'CHECK ((failure_limit >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crashes_check of jobs', 'CHECK ((crashes >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crash_limit_check of jobs', 'CHECK ((crash_limit >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_stall_ms_check of jobs', 'CHECK ((stall_ms > 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_job_id_not_null of jobs', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_flow_not_null of jobs', 'NOT NULL flow');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_fingerprint_not_null of jobs', 'NOT NULL fingerprint');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_state_not_null of jobs', 'NOT NULL state');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_queue_not_null of jobs', 'NOT NULL queue');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_priority_not_null of jobs', 'NOT NULL priority');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_hold_not_null of jobs', 'NOT NULL hold');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_not_before_not_null of jobs', 'NOT NULL not_before');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_attempt_not_null of jobs', 'NOT NULL attempt');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_failures_not_null of jobs', 'NOT NULL failures');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_failures_forgiven_not_null of jobs', 'NOT NULL failures_forgiven');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_failure_limit_not_null of jobs', 'NOT NULL failure_limit');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crashes_forgiven_not_null of jobs', 'NOT NULL crashes_forgiven');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crash_limit_not_null of jobs', 'NOT NULL crash_limit');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_stall_ms_not_null of jobs', 'NOT NULL stall_ms');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_created_at_not_null of jobs', 'NOT NULL created_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_updated_at_not_null of jobs', 'NOT NULL updated_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_pkey of jobs', 'PRIMARY KEY (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_fingerprint_fkey of jobs', 'FOREIGN KEY (fingerprint) REFERENCES definitions(fingerprint)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_queue_fkey of jobs', 'FOREIGN KEY (queue) REFERENCES queues(name)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_job_id_not_null of requests', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_request_not_null of requests', 'NOT NULL request');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_pkey of requests', 'PRIMARY KEY (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_job_id_fkey of requests', 'FOREIGN KEY (job_id) REFERENCES jobs(job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_attempt_check of executions', 'CHECK ((attempt >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_status_check of executions', 'CHECK ((status = ANY (ARRAY[''leased''::text, ''in_progress''::text, ''committed''::text, ''done''::text, ''aborted''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_disposition_check of executions', 'CHECK ((disposition = ANY (ARRAY[''retry''::text, ''failed''::text, ''quarantined''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_tries_check of executions', 'CHECK ((tries >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_check of executions', 'CHECK (((status = ''aborted''::text) = (disposition IS NOT NULL)))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_parent_fkey of children', 'FOREIGN KEY (parent) REFERENCES jobs(job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_seq_check of journal', 'CHECK ((seq >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_job_id_not_null of journal', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_check1 of executions', 'CHECK (((status = ANY (ARRAY[''aborted''::text, ''done''::text])) = (finished_at IS NOT NULL)))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_exec_id_not_null of executions', 'NOT NULL exec_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_job_id_not_null of executions', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_attempt_not_null of executions', 'NOT NULL attempt');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_queue_not_null of executions', 'NOT NULL queue');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_status_not_null of executions', 'NOT NULL status');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_lease_owner_not_null of executions', 'NOT NULL lease_owner');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_lease_expires_at_not_null of executions', 'NOT NULL lease_expires_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_position_not_null of executions', 'NOT NULL "position"');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_tries_not_null of executions', 'NOT NULL tries');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_interrupted_not_null of executions', 'NOT NULL interrupted');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_progressed_at_not_null of executions', 'NOT NULL progressed_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_started_at_not_null of executions', 'NOT NULL started_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_pkey of executions', 'PRIMARY KEY (job_id, attempt)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_exec_id_key of executions', 'UNIQUE (exec_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_job_id_fkey of executions', 'FOREIGN KEY (job_id) REFERENCES jobs(job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_position_check of steps', 'CHECK (("position" >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_tries_check of steps', 'CHECK ((tries >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_job_id_not_null of steps', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_position_not_null of steps', 'NOT NULL "position"');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_step_not_null of steps', 'NOT NULL step');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_exec_id_not_null of steps', 'NOT NULL exec_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_tries_not_null of steps', 'NOT NULL tries');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_finished_at_not_null of steps', 'NOT NULL finished_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_response_not_null of steps', 'NOT NULL response');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_pkey of steps', 'PRIMARY KEY (job_id, "position")');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_job_id_fkey of steps', 'FOREIGN KEY (job_id) REFERENCES jobs(job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_parent_not_null of children', 'NOT NULL parent');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_name_not_null of children', 'NOT NULL name');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_round_not_null of children', 'NOT NULL round');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_job_id_not_null of children', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_ordinal_not_null of children', 'NOT NULL ordinal');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_pkey of children', 'PRIMARY KEY (parent, name, round)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_seq_not_null of journal', 'NOT NULL seq');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_at_not_null of journal', 'NOT NULL at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_actor_not_null of journal', 'NOT NULL actor');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_job_to_not_null of journal', 'NOT NULL job_to');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_reason_not_null of journal', 'NOT NULL reason');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_metadata_not_null of journal', 'NOT NULL metadata');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_prev_hash_not_null of journal', 'NOT NULL prev_hash');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_hash_not_null of journal', 'NOT NULL hash');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_pkey of journal', 'PRIMARY KEY (job_id, seq)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint workers_worker_id_not_null of workers', 'NOT NULL worker_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint workers_flows_not_null of workers', 'NOT NULL flows');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint workers_started_at_not_null of workers', 'NOT NULL started_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint workers_seen_at_not_null of workers', 'NOT NULL seen_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint workers_pkey of workers', 'PRIMARY KEY (worker_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_job_id_not_null of pruned', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_flow_not_null of pruned', 'NOT NULL flow');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_state_not_null of pruned', 'NOT NULL state');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_finished_at_not_null of pruned', 'NOT NULL finished_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_entries_not_null of pruned', 'NOT NULL entries');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_head_not_null of pruned', 'NOT NULL head');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_pruned_at_not_null of pruned', 'NOT NULL pruned_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_pruned_by_not_null of pruned', 'NOT NULL pruned_by');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_pkey of pruned', 'PRIMARY KEY (job_id)');
INSERT INTO older_schema.jobs VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', 'demo', 'da4fbd80c76eae7e', 'succeeded', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.jobs VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6W', 'demo', 'da4fbd80c76eae7e', 'failed', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 1, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.jobs VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Y', 'demo', 'da4fbd80c76eae7e', 'quarantined', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 1, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.jobs VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', 'demo', 'da4fbd80c76eae7e', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 2, 0, 0, 1, 1, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8RARPC7DRVQ995YP3X', 'demo', '5e374847e0eb0716', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8RARPC7DRVQ995YP3Z', 'demo', 'da4fbd80c76eae7e', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8RARPC7DRVQ995YP41', 'demo', 'da4fbd80c76eae7e', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8RARPC7DRVQ995YP43', 'demo', 'da4fbd80c76eae7e', 'pending', 'k', '', 0, 'none', 0, NULL, NULL, NULL, 0, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8RARPC7DRVQ995YP44', 'demo', 'da4fbd80c76eae7e', 'pending', NULL, '', 0, 'after', 0, '01JXT22N8RARPC7DRVQ995YP3Z', '01JXT22N8RARPC7DRVQ995YP3Z', NULL, 0, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', 'bf2929ec5a6988c0793bed7b33274d98dbd96322bf525c916718ec6b44b242c6');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6V', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', 'bf2929ec5a6988c0793bed7b33274d98dbd96322bf525c916718ec6b44b242c6', 'c86ba8a8ea04607d62d62a910dc41bcfc4077e04597137d339dd3dff7182137d');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6V', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', 'c86ba8a8ea04607d62d62a910dc41bcfc4077e04597137d339dd3dff7182137d', '7f9000262ef78f2e688ed8f270c2166dab9bfa055484f8d37716ab79aaba90f0');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', 4, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6V', 'running', 'running', 'in_progress', 'committed', 'one', 'completed', '{}', '7f9000262ef78f2e688ed8f270c2166dab9bfa055484f8d37716ab79aaba90f0', '36938cb8caab337ea7cd971145f567b395c48be20a5dbaf680e436d8b29fca13');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', 5, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6V', 'running', 'succeeded', 'committed', 'done', NULL, 'finished', '{}', '36938cb8caab337ea7cd971145f567b395c48be20a5dbaf680e436d8b29fca13', '7d8a1d6ce521e82fe30343f83c6c4d5e16b3996e4b56719e343696948877bdec');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6W', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '2298902cbb8eafd74a71f633329c04bb1d62cc50d195b48553ec4c314e281b1d');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6W', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6X', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '2298902cbb8eafd74a71f633329c04bb1d62cc50d195b48553ec4c314e281b1d', '5a5be45008307d0505c105f507d389b0fb1c53588ad6dfad5fa9aba768d61cc6');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6W', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6X', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '5a5be45008307d0505c105f507d389b0fb1c53588ad6dfad5fa9aba768d61cc6', '19dc77bfabef323984c0ebfbd90b72cede4108ccf03a2e098ce10c1663d6397a');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6W', 4, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6X', 'running', 'failed', 'in_progress', 'aborted', NULL, 'error', '{"code":"error"}', '19dc77bfabef323984c0ebfbd90b72cede4108ccf03a2e098ce10c1663d6397a', 'ed8841039a739d7471785339205cbb642e06a0f8c8d39d6198a13386b765096d');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Y', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '89b12b92c2e964a0ba689a2cd2ad5d4e7df64fcaf806ad639e85eb68f640b1e0');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Y', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6Z', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '89b12b92c2e964a0ba689a2cd2ad5d4e7df64fcaf806ad639e85eb68f640b1e0', '9c5fe67e51dc586f911c3a963ba6380e39ddcae539e92ae630f059d34ff637f4');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Y', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6Z', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '9c5fe67e51dc586f911c3a963ba6380e39ddcae539e92ae630f059d34ff637f4', 'cdbee443621a732f32e2c48891e8cd38535f998413457396340bf9a0d518b67f');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Y', 4, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6Z', 'running', 'failed', 'in_progress', 'aborted', NULL, 'error', '{"code":"error"}', 'cdbee443621a732f32e2c48891e8cd38535f998413457396340bf9a0d518b67f', 'ecfc8c2994dcdbc77d099147c0df39f366a74112eb20e3a5910c394df33c24f6');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Y', 5, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S6Z', 'failed', 'quarantined', 'aborted', 'aborted', NULL, 'error', '{}', 'ecfc8c2994dcdbc77d099147c0df39f366a74112eb20e3a5910c394df33c24f6', '6e46aa9d3b94f5b984b24ce969987669634c5471c11b3689d93a76b5fdf51951');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', 'd44f7222f309e1767d7f00094a3ed6ddd13c234ab5546f9cd874fbde272fc49a');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S71', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', 'd44f7222f309e1767d7f00094a3ed6ddd13c234ab5546f9cd874fbde272fc49a', '125bdbb4cef4ffb7b11a0f989231a2f5f15f9302e019ba8b7ac807e5cab230f8');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q006Z2PAT9ZV9Y27S71', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '125bdbb4cef4ffb7b11a0f989231a2f5f15f9302e019ba8b7ac807e5cab230f8', '622e198c4f414beb2c86f3ba20b0dc8e7008fe41a281fff5db52cd1d14d5f247');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', 4, 1750000031000, 'host-a:12:1:boot:1:two', '01JXT21Q006Z2PAT9ZV9Y27S71', 'running', 'pending', 'in_progress', 'aborted', NULL, 'pid 11 on host-a did not finish: its lease ran out (crash 1)', '{"code":"crashed"}', '622e198c4f414beb2c86f3ba20b0dc8e7008fe41a281fff5db52cd1d14d5f247', '67d7284c45bf953ab641ff3ccf1b3345fc627d32c7b16c5fe0f661db6c99e564');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', 5, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP3W', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '67d7284c45bf953ab641ff3ccf1b3345fc627d32c7b16c5fe0f661db6c99e564', 'e614d811839ef3a1a122481961cf35b3277c1602239d3a6e4bd197b622d3ef3b');
INSERT INTO older_schema.journal VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', 6, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP3W', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', 'e614d811839ef3a1a122481961cf35b3277c1602239d3a6e4bd197b622d3ef3b', '1d012ac9f8ddf7fc0857c8fa3cf40ad23f3c6d6c89d734967f21d970ac39784a');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP3X', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '7afdba9b8ad909a52eb8c617ab61fdb722101dbfdfc58d98a2eae6071013b5a4');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP3X', 2, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP3Y', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '7afdba9b8ad909a52eb8c617ab61fdb722101dbfdfc58d98a2eae6071013b5a4', '31c79126c765ac8bd35752f81fa30e5e423c6bf830640dbb0fd64745d2f80858');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP3Z', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '81755289f042d044bd4df2c3b7d0f43a990763aa37e674af93b1161af1db8dad');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP3Z', 2, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP40', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '81755289f042d044bd4df2c3b7d0f43a990763aa37e674af93b1161af1db8dad', '74875d0752ce2d649bc9f594164e4e9bcc032337c30101b90a5a7d7f4400f1cf');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP3Z', 3, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP40', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '74875d0752ce2d649bc9f594164e4e9bcc032337c30101b90a5a7d7f4400f1cf', '2b4474ef2107c514ff6b055cf1362b2a10fe319f81b79cd8c0d47e73d276cb16');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP41', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '261b214f4c26d43c3c8385a751d14c8753355c6ec83ac459fa4a85673b7b8a57');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP41', 2, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP42', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '261b214f4c26d43c3c8385a751d14c8753355c6ec83ac459fa4a85673b7b8a57', '55dbc85a6644ec9852d4f11472b32e2566a94f7f580ba1215aa30dbbbefe2248');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP41', 3, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP42', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '55dbc85a6644ec9852d4f11472b32e2566a94f7f580ba1215aa30dbbbefe2248', '078b8cf9fd6c41e48441525361c191869ef244f4cf62d8c35afa96959bbbeba2');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP41', 4, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8RARPC7DRVQ995YP42', 'running', 'running', 'in_progress', 'committed', 'one', 'completed', '{}', '078b8cf9fd6c41e48441525361c191869ef244f4cf62d8c35afa96959bbbeba2', '785969cb67868851f5b35d4bb14dccb95c1d4cc817a4190329218645b6bb3141');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP43', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '6ee033b681b4132642bf8e3d23dcae73e6abe9e044236f9590ca40555b93d285');
INSERT INTO older_schema.journal VALUES ('01JXT22N8RARPC7DRVQ995YP44', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', 'edcc762b6118d67ac0c2c27c69c19160181bea19eff3f82c0a4887e8b811c7e0');
INSERT INTO older_schema.queues VALUES ('', NULL, NULL, NULL, NULL, NULL);
INSERT INTO older_schema.requests VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6W', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6Y', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT21Q006Z2PAT9ZV9Y27S70', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8RARPC7DRVQ995YP3X', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8RARPC7DRVQ995YP3Z', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8RARPC7DRVQ995YP41', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8RARPC7DRVQ995YP43', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8RARPC7DRVQ995YP44', '{"n":1}');
INSERT INTO older_schema.steps VALUES ('01JXT21Q006Z2PAT9ZV9Y27S6T', 0, 'one', '01JXT21Q006Z2PAT9ZV9Y27S6V', 1, 0, 1750000000000, '{"ok":true}');
INSERT INTO older_schema.steps VALUES ('01JXT22N8RARPC7DRVQ995YP3Z', 0, 'one', '01JXT22N8RARPC7DRVQ995YP40', 1, 0, 1750000031000, '{}');
INSERT INTO older_schema.steps VALUES ('01JXT22N8RARPC7DRVQ995YP41', 0, 'one', '01JXT22N8RARPC7DRVQ995YP42', 1, 0, 1750000031000, '{"ok":true}');
ALTER TABLE ONLY older_schema.children
    ADD CONSTRAINT children_pkey PRIMARY KEY (parent, name, round);
ALTER TABLE ONLY older_schema.definitions
    ADD CONSTRAINT definitions_pkey PRIMARY KEY (fingerprint);
ALTER TABLE ONLY older_schema.executions
    ADD CONSTRAINT executions_exec_id_key UNIQUE (exec_id);
ALTER TABLE ONLY older_schema.executions
    ADD CONSTRAINT executions_pkey PRIMARY KEY (job_id, attempt);
ALTER TABLE ONLY older_schema.holdfast_migrations
    ADD CONSTRAINT holdfast_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY older_schema.holdfast_rules
    ADD CONSTRAINT holdfast_rules_pkey PRIMARY KEY (name);
ALTER TABLE ONLY older_schema.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY older_schema.journal
    ADD CONSTRAINT journal_pkey PRIMARY KEY (job_id, seq);
ALTER TABLE ONLY older_schema.pruned
    ADD CONSTRAINT pruned_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY older_schema.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (name);
ALTER TABLE ONLY older_schema.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (job_id);
ALTER TABLE ONLY older_schema.steps
    ADD CONSTRAINT steps_pkey PRIMARY KEY (job_id, "position");
ALTER TABLE ONLY older_schema.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (worker_id);
CREATE INDEX children_job ON older_schema.children USING btree (job_id);
CREATE UNIQUE INDEX executions_one_commit ON older_schema.executions USING btree (job_id) WHERE (status = ANY (ARRAY['committed'::text, 'done'::text]));
CREATE UNIQUE INDEX executions_one_live ON older_schema.executions USING btree (job_id) WHERE (status = ANY (ARRAY['leased'::text, 'in_progress'::text]));
CREATE INDEX executions_under_way ON older_schema.executions USING btree (queue, lease_owner, lease_expires_at) WHERE (status = ANY (ARRAY['leased'::text, 'in_progress'::text, 'committed'::text]));
CREATE INDEX jobs_dependents ON older_schema.jobs USING btree (run_after) WHERE (run_after IS NOT NULL);
CREATE INDEX jobs_due ON older_schema.jobs USING btree (not_before) WHERE ((state = 'pending'::text) AND (hold = 'until'::text));
CREATE UNIQUE INDEX jobs_key ON older_schema.jobs USING btree (flow, key) WHERE ((key IS NOT NULL) AND (state = ANY (ARRAY['pending'::text, 'running'::text])));
CREATE INDEX jobs_ready ON older_schema.jobs USING btree (queue, priority DESC, job_id, flow) WHERE ((state = 'pending'::text) AND (hold = 'none'::text));
CREATE INDEX jobs_unsettled ON older_schema.jobs USING btree (state, flow) WHERE (state <> 'succeeded'::text);
CREATE INDEX jobs_waiting ON older_schema.jobs USING btree (waits_for) WHERE (waits_for IS NOT NULL);
CREATE TRIGGER children_is_not_truncated BEFORE TRUNCATE ON older_schema.children FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('children is emptied by nobody');
CREATE TRIGGER definitions_are_final BEFORE DELETE OR UPDATE ON older_schema.definitions FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('a definition does not change');
CREATE TRIGGER definitions_is_not_truncated BEFORE TRUNCATE ON older_schema.definitions FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('definitions is emptied by nobody');
CREATE TRIGGER executions_change_job AFTER UPDATE OF status, disposition ON older_schema.executions FOR EACH ROW WHEN (((new.status <> old.status) OR (new.disposition IS DISTINCT FROM old.disposition))) EXECUTE FUNCTION older_schema.move_job();
CREATE TRIGGER executions_is_not_truncated BEFORE TRUNCATE ON older_schema.executions FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('executions is emptied by nobody');
CREATE TRIGGER executions_keep_the_rules BEFORE INSERT OR DELETE OR UPDATE ON older_schema.executions FOR EACH ROW EXECUTE FUNCTION older_schema.guard_executions();
CREATE TRIGGER executions_move_job AFTER INSERT ON older_schema.executions FOR EACH ROW EXECUTE FUNCTION older_schema.move_job();
CREATE TRIGGER jobs_is_not_truncated BEFORE TRUNCATE ON older_schema.jobs FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('jobs is emptied by nobody');
CREATE TRIGGER jobs_keep_the_rules BEFORE INSERT OR DELETE OR UPDATE ON older_schema.jobs FOR EACH ROW EXECUTE FUNCTION older_schema.guard_jobs();
CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('the journal is append-only');
CREATE TRIGGER journal_is_not_truncated BEFORE TRUNCATE ON older_schema.journal FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('journal is emptied by nobody');
CREATE TRIGGER journal_keeps_the_rules BEFORE INSERT OR DELETE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION older_schema.guard_journal();
CREATE TRIGGER pruned_is_append_only BEFORE DELETE OR UPDATE ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('the record of pruned jobs is append-only');
CREATE TRIGGER pruned_is_not_truncated BEFORE TRUNCATE ON older_schema.pruned FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('pruned is emptied by nobody');
CREATE TRIGGER pruned_is_true BEFORE INSERT ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION older_schema.guard_pruned();
CREATE TRIGGER requests_are_final BEFORE UPDATE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('a request does not change');
CREATE TRIGGER requests_are_kept BEFORE DELETE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION older_schema.guard_requests();
CREATE TRIGGER requests_is_not_truncated BEFORE TRUNCATE ON older_schema.requests FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('requests is emptied by nobody');
CREATE TRIGGER steps_are_final BEFORE UPDATE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('a finished step does not change');
CREATE TRIGGER steps_is_not_truncated BEFORE TRUNCATE ON older_schema.steps FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('steps is emptied by nobody');
CREATE TRIGGER steps_keep_the_rules BEFORE INSERT OR DELETE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION older_schema.guard_steps();
ALTER TABLE ONLY older_schema.children
    ADD CONSTRAINT children_parent_fkey FOREIGN KEY (parent) REFERENCES older_schema.jobs(job_id);
ALTER TABLE ONLY older_schema.executions
    ADD CONSTRAINT executions_job_id_fkey FOREIGN KEY (job_id) REFERENCES older_schema.jobs(job_id);
ALTER TABLE ONLY older_schema.jobs
    ADD CONSTRAINT jobs_fingerprint_fkey FOREIGN KEY (fingerprint) REFERENCES older_schema.definitions(fingerprint);
ALTER TABLE ONLY older_schema.jobs
    ADD CONSTRAINT jobs_queue_fkey FOREIGN KEY (queue) REFERENCES older_schema.queues(name);
ALTER TABLE ONLY older_schema.requests
    ADD CONSTRAINT requests_job_id_fkey FOREIGN KEY (job_id) REFERENCES older_schema.jobs(job_id);
ALTER TABLE ONLY older_schema.steps
    ADD CONSTRAINT steps_job_id_fkey FOREIGN KEY (job_id) REFERENCES older_schema.jobs(job_id);
