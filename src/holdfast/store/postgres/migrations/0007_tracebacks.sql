-- Where the last failed try of an execution failed: bounded text, written with the failure and never changed after it.
ALTER TABLE executions ADD COLUMN traceback TEXT;

DROP TRIGGER executions_that_ended_are_final ON executions;
CREATE TRIGGER executions_that_ended_are_final AFTER UPDATE ON executions FOR EACH ROW
    WHEN (OLD.status IN ('done', 'aborted') AND (
        NEW.status <> OLD.status OR NEW.finished_at IS DISTINCT FROM OLD.finished_at
        OR NEW.code IS DISTINCT FROM OLD.code OR NEW.error IS DISTINCT FROM OLD.error
        OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position OR NEW.tries <> OLD.tries
        OR NEW.retry_at IS DISTINCT FROM OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
        OR NEW.progress IS DISTINCT FROM OLD.progress OR NEW.traceback IS DISTINCT FROM OLD.traceback
    ))
    EXECUTE FUNCTION refuse('an ended execution does not change');
