-- Every statement of the catalog. Times are the database's. Devices, and so all rows, belong to a host: a server's tables
-- say to which, a file has only one, and no such column. `{here}`, `{host_column}` and `{host_value}` stand for that: see
-- the spellings of each dialect.

-- name: check_image_downloaded
-- Idempotency of downloads: only a completed row counts.
SELECT * FROM images WHERE {here} AND s3_key = :s3_key AND download_status = 'completed';

-- name: image_by_key
-- Whatever is known under a key, for the wording of a conflict.
SELECT * FROM images WHERE {here} AND s3_key = :s3_key;

-- name: store_image_metadata
-- No row comes back if the key belongs to another image: then nothing was changed.
INSERT INTO images ({host_column} image_id, s3_key, local_path, checksum, size_bytes, download_status, downloaded_at)
VALUES ({host_value} :image_id, :s3_key, :local_path, :checksum, :size_bytes, 'completed', CURRENT_TIMESTAMP)
ON CONFLICT({host_column} s3_key) DO UPDATE SET
    local_path = excluded.local_path,
    checksum = excluded.checksum,
    size_bytes = excluded.size_bytes,
    download_status = 'completed',
    downloaded_at = CURRENT_TIMESTAMP,
    updated_at = CURRENT_TIMESTAMP
WHERE images.image_id = excluded.image_id
RETURNING id;

-- name: mark_image_failed
-- What was refused is known as failed. An earlier download that is good stays good.
INSERT INTO images ({host_column} image_id, s3_key, local_path, size_bytes, download_status)
SELECT {host_value} :image_id, :s3_key, :local_path, CAST(:size_bytes AS BIGINT), 'failed'
WHERE NOT EXISTS (SELECT 1 FROM images AS i WHERE {here} AND i.image_id = :image_id AND i.s3_key <> :s3_key)
ON CONFLICT({host_column} s3_key) DO UPDATE SET download_status = 'failed', updated_at = CURRENT_TIMESTAMP
WHERE images.download_status <> 'completed';

-- name: image_by_id
-- One image.
SELECT * FROM images WHERE {here} AND image_id = :image_id;

-- name: update_image_activation_status
-- activated_at is when it last became active.
UPDATE images SET
    activation_status = CAST(:status AS TEXT),
    activated_at = CASE WHEN CAST(:status AS TEXT) = 'active' THEN CURRENT_TIMESTAMP ELSE activated_at END,
    updated_at = CURRENT_TIMESTAMP
WHERE {here} AND image_id = :image_id
RETURNING id;

-- name: list_images
-- An empty status stands for all.
SELECT * FROM images WHERE {here} AND (CAST(:status AS TEXT) = '' OR download_status = :status)
ORDER BY created_at, id;

-- name: delete_image
-- Its unpacked row and snapshots go with it; a snapshot keeps its origin, so these are deleted first.
DELETE FROM images WHERE {here} AND image_id = :image_id;

-- name: unpacked_image_by_id
-- One unpacked image.
SELECT * FROM unpacked_images WHERE {here} AND image_id = :image_id;

-- name: unpacked_image_by_device_id
-- What a device holds.
SELECT * FROM unpacked_images WHERE {here} AND device_id = :device_id;

-- name: store_unpacked_image
-- A device id that snapshots refer to cannot be replaced: the foreign key refuses it.
INSERT INTO unpacked_images
    ({host_column} image_id, device_id, device_name, device_path, size_bytes, file_count, layout_verified, unpacked_at)
VALUES ({host_value} :image_id, :device_id, :device_name, :device_path, :size_bytes, :file_count, true, CURRENT_TIMESTAMP)
ON CONFLICT({host_column} image_id) DO UPDATE SET
    device_id = excluded.device_id,
    device_name = excluded.device_name,
    device_path = excluded.device_path,
    size_bytes = excluded.size_bytes,
    file_count = excluded.file_count,
    layout_verified = true,
    unpacked_at = CURRENT_TIMESTAMP,
    updated_at = CURRENT_TIMESTAMP;

-- name: delete_unpacked_image
-- Refused by the foreign key while snapshots of it are known.
DELETE FROM unpacked_images WHERE {here} AND image_id = :image_id;

