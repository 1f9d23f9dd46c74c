-- Every statement of the catalog on PostgreSQL. Times are the database's; devices, and so all rows, belong to a host.
-- Tables are named with their schema: a commit step's transaction has the search path of the engine's user.

-- name: check_image_downloaded
-- Idempotency of downloads: only a completed row counts.
SELECT * FROM {schema}.images WHERE host = :host AND s3_key = :s3_key AND download_status = 'completed';

-- name: image_by_key
-- Whatever is known under a key, for the wording of a conflict.
SELECT * FROM {schema}.images WHERE host = :host AND s3_key = :s3_key;

-- name: store_image_metadata
-- No row comes back if the key belongs to another image: then nothing was changed.
INSERT INTO {schema}.images (host, image_id, s3_key, local_path, checksum, size_bytes, download_status, downloaded_at)
VALUES (:host, :image_id, :s3_key, :local_path, :checksum, :size_bytes, 'completed', CURRENT_TIMESTAMP)
ON CONFLICT(host, s3_key) DO UPDATE SET
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
INSERT INTO {schema}.images (host, image_id, s3_key, local_path, size_bytes, download_status)
SELECT :host, :image_id, :s3_key, :local_path, CAST(:size_bytes AS BIGINT), 'failed'
WHERE NOT EXISTS (SELECT 1 FROM {schema}.images AS i WHERE i.host = :host AND i.image_id = :image_id AND i.s3_key <> :s3_key)
ON CONFLICT(host, s3_key) DO UPDATE SET download_status = 'failed', updated_at = CURRENT_TIMESTAMP
WHERE images.download_status <> 'completed';

-- name: image_by_id
-- One image.
SELECT * FROM {schema}.images WHERE host = :host AND image_id = :image_id;

-- name: update_image_activation_status
-- activated_at is when it last became active.
UPDATE {schema}.images SET
    activation_status = CAST(:status AS TEXT),
    activated_at = CASE WHEN CAST(:status AS TEXT) = 'active' THEN CURRENT_TIMESTAMP ELSE activated_at END,
    updated_at = CURRENT_TIMESTAMP
WHERE host = :host AND image_id = :image_id
RETURNING id;

-- name: list_images
-- An empty status stands for all.
SELECT * FROM {schema}.images WHERE host = :host AND (CAST(:status AS TEXT) = '' OR download_status = :status)
ORDER BY created_at, id;

-- name: delete_image
-- Its unpacked row and snapshots go with it; a snapshot keeps its origin, so these are deleted first.
DELETE FROM {schema}.images WHERE host = :host AND image_id = :image_id;

-- name: unpacked_image_by_id
-- One unpacked image.
SELECT * FROM {schema}.unpacked_images WHERE host = :host AND image_id = :image_id;

-- name: unpacked_image_by_device_id
-- What a device holds.
SELECT * FROM {schema}.unpacked_images WHERE host = :host AND device_id = :device_id;

-- name: store_unpacked_image
-- A device id that snapshots refer to cannot be replaced: the foreign key refuses it.
INSERT INTO {schema}.unpacked_images
    (host, image_id, device_id, device_name, device_path, size_bytes, file_count, layout_verified, unpacked_at)
VALUES (:host, :image_id, :device_id, :device_name, :device_path, :size_bytes, :file_count, true, CURRENT_TIMESTAMP)
ON CONFLICT(host, image_id) DO UPDATE SET
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
DELETE FROM {schema}.unpacked_images WHERE host = :host AND image_id = :image_id;

-- name: mark_unpacked_unverified
-- The row stays for the snapshots that refer to it.
UPDATE {schema}.unpacked_images SET layout_verified = FALSE, updated_at = CURRENT_TIMESTAMP WHERE host = :host AND image_id = :image_id;

-- name: mark_unpacked_verified
-- Its device was read, and is what it should be.
UPDATE {schema}.unpacked_images SET layout_verified = true, updated_at = CURRENT_TIMESTAMP WHERE host = :host AND image_id = :image_id;

-- name: list_unpacked_images
-- Oldest first.
SELECT * FROM {schema}.unpacked_images WHERE host = :host ORDER BY unpacked_at, id;

-- name: check_snapshot_exists
-- Active or not: the caller looks.
SELECT * FROM {schema}.snapshots WHERE host = :host AND image_id = :image_id AND snapshot_name = :snapshot_name;

