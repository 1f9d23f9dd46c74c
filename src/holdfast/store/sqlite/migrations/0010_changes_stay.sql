-- A change is in the order as long as its entry is in the journal: who follows them misses none.
CREATE TRIGGER changes_are_kept BEFORE DELETE ON changes
WHEN EXISTS (SELECT 1 FROM journal AS l WHERE l.job_id = OLD.job_id AND l.seq = OLD.seq)
BEGIN
    SELECT raise(ABORT, 'holdfast: a change goes with the journal of its job');
END;