-- name: mark_unpacked_unverified
-- The row stays for the snapshots that refer to it.
UPDATE unpacked_images SET layout_verified = false, updated_at = CURRENT_TIMESTAMP WHERE {here} AND image_id = :image_id;

-- name: mark_unpacked_verified
-- Its device was read, and is what it should be.
UPDATE unpacked_images SET layout_verified = true, updated_at = CURRENT_TIMESTAMP WHERE {here} AND image_id = :image_id;

-- name: list_unpacked_images
-- Oldest first.
SELECT * FROM unpacked_images WHERE {here} ORDER BY unpacked_at, id;

-- name: check_snapshot_exists
-- Active or not: the caller looks.
SELECT * FROM snapshots WHERE {here} AND image_id = :image_id AND snapshot_name = :snapshot_name;

-- name: snapshot_by_name
-- Whose snapshot it is, for the wording of a conflict.
SELECT * FROM snapshots WHERE {here} AND snapshot_name = :snapshot_name;

-- name: store_snapshot
-- No row comes back if the name belongs to another image: then nothing was changed.
INSERT INTO snapshots ({host_column} image_id, snapshot_id, snapshot_name, device_path, origin_device_id, active, created_at)
VALUES ({host_value} :image_id, :snapshot_id, :snapshot_name, :device_path, :origin_device_id, true, CURRENT_TIMESTAMP)
ON CONFLICT({host_column} snapshot_name) DO UPDATE SET
    snapshot_id = excluded.snapshot_id,
    device_path = excluded.device_path,
    origin_device_id = excluded.origin_device_id,
    active = true,
    deactivated_at = NULL,
    updated_at = CURRENT_TIMESTAMP
WHERE snapshots.image_id = excluded.image_id
RETURNING id;

-- name: snapshot_by_id
-- One snapshot.
SELECT * FROM snapshots WHERE {here} AND snapshot_id = :snapshot_id;

-- name: snapshots_by_image_id
-- Oldest first.
SELECT * FROM snapshots WHERE {here} AND image_id = :image_id ORDER BY created_at, id;

-- name: deactivate_snapshot
-- Repeated, it keeps the time of the first.
UPDATE snapshots SET
    active = false,
    deactivated_at = coalesce(deactivated_at, CURRENT_TIMESTAMP),
    updated_at = CURRENT_TIMESTAMP
WHERE {here} AND snapshot_id = :snapshot_id AND active = true
RETURNING image_id;

-- name: delete_snapshot
-- The image it belonged to comes back.
DELETE FROM snapshots WHERE {here} AND snapshot_id = :snapshot_id RETURNING image_id;

-- name: settle_activation
-- An image without an active snapshot is not active.
UPDATE images SET activation_status = 'inactive', updated_at = CURRENT_TIMESTAMP
WHERE {here} AND image_id = :image_id AND activation_status = 'active'
    AND NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE {here} AND s.image_id = :image_id AND s.active = true);

-- name: list_active_snapshots
-- Oldest first.
SELECT * FROM snapshots WHERE {here} AND active = true ORDER BY created_at, id;

-- name: list_snapshots
-- Inactive ones too: for gc and `snapshots --all`.
SELECT * FROM snapshots WHERE {here} ORDER BY created_at, id;

-- name: acquire_image_lock
-- A row comes back if it was free.
INSERT INTO image_locks ({host_column} image_id, locked_at, locked_by)
VALUES ({host_value} :image_id, {now}, :locked_by)
ON CONFLICT({host_column} image_id) DO NOTHING
RETURNING image_id;

-- name: image_lock
-- Who holds it, and for how many seconds.
SELECT image_id, locked_at, locked_by, {now} - locked_at AS age
FROM image_locks WHERE {here} AND image_id = :image_id;

-- name: take_over_image_lock
-- Only from the holder that the caller has seen to be dead.
UPDATE image_locks SET locked_by = :to_owner, locked_at = {now}
WHERE {here} AND image_id = :image_id AND locked_by = :from_owner
RETURNING image_id;

-- name: release_image_lock
-- By its owner; without an owner, by force.
DELETE FROM image_locks
WHERE {here} AND image_id = :image_id AND (CAST(:locked_by AS TEXT) IS NULL OR locked_by = :locked_by)
RETURNING image_id;