-- name: snapshot_by_name
-- Whose snapshot it is, for the wording of a conflict.
SELECT * FROM {schema}.snapshots WHERE host = :host AND snapshot_name = :snapshot_name;

-- name: store_snapshot
-- No row comes back if the name belongs to another image: then nothing was changed.
INSERT INTO {schema}.snapshots (host, image_id, snapshot_id, snapshot_name, device_path, origin_device_id, active, created_at)
VALUES (:host, :image_id, :snapshot_id, :snapshot_name, :device_path, :origin_device_id, true, CURRENT_TIMESTAMP)
ON CONFLICT(host, snapshot_name) DO UPDATE SET
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
SELECT * FROM {schema}.snapshots WHERE host = :host AND snapshot_id = :snapshot_id;

-- name: snapshots_by_image_id
-- Oldest first.
SELECT * FROM {schema}.snapshots WHERE host = :host AND image_id = :image_id ORDER BY created_at, id;

-- name: deactivate_snapshot
-- Repeated, it keeps the time of the first.
UPDATE {schema}.snapshots SET
    active = false,
    deactivated_at = coalesce(deactivated_at, CURRENT_TIMESTAMP),
    updated_at = CURRENT_TIMESTAMP
WHERE host = :host AND snapshot_id = :snapshot_id AND active = true
RETURNING image_id;

-- name: delete_snapshot
-- The image it belonged to comes back.
DELETE FROM {schema}.snapshots WHERE host = :host AND snapshot_id = :snapshot_id RETURNING image_id;

-- name: settle_activation
-- An image without an active snapshot is not active.
UPDATE {schema}.images SET activation_status = 'inactive', updated_at = CURRENT_TIMESTAMP
WHERE host = :host AND image_id = :image_id AND activation_status = 'active'
    AND NOT EXISTS (SELECT 1 FROM {schema}.snapshots AS s WHERE s.host = :host AND s.image_id = :image_id AND s.active = true);

-- name: list_active_snapshots
-- Oldest first.
SELECT * FROM {schema}.snapshots WHERE host = :host AND active = true ORDER BY created_at, id;

-- name: list_snapshots
-- Inactive ones too: for gc and `snapshots --all`.
SELECT * FROM {schema}.snapshots WHERE host = :host ORDER BY created_at, id;

-- name: acquire_image_lock
-- A row comes back if it was free.
INSERT INTO {schema}.image_locks (host, image_id, locked_at, locked_by)
VALUES (:host, :image_id, extract(epoch FROM now())::bigint, :locked_by)
ON CONFLICT(host, image_id) DO NOTHING
RETURNING image_id;

-- name: image_lock
-- Who holds it, and for how many seconds.
SELECT image_id, locked_at, locked_by, extract(epoch FROM now())::bigint - locked_at AS age
FROM {schema}.image_locks WHERE host = :host AND image_id = :image_id;

-- name: take_over_image_lock
-- Only from the holder that the caller has seen to be dead.
UPDATE {schema}.image_locks SET locked_by = :to_owner, locked_at = extract(epoch FROM now())::bigint
WHERE host = :host AND image_id = :image_id AND locked_by = :from_owner
RETURNING image_id;

-- name: release_image_lock
-- By its owner; without an owner, by force.
DELETE FROM {schema}.image_locks WHERE host = :host AND image_id = :image_id AND (CAST(:locked_by AS TEXT) IS NULL OR locked_by = :locked_by)
RETURNING image_id;

-- name: list_image_locks
-- Newest first.
SELECT image_id, locked_at, locked_by, extract(epoch FROM now())::bigint - locked_at AS age
FROM {schema}.image_locks WHERE host = :host ORDER BY locked_at DESC, image_id;

-- name: stale_image_locks
-- Older than so many seconds.
SELECT image_id, locked_at, locked_by, extract(epoch FROM now())::bigint - locked_at AS age
FROM {schema}.image_locks WHERE host = :host AND locked_at < extract(epoch FROM now())::bigint - :seconds ORDER BY locked_at, image_id;

-- name: remove_stale_image_locks
-- Manual maintenance: the caller vouches for their owners being gone.
DELETE FROM {schema}.image_locks WHERE host = :host AND locked_at < extract(epoch FROM now())::bigint - :seconds
RETURNING image_id, locked_at, locked_by, extract(epoch FROM now())::bigint - locked_at AS age;

