-- A change is in the order as long as its entry is in the journal: who follows them misses none.
CREATE FUNCTION keep_changes() RETURNS trigger LANGUAGE plpgsql
SET search_path FROM CURRENT AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM journal AS l WHERE l.job_id = OLD.job_id AND l.seq = OLD.seq) THEN
        RAISE EXCEPTION 'holdfast: a change goes with the journal of its job' USING ERRCODE = 'HF001';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER changes_are_kept BEFORE DELETE ON changes
    FOR EACH ROW EXECUTE FUNCTION keep_changes();