-- name: list_image_locks
-- Newest first.
SELECT image_id, locked_at, locked_by, {now} - locked_at AS age
FROM image_locks WHERE {here} ORDER BY locked_at DESC, image_id;

-- name: stale_image_locks
-- Older than so many seconds.
SELECT image_id, locked_at, locked_by, {now} - locked_at AS age
FROM image_locks WHERE {here} AND locked_at < {now} - :seconds ORDER BY locked_at, image_id;

-- name: remove_stale_image_locks
-- Manual maintenance: the caller vouches for their owners being gone.
DELETE FROM image_locks WHERE {here} AND locked_at < {now} - :seconds
RETURNING image_id, locked_at, locked_by, {now} - locked_at AS age;

-- name: unpacked_by_key
-- Idempotency of unpacking, asked by key.
SELECT u.* FROM unpacked_images AS u
INNER JOIN images AS i USING ({host_column} image_id)
WHERE {here} AND i.s3_key = :s3_key AND u.layout_verified = true;

-- name: active_snapshots_by_key
-- Idempotency of activation, asked by key.
SELECT s.* FROM snapshots AS s
INNER JOIN images AS i USING ({host_column} image_id)
WHERE {here} AND i.s3_key = :s3_key AND s.active = true
ORDER BY s.created_at, s.id;

-- name: image_status
-- One row per snapshot, one with empty columns if there is none.
SELECT i.image_id, i.s3_key, i.download_status, i.activation_status, u.device_name, s.snapshot_name,
    s.active AS snapshot_active
FROM images AS i
LEFT JOIN unpacked_images AS u USING ({host_column} image_id)
LEFT JOIN snapshots AS s USING ({host_column} image_id)
WHERE {here} AND i.s3_key = :s3_key
ORDER BY s.created_at, s.id;

-- name: unpacked_without_image
-- Rule 1: an image exists before it is unpacked.
SELECT u.image_id, u.device_name FROM unpacked_images AS u
WHERE {here}
    AND NOT EXISTS (SELECT 1 FROM images AS i WHERE {here} AND i.image_id = u.image_id)
ORDER BY u.image_id;

-- name: unpacked_without_download
-- Rule 2: what is unpacked has been downloaded.
SELECT u.image_id, u.device_name, i.download_status FROM unpacked_images AS u
INNER JOIN images AS i USING ({host_column} image_id)
WHERE {here} AND i.download_status <> 'completed' ORDER BY u.image_id;

-- name: snapshots_without_unpacked
-- Rule 3: what has a snapshot is unpacked and verified, and the snapshot comes from that very device.
SELECT s.image_id, s.snapshot_name, s.origin_device_id FROM snapshots AS s
WHERE {here} AND NOT EXISTS (
    SELECT 1 FROM unpacked_images AS u
    WHERE {here} AND u.image_id = s.image_id AND u.device_id = s.origin_device_id AND u.layout_verified = true
) ORDER BY s.image_id, s.snapshot_name;

-- name: activation_out_of_step
-- Rule 4: an image is active if, and only if, it has an active snapshot.
SELECT i.image_id, i.activation_status, count(s.id) FROM images AS i
LEFT JOIN (SELECT * FROM snapshots WHERE {here} AND active = true) AS s USING ({host_column} image_id)
WHERE {here}
GROUP BY i.image_id, i.activation_status
HAVING (coalesce(i.activation_status, '') = 'active') <> (count(s.id) > 0) ORDER BY i.image_id;

-- name: store_verification
-- What was verified, and how to recognise the file.
INSERT INTO image_verifications
    ({host_column} image_id, checksum, size_bytes, inode, mtime_ns, ctime_ns, policy, warnings, origin, etag, asked_at)
VALUES ({host_value} :image_id, :checksum, :size_bytes, :inode, :mtime_ns, :ctime_ns, :policy, :warnings, :origin, :etag,
    CURRENT_TIMESTAMP)
ON CONFLICT({host_column} image_id) DO UPDATE SET
    checksum = excluded.checksum,
    size_bytes = excluded.size_bytes,
    inode = excluded.inode,
    mtime_ns = excluded.mtime_ns,
    ctime_ns = excluded.ctime_ns,
    policy = excluded.policy,
    warnings = excluded.warnings,
    origin = excluded.origin,
    etag = excluded.etag,
    asked_at = excluded.asked_at,
    verified_at = CURRENT_TIMESTAMP;