-- name: unpacked_by_key
-- Idempotency of unpacking, asked by key.
SELECT u.* FROM {schema}.unpacked_images AS u
INNER JOIN {schema}.images AS i ON u.host = i.host AND u.image_id = i.image_id
WHERE i.host = :host AND i.s3_key = :s3_key AND u.layout_verified = true;

-- name: active_snapshots_by_key
-- Idempotency of activation, asked by key.
SELECT s.* FROM {schema}.snapshots AS s
INNER JOIN {schema}.images AS i ON s.host = i.host AND s.image_id = i.image_id
WHERE i.host = :host AND i.s3_key = :s3_key AND s.active = true
ORDER BY s.created_at, s.id;

-- name: image_status
-- One row per snapshot, one with empty columns if there is none.
SELECT i.image_id, i.s3_key, i.download_status, i.activation_status, u.device_name, s.snapshot_name,
    s.active AS snapshot_active
FROM {schema}.images AS i
LEFT JOIN {schema}.unpacked_images AS u ON i.host = u.host AND i.image_id = u.image_id
LEFT JOIN {schema}.snapshots AS s ON i.host = s.host AND i.image_id = s.image_id
WHERE i.host = :host AND i.s3_key = :s3_key
ORDER BY s.created_at, s.id;

-- name: unpacked_without_image
-- Rule 1: an image exists before it is unpacked.
SELECT u.image_id, u.device_name FROM {schema}.unpacked_images AS u
WHERE u.host = :host
    AND NOT EXISTS (SELECT 1 FROM {schema}.images AS i WHERE i.host = u.host AND i.image_id = u.image_id)
ORDER BY u.image_id;

-- name: unpacked_without_download
-- Rule 2: what is unpacked has been downloaded.
SELECT u.image_id, u.device_name, i.download_status FROM {schema}.unpacked_images AS u
INNER JOIN {schema}.images AS i ON u.host = i.host AND u.image_id = i.image_id
WHERE i.host = :host AND i.download_status <> 'completed' ORDER BY u.image_id;

-- name: snapshots_without_unpacked
-- Rule 3: what has a snapshot is unpacked and verified, and the snapshot comes from that very device.
SELECT s.image_id, s.snapshot_name, s.origin_device_id FROM {schema}.snapshots AS s
WHERE s.host = :host AND NOT EXISTS (
    SELECT 1 FROM {schema}.unpacked_images AS u
    WHERE u.host = :host AND u.image_id = s.image_id AND u.device_id = s.origin_device_id AND u.layout_verified = true
) ORDER BY s.image_id, s.snapshot_name;

-- name: activation_out_of_step
-- Rule 4: an image is active if, and only if, it has an active snapshot.
SELECT i.image_id, i.activation_status, count(s.id) FROM {schema}.images AS i
LEFT JOIN {schema}.snapshots AS s ON s.host = i.host AND s.image_id = i.image_id AND s.active = true
WHERE i.host = :host
GROUP BY i.image_id, i.activation_status
HAVING (coalesce(i.activation_status, '') = 'active') <> (count(s.id) > 0) ORDER BY i.image_id;

-- name: store_verification
-- What was verified, and how to recognise the file.
INSERT INTO {schema}.image_verifications
    (host, image_id, checksum, size_bytes, inode, mtime_ns, ctime_ns, policy, warnings, origin, etag, asked_at)
VALUES (:host, :image_id, :checksum, :size_bytes, :inode, :mtime_ns, :ctime_ns, :policy, :warnings, :origin, :etag,
    CURRENT_TIMESTAMP)
ON CONFLICT(host, image_id) DO UPDATE SET
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
UPDATE {schema}.image_verifications SET warnings = :warnings
WHERE host = :host AND image_id = :image_id AND checksum = :checksum;

-- name: note_fingerprint
-- The same content was read again.
UPDATE {schema}.image_verifications SET
    size_bytes = :size_bytes,
    inode = :inode,
    mtime_ns = :mtime_ns,
    ctime_ns = :ctime_ns,
    verified_at = CURRENT_TIMESTAMP
WHERE host = :host AND image_id = :image_id;

-- name: verification
-- Only for the content that the image has now.
SELECT v.* FROM {schema}.image_verifications AS v
INNER JOIN {schema}.images AS i ON i.host = v.host AND i.image_id = v.image_id AND i.checksum = v.checksum
WHERE v.host = :host AND v.image_id = :image_id;

