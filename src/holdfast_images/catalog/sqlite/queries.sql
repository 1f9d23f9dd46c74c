-- Every statement of the catalog on SQLite. Times are the database's; `:host` has no place in a file of one machine.

-- name: check_image_downloaded
-- Idempotency of downloads: only a completed row counts.
SELECT * FROM images WHERE s3_key = :s3_key AND download_status = 'completed';

-- name: image_by_key
-- Whatever is known under a key, for the wording of a conflict.
SELECT * FROM images WHERE s3_key = :s3_key;

-- name: store_image_metadata
-- No row comes back if the key belongs to another image: then nothing was changed.
INSERT INTO images (image_id, s3_key, local_path, checksum, size_bytes, download_status, downloaded_at)
VALUES (:image_id, :s3_key, :local_path, :checksum, :size_bytes, 'completed', CURRENT_TIMESTAMP)
ON CONFLICT(s3_key) DO UPDATE SET
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
INSERT INTO images (image_id, s3_key, local_path, size_bytes, download_status)
SELECT :image_id, :s3_key, :local_path, :size_bytes, 'failed'
WHERE NOT EXISTS (SELECT 1 FROM images AS i WHERE i.image_id = :image_id AND i.s3_key <> :s3_key)
ON CONFLICT(s3_key) DO UPDATE SET download_status = 'failed', updated_at = CURRENT_TIMESTAMP
WHERE images.download_status <> 'completed';

-- name: image_by_id
-- One image.
SELECT * FROM images WHERE image_id = :image_id;

-- name: update_image_activation_status
-- activated_at is when it last became active.
UPDATE images SET
    activation_status = :status,
    activated_at = CASE WHEN :status = 'active' THEN CURRENT_TIMESTAMP ELSE activated_at END,
    updated_at = CURRENT_TIMESTAMP
WHERE image_id = :image_id
RETURNING id;

-- name: list_images
-- An empty status stands for all.
SELECT * FROM images WHERE :status = '' OR download_status = :status ORDER BY created_at, id;

-- name: delete_image
-- Its unpacked row and snapshots go with it; a snapshot keeps its origin, so these are deleted first.
DELETE FROM images WHERE image_id = :image_id;

-- name: unpacked_image_by_id
-- One unpacked image.
SELECT * FROM unpacked_images WHERE image_id = :image_id;

-- name: unpacked_image_by_device_id
-- What a device holds.
SELECT * FROM unpacked_images WHERE device_id = :device_id;

-- name: store_unpacked_image
-- A device id that snapshots refer to cannot be replaced: the foreign key refuses it.
INSERT INTO unpacked_images
    (image_id, device_id, device_name, device_path, size_bytes, file_count, layout_verified, unpacked_at)
VALUES (:image_id, :device_id, :device_name, :device_path, :size_bytes, :file_count, 1, CURRENT_TIMESTAMP)
ON CONFLICT(image_id) DO UPDATE SET
    device_id = excluded.device_id,
    device_name = excluded.device_name,
    device_path = excluded.device_path,
    size_bytes = excluded.size_bytes,
    file_count = excluded.file_count,
    layout_verified = 1,
    unpacked_at = CURRENT_TIMESTAMP,
    updated_at = CURRENT_TIMESTAMP;

-- name: delete_unpacked_image
-- Refused by the foreign key while snapshots of it are known.
DELETE FROM unpacked_images WHERE image_id = :image_id;

-- name: mark_unpacked_unverified
-- The row stays for the snapshots that refer to it.
UPDATE unpacked_images SET layout_verified = 0, updated_at = CURRENT_TIMESTAMP WHERE image_id = :image_id;

-- name: mark_unpacked_verified
-- Its device was read, and is what it should be.
UPDATE unpacked_images SET layout_verified = 1, updated_at = CURRENT_TIMESTAMP WHERE image_id = :image_id;

-- name: list_unpacked_images
-- Oldest first.
SELECT * FROM unpacked_images ORDER BY unpacked_at, id;

-- name: check_snapshot_exists
-- Active or not: the caller looks.
SELECT * FROM snapshots WHERE image_id = :image_id AND snapshot_name = :snapshot_name;

-- name: snapshot_by_name
-- Whose snapshot it is, for the wording of a conflict.
SELECT * FROM snapshots WHERE snapshot_name = :snapshot_name;