-- name: note_warnings
-- Unpacking the content has told more of it.
UPDATE image_verifications SET warnings = :warnings
WHERE {here} AND image_id = :image_id AND checksum = :checksum;

-- name: note_fingerprint
-- The same content was read again.
UPDATE image_verifications SET
    size_bytes = :size_bytes,
    inode = :inode,
    mtime_ns = :mtime_ns,
    ctime_ns = :ctime_ns,
    verified_at = CURRENT_TIMESTAMP
WHERE {here} AND image_id = :image_id;

-- name: verification
-- Only for the content that the image has now.
SELECT v.* FROM image_verifications AS v
INNER JOIN images AS i USING ({host_column} image_id, checksum)
WHERE {here} AND v.image_id = :image_id;

-- name: store_refusal
-- The last verdict on a key under a policy.
INSERT INTO image_refusals ({host_column} s3_key, policy, etag, checksum, code, detail, entry, byte_offset, hint)
VALUES ({host_value} :s3_key, :policy, :etag, :checksum, :code, :detail, :entry, :byte_offset, :hint)
ON CONFLICT({host_column} s3_key, policy) DO UPDATE SET
    etag = excluded.etag,
    checksum = excluded.checksum,
    code = excluded.code,
    detail = excluded.detail,
    entry = excluded.entry,
    byte_offset = excluded.byte_offset,
    hint = excluded.hint,
    refused_at = CURRENT_TIMESTAMP;

-- name: refusal
-- Of the same content only: by ETag, or by checksum.
SELECT * FROM image_refusals
WHERE {here} AND s3_key = :s3_key AND policy = :policy AND (etag = :etag OR checksum = :checksum);

-- name: delete_refusals
-- Accepted, removed or to be judged afresh.
DELETE FROM image_refusals WHERE {here} AND s3_key = :s3_key;

-- name: forget_refusal
-- What was refused has been taken after all.
DELETE FROM image_refusals
WHERE {here} AND s3_key = (SELECT i.s3_key FROM images AS i WHERE {here} AND i.image_id = :image_id)
    AND policy = :policy AND checksum = :checksum;

-- name: list_refusals
-- Newest first.
SELECT * FROM image_refusals WHERE {here} ORDER BY refused_at DESC, s3_key, policy;

-- name: reserved_id
-- What this image or snapshot has reserved; without a name it is the image's device.
SELECT device_id FROM device_reservations WHERE {here} AND image_id = :image_id AND snapshot_name = :snapshot_name;

-- name: is_device_id_taken
-- By a reservation, a device or a snapshot.
SELECT 1 FROM device_reservations WHERE {here} AND device_id = :device_id
UNION ALL SELECT 1 FROM unpacked_images WHERE {here} AND device_id = CAST(:device_id AS TEXT)
UNION ALL SELECT 1 FROM snapshots WHERE {here} AND snapshot_id = CAST(:device_id AS TEXT)
LIMIT 1;

-- name: reserve_id
-- The primary key keeps two from having the same.
INSERT INTO device_reservations ({host_column} device_id, image_id, snapshot_name)
VALUES ({host_value} :device_id, :image_id, :snapshot_name);

-- name: release_reservation
-- The device is gone.
DELETE FROM device_reservations WHERE {here} AND device_id = :device_id AND image_id = :image_id RETURNING device_id;

-- name: release_reservations
-- The image and all its snapshots are gone.
DELETE FROM device_reservations WHERE {here} AND image_id = :image_id;

-- name: list_reservations
-- For gc: what is reserved, recorded nowhere and worked on by nobody is a leftover.
SELECT * FROM device_reservations WHERE {here} ORDER BY device_id;

-- name: unfinished_job
-- In the engine's own table, which others may read by name: who would answer for a job must know whether it still runs.
SELECT job_id FROM jobs WHERE flow = :flow AND key = :key AND state IN ('pending', 'running');

-- name: store_id
-- Which catalog this is.
SELECT store_id FROM catalog_identity;

-- name: get_host
-- Which machine has this name.
SELECT host, machine, data_id, directory FROM catalog_hosts WHERE host = :host;

-- name: claim_host
-- The first to use a name has it.
INSERT INTO catalog_hosts (host, machine, data_id, directory)
VALUES (:host, :machine, :data_id, :directory)
ON CONFLICT (host) DO NOTHING;

