-- {"succeeded": "01JXT21Q000C24803GBZ39VWH3", "failed": "01JXT21Q000C24803GBZ39VWH5", "quarantined": "01JXT21Q000C24803GBZ39VWH7", "tried_again": {"job": {"job_id": "01JXT21Q000C24803GBZ39VWH9", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 2, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 1, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000000000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5CHD41526FC16HMB", "attempt": 2, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": true}, "leased": {"job": {"job_id": "01JXT22N8R5CHD41526FC16HMC", "flow": "demo", "fingerprint": "5e374847e0eb0716", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5CHD41526FC16HMD", "attempt": 1, "status": "leased", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "running": {"job": {"job_id": "01JXT22N8R5CHD41526FC16HME", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5CHD41526FC16HMF", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "committed": {"job": {"job_id": "01JXT22N8R5CHD41526FC16HMG", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5CHD41526FC16HMH", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "pending": "01JXT22N8R5CHD41526FC16HMJ", "waiting": "01JXT22N8R5CHD41526FC16HMK", "now": 1750000031000}
CREATE SCHEMA older_schema;
CREATE FUNCTION older_schema.check_projection() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM changed AS n
        WHERE CASE
            WHEN n.state = coalesce(
                (SELECT CASE e.status WHEN 'done' THEN 'succeeded' ELSE 'running' END
                    FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL),
                (SELECT p.state FROM job_projection AS p WHERE p.job_id = n.job_id)
            ) THEN false
            ELSE n.state <> (SELECT o.state FROM before AS o WHERE o.job_id = n.job_id)
        END
    ) THEN
        RAISE EXCEPTION 'holdfast: job state must equal the projection of its executions' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION older_schema.guard_chain() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM written AS n
        WHERE n.prev_hash IS DISTINCT FROM (CASE n.seq WHEN 1 THEN '' ELSE (
            SELECT j.hash FROM journal AS j WHERE j.job_id = n.job_id AND j.seq = n.seq - 1
        ) END)
    ) THEN
        RAISE EXCEPTION 'holdfast: a journal entry must follow the one before it' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION older_schema.guard_new_steps() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM finished AS n
        WHERE (SELECT j.job_id FROM jobs AS j WHERE j.job_id = n.job_id FOR KEY SHARE) IS NULL
            OR (SELECT e.status FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL)
                IN ('committed', 'done')
    ) THEN
        RAISE EXCEPTION 'holdfast: a finished step does not change, and belongs to a job' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION older_schema.guard_old_steps() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN ('committed', 'done'))
        AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: the steps of a committed job are removed by retention only' USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
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
CREATE FUNCTION older_schema.lease_jobs() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    UPDATE jobs SET attempt = attempt + 1, updated_at = (SELECT max(n.started_at) FROM leased AS n),
        hold = 'none', waits_for = NULL, state = 'running'
    WHERE job_id = ANY (ARRAY(SELECT n.job_id FROM leased AS n));
    IF EXISTS (
        SELECT 1 FROM leased AS n
        WHERE n.attempt IS DISTINCT FROM (SELECT j.attempt FROM jobs AS j WHERE j.job_id = n.job_id)
    ) THEN
        RAISE EXCEPTION 'holdfast: an execution starts as leased, as the next attempt of an uncommitted job'
            USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION older_schema.leave_nothing_behind() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    -- A snapshot from before could hide what others have added to the job meanwhile.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'holdfast: jobs are removed under READ COMMITTED only' USING ERRCODE = 'HF001';
    END IF;
    IF EXISTS (
        SELECT 1 FROM gone AS o
        WHERE EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = o.job_id)
            OR EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = o.job_id)
    ) THEN
        RAISE EXCEPTION 'holdfast: a job is removed after its executions and steps' USING ERRCODE = 'HF001';
    END IF;
    RETURN NULL;
END $$;
CREATE FUNCTION older_schema.refuse() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
BEGIN
    RAISE EXCEPTION 'holdfast: %', TG_ARGV[0] USING ERRCODE = 'HF001';