-- name: store_refusal
-- The last verdict on a key under a policy.
INSERT INTO {schema}.image_refusals (host, s3_key, policy, etag, checksum, code, detail, entry, byte_offset, hint)
VALUES (:host, :s3_key, :policy, :etag, :checksum, :code, :detail, :entry, :byte_offset, :hint)
ON CONFLICT(host, s3_key, policy) DO UPDATE SET
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
SELECT * FROM {schema}.image_refusals
WHERE host = :host AND s3_key = :s3_key AND policy = :policy AND (etag = :etag OR checksum = :checksum);

-- name: delete_refusals
-- Accepted, removed or to be judged afresh.
DELETE FROM {schema}.image_refusals WHERE host = :host AND s3_key = :s3_key;

-- name: forget_refusal
-- What was refused has been taken after all.
DELETE FROM {schema}.image_refusals
WHERE host = :host AND s3_key = (SELECT i.s3_key FROM {schema}.images AS i WHERE i.host = :host AND i.image_id = :image_id)
    AND policy = :policy AND checksum = :checksum;

-- name: list_refusals
-- Newest first.
SELECT * FROM {schema}.image_refusals WHERE host = :host ORDER BY refused_at DESC, s3_key, policy;

-- name: lock_reservations
-- One at a time chooses an id, until the end of its transaction.
SELECT pg_advisory_xact_lock(hashtextextended('{schema}.device_reservations', 0));

-- name: reserved_id
-- What this image or snapshot has reserved; without a name it is the image's device.
SELECT device_id FROM {schema}.device_reservations WHERE host = :host AND image_id = :image_id AND snapshot_name = :snapshot_name;

-- name: recorded_device_id
-- An id recorded by a version that knew no reservations; other spellings of an id are not ours to take.
SELECT r.device_id FROM (
    SELECT CASE WHEN u.device_id ~ '^[0-9]+$' AND length(u.device_id) < 9 THEN u.device_id::integer END AS device_id, u.device_id AS spelling FROM {schema}.unpacked_images AS u
    WHERE u.host = :host AND u.image_id = :image_id AND CAST(:snapshot_name AS TEXT) = ''
    UNION ALL
    SELECT CASE WHEN s.snapshot_id ~ '^[0-9]+$' AND length(s.snapshot_id) < 9 THEN s.snapshot_id::integer END, s.snapshot_id FROM {schema}.snapshots AS s
    WHERE s.host = :host AND s.image_id = :image_id AND s.snapshot_name = :snapshot_name
) AS r
WHERE CAST(r.device_id AS TEXT) = r.spelling AND r.device_id BETWEEN 0 AND 16777215;

-- name: is_device_id_taken
-- By a reservation, a device or a snapshot.
SELECT 1 FROM {schema}.device_reservations WHERE host = :host AND device_id = :device_id
UNION ALL SELECT 1 FROM {schema}.unpacked_images WHERE host = :host AND device_id = CAST(:device_id AS TEXT)
UNION ALL SELECT 1 FROM {schema}.snapshots WHERE host = :host AND snapshot_id = CAST(:device_id AS TEXT)
LIMIT 1;

-- name: reserve_id
-- The primary key keeps two from having the same.
INSERT INTO {schema}.device_reservations (host, device_id, image_id, snapshot_name)
VALUES (:host, :device_id, :image_id, :snapshot_name);

-- name: release_reservation
-- The device is gone.
DELETE FROM {schema}.device_reservations WHERE host = :host AND device_id = :device_id AND image_id = :image_id RETURNING device_id;

-- name: release_reservations
-- The image and all its snapshots are gone.
DELETE FROM {schema}.device_reservations WHERE host = :host AND image_id = :image_id;

-- name: list_reservations
-- For gc: what is reserved, recorded nowhere and worked on by nobody is a leftover.
SELECT * FROM {schema}.device_reservations WHERE host = :host ORDER BY device_id;

-- name: unfinished_job
-- In the engine's own table, which others may read by name: who would answer for a job must know whether it still runs.
SELECT job_id FROM {schema}.jobs WHERE flow = :flow AND key = :key AND state IN ('pending', 'running');

-- name: store_id
-- Which catalog this is.
SELECT store_id FROM {schema}.catalog_identity;

-- name: get_host
-- Which machine has this name.
SELECT host, machine, data_id, directory FROM {schema}.catalog_hosts WHERE host = :host;

-- name: claim_host
-- The first to use a name has it.
INSERT INTO {schema}.catalog_hosts (host, machine, data_id, directory)
VALUES (:host, :machine, :data_id, :directory)
ON CONFLICT (host) DO NOTHING;

