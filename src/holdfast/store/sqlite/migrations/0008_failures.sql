-- The error of the last failed try as data: JSON of its class, message, hint and facts, never changed after the end.
ALTER TABLE executions ADD COLUMN failure TEXT;

DROP TRIGGER executions_ended_are_final;

CREATE TRIGGER executions_ended_are_final BEFORE UPDATE ON executions
WHEN OLD.status IN ('done', 'aborted') AND (
    NEW.status <> OLD.status OR NEW.finished_at IS NOT OLD.finished_at OR NEW.code IS NOT OLD.code
    OR NEW.error IS NOT OLD.error OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position
    OR NEW.tries <> OLD.tries OR NEW.retry_at IS NOT OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
    OR NEW.progress IS NOT OLD.progress OR NEW.traceback IS NOT OLD.traceback
    OR NEW.failure IS NOT OLD.failure
)
BEGIN
    SELECT raise(ABORT, 'holdfast: an ended execution does not change');
END;