-- name: store_snapshot
-- No row comes back if the name belongs to another image: then nothing was changed.
INSERT INTO snapshots (image_id, snapshot_id, snapshot_name, device_path, origin_device_id, active, created_at)
VALUES (:image_id, :snapshot_id, :snapshot_name, :device_path, :origin_device_id, 1, CURRENT_TIMESTAMP)
ON CONFLICT(snapshot_name) DO UPDATE SET
    snapshot_id = excluded.snapshot_id,
    device_path = excluded.device_path,
    origin_device_id = excluded.origin_device_id,
    active = 1,
    deactivated_at = NULL,
    updated_at = CURRENT_TIMESTAMP
WHERE snapshots.image_id = excluded.image_id
RETURNING id;

-- name: snapshot_by_id
-- One snapshot.
SELECT * FROM snapshots WHERE snapshot_id = :snapshot_id;

-- name: snapshots_by_image_id
-- Oldest first.
SELECT * FROM snapshots WHERE image_id = :image_id ORDER BY created_at, id;

-- name: deactivate_snapshot
-- Repeated, it keeps the time of the first.
UPDATE snapshots SET
    active = 0,
    deactivated_at = coalesce(deactivated_at, CURRENT_TIMESTAMP),
    updated_at = CURRENT_TIMESTAMP
WHERE snapshot_id = :snapshot_id AND active = 1
RETURNING image_id;

-- name: delete_snapshot
-- The image it belonged to comes back.
DELETE FROM snapshots WHERE snapshot_id = :snapshot_id RETURNING image_id;

-- name: settle_activation
-- An image without an active snapshot is not active.
UPDATE images SET activation_status = 'inactive', updated_at = CURRENT_TIMESTAMP
WHERE image_id = :image_id AND activation_status = 'active'
    AND NOT EXISTS (SELECT 1 FROM snapshots AS s WHERE s.image_id = :image_id AND s.active = 1);

-- name: list_active_snapshots
-- Oldest first.
SELECT * FROM snapshots WHERE active = 1 ORDER BY created_at, id;

-- name: list_snapshots
-- Inactive ones too: for gc and `snapshots --all`.
SELECT * FROM snapshots ORDER BY created_at, id;

-- name: acquire_image_lock
-- A row comes back if it was free.
INSERT INTO image_locks (image_id, locked_at, locked_by)
VALUES (:image_id, CAST(strftime('%s', 'now') AS INTEGER), :locked_by)
ON CONFLICT(image_id) DO NOTHING
RETURNING image_id;

-- name: image_lock
-- Who holds it, and for how many seconds.
SELECT image_id, locked_at, locked_by, CAST(strftime('%s', 'now') AS INTEGER) - locked_at AS age
FROM image_locks WHERE image_id = :image_id;

-- name: take_over_image_lock
-- Only from the holder that the caller has seen to be dead.
UPDATE image_locks SET locked_by = :to_owner, locked_at = CAST(strftime('%s', 'now') AS INTEGER)
WHERE image_id = :image_id AND locked_by = :from_owner
RETURNING image_id;

-- name: release_image_lock
-- By its owner; without an owner, by force.
DELETE FROM image_locks WHERE image_id = :image_id AND (:locked_by IS NULL OR locked_by = :locked_by)
RETURNING image_id;

-- name: list_image_locks
-- Newest first.
SELECT image_id, locked_at, locked_by, CAST(strftime('%s', 'now') AS INTEGER) - locked_at AS age
FROM image_locks ORDER BY locked_at DESC, image_id;

-- name: stale_image_locks
-- Older than so many seconds.
SELECT image_id, locked_at, locked_by, CAST(strftime('%s', 'now') AS INTEGER) - locked_at AS age
FROM image_locks WHERE locked_at < CAST(strftime('%s', 'now') AS INTEGER) - :seconds ORDER BY locked_at, image_id;

-- name: remove_stale_image_locks
-- Manual maintenance: the caller vouches for their owners being gone.
DELETE FROM image_locks WHERE locked_at < CAST(strftime('%s', 'now') AS INTEGER) - :seconds
RETURNING image_id, locked_at, locked_by, CAST(strftime('%s', 'now') AS INTEGER) - locked_at AS age;

-- name: unpacked_by_key
-- Idempotency of unpacking, asked by key.
SELECT u.* FROM unpacked_images AS u
INNER JOIN images AS i ON u.image_id = i.image_id
WHERE i.s3_key = :s3_key AND u.layout_verified = 1;

-- name: active_snapshots_by_key
-- Idempotency of activation, asked by key.
SELECT s.* FROM snapshots AS s
INNER JOIN images AS i ON s.image_id = i.image_id
WHERE i.s3_key = :s3_key AND s.active = 1
ORDER BY s.created_at, s.id;