END $$;
CREATE FUNCTION older_schema.refuse_unless_pruned() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION 'holdfast: %', TG_ARGV[0] USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
CREATE FUNCTION older_schema.settle_jobs() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'older_schema'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = 'done') THEN
        UPDATE jobs SET state = 'succeeded',
            updated_at = greatest(updated_at, (SELECT max(n.finished_at) FROM ended AS n))
        WHERE job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = 'done')) AND state <> 'succeeded';
    END IF;
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = 'aborted') THEN
        UPDATE jobs AS j SET state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id),
            updated_at = greatest(j.updated_at, (SELECT max(n.finished_at) FROM ended AS n))
        WHERE j.job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = 'aborted'))
            AND j.state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id);
    END IF;
    RETURN NULL;
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
)
WITH (fillfactor='50');
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
    COALESCE(( SELECT
                CASE
                    WHEN (e.status = 'done'::text) THEN 'succeeded'::text
                    WHEN (e.status = 'aborted'::text) THEN
                    CASE e.disposition
                        WHEN 'retry'::text THEN 'pending'::text
                        ELSE e.disposition
                    END
                    ELSE 'running'::text
                END AS "case"
           FROM older_schema.executions e
          WHERE (e.job_id = j.job_id)
          ORDER BY
                CASE e.status
                    WHEN 'done'::text THEN 2
                    WHEN 'committed'::text THEN 1
                    ELSE 0
                END DESC, e.attempt DESC
         LIMIT 1), 'pending'::text) AS state
   FROM older_schema.jobs j;
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
INSERT INTO older_schema.executions VALUES ('01JXT21Q000C24803GBZ39VWH4', '01JXT21Q000C24803GBZ39VWH3', 1, '', 'done', NULL, 'completed', NULL, 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.executions VALUES ('01JXT21Q000C24803GBZ39VWH6', '01JXT21Q000C24803GBZ39VWH5', 1, '', 'aborted', 'failed', 'error', NULL, 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.executions VALUES ('01JXT21Q000C24803GBZ39VWH8', '01JXT21Q000C24803GBZ39VWH7', 1, '', 'aborted', 'quarantined', 'error', NULL, 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.executions VALUES ('01JXT21Q000C24803GBZ39VWHA', '01JXT21Q000C24803GBZ39VWH9', 1, '', 'aborted', 'retry', 'crashed', 'pid 11 on host-a did not finish: its lease ran out (crash 1)', 'host-a:11:1:boot:1:one', 1750000030000, 0, 0, false, NULL, 1750000000000, NULL, 1750000000000, 1750000031000);
INSERT INTO older_schema.executions VALUES ('01JXT22N8R5CHD41526FC16HMB', '01JXT21Q000C24803GBZ39VWH9', 2, '', 'in_progress', NULL, NULL, NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, true, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.executions VALUES ('01JXT22N8R5CHD41526FC16HMD', '01JXT22N8R5CHD41526FC16HMC', 1, '', 'leased', NULL, NULL, NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, false, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.executions VALUES ('01JXT22N8R5CHD41526FC16HMF', '01JXT22N8R5CHD41526FC16HME', 1, '', 'in_progress', NULL, NULL, NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, false, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.executions VALUES ('01JXT22N8R5CHD41526FC16HMH', '01JXT22N8R5CHD41526FC16HMG', 1, '', 'committed', NULL, 'completed', NULL, 'host-a:11:1:boot:1:one', 1750000061000, 0, 0, false, NULL, 1750000031000, NULL, 1750000031000, NULL);
INSERT INTO older_schema.holdfast_migrations VALUES (1, 'engine', '2026-11-16 19:02:50.414859+00');
INSERT INTO older_schema.holdfast_migrations VALUES (2, 'rules_by_statement', '2026-11-16 19:02:50.414859+00');
INSERT INTO older_schema.holdfast_migrations VALUES (3, 'rules_by_set', '2026-11-16 19:02:50.414859+00');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger definitions_are_final', 'CREATE TRIGGER definitions_are_final BEFORE DELETE OR UPDATE ON older_schema.definitions FOR EACH ROW EXECUTE FUNCTION refuse(''a definition does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger definitions_is_not_truncated', 'CREATE TRIGGER definitions_is_not_truncated BEFORE TRUNCATE ON older_schema.definitions FOR EACH STATEMENT EXECUTE FUNCTION refuse(''definitions is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_are_kept', 'CREATE TRIGGER jobs_are_kept BEFORE DELETE ON older_schema.jobs FOR EACH ROW EXECUTE FUNCTION refuse_unless_pruned(''jobs are removed by retention only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_begin_as_pending', 'CREATE TRIGGER jobs_begin_as_pending BEFORE INSERT ON older_schema.jobs FOR EACH ROW WHEN (((new.state <> ''pending''::text) OR (new.attempt <> 0))) EXECUTE FUNCTION refuse(''a job starts as pending, with no attempts'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_count_upwards', 'CREATE TRIGGER jobs_count_upwards AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN (((new.attempt < old.attempt) OR (new.failures < old.failures) OR (new.crashes < old.crashes))) EXECUTE FUNCTION refuse(''attempts only grow'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_follow_their_executions', 'CREATE TRIGGER jobs_follow_their_executions AFTER UPDATE ON older_schema.jobs REFERENCING OLD TABLE AS before NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION check_projection()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_is_not_truncated', 'CREATE TRIGGER jobs_is_not_truncated BEFORE TRUNCATE ON older_schema.jobs FOR EACH STATEMENT EXECUTE FUNCTION refuse(''jobs is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_keep_their_identity', 'CREATE TRIGGER jobs_keep_their_identity AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN (((new.job_id <> old.job_id) OR (new.flow <> old.flow) OR (new.key IS DISTINCT FROM old.key) OR (new.parent IS DISTINCT FROM old.parent) OR (new.run_after IS DISTINCT FROM old.run_after) OR (new.created_at <> old.created_at))) EXECUTE FUNCTION refuse(''what identifies a job does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_leave_nothing_behind', 'CREATE TRIGGER jobs_leave_nothing_behind AFTER DELETE ON older_schema.jobs REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION leave_nothing_behind()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_move_legally', 'CREATE TRIGGER jobs_move_legally AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN (((new.state <> old.state) AND (((old.state || ''>''::text) || new.state) <> ALL (ARRAY[''pending>running''::text, ''running>succeeded''::text, ''running>failed''::text, ''running>pending''::text, ''failed>pending''::text, ''failed>quarantined''::text, ''quarantined>pending''::text])))) EXECUTE FUNCTION refuse(''illegal job transition'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger jobs_that_succeeded_are_final', 'CREATE TRIGGER jobs_that_succeeded_are_final AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN ((old.state = ''succeeded''::text)) EXECUTE FUNCTION refuse(''a succeeded job does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger requests_are_final', 'CREATE TRIGGER requests_are_final BEFORE UPDATE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION refuse(''a request does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger requests_are_kept', 'CREATE TRIGGER requests_are_kept BEFORE DELETE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION refuse_unless_pruned(''requests are removed by retention only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger requests_is_not_truncated', 'CREATE TRIGGER requests_is_not_truncated BEFORE TRUNCATE ON older_schema.requests FOR EACH STATEMENT EXECUTE FUNCTION refuse(''requests is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger steps_are_final', 'CREATE TRIGGER steps_are_final BEFORE UPDATE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION refuse(''a finished step does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger steps_are_kept', 'CREATE TRIGGER steps_are_kept BEFORE DELETE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION guard_old_steps()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger steps_end_with_the_commit', 'CREATE TRIGGER steps_end_with_the_commit AFTER INSERT ON older_schema.steps REFERENCING NEW TABLE AS finished FOR EACH STATEMENT EXECUTE FUNCTION guard_new_steps()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger steps_is_not_truncated', 'CREATE TRIGGER steps_is_not_truncated BEFORE TRUNCATE ON older_schema.steps FOR EACH STATEMENT EXECUTE FUNCTION refuse(''steps is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger children_is_not_truncated', 'CREATE TRIGGER children_is_not_truncated BEFORE TRUNCATE ON older_schema.children FOR EACH STATEMENT EXECUTE FUNCTION refuse(''children is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger journal_is_a_chain', 'CREATE TRIGGER journal_is_a_chain AFTER INSERT ON older_schema.journal REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION guard_chain()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger journal_is_append_only', 'CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION refuse(''the journal is append-only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger journal_is_kept', 'CREATE TRIGGER journal_is_kept BEFORE DELETE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION refuse_unless_pruned(''the journal is append-only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger journal_is_not_truncated', 'CREATE TRIGGER journal_is_not_truncated BEFORE TRUNCATE ON older_schema.journal FOR EACH STATEMENT EXECUTE FUNCTION refuse(''journal is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger pruned_is_append_only', 'CREATE TRIGGER pruned_is_append_only BEFORE DELETE OR UPDATE ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION refuse(''the record of pruned jobs is append-only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger pruned_is_not_truncated', 'CREATE TRIGGER pruned_is_not_truncated BEFORE TRUNCATE ON older_schema.pruned FOR EACH STATEMENT EXECUTE FUNCTION refuse(''pruned is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger pruned_is_true', 'CREATE TRIGGER pruned_is_true BEFORE INSERT ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION guard_pruned()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_are_kept', 'CREATE TRIGGER executions_are_kept BEFORE DELETE ON older_schema.executions FOR EACH ROW EXECUTE FUNCTION refuse_unless_pruned(''executions are removed by retention only'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_begin_as_leased', 'CREATE TRIGGER executions_begin_as_leased BEFORE INSERT ON older_schema.executions FOR EACH ROW WHEN ((new.status <> ''leased''::text)) EXECUTE FUNCTION refuse(''an execution starts as leased, as the next attempt of an uncommitted job'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_is_not_truncated', 'CREATE TRIGGER executions_is_not_truncated BEFORE TRUNCATE ON older_schema.executions FOR EACH STATEMENT EXECUTE FUNCTION refuse(''executions is emptied by nobody'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_keep_their_identity', 'CREATE TRIGGER executions_keep_their_identity AFTER UPDATE ON older_schema.executions FOR EACH ROW WHEN (((new.exec_id <> old.exec_id) OR (new.job_id <> old.job_id) OR (new.attempt <> old.attempt) OR (new.queue <> old.queue) OR (new.lease_owner <> old.lease_owner) OR (new.started_at <> old.started_at) OR (new.interrupted <> old.interrupted))) EXECUTE FUNCTION refuse(''what identifies an execution does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_lease_jobs', 'CREATE TRIGGER executions_lease_jobs AFTER INSERT ON older_schema.executions REFERENCING NEW TABLE AS leased FOR EACH STATEMENT EXECUTE FUNCTION lease_jobs()O');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_failure_limit_not_null of jobs', 'NOT NULL failure_limit');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crashes_not_null of jobs', 'NOT NULL crashes');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_move_legally', 'CREATE TRIGGER executions_move_legally AFTER UPDATE ON older_schema.executions FOR EACH ROW WHEN ((((new.status <> old.status) AND (((old.status || ''>''::text) || new.status) <> ALL (ARRAY[''leased>in_progress''::text, ''leased>aborted''::text, ''in_progress>committed''::text, ''in_progress>aborted''::text, ''committed>done''::text]))) OR ((new.status = old.status) AND (new.disposition IS DISTINCT FROM old.disposition) AND (((old.disposition || ''>''::text) || new.disposition) <> ALL (ARRAY[''failed>retry''::text, ''failed>quarantined''::text, ''quarantined>retry''::text]))))) EXECUTE FUNCTION refuse(''illegal execution transition'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_settle_jobs', 'CREATE TRIGGER executions_settle_jobs AFTER UPDATE ON older_schema.executions REFERENCING NEW TABLE AS ended FOR EACH STATEMENT EXECUTE FUNCTION settle_jobs()O');
INSERT INTO older_schema.holdfast_rules VALUES ('trigger executions_that_ended_are_final', 'CREATE TRIGGER executions_that_ended_are_final AFTER UPDATE ON older_schema.executions FOR EACH ROW WHEN (((old.status = ANY (ARRAY[''done''::text, ''aborted''::text])) AND ((new.status <> old.status) OR (new.finished_at IS DISTINCT FROM old.finished_at) OR (new.code IS DISTINCT FROM old.code) OR (new.error IS DISTINCT FROM old.error) OR (new.lease_expires_at <> old.lease_expires_at) OR (new."position" <> old."position") OR (new.tries <> old.tries) OR (new.retry_at IS DISTINCT FROM old.retry_at) OR (new.progressed_at <> old.progressed_at) OR (new.progress IS DISTINCT FROM old.progress)))) EXECUTE FUNCTION refuse(''an ended execution does not change'')O');
INSERT INTO older_schema.holdfast_rules VALUES ('function check_projection', 'CREATE OR REPLACE FUNCTION older_schema.check_projection()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
 SET enable_seqscan TO ''off''
 SET jit TO ''off''
AS $function$
BEGIN
    IF EXISTS (
        SELECT 1 FROM changed AS n
        WHERE CASE
            WHEN n.state = coalesce(
                (SELECT CASE e.status WHEN ''done'' THEN ''succeeded'' ELSE ''running'' END
                    FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL),
                (SELECT p.state FROM job_projection AS p WHERE p.job_id = n.job_id)
            ) THEN false
            ELSE n.state <> (SELECT o.state FROM before AS o WHERE o.job_id = n.job_id)
        END
    ) THEN
        RAISE EXCEPTION ''holdfast: job state must equal the projection of its executions'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NULL;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_chain', 'CREATE OR REPLACE FUNCTION older_schema.guard_chain()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
 SET enable_seqscan TO ''off''
 SET jit TO ''off''
AS $function$
BEGIN
    IF EXISTS (
        SELECT 1 FROM written AS n
        WHERE n.prev_hash IS DISTINCT FROM (CASE n.seq WHEN 1 THEN '''' ELSE (
            SELECT j.hash FROM journal AS j WHERE j.job_id = n.job_id AND j.seq = n.seq - 1
        ) END)
    ) THEN
        RAISE EXCEPTION ''holdfast: a journal entry must follow the one before it'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NULL;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_new_steps', 'CREATE OR REPLACE FUNCTION older_schema.guard_new_steps()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
 SET enable_seqscan TO ''off''
 SET jit TO ''off''
AS $function$
BEGIN
    IF EXISTS (
        SELECT 1 FROM finished AS n
        WHERE (SELECT j.job_id FROM jobs AS j WHERE j.job_id = n.job_id FOR KEY SHARE) IS NULL
            OR (SELECT e.status FROM executions AS e WHERE e.job_id = n.job_id AND e.disposition IS NULL)
                IN (''committed'', ''done'')
    ) THEN
        RAISE EXCEPTION ''holdfast: a finished step does not change, and belongs to a job'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NULL;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function guard_old_steps', 'CREATE OR REPLACE FUNCTION older_schema.guard_old_steps()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN (''committed'', ''done''))
        AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION ''holdfast: the steps of a committed job are removed by retention only'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN OLD;
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
INSERT INTO older_schema.holdfast_rules VALUES ('function lease_jobs', 'CREATE OR REPLACE FUNCTION older_schema.lease_jobs()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
 SET enable_seqscan TO ''off''
 SET jit TO ''off''
AS $function$
BEGIN
    UPDATE jobs SET attempt = attempt + 1, updated_at = (SELECT max(n.started_at) FROM leased AS n),
        hold = ''none'', waits_for = NULL, state = ''running''
    WHERE job_id = ANY (ARRAY(SELECT n.job_id FROM leased AS n));
    IF EXISTS (
        SELECT 1 FROM leased AS n
        WHERE n.attempt IS DISTINCT FROM (SELECT j.attempt FROM jobs AS j WHERE j.job_id = n.job_id)
    ) THEN
        RAISE EXCEPTION ''holdfast: an execution starts as leased, as the next attempt of an uncommitted job''
            USING ERRCODE = ''HF001'';
    END IF;
    RETURN NULL;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('function leave_nothing_behind', 'CREATE OR REPLACE FUNCTION older_schema.leave_nothing_behind()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
 SET enable_seqscan TO ''off''
 SET jit TO ''off''
AS $function$
BEGIN
    -- A snapshot from before could hide what others have added to the job meanwhile.
    IF current_setting(''transaction_isolation'') <> ''read committed'' THEN
        RAISE EXCEPTION ''holdfast: jobs are removed under READ COMMITTED only'' USING ERRCODE = ''HF001'';
    END IF;
    IF EXISTS (
        SELECT 1 FROM gone AS o
        WHERE EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = o.job_id)
            OR EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = o.job_id)
    ) THEN
        RAISE EXCEPTION ''holdfast: a job is removed after its executions and steps'' USING ERRCODE = ''HF001'';
    END IF;
    RETURN NULL;
END $function$
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
INSERT INTO older_schema.holdfast_rules VALUES ('function refuse_unless_pruned', 'CREATE OR REPLACE FUNCTION older_schema.refuse_unless_pruned()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
AS $function$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id) THEN
        RAISE EXCEPTION ''holdfast: %'', TG_ARGV[0] USING ERRCODE = ''HF001'';
    END IF;
    RETURN OLD;
END $function$
');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crashes_forgiven_not_null of jobs', 'NOT NULL crashes_forgiven');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_crash_limit_not_null of jobs', 'NOT NULL crash_limit');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_stall_ms_not_null of jobs', 'NOT NULL stall_ms');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_created_at_not_null of jobs', 'NOT NULL created_at');
INSERT INTO older_schema.holdfast_rules VALUES ('function settle_jobs', 'CREATE OR REPLACE FUNCTION older_schema.settle_jobs()
 RETURNS trigger
 LANGUAGE plpgsql
 SET search_path TO ''older_schema''
 SET enable_seqscan TO ''off''
 SET jit TO ''off''
AS $function$
BEGIN
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = ''done'') THEN
        UPDATE jobs SET state = ''succeeded'',
            updated_at = greatest(updated_at, (SELECT max(n.finished_at) FROM ended AS n))
        WHERE job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = ''done'')) AND state <> ''succeeded'';
    END IF;
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = ''aborted'') THEN
        UPDATE jobs AS j SET state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id),
            updated_at = greatest(j.updated_at, (SELECT max(n.finished_at) FROM ended AS n))
        WHERE j.job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = ''aborted''))
            AND j.state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id);
    END IF;
    RETURN NULL;
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
INSERT INTO older_schema.holdfast_rules VALUES ('index steps_pkey', 'CREATE UNIQUE INDEX steps_pkey ON older_schema.steps USING btree (job_id, "position")');
INSERT INTO older_schema.holdfast_rules VALUES ('index children_pkey', 'CREATE UNIQUE INDEX children_pkey ON older_schema.children USING btree (parent, name, round)');
INSERT INTO older_schema.holdfast_rules VALUES ('index children_job', 'CREATE INDEX children_job ON older_schema.children USING btree (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index journal_pkey', 'CREATE UNIQUE INDEX journal_pkey ON older_schema.journal USING btree (job_id, seq)');
INSERT INTO older_schema.holdfast_rules VALUES ('index workers_pkey', 'CREATE UNIQUE INDEX workers_pkey ON older_schema.workers USING btree (worker_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index pruned_pkey', 'CREATE UNIQUE INDEX pruned_pkey ON older_schema.pruned USING btree (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('index executions_one_commit', 'CREATE UNIQUE INDEX executions_one_commit ON older_schema.executions USING btree (job_id) WHERE (disposition IS NULL)');
INSERT INTO older_schema.holdfast_rules VALUES ('index executions_under_way', 'CREATE INDEX executions_under_way ON older_schema.executions USING btree (queue, lease_owner) WHERE (finished_at IS NULL)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_first_seen_at_not_null of definitions', 'NOT NULL first_seen_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_version_not_null of holdfast_migrations', 'NOT NULL version');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_name_not_null of holdfast_migrations', 'NOT NULL name');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_applied_at_not_null of holdfast_migrations', 'NOT NULL applied_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint holdfast_migrations_pkey of holdfast_migrations', 'PRIMARY KEY (version)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_fingerprint_not_null of definitions', 'NOT NULL fingerprint');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_flow_not_null of definitions', 'NOT NULL flow');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_definition_not_null of definitions', 'NOT NULL definition');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint definitions_pkey of definitions', 'PRIMARY KEY (fingerprint)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_max_running_check of queues', 'CHECK (((max_running IS NULL) OR (max_running >= 0)))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_check of queues', 'CHECK ((((paused_at IS NULL) = (paused_by IS NULL)) AND ((paused_at IS NULL) = (paused_reason IS NULL))))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_name_not_null of queues', 'NOT NULL name');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint queues_pkey of queues', 'PRIMARY KEY (name)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_state_check of jobs', 'CHECK ((state = ANY (ARRAY[''pending''::text, ''running''::text, ''succeeded''::text, ''failed''::text, ''quarantined''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_hold_check of jobs', 'CHECK ((hold = ANY (ARRAY[''none''::text, ''until''::text, ''after''::text, ''child''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_check of jobs', 'CHECK (((waits_for IS NOT NULL) = (hold = ANY (ARRAY[''after''::text, ''child''::text]))))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_attempt_check of jobs', 'CHECK ((attempt >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_failures_check of jobs', 'CHECK ((failures >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_finished_at_not_null of pruned', 'NOT NULL finished_at');
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
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_updated_at_not_null of jobs', 'NOT NULL updated_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_pkey of jobs', 'PRIMARY KEY (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_fingerprint_fkey of jobs', 'FOREIGN KEY (fingerprint) REFERENCES definitions(fingerprint)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint jobs_queue_fkey of jobs', 'FOREIGN KEY (queue) REFERENCES queues(name)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_job_id_not_null of requests', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_request_not_null of requests', 'NOT NULL request');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_pkey of requests', 'PRIMARY KEY (job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint requests_job_id_fkey of requests', 'FOREIGN KEY (job_id) REFERENCES jobs(job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_attempt_check of executions', 'CHECK ((attempt >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_entries_not_null of pruned', 'NOT NULL entries');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_head_not_null of pruned', 'NOT NULL head');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_pruned_at_not_null of pruned', 'NOT NULL pruned_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_status_check of executions', 'CHECK ((status = ANY (ARRAY[''leased''::text, ''in_progress''::text, ''committed''::text, ''done''::text, ''aborted''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_disposition_check of executions', 'CHECK ((disposition = ANY (ARRAY[''retry''::text, ''failed''::text, ''quarantined''::text])))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_tries_check of executions', 'CHECK ((tries >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint executions_check of executions', 'CHECK (((status = ''aborted''::text) = (disposition IS NOT NULL)))');
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
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_position_check of steps', 'CHECK (("position" >= 0))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_tries_check of steps', 'CHECK ((tries >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_job_id_not_null of steps', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_position_not_null of steps', 'NOT NULL "position"');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_step_not_null of steps', 'NOT NULL step');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_exec_id_not_null of steps', 'NOT NULL exec_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_tries_not_null of steps', 'NOT NULL tries');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_started_at_not_null of steps', 'NOT NULL started_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_finished_at_not_null of steps', 'NOT NULL finished_at');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_response_not_null of steps', 'NOT NULL response');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint steps_pkey of steps', 'PRIMARY KEY (job_id, "position")');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_parent_not_null of children', 'NOT NULL parent');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_name_not_null of children', 'NOT NULL name');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_round_not_null of children', 'NOT NULL round');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_job_id_not_null of children', 'NOT NULL job_id');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_ordinal_not_null of children', 'NOT NULL ordinal');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_pkey of children', 'PRIMARY KEY (parent, name, round)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint children_parent_fkey of children', 'FOREIGN KEY (parent) REFERENCES jobs(job_id)');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_seq_check of journal', 'CHECK ((seq >= 1))');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint journal_job_id_not_null of journal', 'NOT NULL job_id');
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
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_pruned_by_not_null of pruned', 'NOT NULL pruned_by');
INSERT INTO older_schema.holdfast_rules VALUES ('constraint pruned_pkey of pruned', 'PRIMARY KEY (job_id)');
INSERT INTO older_schema.jobs VALUES ('01JXT21Q000C24803GBZ39VWH3', 'demo', 'da4fbd80c76eae7e', 'succeeded', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.jobs VALUES ('01JXT21Q000C24803GBZ39VWH5', 'demo', 'da4fbd80c76eae7e', 'failed', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 1, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.jobs VALUES ('01JXT21Q000C24803GBZ39VWH7', 'demo', 'da4fbd80c76eae7e', 'quarantined', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 1, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000000000);
INSERT INTO older_schema.jobs VALUES ('01JXT21Q000C24803GBZ39VWH9', 'demo', 'da4fbd80c76eae7e', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 2, 0, 0, 1, 1, 0, 5, 600000, NULL, NULL, 1750000000000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8R5CHD41526FC16HMC', 'demo', '5e374847e0eb0716', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8R5CHD41526FC16HME', 'demo', 'da4fbd80c76eae7e', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8R5CHD41526FC16HMG', 'demo', 'da4fbd80c76eae7e', 'running', NULL, '', 0, 'none', 0, NULL, NULL, NULL, 1, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8R5CHD41526FC16HMJ', 'demo', 'da4fbd80c76eae7e', 'pending', 'k', '', 0, 'none', 0, NULL, NULL, NULL, 0, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.jobs VALUES ('01JXT22N8R5CHD41526FC16HMK', 'demo', 'da4fbd80c76eae7e', 'pending', NULL, '', 0, 'after', 0, '01JXT22N8R5CHD41526FC16HME', '01JXT22N8R5CHD41526FC16HME', NULL, 0, 0, 0, 1, 0, 0, 5, 600000, NULL, NULL, 1750000031000, 1750000031000);
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH3', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', 'e44390b06e53caab4f6890e359b83fe0a74395fe6c830e240ea85a683c86b3b8');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH3', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH4', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', 'e44390b06e53caab4f6890e359b83fe0a74395fe6c830e240ea85a683c86b3b8', 'bd8fd0dd0554b7d574afbeb4e5778abaf57a377c4ccabf5f98303ede4c4c3a57');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH3', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH4', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', 'bd8fd0dd0554b7d574afbeb4e5778abaf57a377c4ccabf5f98303ede4c4c3a57', '00a490550738154f490e4f03170e960979bf08c7db46f26a9084409e8e32458e');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH3', 4, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH4', 'running', 'running', 'in_progress', 'committed', 'one', 'completed', '{}', '00a490550738154f490e4f03170e960979bf08c7db46f26a9084409e8e32458e', 'c26f21467b700a18bfe3bbf6214111d282e5c71a5eef84b2ad78027eb5c58919');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH3', 5, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH4', 'running', 'succeeded', 'committed', 'done', NULL, 'finished', '{}', 'c26f21467b700a18bfe3bbf6214111d282e5c71a5eef84b2ad78027eb5c58919', 'a58b0c10644789b20f8ba95f9cd28332fb56b003f05d3220687134ee786d0a28');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH5', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '3048c41780a9563737f4fa16b3491f9dd244cdfcc1ce34aa99645a6089d8dfcc');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH5', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH6', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '3048c41780a9563737f4fa16b3491f9dd244cdfcc1ce34aa99645a6089d8dfcc', '21d87d87c08f690b6042b330c454d799698423a76c2ed39a001fa098bc969540');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH5', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH6', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '21d87d87c08f690b6042b330c454d799698423a76c2ed39a001fa098bc969540', '70cf5430764a17aa3a5cef24146373c8305b465509ea1cfd2ce1019477e7e7dd');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH5', 4, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH6', 'running', 'failed', 'in_progress', 'aborted', NULL, 'error', '{"code":"error"}', '70cf5430764a17aa3a5cef24146373c8305b465509ea1cfd2ce1019477e7e7dd', '943dcc20233a79de24ccbbb1d60ae38ab13d8c2eb22f4858f71623ba58e86554');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH7', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '5a814dc94873208c1ae2e98902e059e472ec3a990cb7ad9aece4524b67690566');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH7', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH8', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '5a814dc94873208c1ae2e98902e059e472ec3a990cb7ad9aece4524b67690566', '374a09a046dba2291948ce6096d71e0b25f8c0a73118b6fb493579a0a7c7a64d');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH7', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH8', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '374a09a046dba2291948ce6096d71e0b25f8c0a73118b6fb493579a0a7c7a64d', '252a0ce75df9aa6f6a54a7a4d5f56872f0a9c93fb7d5b5db7264ef7338c088ba');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH7', 4, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH8', 'running', 'failed', 'in_progress', 'aborted', NULL, 'error', '{"code":"error"}', '252a0ce75df9aa6f6a54a7a4d5f56872f0a9c93fb7d5b5db7264ef7338c088ba', '28f9d7ecc6a7313a5dd9e51559f70ee702da2408fad6fa5c7583c1cc8f83c082');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH7', 5, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWH8', 'failed', 'quarantined', 'aborted', 'aborted', NULL, 'error', '{}', '28f9d7ecc6a7313a5dd9e51559f70ee702da2408fad6fa5c7583c1cc8f83c082', '8898a8fc6c4b2c0d94ed4c6fc56c47a780c10fee995d31bdbfaaaef8e7e5bff8');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH9', 1, 1750000000000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '2e053d56653847e9f3ca52407c1f20719fcfb929966428d5b41a237a924b27a6');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH9', 2, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWHA', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '2e053d56653847e9f3ca52407c1f20719fcfb929966428d5b41a237a924b27a6', 'c7a1b784725baf91bd51f478aec2b2cd68773776dbf028092e47731054033e19');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH9', 3, 1750000000000, 'host-a:11:1:boot:1:one', '01JXT21Q000C24803GBZ39VWHA', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', 'c7a1b784725baf91bd51f478aec2b2cd68773776dbf028092e47731054033e19', '4e554a1b1b7fbe69d2e7e4b08e802ea2d7f86c6dde73b6a9a516ab7f3f195476');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH9', 4, 1750000031000, 'host-a:12:1:boot:1:two', '01JXT21Q000C24803GBZ39VWHA', 'running', 'pending', 'in_progress', 'aborted', NULL, 'pid 11 on host-a did not finish: its lease ran out (crash 1)', '{"code":"crashed"}', '4e554a1b1b7fbe69d2e7e4b08e802ea2d7f86c6dde73b6a9a516ab7f3f195476', 'b83d0f9aff192c5f6cb670558ae286ba830c2b6a9663e01616dcc9cbcbefe440');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH9', 5, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMB', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', 'b83d0f9aff192c5f6cb670558ae286ba830c2b6a9663e01616dcc9cbcbefe440', '3292a745d1b2b95efdc4e0213c5134de6b82e5ed78359caaf4feb99b80dd4364');
INSERT INTO older_schema.journal VALUES ('01JXT21Q000C24803GBZ39VWH9', 6, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMB', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '3292a745d1b2b95efdc4e0213c5134de6b82e5ed78359caaf4feb99b80dd4364', '4e285c207926d0ca9903dc9c0089bd4ec9d1b014015bc10742b2fbfb0eec54cd');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMC', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '03a07f4c775bcb81f4b687bdbaa4a1e1b3953704a5af3cd313742ed4f2af8164');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMC', 2, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMD', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '03a07f4c775bcb81f4b687bdbaa4a1e1b3953704a5af3cd313742ed4f2af8164', 'a2199f4916300e4a46890aa5fe8ad5e8a620aeccd25db6a152e01efb33657520');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HME', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', '18145cd3be3693fd41289e74a6af29fa2d00073e14b33237d5be7204e0a32e84');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HME', 2, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMF', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', '18145cd3be3693fd41289e74a6af29fa2d00073e14b33237d5be7204e0a32e84', 'ccf9ceb022d2f9040209fe907328c0caac0abfa22582e2622663d5c543b28500');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HME', 3, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMF', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', 'ccf9ceb022d2f9040209fe907328c0caac0abfa22582e2622663d5c543b28500', '727ea699a176ec55164859ac788c363a63f674cfe37155de355a229599cd71c8');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMG', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', 'cc2e9286d31ebb8f2f631416ae3d994e9a0146e636e44a91449c4b7795359000');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMG', 2, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMH', 'pending', 'running', NULL, 'leased', NULL, 'claimed', '{}', 'cc2e9286d31ebb8f2f631416ae3d994e9a0146e636e44a91449c4b7795359000', '6a588fe862e5b803edaee1d30fdb7329a40d8090d8d796361b94adbedeee64da');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMG', 3, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMH', 'running', 'running', 'leased', 'in_progress', NULL, 'started', '{}', '6a588fe862e5b803edaee1d30fdb7329a40d8090d8d796361b94adbedeee64da', 'af421ec7cbd1847ef1e255d2729ba220698c458105c99786a804ca838c996048');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMG', 4, 1750000031000, 'host-a:11:1:boot:1:one', '01JXT22N8R5CHD41526FC16HMH', 'running', 'running', 'in_progress', 'committed', 'one', 'completed', '{}', 'af421ec7cbd1847ef1e255d2729ba220698c458105c99786a804ca838c996048', 'f09ae476b03dad865901424656ea5b2d3892f9d06a027fc0f91cb4fe3efc0464');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMJ', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', 'a5d6e445be43b2307a49a2dabf7b28eb4402ea774f59212c0e1c29493ae9f76c');
INSERT INTO older_schema.journal VALUES ('01JXT22N8R5CHD41526FC16HMK', 1, 1750000031000, 'client', NULL, NULL, 'pending', NULL, NULL, NULL, 'submitted', '{}', '', 'b0986770b999a1150dca9dc34f31538fcdb273c47c338105493eec6e428f6313');
INSERT INTO older_schema.queues VALUES ('', NULL, NULL, NULL, NULL, NULL);
INSERT INTO older_schema.requests VALUES ('01JXT21Q000C24803GBZ39VWH3', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT21Q000C24803GBZ39VWH5', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT21Q000C24803GBZ39VWH7', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT21Q000C24803GBZ39VWH9', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8R5CHD41526FC16HMC', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8R5CHD41526FC16HME', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8R5CHD41526FC16HMG', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8R5CHD41526FC16HMJ', '{"n":1}');
INSERT INTO older_schema.requests VALUES ('01JXT22N8R5CHD41526FC16HMK', '{"n":1}');
INSERT INTO older_schema.steps VALUES ('01JXT21Q000C24803GBZ39VWH3', 0, 'one', '01JXT21Q000C24803GBZ39VWH4', 1, 0, 1750000000000, '{"ok":true}');
INSERT INTO older_schema.steps VALUES ('01JXT22N8R5CHD41526FC16HME', 0, 'one', '01JXT22N8R5CHD41526FC16HMF', 1, 0, 1750000031000, '{}');
INSERT INTO older_schema.steps VALUES ('01JXT22N8R5CHD41526FC16HMG', 0, 'one', '01JXT22N8R5CHD41526FC16HMH', 1, 0, 1750000031000, '{"ok":true}');
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
CREATE UNIQUE INDEX executions_one_commit ON older_schema.executions USING btree (job_id) WHERE (disposition IS NULL);
CREATE INDEX executions_under_way ON older_schema.executions USING btree (queue, lease_owner) WHERE (finished_at IS NULL);
CREATE INDEX jobs_dependents ON older_schema.jobs USING btree (run_after) WHERE (run_after IS NOT NULL);
CREATE INDEX jobs_due ON older_schema.jobs USING btree (not_before) WHERE ((state = 'pending'::text) AND (hold = 'until'::text));
CREATE UNIQUE INDEX jobs_key ON older_schema.jobs USING btree (flow, key) WHERE ((key IS NOT NULL) AND (state = ANY (ARRAY['pending'::text, 'running'::text])));
CREATE INDEX jobs_ready ON older_schema.jobs USING btree (queue, priority DESC, job_id, flow) WHERE ((state = 'pending'::text) AND (hold = 'none'::text));
CREATE INDEX jobs_unsettled ON older_schema.jobs USING btree (state, flow) WHERE (state <> 'succeeded'::text);
CREATE INDEX jobs_waiting ON older_schema.jobs USING btree (waits_for) WHERE (waits_for IS NOT NULL);
CREATE TRIGGER children_is_not_truncated BEFORE TRUNCATE ON older_schema.children FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('children is emptied by nobody');
CREATE TRIGGER definitions_are_final BEFORE DELETE OR UPDATE ON older_schema.definitions FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('a definition does not change');
CREATE TRIGGER definitions_is_not_truncated BEFORE TRUNCATE ON older_schema.definitions FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('definitions is emptied by nobody');
CREATE TRIGGER executions_are_kept BEFORE DELETE ON older_schema.executions FOR EACH ROW EXECUTE FUNCTION older_schema.refuse_unless_pruned('executions are removed by retention only');
CREATE TRIGGER executions_begin_as_leased BEFORE INSERT ON older_schema.executions FOR EACH ROW WHEN ((new.status <> 'leased'::text)) EXECUTE FUNCTION older_schema.refuse('an execution starts as leased, as the next attempt of an uncommitted job');
CREATE TRIGGER executions_is_not_truncated BEFORE TRUNCATE ON older_schema.executions FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('executions is emptied by nobody');
CREATE TRIGGER executions_keep_their_identity AFTER UPDATE ON older_schema.executions FOR EACH ROW WHEN (((new.exec_id <> old.exec_id) OR (new.job_id <> old.job_id) OR (new.attempt <> old.attempt) OR (new.queue <> old.queue) OR (new.lease_owner <> old.lease_owner) OR (new.started_at <> old.started_at) OR (new.interrupted <> old.interrupted))) EXECUTE FUNCTION older_schema.refuse('what identifies an execution does not change');
CREATE TRIGGER executions_lease_jobs AFTER INSERT ON older_schema.executions REFERENCING NEW TABLE AS leased FOR EACH STATEMENT EXECUTE FUNCTION older_schema.lease_jobs();
CREATE TRIGGER executions_move_legally AFTER UPDATE ON older_schema.executions FOR EACH ROW WHEN ((((new.status <> old.status) AND (((old.status || '>'::text) || new.status) <> ALL (ARRAY['leased>in_progress'::text, 'leased>aborted'::text, 'in_progress>committed'::text, 'in_progress>aborted'::text, 'committed>done'::text]))) OR ((new.status = old.status) AND (new.disposition IS DISTINCT FROM old.disposition) AND (((old.disposition || '>'::text) || new.disposition) <> ALL (ARRAY['failed>retry'::text, 'failed>quarantined'::text, 'quarantined>retry'::text]))))) EXECUTE FUNCTION older_schema.refuse('illegal execution transition');
CREATE TRIGGER executions_settle_jobs AFTER UPDATE ON older_schema.executions REFERENCING NEW TABLE AS ended FOR EACH STATEMENT EXECUTE FUNCTION older_schema.settle_jobs();
CREATE TRIGGER executions_that_ended_are_final AFTER UPDATE ON older_schema.executions FOR EACH ROW WHEN (((old.status = ANY (ARRAY['done'::text, 'aborted'::text])) AND ((new.status <> old.status) OR (new.finished_at IS DISTINCT FROM old.finished_at) OR (new.code IS DISTINCT FROM old.code) OR (new.error IS DISTINCT FROM old.error) OR (new.lease_expires_at <> old.lease_expires_at) OR (new."position" <> old."position") OR (new.tries <> old.tries) OR (new.retry_at IS DISTINCT FROM old.retry_at) OR (new.progressed_at <> old.progressed_at) OR (new.progress IS DISTINCT FROM old.progress)))) EXECUTE FUNCTION older_schema.refuse('an ended execution does not change');
CREATE TRIGGER jobs_are_kept BEFORE DELETE ON older_schema.jobs FOR EACH ROW EXECUTE FUNCTION older_schema.refuse_unless_pruned('jobs are removed by retention only');
CREATE TRIGGER jobs_begin_as_pending BEFORE INSERT ON older_schema.jobs FOR EACH ROW WHEN (((new.state <> 'pending'::text) OR (new.attempt <> 0))) EXECUTE FUNCTION older_schema.refuse('a job starts as pending, with no attempts');
CREATE TRIGGER jobs_count_upwards AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN (((new.attempt < old.attempt) OR (new.failures < old.failures) OR (new.crashes < old.crashes))) EXECUTE FUNCTION older_schema.refuse('attempts only grow');
CREATE TRIGGER jobs_follow_their_executions AFTER UPDATE ON older_schema.jobs REFERENCING OLD TABLE AS before NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION older_schema.check_projection();
CREATE TRIGGER jobs_is_not_truncated BEFORE TRUNCATE ON older_schema.jobs FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('jobs is emptied by nobody');
CREATE TRIGGER jobs_keep_their_identity AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN (((new.job_id <> old.job_id) OR (new.flow <> old.flow) OR (new.key IS DISTINCT FROM old.key) OR (new.parent IS DISTINCT FROM old.parent) OR (new.run_after IS DISTINCT FROM old.run_after) OR (new.created_at <> old.created_at))) EXECUTE FUNCTION older_schema.refuse('what identifies a job does not change');
CREATE TRIGGER jobs_leave_nothing_behind AFTER DELETE ON older_schema.jobs REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION older_schema.leave_nothing_behind();
CREATE TRIGGER jobs_move_legally AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN (((new.state <> old.state) AND (((old.state || '>'::text) || new.state) <> ALL (ARRAY['pending>running'::text, 'running>succeeded'::text, 'running>failed'::text, 'running>pending'::text, 'failed>pending'::text, 'failed>quarantined'::text, 'quarantined>pending'::text])))) EXECUTE FUNCTION older_schema.refuse('illegal job transition');
CREATE TRIGGER jobs_that_succeeded_are_final AFTER UPDATE ON older_schema.jobs FOR EACH ROW WHEN ((old.state = 'succeeded'::text)) EXECUTE FUNCTION older_schema.refuse('a succeeded job does not change');
CREATE TRIGGER journal_is_a_chain AFTER INSERT ON older_schema.journal REFERENCING NEW TABLE AS written FOR EACH STATEMENT EXECUTE FUNCTION older_schema.guard_chain();
CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('the journal is append-only');
CREATE TRIGGER journal_is_kept BEFORE DELETE ON older_schema.journal FOR EACH ROW EXECUTE FUNCTION older_schema.refuse_unless_pruned('the journal is append-only');
CREATE TRIGGER journal_is_not_truncated BEFORE TRUNCATE ON older_schema.journal FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('journal is emptied by nobody');
CREATE TRIGGER pruned_is_append_only BEFORE DELETE OR UPDATE ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('the record of pruned jobs is append-only');
CREATE TRIGGER pruned_is_not_truncated BEFORE TRUNCATE ON older_schema.pruned FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('pruned is emptied by nobody');
CREATE TRIGGER pruned_is_true BEFORE INSERT ON older_schema.pruned FOR EACH ROW EXECUTE FUNCTION older_schema.guard_pruned();
CREATE TRIGGER requests_are_final BEFORE UPDATE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('a request does not change');
CREATE TRIGGER requests_are_kept BEFORE DELETE ON older_schema.requests FOR EACH ROW EXECUTE FUNCTION older_schema.refuse_unless_pruned('requests are removed by retention only');
CREATE TRIGGER requests_is_not_truncated BEFORE TRUNCATE ON older_schema.requests FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('requests is emptied by nobody');
CREATE TRIGGER steps_are_final BEFORE UPDATE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION older_schema.refuse('a finished step does not change');
CREATE TRIGGER steps_are_kept BEFORE DELETE ON older_schema.steps FOR EACH ROW EXECUTE FUNCTION older_schema.guard_old_steps();
CREATE TRIGGER steps_end_with_the_commit AFTER INSERT ON older_schema.steps REFERENCING NEW TABLE AS finished FOR EACH STATEMENT EXECUTE FUNCTION older_schema.guard_new_steps();
CREATE TRIGGER steps_is_not_truncated BEFORE TRUNCATE ON older_schema.steps FOR EACH STATEMENT EXECUTE FUNCTION older_schema.refuse('steps is emptied by nobody');
ALTER TABLE ONLY older_schema.children
    ADD CONSTRAINT children_parent_fkey FOREIGN KEY (parent) REFERENCES older_schema.jobs(job_id);
ALTER TABLE ONLY older_schema.jobs
    ADD CONSTRAINT jobs_fingerprint_fkey FOREIGN KEY (fingerprint) REFERENCES older_schema.definitions(fingerprint);
ALTER TABLE ONLY older_schema.jobs
    ADD CONSTRAINT jobs_queue_fkey FOREIGN KEY (queue) REFERENCES older_schema.queues(name);
ALTER TABLE ONLY older_schema.requests
    ADD CONSTRAINT requests_job_id_fkey FOREIGN KEY (job_id) REFERENCES older_schema.jobs(job_id);