-- name: adopt_host
-- An operator says that this machine has it now.
INSERT INTO {schema}.catalog_hosts (host, machine, data_id, directory)
VALUES (:host, :machine, :data_id, :directory)
ON CONFLICT (host) DO UPDATE
SET machine = excluded.machine, data_id = excluded.data_id, directory = excluded.directory,
    claimed_at = CURRENT_TIMESTAMP;

-- name: note_source
-- The source was asked, and has what it had.
UPDATE {schema}.image_verifications SET origin = :origin, etag = :etag, asked_at = CURRENT_TIMESTAMP WHERE host = :host AND image_id = :image_id;

-- name: store_update
-- New content, verified and not in use yet; an earlier one that never came into use is forgotten.
INSERT INTO {schema}.image_updates
    (host, image_id, checksum, size_bytes, inode, mtime_ns, ctime_ns, policy, warnings, origin, etag)
VALUES (:host, :image_id, :checksum, :size_bytes, :inode, :mtime_ns, :ctime_ns, :policy, :warnings, :origin, :etag)
ON CONFLICT(host, image_id) DO UPDATE SET
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
SELECT * FROM {schema}.image_updates WHERE host = :host AND image_id = :image_id;

-- name: list_updates
-- Oldest first.
SELECT * FROM {schema}.image_updates WHERE host = :host ORDER BY verified_at, image_id;

-- name: delete_update
-- It has come into use, or never will.
DELETE FROM {schema}.image_updates WHERE host = :host AND image_id = :image_id AND (CAST(:checksum AS TEXT) = '' OR checksum = :checksum);

-- name: set_content
-- The image is the new content from now on.
UPDATE {schema}.images SET
    local_path = :local_path,
    checksum = :checksum,
    size_bytes = :size_bytes,
    download_status = 'completed',
    downloaded_at = CURRENT_TIMESTAMP,
    updated_at = CURRENT_TIMESTAMP
WHERE host = :host AND image_id = :image_id;

-- name: forget_failed_image
-- A refused object leaves a row without content: another object may have its image id.
DELETE FROM {schema}.images
WHERE host = :host AND image_id = :image_id AND s3_key <> :s3_key AND download_status <> 'completed'
    AND NOT EXISTS (SELECT 1 FROM {schema}.unpacked_images AS u WHERE u.host = :host AND u.image_id = :image_id);

-- name: set_local_path
-- The state was moved.
UPDATE {schema}.images SET local_path = :path, updated_at = CURRENT_TIMESTAMP WHERE host = :host AND image_id = :image_id;

-- name: set_device_path
-- As above.
UPDATE {schema}.unpacked_images SET device_path = :path, updated_at = CURRENT_TIMESTAMP WHERE host = :host AND image_id = :image_id;

-- name: set_snapshot_path
-- As above.
UPDATE {schema}.snapshots SET device_path = :path, updated_at = CURRENT_TIMESTAMP WHERE host = :host AND snapshot_name = :snapshot_name;

-- name: rename_reservation
-- The id stays; what it is for has changed.
UPDATE {schema}.device_reservations SET snapshot_name = :new_name
WHERE host = :host AND image_id = :image_id AND snapshot_name = :old_name AND device_id <> :except_id;

-- name: settle_all_activations
-- Rule 4 for every image at once; those that were changed come back.
UPDATE {schema}.images SET
    activation_status = CASE WHEN activation_status = 'active' THEN 'inactive' ELSE 'active' END,
    updated_at = CURRENT_TIMESTAMP
WHERE host = :host AND (coalesce(activation_status, '') = 'active') <> EXISTS (
    SELECT 1 FROM {schema}.snapshots AS s WHERE s.host = :host AND s.image_id = images.image_id AND s.active
)
RETURNING image_id;

-- name: list_all_images
-- Whatever their status.
SELECT * FROM {schema}.images WHERE host = :host ORDER BY image_id;

-- name: list_verifications
-- Of content that images do not have any more, too.
SELECT * FROM {schema}.image_verifications WHERE host = :host ORDER BY image_id;

-- name: mark_completed
-- Its file was read, and is what the row says.
UPDATE {schema}.images SET download_status = 'completed', updated_at = CURRENT_TIMESTAMP
WHERE host = :host AND image_id = :image_id AND checksum IS NOT NULL;