-- name: image_status
-- One row per snapshot, one with empty columns if there is none.
SELECT i.image_id, i.s3_key, i.download_status, i.activation_status, u.device_name, s.snapshot_name,
    s.active AS snapshot_active
FROM images AS i
LEFT JOIN unpacked_images AS u ON i.image_id = u.image_id
LEFT JOIN snapshots AS s ON i.image_id = s.image_id
WHERE i.s3_key = :s3_key
ORDER BY s.created_at, s.id;

-- name: unpacked_without_image
-- Rule 1: an image exists before it is unpacked.
SELECT u.image_id, u.device_name FROM unpacked_images AS u
WHERE NOT EXISTS (SELECT 1 FROM images AS i WHERE i.image_id = u.image_id) ORDER BY u.image_id;

-- name: unpacked_without_download
-- Rule 2: what is unpacked has been downloaded.
SELECT u.image_id, u.device_name, i.download_status FROM unpacked_images AS u
INNER JOIN images AS i ON u.image_id = i.image_id
WHERE i.download_status <> 'completed' ORDER BY u.image_id;

-- name: snapshots_without_unpacked
-- Rule 3: what has a snapshot is unpacked and verified, and the snapshot comes from that very device.
SELECT s.image_id, s.snapshot_name, s.origin_device_id FROM snapshots AS s
WHERE NOT EXISTS (
    SELECT 1 FROM unpacked_images AS u
    WHERE u.image_id = s.image_id AND u.device_id = s.origin_device_id AND u.layout_verified = 1
) ORDER BY s.image_id, s.snapshot_name;

-- name: activation_out_of_step
-- Rule 4: an image is active if, and only if, it has an active snapshot.
SELECT i.image_id, i.activation_status, count(s.id) FROM images AS i
LEFT JOIN snapshots AS s ON s.image_id = i.image_id AND s.active = 1
GROUP BY i.image_id, i.activation_status
HAVING (coalesce(i.activation_status, '') = 'active') <> (count(s.id) > 0) ORDER BY i.image_id;

-- name: store_verification
-- What was verified, and how to recognise the file.
INSERT INTO image_verifications
    (image_id, checksum, size_bytes, inode, mtime_ns, ctime_ns, policy, warnings, origin, etag, asked_at)
VALUES (:image_id, :checksum, :size_bytes, :inode, :mtime_ns, :ctime_ns, :policy, :warnings, :origin, :etag,
    CURRENT_TIMESTAMP)
ON CONFLICT(image_id) DO UPDATE SET
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
WHERE image_id = :image_id AND checksum = :checksum;

-- name: note_fingerprint
-- The same content was read again.
UPDATE image_verifications SET
    size_bytes = :size_bytes,
    inode = :inode,
    mtime_ns = :mtime_ns,
    ctime_ns = :ctime_ns,
    verified_at = CURRENT_TIMESTAMP
WHERE image_id = :image_id;

-- name: verification
-- Only for the content that the image has now.
SELECT v.* FROM image_verifications AS v
INNER JOIN images AS i ON i.image_id = v.image_id AND i.checksum = v.checksum
WHERE v.image_id = :image_id;

-- name: store_refusal
-- The last verdict on a key under a policy.
INSERT INTO image_refusals (s3_key, policy, etag, checksum, code, detail, entry, byte_offset, hint)
VALUES (:s3_key, :policy, :etag, :checksum, :code, :detail, :entry, :byte_offset, :hint)
ON CONFLICT(s3_key, policy) DO UPDATE SET
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
WHERE s3_key = :s3_key AND policy = :policy AND (etag = :etag OR checksum = :checksum);

-- name: delete_refusals
-- Accepted, removed or to be judged afresh.
DELETE FROM image_refusals WHERE s3_key = :s3_key;

-- name: forget_refusal
-- What was refused has been taken after all.
DELETE FROM image_refusals
WHERE s3_key = (SELECT i.s3_key FROM images AS i WHERE i.image_id = :image_id)
    AND policy = :policy AND checksum = :checksum;

-- name: list_refusals
-- Newest first.
SELECT * FROM image_refusals ORDER BY refused_at DESC, s3_key, policy;

-- name: lock_reservations
-- One at a time chooses an id. Here the transaction is alone already.
SELECT 1;

-- name: reserved_id
-- What this image or snapshot has reserved; without a name it is the image's device.
SELECT device_id FROM device_reservations WHERE image_id = :image_id AND snapshot_name = :snapshot_name;

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