-- name: adopt_host
-- An operator says that this machine has it now.
INSERT INTO catalog_hosts (host, machine, data_id, directory)
VALUES (:host, :machine, :data_id, :directory)
ON CONFLICT (host) DO UPDATE
SET machine = excluded.machine, data_id = excluded.data_id, directory = excluded.directory,
    claimed_at = CURRENT_TIMESTAMP;

-- name: note_source
-- The source was asked, and has what it had.
UPDATE image_verifications SET origin = :origin, etag = :etag, asked_at = CURRENT_TIMESTAMP
WHERE {here} AND image_id = :image_id;

-- name: store_update
-- New content, verified and not in use yet; an earlier one that never came into use is forgotten.
INSERT INTO image_updates
    ({host_column} image_id, checksum, size_bytes, inode, mtime_ns, ctime_ns, policy, warnings, origin, etag)
VALUES ({host_value} :image_id, :checksum, :size_bytes, :inode, :mtime_ns, :ctime_ns, :policy, :warnings, :origin, :etag)
ON CONFLICT({host_column} image_id) DO UPDATE SET
    checksum = excluded.checksum,
    size_bytes = excluded.size_bytes,
    inode = excluded.inode,
    mtime_ns = excluded.mtime_ns,
    ctime_ns = excluded.ctime_ns,
    policy = excluded.policy,
    warnings = excluded.warnings,
    origin = excluded.origin,
    etag = excluded.etag,
    verified_at = CURRENT_TIMESTAMP;

-- name: image_update
-- The new content of an image, if there is any.
SELECT * FROM image_updates WHERE {here} AND image_id = :image_id;

-- name: list_updates
-- Oldest first.
SELECT * FROM image_updates WHERE {here} ORDER BY verified_at, image_id;

-- name: delete_update
-- It has come into use, or never will.
DELETE FROM image_updates
WHERE {here} AND image_id = :image_id AND (CAST(:checksum AS TEXT) = '' OR checksum = :checksum);

-- name: set_content
-- The image is the new content from now on.
UPDATE images SET
    local_path = :local_path,
    checksum = :checksum,
    size_bytes = :size_bytes,
    download_status = 'completed',
    downloaded_at = CURRENT_TIMESTAMP,
    updated_at = CURRENT_TIMESTAMP
WHERE {here} AND image_id = :image_id;

-- name: forget_failed_image
-- A refused object leaves a row without content: another object may have its image id.
DELETE FROM images
WHERE {here} AND image_id = :image_id AND s3_key <> :s3_key AND download_status <> 'completed'
    AND NOT EXISTS (SELECT 1 FROM unpacked_images AS u WHERE {here} AND u.image_id = :image_id);

-- name: set_local_path
-- The state was moved.
UPDATE images SET local_path = :path, updated_at = CURRENT_TIMESTAMP WHERE {here} AND image_id = :image_id;

-- name: set_device_path
-- As above.
UPDATE unpacked_images SET device_path = :path, updated_at = CURRENT_TIMESTAMP WHERE {here} AND image_id = :image_id;

-- name: set_snapshot_path
-- As above.
UPDATE snapshots SET device_path = :path, updated_at = CURRENT_TIMESTAMP WHERE {here} AND snapshot_name = :snapshot_name;

-- name: rename_reservation
-- The id stays; what it is for has changed.
UPDATE device_reservations SET snapshot_name = :new_name
WHERE {here} AND image_id = :image_id AND snapshot_name = :old_name AND device_id <> :except_id;

-- name: settle_all_activations
-- Rule 4 for every image at once; those that were changed come back.
UPDATE images SET
    activation_status = CASE WHEN activation_status = 'active' THEN 'inactive' ELSE 'active' END,
    updated_at = CURRENT_TIMESTAMP
WHERE {here} AND (coalesce(activation_status, '') = 'active') <> EXISTS (
    SELECT 1 FROM snapshots AS s WHERE {here} AND s.image_id = images.image_id AND s.active
)
RETURNING image_id;

-- name: list_all_images
-- Whatever their status.
SELECT * FROM images WHERE {here} ORDER BY image_id;

-- name: list_verifications
-- Of content that images do not have any more, too.
SELECT * FROM image_verifications WHERE {here} ORDER BY image_id;

