-- Where the last failed try of an execution failed: bounded text, written with the failure and never changed after it.
ALTER TABLE executions ADD COLUMN traceback TEXT;

DROP TRIGGER executions_ended_are_final;

CREATE TRIGGER executions_ended_are_final BEFORE UPDATE ON executions
WHEN OLD.status IN ('done', 'aborted') AND (
    NEW.status <> OLD.status OR NEW.finished_at IS NOT OLD.finished_at OR NEW.code IS NOT OLD.code
    OR NEW.error IS NOT OLD.error OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position
    OR NEW.tries <> OLD.tries OR NEW.retry_at IS NOT OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
    OR NEW.progress IS NOT OLD.progress OR NEW.traceback IS NOT OLD.traceback
)
BEGIN
    SELECT raise(ABORT, 'holdfast: an ended execution does not change');
END;
