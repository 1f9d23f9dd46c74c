-- The order of changes over all jobs, for who follows them: one row for each entry of the journal from here on.
-- Transactions commit in another order than they begin in. A reader gives only what is below the oldest transaction that is
-- still open (pg_snapshot_xmin), and goes on from there: nothing can commit below what it has seen.

CREATE TABLE changes (
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
    job_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (transaction, job_id, seq)
);
CREATE TRIGGER changes_are_final BEFORE UPDATE ON changes
    FOR EACH ROW EXECUTE FUNCTION refuse('the order of changes does not change');
CREATE TRIGGER changes_is_not_truncated BEFORE TRUNCATE ON changes
    FOR EACH STATEMENT EXECUTE FUNCTION refuse('the order of changes does not change');

-- Whoever may write, read or prune the journal may do the same here.
DO $$
DECLARE
    held RECORD;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role,
            a.privilege_type AS privilege
        FROM pg_class AS c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'journal'::regclass AND a.privilege_type IN ('SELECT', 'INSERT', 'DELETE')
    LOOP
        EXECUTE format('GRANT %s ON changes TO %s', held.privilege, held.role);
    END LOOP;
END $$;

-- As before, and the order is noted with the entries.
CREATE OR REPLACE FUNCTION guard_chain() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (
        SELECT 1 FROM written AS n
        WHERE n.prev_hash IS DISTINCT FROM (CASE n.seq WHEN 1 THEN '' ELSE (
            SELECT j.hash FROM journal AS j WHERE j.job_id = n.job_id AND j.seq = n.seq - 1
        ) END)
    ) THEN
        RAISE EXCEPTION 'holdfast: a journal entry must follow the one before it' USING ERRCODE = 'HF001';
    END IF;
    INSERT INTO changes (job_id, seq) SELECT n.job_id, n.seq FROM written AS n;
    RETURN NULL;
END $$;