-- name: mark_completed
-- Its file was read, and is what the row says.
UPDATE images SET download_status = 'completed', updated_at = CURRENT_TIMESTAMP
WHERE {here} AND image_id = :image_id AND checksum IS NOT NULL;

-- name: page_of_images
-- Of every host, newest first: a page goes on behind the last id of the one before.
SELECT {host_shown} i.id, i.image_id, i.s3_key, i.checksum, i.size_bytes, i.download_status, i.activation_status,
    i.created_at, i.updated_at, u.device_name,
    (SELECT count(*) FROM snapshots AS s WHERE {same_host} AND s.image_id = i.image_id) AS snapshots,
    (SELECT count(*) FROM snapshots AS s WHERE {same_host} AND s.image_id = i.image_id AND s.active = true) AS in_use
FROM images AS i
LEFT JOIN unpacked_images AS u USING ({host_column} image_id)
WHERE i.id < :before AND {of_host}
    AND (CAST(:status AS TEXT) = '' OR i.download_status = :status)
    AND (
        CAST(:pattern AS TEXT) = ''
        OR lower(i.image_id) LIKE lower(CAST(:pattern AS TEXT)) ESCAPE '!'
        OR lower(i.s3_key) LIKE lower(CAST(:pattern AS TEXT)) ESCAPE '!'
    )
ORDER BY i.id DESC LIMIT :most;

-- name: copies_of_image
-- Which hosts have it, and how far each is.
SELECT {host_shown} i.id, i.image_id, i.s3_key, i.checksum, i.size_bytes, i.download_status, i.activation_status,
    i.created_at, i.updated_at, u.device_name,
    (SELECT count(*) FROM snapshots AS s WHERE {same_host} AND s.image_id = i.image_id) AS snapshots,
    (SELECT count(*) FROM snapshots AS s WHERE {same_host} AND s.image_id = i.image_id AND s.active = true) AS in_use
FROM images AS i
LEFT JOIN unpacked_images AS u USING ({host_column} image_id)
WHERE i.image_id = :image_id ORDER BY i.id LIMIT :most;

-- name: page_of_snapshots
-- Of every host, newest first.
SELECT {host_shown} i.id, i.image_id, i.snapshot_id, i.snapshot_name, i.active, i.created_at, i.deactivated_at
FROM snapshots AS i
WHERE i.id < :before AND {of_host} AND (i.active = true OR CAST(:active AS INTEGER) = 0)
    AND (CAST(:image_id AS TEXT) = '' OR i.image_id = :image_id)
ORDER BY i.id DESC LIMIT :most;

-- name: hosts_of_snapshot
-- Which hosts have one of this name.
SELECT {host_shown} i.image_id FROM snapshots AS i WHERE i.snapshot_name = :snapshot_name ORDER BY i.id LIMIT :most;

-- name: locks_of_all
-- Of every host, oldest first.
SELECT {host_shown} i.image_id, i.locked_at, i.locked_by, {now} - i.locked_at AS age
FROM image_locks AS i ORDER BY i.locked_at, i.image_id LIMIT :most;

-- name: counts_here
-- What a host has, for its gauges.
SELECT 'image', download_status, count(*) FROM images WHERE {here} GROUP BY download_status
UNION ALL
SELECT 'device', CASE WHEN layout_verified = true THEN 'verified' ELSE 'unverified' END, count(*)
FROM unpacked_images WHERE {here} GROUP BY 2
UNION ALL
SELECT 'snapshot', CASE WHEN active = true THEN 'active' ELSE 'inactive' END, count(*)
FROM snapshots WHERE {here} GROUP BY 2;

-- name: counts_of_all
-- Counted no further than `most`.
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM images LIMIT :most) AS counted),
    (SELECT count(*) FROM (SELECT 1 FROM unpacked_images LIMIT :most) AS counted),
    (SELECT count(*) FROM (SELECT 1 FROM snapshots WHERE active = true LIMIT :most) AS counted),
    (SELECT count(*) FROM (SELECT 1 FROM image_refusals LIMIT :most) AS counted);

-- name: list_hosts
-- Every host that has used this store.
SELECT host, machine, data_id, directory FROM catalog_hosts ORDER BY host LIMIT :most;
