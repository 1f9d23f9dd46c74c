-- The order of changes over all jobs, for who follows them: one row for each entry of the journal from here on. There is one
-- writer at a time, so the order of these numbers is the order of commits.
CREATE TABLE changes (
    number INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL,
    seq INTEGER NOT NULL
) STRICT;

CREATE TRIGGER journal_is_numbered AFTER INSERT ON journal
BEGIN
    INSERT INTO changes (job_id, seq) VALUES (NEW.job_id, NEW.seq);
END;

CREATE TRIGGER changes_are_final BEFORE UPDATE ON changes
BEGIN
    SELECT raise(ABORT, 'holdfast: the order of changes does not change');
END;

-- Or its number would be given again.
CREATE TRIGGER changes_keep_the_last BEFORE DELETE ON changes
WHEN OLD.number = (SELECT max(c.number) FROM changes AS c)
BEGIN
    SELECT raise(ABORT, 'holdfast: the last change is kept');
END;
