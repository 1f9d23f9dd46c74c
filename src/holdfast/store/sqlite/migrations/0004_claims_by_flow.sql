-- A number is a number: SQLite takes any text, float or blob for an integer, unless the table is STRICT. One opcode checks
-- the whole row, in the place of the one that converted it. Rows that are there stay as they are; PRAGMA quick_check
-- lists those that are not what their columns say.
PRAGMA writable_schema = ON;

UPDATE sqlite_schema SET sql = replace(sql, ') WITHOUT ROWID', ') STRICT, WITHOUT ROWID')
WHERE type = 'table' AND name IN (
    'definitions', 'queues', 'jobs', 'requests', 'executions', 'steps', 'children', 'journal', 'workers', 'pruned',
    'keys'
);

PRAGMA writable_schema = RESET;

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
    job_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
