-- What only SQLite says in this way.

-- spelling: here
-- All rows of a file are this host's.
true

-- spelling: host_column
-- There is none.


-- spelling: host_value
-- As above.


-- spelling: host_shown
-- Of a row that is shown among those of all hosts.
'' AS host,

-- spelling: same_host
-- Does a snapshot belong to the host of the image?
true

-- spelling: of_host
-- There is only one, whichever was chosen.
CAST(:only AS TEXT) IS NOT NULL

-- spelling: now
-- Seconds since 1970.
CAST(strftime('%s', 'now') AS INTEGER)

-- name: lock_reservations
-- One at a time chooses an id. Here the transaction is alone already.
SELECT 1;

-- name: recorded_device_id
-- An id recorded by a version that knew no reservations; other spellings of an id are not ours to take.
SELECT r.device_id FROM (
    SELECT CAST(u.device_id AS INTEGER) AS device_id, u.device_id AS spelling FROM unpacked_images AS u
    WHERE u.image_id = :image_id AND :snapshot_name = ''
    UNION ALL
    SELECT CAST(s.snapshot_id AS INTEGER), s.snapshot_id FROM snapshots AS s
    WHERE s.image_id = :image_id AND s.snapshot_name = :snapshot_name
) AS r
WHERE CAST(r.device_id AS TEXT) = r.spelling AND r.device_id BETWEEN 0 AND 16777215;