-- name: is_device_id_taken
-- By a reservation, a device or a snapshot.
SELECT 1 FROM device_reservations WHERE device_id = :device_id
UNION ALL SELECT 1 FROM unpacked_images WHERE device_id = CAST(:device_id AS TEXT)
UNION ALL SELECT 1 FROM snapshots WHERE snapshot_id = CAST(:device_id AS TEXT)
LIMIT 1;

-- name: reserve_id
-- The primary key keeps two from having the same.
INSERT INTO device_reservations (device_id, image_id, snapshot_name)
VALUES (:device_id, :image_id, :snapshot_name);

-- name: release_reservation
-- The device is gone.
DELETE FROM device_reservations WHERE device_id = :device_id AND image_id = :image_id RETURNING device_id;

-- name: release_reservations
-- The image and all its snapshots are gone.
DELETE FROM device_reservations WHERE image_id = :image_id;

-- name: list_reservations
-- For gc: what is reserved, recorded nowhere and worked on by nobody is a leftover.
SELECT * FROM device_reservations ORDER BY device_id;

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
UPDATE image_verifications SET origin = :origin, etag = :etag, asked_at = CURRENT_TIMESTAMP WHERE image_id = :image_id;

-- name: store_update
-- New content, verified and not in use yet; an earlier one that never came into use is forgotten.
INSERT INTO image_updates
    (image_id, checksum, size_bytes, inode, mtime_ns, ctime_ns, policy, warnings, origin, etag)
VALUES (:image_id, :checksum, :size_bytes, :inode, :mtime_ns, :ctime_ns, :policy, :warnings, :origin, :etag)
ON CONFLICT(image_id) DO UPDATE SET
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
SELECT * FROM image_updates WHERE image_id = :image_id;

-- name: list_updates
-- Oldest first.
SELECT * FROM image_updates ORDER BY verified_at, image_id;

-- name: delete_update
-- It has come into use, or never will.
DELETE FROM image_updates WHERE image_id = :image_id AND (:checksum = '' OR checksum = :checksum);

-- name: set_content
-- The image is the new content from now on.
UPDATE images SET
    local_path = :local_path,
    checksum = :checksum,
    size_bytes = :size_bytes,
    download_status = 'completed',
    downloaded_at = CURRENT_TIMESTAMP,
    updated_at = CURRENT_TIMESTAMP
WHERE image_id = :image_id;

-- name: forget_failed_image
-- A refused object leaves a row without content: another object may have its image id.
DELETE FROM images
WHERE image_id = :image_id AND s3_key <> :s3_key AND download_status <> 'completed'
    AND NOT EXISTS (SELECT 1 FROM unpacked_images AS u WHERE u.image_id = :image_id);

-- name: set_local_path
-- The state was moved.
UPDATE images SET local_path = :path, updated_at = CURRENT_TIMESTAMP WHERE image_id = :image_id;

-- name: set_device_path
-- As above.
UPDATE unpacked_images SET device_path = :path, updated_at = CURRENT_TIMESTAMP WHERE image_id = :image_id;

-- name: set_snapshot_path
-- As above.
UPDATE snapshots SET device_path = :path, updated_at = CURRENT_TIMESTAMP WHERE snapshot_name = :snapshot_name;

-- name: rename_reservation
-- The id stays; what it is for has changed.
UPDATE device_reservations SET snapshot_name = :new_name
WHERE image_id = :image_id AND snapshot_name = :old_name AND device_id <> :except_id;

-- name: settle_all_activations
-- Rule 4 for every image at once; those that were changed come back.
UPDATE images SET
    activation_status = CASE WHEN activation_status = 'active' THEN 'inactive' ELSE 'active' END,
    updated_at = CURRENT_TIMESTAMP
WHERE (coalesce(activation_status, '') = 'active') <> EXISTS (
    SELECT 1 FROM snapshots AS s WHERE s.image_id = images.image_id AND s.active = 1
)
RETURNING image_id;

-- name: list_all_images
-- Whatever their status.
SELECT * FROM images ORDER BY image_id;

-- name: list_verifications
-- Of content that images do not have any more, too.
SELECT * FROM image_verifications ORDER BY image_id;

-- name: mark_completed
-- Its file was read, and is what the row says.
UPDATE images SET download_status = 'completed', updated_at = CURRENT_TIMESTAMP
WHERE image_id = :image_id AND checksum IS NOT NULL;
