-- What lists are read from: jobs whose keys begin with something, whatever their flow and the language of the database;
-- the newest of a queue, of a flow, and that succeeded.
DROP INDEX jobs_by_key;
CREATE INDEX jobs_by_key ON jobs (key text_pattern_ops, flow, job_id) WHERE key IS NOT NULL;

DROP INDEX jobs_queue;
CREATE INDEX jobs_queue ON jobs (queue, job_id);

CREATE INDEX jobs_flow ON jobs (flow, job_id);
CREATE INDEX jobs_succeeded ON jobs (job_id) WHERE state = 'succeeded';
