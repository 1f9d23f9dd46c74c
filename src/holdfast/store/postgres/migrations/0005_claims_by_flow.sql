-- What a claim reads: ready jobs of a flow that the worker knows, queue by queue, best first. Jobs of other flows are
-- not looked at, and of a queue without ready jobs nothing is.
DROP INDEX jobs_ready;
CREATE INDEX jobs_ready ON jobs (flow, queue, priority DESC, job_id) WHERE state = 'pending' AND hold = 'none';

-- What a list of jobs in one state reads: the newest first, without sorting all of them.
DROP INDEX jobs_unsettled;
CREATE INDEX jobs_unsettled ON jobs (state, job_id, queue, flow) WHERE state <> 'succeeded';

-- Whether any job is left in a queue, asked when a queue is forgotten.
CREATE INDEX jobs_queue ON jobs (queue);

-- Ended jobs for which others still wait: those are ended or released some hundred in a transaction, by anybody.
CREATE TABLE pending_releases (
    job_id TEXT COLLATE "C" PRIMARY KEY
);
