-- What lists are read from: jobs whose keys begin with something, whatever their flow; the newest of a flow, and that succeeded.
DROP INDEX jobs_by_key;
CREATE INDEX jobs_by_key ON jobs (key, flow, job_id) WHERE key IS NOT NULL;

CREATE INDEX jobs_flow ON jobs (flow, job_id);
CREATE INDEX jobs_succeeded ON jobs (job_id) WHERE state = 'succeeded';
