-- Where the clock was set back, executions that end in one statement end at different times, because none ends before
-- its last sign of life. A job was changed when its own did: no later than the earliest says, or than it knows itself.
CREATE OR REPLACE FUNCTION settle_jobs() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = 'done') THEN
        UPDATE jobs SET state = 'succeeded',
            updated_at = greatest(updated_at, (SELECT min(n.finished_at) FROM ended AS n WHERE n.status = 'done'))
        WHERE job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = 'done')) AND state <> 'succeeded';
    END IF;
    IF EXISTS (SELECT 1 FROM ended AS n WHERE n.status = 'aborted') THEN
        UPDATE jobs AS j SET state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id),
            updated_at = greatest(j.updated_at, (SELECT min(n.finished_at) FROM ended AS n WHERE n.status = 'aborted'))
        WHERE j.job_id = ANY (ARRAY(SELECT n.job_id FROM ended AS n WHERE n.status = 'aborted'))
            AND j.state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = j.job_id);
    END IF;
    RETURN NULL;
END $$;
