-- What only PostgreSQL says in this way.

-- spelling: here
-- The rows of this host.
host = :host

-- spelling: host_column
-- Of a new row, or of a key.
host,

-- spelling: host_value
-- Of a new row.
:host,

-- spelling: host_shown
-- Of a row that is shown among those of all hosts.
i.host,

-- spelling: same_host
-- Does a snapshot belong to the host of the image?
s.host = i.host

-- spelling: of_host
-- Of the host that was chosen, if one was.
(CAST(:only AS TEXT) = '' OR i.host = :only)

-- spelling: now
-- Seconds since 1970.
CAST(extract(epoch FROM now()) AS BIGINT)

-- name: lock_reservations
-- One at a time chooses an id, until the end of its transaction.
SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || '.device_reservations', 0));

-- name: recorded_device_id
-- An id recorded by a version that knew no reservations; other spellings of an id are not ours to take.
SELECT r.device_id FROM (
    SELECT CASE WHEN u.device_id ~ '^[0-9]{1,8}$' THEN u.device_id::integer END AS device_id, u.device_id AS spelling
    FROM unpacked_images AS u
    WHERE u.host = :host AND u.image_id = :image_id AND CAST(:snapshot_name AS TEXT) = ''
    UNION ALL
    SELECT CASE WHEN s.snapshot_id ~ '^[0-9]{1,8}$' THEN s.snapshot_id::integer END, s.snapshot_id
    FROM snapshots AS s
    WHERE s.host = :host AND s.image_id = :image_id AND s.snapshot_name = :snapshot_name
) AS r
WHERE CAST(r.device_id AS TEXT) = r.spelling AND r.device_id BETWEEN 0 AND 16777215;
