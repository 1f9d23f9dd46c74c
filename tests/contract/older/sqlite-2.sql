-- {"succeeded": "01JXT21Q00FPY9H4Z73H49J1GF", "failed": "01JXT21Q00FPY9H4Z73H49J1GH", "quarantined": "01JXT21Q00FPY9H4Z73H49J1GK", "tried_again": {"job": {"job_id": "01JXT21Q00FPY9H4Z73H49J1GN", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 2, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 1, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000000000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R44DQ9YXFVMNSY4YR", "attempt": 2, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": true}, "leased": {"job": {"job_id": "01JXT22N8R44DQ9YXFVMNSY4YS", "flow": "demo", "fingerprint": "5e374847e0eb0716", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R44DQ9YXFVMNSY4YT", "attempt": 1, "status": "leased", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "running": {"job": {"job_id": "01JXT22N8R44DQ9YXFVMNSY4YV", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R44DQ9YXFVMNSY4YW", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "committed": {"job": {"job_id": "01JXT22N8R44DQ9YXFVMNSY4YX", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R44DQ9YXFVMNSY4YY", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "pending": "01JXT22N8R44DQ9YXFVMNSY4YZ", "waiting": "01JXT22N8R44DQ9YXFVMNSY4Z0", "now": 1750000031000}
PRAGMA application_id = 1213156420;
BEGIN TRANSACTION;
CREATE TABLE children (
    parent TEXT NOT NULL REFERENCES jobs (job_id),
    name TEXT NOT NULL,
    round INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    ordinal INTEGER NOT NULL,
    PRIMARY KEY (parent, name, round)
) WITHOUT ROWID;
CREATE TABLE definitions (
    fingerprint TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    definition TEXT NOT NULL,
    first_seen_at INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "definitions" VALUES('5e374847e0eb0716','demo','{"flow":"demo","version":"0","steps":["one","two","three"]}',1750000031000);
INSERT INTO "definitions" VALUES('da4fbd80c76eae7e','demo','{"flow":"demo","version":"1","steps":["one","two","three"]}',1750000000000);
CREATE TABLE executions (
    exec_id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    queue TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status = 'leased' OR status = 'in_progress' OR status = 'committed' OR status = 'done' OR status = 'aborted'),
    disposition TEXT CHECK (disposition = 'retry' OR disposition = 'failed' OR disposition = 'quarantined'),
    code TEXT,
    error TEXT,
    lease_owner TEXT NOT NULL,
    lease_expires_at INTEGER NOT NULL,
    position INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
    interrupted INTEGER NOT NULL DEFAULT 0 CHECK (interrupted IN (0, 1)),
    retry_at INTEGER,
    progressed_at INTEGER NOT NULL,
    progress TEXT,
    started_at INTEGER NOT NULL,
    finished_at INTEGER,
    PRIMARY KEY (job_id, attempt),
    CHECK ((status = 'aborted') = (disposition IS NOT NULL)),
    CHECK ((status IN ('aborted', 'done')) = (finished_at IS NOT NULL))
) WITHOUT ROWID;
INSERT INTO "executions" VALUES('01JXT21Q00FPY9H4Z73H49J1GG','01JXT21Q00FPY9H4Z73H49J1GF',1,'','done',NULL,'completed',NULL,'host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000000000);
INSERT INTO "executions" VALUES('01JXT21Q00FPY9H4Z73H49J1GJ','01JXT21Q00FPY9H4Z73H49J1GH',1,'','aborted','failed','error',NULL,'host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000000000);
INSERT INTO "executions" VALUES('01JXT21Q00FPY9H4Z73H49J1GM','01JXT21Q00FPY9H4Z73H49J1GK',1,'','aborted','quarantined','error',NULL,'host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000000000);
INSERT INTO "executions" VALUES('01JXT21Q00FPY9H4Z73H49J1GP','01JXT21Q00FPY9H4Z73H49J1GN',1,'','aborted','retry','crashed','pid 11 on host-a did not finish: its lease ran out (crash 1)','host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000031000);
INSERT INTO "executions" VALUES('01JXT22N8R44DQ9YXFVMNSY4YR','01JXT21Q00FPY9H4Z73H49J1GN',2,'','in_progress',NULL,NULL,NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,1,NULL,1750000031000,NULL,1750000031000,NULL);
INSERT INTO "executions" VALUES('01JXT22N8R44DQ9YXFVMNSY4YT','01JXT22N8R44DQ9YXFVMNSY4YS',1,'','leased',NULL,NULL,NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,0,NULL,1750000031000,NULL,1750000031000,NULL);
INSERT INTO "executions" VALUES('01JXT22N8R44DQ9YXFVMNSY4YW','01JXT22N8R44DQ9YXFVMNSY4YV',1,'','in_progress',NULL,NULL,NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,0,NULL,1750000031000,NULL,1750000031000,NULL);
INSERT INTO "executions" VALUES('01JXT22N8R44DQ9YXFVMNSY4YY','01JXT22N8R44DQ9YXFVMNSY4YX',1,'','committed',NULL,'completed',NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,0,NULL,1750000031000,NULL,1750000031000,NULL);
CREATE TABLE holdfast_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL);
INSERT INTO "holdfast_migrations" VALUES(1,'engine',1750000000000);
INSERT INTO "holdfast_migrations" VALUES(2,'cheaper_rules',1750000000000);
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    fingerprint TEXT NOT NULL REFERENCES definitions (fingerprint),
    state TEXT NOT NULL DEFAULT 'pending'
        CHECK (state = 'pending' OR state = 'running' OR state = 'succeeded' OR state = 'failed' OR state = 'quarantined'),
    key TEXT,
    queue TEXT NOT NULL DEFAULT '' REFERENCES queues (name),
    priority INTEGER NOT NULL DEFAULT 0,
    hold TEXT NOT NULL DEFAULT 'none' CHECK (hold = 'none' OR hold = 'until' OR hold = 'after' OR hold = 'child'),
    not_before INTEGER NOT NULL DEFAULT 0,
    run_after TEXT,
    waits_for TEXT CHECK ((waits_for IS NOT NULL) = (hold IN ('after', 'child'))),
    parent TEXT,
    attempt INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    failures_forgiven INTEGER NOT NULL DEFAULT 0,
    failure_limit INTEGER NOT NULL DEFAULT 1 CHECK (failure_limit >= 1),
    crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),
    crashes_forgiven INTEGER NOT NULL DEFAULT 0,
    crash_limit INTEGER NOT NULL DEFAULT 5 CHECK (crash_limit >= 1),
    stall_ms INTEGER NOT NULL DEFAULT 600000 CHECK (stall_ms > 0),
    cancel_reason TEXT,
    ending TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO "jobs" VALUES('01JXT21Q00FPY9H4Z73H49J1GF','demo','da4fbd80c76eae7e','succeeded',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000000000,1750000000000);
INSERT INTO "jobs" VALUES('01JXT21Q00FPY9H4Z73H49J1GH','demo','da4fbd80c76eae7e','failed',NULL,'',0,'none',0,NULL,NULL,NULL,1,1,0,1,0,0,5,600000,NULL,NULL,1750000000000,1750000000000);
INSERT INTO "jobs" VALUES('01JXT21Q00FPY9H4Z73H49J1GK','demo','da4fbd80c76eae7e','quarantined',NULL,'',0,'none',0,NULL,NULL,NULL,1,1,0,1,0,0,5,600000,NULL,NULL,1750000000000,1750000000000);
INSERT INTO "jobs" VALUES('01JXT21Q00FPY9H4Z73H49J1GN','demo','da4fbd80c76eae7e','running',NULL,'',0,'none',0,NULL,NULL,NULL,2,0,0,1,1,0,5,600000,NULL,NULL,1750000000000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R44DQ9YXFVMNSY4YS','demo','5e374847e0eb0716','running',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R44DQ9YXFVMNSY4YV','demo','da4fbd80c76eae7e','running',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R44DQ9YXFVMNSY4YX','demo','da4fbd80c76eae7e','running',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R44DQ9YXFVMNSY4YZ','demo','da4fbd80c76eae7e','pending','k','',0,'none',0,NULL,NULL,NULL,0,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R44DQ9YXFVMNSY4Z0','demo','da4fbd80c76eae7e','pending',NULL,'',0,'after',0,'01JXT22N8R44DQ9YXFVMNSY4YV','01JXT22N8R44DQ9YXFVMNSY4YV',NULL,0,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
CREATE TABLE journal (
    job_id TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    exec_id TEXT,
    job_from TEXT,
    job_to TEXT NOT NULL,
    exec_from TEXT,
    exec_to TEXT,
    step TEXT,
    reason TEXT NOT NULL,
    metadata TEXT NOT NULL,
    prev_hash TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (job_id, seq)
) WITHOUT ROWID;
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GF',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','37b8c2a02b797972e4b75bd15f5c8d0f7c5dec5be8dd8cff5284c907fcd8e81e');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GF',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GG','pending','running',NULL,'leased',NULL,'claimed','{}','37b8c2a02b797972e4b75bd15f5c8d0f7c5dec5be8dd8cff5284c907fcd8e81e','2289c475a39d2a32c1fc319fc4a1c2c3173531aab5cc0e894b2d6e191ce6e67c');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GF',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GG','running','running','leased','in_progress',NULL,'started','{}','2289c475a39d2a32c1fc319fc4a1c2c3173531aab5cc0e894b2d6e191ce6e67c','1bad652115402ee723dcac2ddb73436b12c66405b9517dfbce23535c086bc201');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GF',4,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GG','running','running','in_progress','committed','one','completed','{}','1bad652115402ee723dcac2ddb73436b12c66405b9517dfbce23535c086bc201','c639f6979e1e54aaf1ccdb8b3bddfd81b3c34595d9657446e092d4539601ba26');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GF',5,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GG','running','succeeded','committed','done',NULL,'finished','{}','c639f6979e1e54aaf1ccdb8b3bddfd81b3c34595d9657446e092d4539601ba26','f488be1e3626aa32af037c802dc0599e2bd7d75d9fbbf7a5984e5a3355dcf895');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GH',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','1d9923477d031d56dd9f1682da78441040f8850fe5bd3fce025cef552a83aa05');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GH',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GJ','pending','running',NULL,'leased',NULL,'claimed','{}','1d9923477d031d56dd9f1682da78441040f8850fe5bd3fce025cef552a83aa05','5be5b9f3118e046c7da0662034ed8934c975d2a440519efce74648ae8805c6ae');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GH',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GJ','running','running','leased','in_progress',NULL,'started','{}','5be5b9f3118e046c7da0662034ed8934c975d2a440519efce74648ae8805c6ae','314550c3e44e12b983ebcdc652275aa805148357073af8e949f6724287f1cf77');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GH',4,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GJ','running','failed','in_progress','aborted',NULL,'error','{"code":"error"}','314550c3e44e12b983ebcdc652275aa805148357073af8e949f6724287f1cf77','51f4a2874f49d6eae74d5904bc9cb9f10f6f3ec0eb990efa337079d090f5fa67');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GK',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','751244452db42bff6a2cd08e1a2ed590a9123781966c1afee1eca378bda686a2');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GK',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GM','pending','running',NULL,'leased',NULL,'claimed','{}','751244452db42bff6a2cd08e1a2ed590a9123781966c1afee1eca378bda686a2','30884297b52ff740a8db23c40978357aecb321fe1376b65d67523a20e067ed7f');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GK',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GM','running','running','leased','in_progress',NULL,'started','{}','30884297b52ff740a8db23c40978357aecb321fe1376b65d67523a20e067ed7f','ff8d3eeb5df8a3a3c60b961e4200ee66305be06b6a07a6259fee0527b6960992');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GK',4,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GM','running','failed','in_progress','aborted',NULL,'error','{"code":"error"}','ff8d3eeb5df8a3a3c60b961e4200ee66305be06b6a07a6259fee0527b6960992','5094610fef6794bb01ded920f1d07df2254cd2ace931a11c12adb1f72dfbb6c1');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GK',5,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GM','failed','quarantined','aborted','aborted',NULL,'error','{}','5094610fef6794bb01ded920f1d07df2254cd2ace931a11c12adb1f72dfbb6c1','1f04ab3f69afd17ce69c49d93459fa96fb603368832fda54dddfe571f0cd08f0');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GN',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','7fe51ec87fd3927da442d898bee9f03b5e3d94aab545ad9ec6ebe0c061ca5869');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GN',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GP','pending','running',NULL,'leased',NULL,'claimed','{}','7fe51ec87fd3927da442d898bee9f03b5e3d94aab545ad9ec6ebe0c061ca5869','b36dc8271a51d997ad596ef5cc4757dedee67d985729bf73f2e30c1387118edc');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GN',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q00FPY9H4Z73H49J1GP','running','running','leased','in_progress',NULL,'started','{}','b36dc8271a51d997ad596ef5cc4757dedee67d985729bf73f2e30c1387118edc','f49897b4de46992a4a7c8ef04bea890282e7dd73500e38e356660c09c648a413');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GN',4,1750000031000,'host-a:12:1:boot:1:two','01JXT21Q00FPY9H4Z73H49J1GP','running','pending','in_progress','aborted',NULL,'pid 11 on host-a did not finish: its lease ran out (crash 1)','{"code":"crashed"}','f49897b4de46992a4a7c8ef04bea890282e7dd73500e38e356660c09c648a413','4e654e09f0037883922f812035079af614010a5db6ab27eab65da05f1e6722bd');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GN',5,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YR','pending','running',NULL,'leased',NULL,'claimed','{}','4e654e09f0037883922f812035079af614010a5db6ab27eab65da05f1e6722bd','9ac7bf26e7be31f3fe495c2b985516557910a237ad72b07e0bad1fdfd5fb6add');
INSERT INTO "journal" VALUES('01JXT21Q00FPY9H4Z73H49J1GN',6,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YR','running','running','leased','in_progress',NULL,'started','{}','9ac7bf26e7be31f3fe495c2b985516557910a237ad72b07e0bad1fdfd5fb6add','ef049a509399b33c92640742a10a19dbf3dbd5195d01f2af81b73b3e67d8ce10');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YS',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','0cec852a7743154e008bdd4ccb495f0c7acf18f04f477827bf9c5f5c9d950f67');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YS',2,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YT','pending','running',NULL,'leased',NULL,'claimed','{}','0cec852a7743154e008bdd4ccb495f0c7acf18f04f477827bf9c5f5c9d950f67','0d8151158ad5c500678ffe8cf4fec33222663aa4cddf816302ea46f32d6a6500');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YV',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','d1cd231789126aec1d360d97463f0b64aaf3b037c3e53cdb819a6b3135bef85a');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YV',2,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YW','pending','running',NULL,'leased',NULL,'claimed','{}','d1cd231789126aec1d360d97463f0b64aaf3b037c3e53cdb819a6b3135bef85a','d02a03b8b48d747e552b281a73dfc1025dde0fca5243ecebc5cba570e8d5e129');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YV',3,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YW','running','running','leased','in_progress',NULL,'started','{}','d02a03b8b48d747e552b281a73dfc1025dde0fca5243ecebc5cba570e8d5e129','a574899796c241ed544272d0983a493f4fe9d33f835f8baecd4d1afe1ea82a2a');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YX',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','6faf6f002642f0f31974a9b272717e266115e2941392079ba2af91150e6d3d95');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YX',2,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YY','pending','running',NULL,'leased',NULL,'claimed','{}','6faf6f002642f0f31974a9b272717e266115e2941392079ba2af91150e6d3d95','65c7da9be6c64950b90185767cf6ac624c0d94cbb7d98d1f6f68b909799f810d');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YX',3,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YY','running','running','leased','in_progress',NULL,'started','{}','65c7da9be6c64950b90185767cf6ac624c0d94cbb7d98d1f6f68b909799f810d','464d3c873f72db9c9618f48b487fd78057408ba43006b7ab0410dc07c63a20b5');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YX',4,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R44DQ9YXFVMNSY4YY','running','running','in_progress','committed','one','completed','{}','464d3c873f72db9c9618f48b487fd78057408ba43006b7ab0410dc07c63a20b5','c89157d17ad8d2174ebe4b72108c82eafad3e02d53128c06bb60542f80d69163');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4YZ',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','41e495933c9a81f0607c31ddaaed4fa33058027bdec078dde598d94fabf687e5');
INSERT INTO "journal" VALUES('01JXT22N8R44DQ9YXFVMNSY4Z0',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','d273558cae1e937066630c82d4fedd2a6998d88219b1a0232aeeae0bbb3a4c6d');
CREATE TABLE pruned (
    job_id TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    state TEXT NOT NULL,
    finished_at INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    head TEXT NOT NULL,
    pruned_at INTEGER NOT NULL,
    pruned_by TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    max_running INTEGER CHECK (max_running IS NULL OR max_running >= 0),
    limit_by TEXT,
    paused_at INTEGER,
    paused_by TEXT,
    paused_reason TEXT,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL) AND (paused_at IS NULL) = (paused_reason IS NULL))
) WITHOUT ROWID;
INSERT INTO "queues" VALUES('',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE requests (
    job_id TEXT PRIMARY KEY REFERENCES jobs (job_id),
    request TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "requests" VALUES('01JXT21Q00FPY9H4Z73H49J1GF','{"n":1}');
INSERT INTO "requests" VALUES('01JXT21Q00FPY9H4Z73H49J1GH','{"n":1}');
INSERT INTO "requests" VALUES('01JXT21Q00FPY9H4Z73H49J1GK','{"n":1}');
INSERT INTO "requests" VALUES('01JXT21Q00FPY9H4Z73H49J1GN','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R44DQ9YXFVMNSY4YS','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R44DQ9YXFVMNSY4YV','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R44DQ9YXFVMNSY4YX','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R44DQ9YXFVMNSY4YZ','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R44DQ9YXFVMNSY4Z0','{"n":1}');
CREATE TABLE steps (
    job_id TEXT NOT NULL REFERENCES jobs (job_id),
    position INTEGER NOT NULL CHECK (position >= 0),
    step TEXT NOT NULL,
    exec_id TEXT NOT NULL,
    tries INTEGER NOT NULL CHECK (tries >= 1),
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    response TEXT NOT NULL,
    PRIMARY KEY (job_id, position)
) WITHOUT ROWID;
INSERT INTO "steps" VALUES('01JXT21Q00FPY9H4Z73H49J1GF',0,'one','01JXT21Q00FPY9H4Z73H49J1GG',1,0,1750000000000,'{"ok":true}');
INSERT INTO "steps" VALUES('01JXT22N8R44DQ9YXFVMNSY4YV',0,'one','01JXT22N8R44DQ9YXFVMNSY4YW',1,0,1750000031000,'{}');
INSERT INTO "steps" VALUES('01JXT22N8R44DQ9YXFVMNSY4YX',0,'one','01JXT22N8R44DQ9YXFVMNSY4YY',1,0,1750000031000,'{"ok":true}');
CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY,
    flows TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX jobs_ready ON jobs (queue, priority DESC, job_id, flow) WHERE state = 'pending' AND hold = 'none';
CREATE INDEX jobs_due ON jobs (not_before) WHERE state = 'pending' AND hold = 'until';
CREATE INDEX jobs_waiting ON jobs (waits_for) WHERE waits_for IS NOT NULL;
CREATE INDEX jobs_unsettled ON jobs (state, flow) WHERE state <> 'succeeded';
CREATE INDEX jobs_dependents ON jobs (run_after) WHERE run_after IS NOT NULL;
CREATE UNIQUE INDEX jobs_key ON jobs (flow, key) WHERE key IS NOT NULL AND state IN ('pending', 'running');
CREATE UNIQUE INDEX executions_one_commit ON executions (job_id) WHERE status IN ('committed', 'done');
CREATE UNIQUE INDEX executions_one_live ON executions (job_id) WHERE status IN ('leased', 'in_progress');
CREATE INDEX executions_under_way ON executions (queue, lease_owner, lease_expires_at)
    WHERE status IN ('leased', 'in_progress', 'committed');
CREATE INDEX children_job ON children (job_id);
CREATE TRIGGER jobs_start_pending BEFORE INSERT ON jobs
WHEN NEW.state <> 'pending' OR NEW.attempt <> 0
BEGIN
    SELECT raise(ABORT, 'holdfast: a job starts as pending, with no attempts');
END;
CREATE TRIGGER jobs_are_not_replaced BEFORE INSERT ON jobs
WHEN EXISTS (SELECT 1 FROM jobs AS j WHERE j.job_id = NEW.job_id)
    OR (NEW.key IS NOT NULL AND EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.flow = NEW.flow AND j.key = NEW.key AND j.state IN ('pending', 'running')
    ))
BEGIN
    SELECT raise(ABORT, 'holdfast: a job with this id, or an unfinished one with this key, exists already');
END;
CREATE TRIGGER requests_are_not_replaced BEFORE INSERT ON requests
WHEN EXISTS (SELECT 1 FROM requests AS r WHERE r.job_id = NEW.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: a request does not change');
END;
CREATE TRIGGER pruned_is_not_replaced BEFORE INSERT ON pruned
WHEN EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = NEW.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: the record of pruned jobs is append-only');
END;
CREATE TRIGGER jobs_state_is_projection BEFORE UPDATE OF state ON jobs
WHEN NEW.state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: job state must equal the projection of its executions');
END;
CREATE TRIGGER jobs_key_is_free BEFORE UPDATE OF state ON jobs
WHEN NEW.key IS NOT NULL AND OLD.state NOT IN ('pending', 'running') AND NEW.state IN ('pending', 'running')
    AND EXISTS (
        SELECT 1 FROM jobs AS j
        WHERE j.flow = NEW.flow AND j.key = NEW.key AND j.state IN ('pending', 'running') AND j.job_id <> NEW.job_id
    )
BEGIN
    SELECT raise(ABORT, 'holdfast: another unfinished job has this key');
END;
CREATE TRIGGER jobs_succeeded_is_final BEFORE UPDATE ON jobs
WHEN OLD.state = 'succeeded'
BEGIN
    SELECT raise(ABORT, 'holdfast: a succeeded job does not change');
END;
CREATE TRIGGER jobs_counts_only_grow BEFORE UPDATE OF attempt, failures, crashes ON jobs
WHEN NEW.attempt < OLD.attempt OR NEW.failures < OLD.failures OR NEW.crashes < OLD.crashes
BEGIN
    SELECT raise(ABORT, 'holdfast: attempts only grow');
END;
CREATE TRIGGER jobs_identity_is_fixed BEFORE UPDATE OF job_id, flow, key, parent, run_after, created_at ON jobs
WHEN NEW.job_id <> OLD.job_id OR NEW.flow <> OLD.flow OR NEW.key IS NOT OLD.key
    OR NEW.parent IS NOT OLD.parent OR NEW.run_after IS NOT OLD.run_after OR NEW.created_at <> OLD.created_at
BEGIN
    SELECT raise(ABORT, 'holdfast: what identifies a job does not change');
END;
CREATE TRIGGER executions_identity_is_fixed
BEFORE UPDATE OF exec_id, job_id, attempt, queue, lease_owner, started_at, interrupted ON executions
WHEN NEW.exec_id <> OLD.exec_id OR NEW.job_id <> OLD.job_id OR NEW.attempt <> OLD.attempt OR NEW.queue <> OLD.queue
    OR NEW.lease_owner <> OLD.lease_owner OR NEW.started_at <> OLD.started_at OR NEW.interrupted <> OLD.interrupted
BEGIN
    SELECT raise(ABORT, 'holdfast: what identifies an execution does not change');
END;
CREATE TRIGGER executions_ended_are_final BEFORE UPDATE ON executions
WHEN OLD.status IN ('done', 'aborted') AND (
    NEW.status <> OLD.status OR NEW.finished_at IS NOT OLD.finished_at OR NEW.code IS NOT OLD.code
    OR NEW.error IS NOT OLD.error OR NEW.lease_expires_at <> OLD.lease_expires_at OR NEW.position <> OLD.position
    OR NEW.tries <> OLD.tries OR NEW.retry_at IS NOT OLD.retry_at OR NEW.progressed_at <> OLD.progressed_at
    OR NEW.progress IS NOT OLD.progress
)
BEGIN
    SELECT raise(ABORT, 'holdfast: an ended execution does not change');
END;
CREATE TRIGGER requests_are_final BEFORE UPDATE ON requests
BEGIN
    SELECT raise(ABORT, 'holdfast: a request does not change');
END;
CREATE TRIGGER requests_are_kept BEFORE DELETE ON requests
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: requests are removed by retention only');
END;
CREATE TRIGGER steps_are_added BEFORE INSERT ON steps
WHEN EXISTS (SELECT 1 FROM steps AS s WHERE s.job_id = NEW.job_id AND s.position = NEW.position)
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('committed', 'done'))
BEGIN
    SELECT raise(ABORT, 'holdfast: a finished step does not change');
END;
CREATE TRIGGER steps_are_final BEFORE UPDATE ON steps
BEGIN
    SELECT raise(ABORT, 'holdfast: a finished step does not change');
END;
CREATE TRIGGER steps_are_kept BEFORE DELETE ON steps
WHEN EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = OLD.job_id AND e.status IN ('committed', 'done'))
    AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: the steps of a committed job are removed by retention only');
END;
CREATE TRIGGER definitions_are_not_replaced BEFORE INSERT ON definitions
WHEN EXISTS (SELECT 1 FROM definitions AS d WHERE d.fingerprint = NEW.fingerprint)
BEGIN
    SELECT raise(ABORT, 'holdfast: a definition does not change');
END;
CREATE TRIGGER definitions_are_final BEFORE UPDATE ON definitions
BEGIN
    SELECT raise(ABORT, 'holdfast: a definition does not change');
END;
CREATE TRIGGER definitions_are_kept BEFORE DELETE ON definitions
BEGIN
    SELECT raise(ABORT, 'holdfast: a definition does not change');
END;
CREATE TRIGGER journal_is_append_only BEFORE UPDATE ON journal
BEGIN
    SELECT raise(ABORT, 'holdfast: the journal is append-only');
END;
CREATE TRIGGER journal_is_kept BEFORE DELETE ON journal
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: the journal is append-only');
END;
CREATE TRIGGER jobs_are_kept BEFORE DELETE ON jobs
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: jobs are removed by retention only');
END;
CREATE TRIGGER executions_are_kept BEFORE DELETE ON executions
WHEN NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = OLD.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: executions are removed by retention only');
END;
CREATE TRIGGER pruned_is_true BEFORE INSERT ON pruned
WHEN NOT EXISTS (
    SELECT 1 FROM jobs AS j JOIN journal AS l ON l.job_id = j.job_id
    WHERE j.job_id = NEW.job_id AND j.state IN ('succeeded', 'failed', 'quarantined') AND j.state = NEW.state
        AND l.seq = NEW.entries AND l.hash = NEW.head
        AND NOT EXISTS (SELECT 1 FROM journal AS later WHERE later.job_id = l.job_id AND later.seq > l.seq)
)
BEGIN
    SELECT raise(ABORT, 'holdfast: only an ended job is pruned, under the true head of its journal');
END;
CREATE TRIGGER pruned_is_append_only BEFORE UPDATE ON pruned
BEGIN
    SELECT raise(ABORT, 'holdfast: the record of pruned jobs is append-only');
END;
CREATE TRIGGER pruned_is_kept BEFORE DELETE ON pruned
BEGIN
    SELECT raise(ABORT, 'holdfast: the record of pruned jobs is append-only');
END;
CREATE VIEW job_projection AS
SELECT
    job_id,
    coalesce(
        -- 'succeeded' is the greater text, so that a done execution outweighs a committed one.
        (
            SELECT max(CASE e.status WHEN 'done' THEN 'succeeded' ELSE 'running' END) FROM executions AS e
            WHERE e.job_id = jobs.job_id AND e.status IN ('committed', 'done')
        ),
        (
            SELECT CASE
                WHEN e.status <> 'aborted' THEN 'running'
                WHEN e.disposition = 'retry' THEN 'pending'
                ELSE e.disposition
            END
            FROM executions AS e WHERE e.job_id = jobs.job_id ORDER BY e.attempt DESC LIMIT 1
        ),
        'pending'
    ) AS state
FROM jobs;
CREATE TRIGGER jobs_transition_is_legal BEFORE UPDATE OF state ON jobs
WHEN NEW.state <> OLD.state AND CASE OLD.state || '>' || NEW.state
    WHEN 'pending>running' THEN false
    WHEN 'running>succeeded' THEN false
    WHEN 'running>failed' THEN false
    WHEN 'running>pending' THEN false
    WHEN 'failed>pending' THEN false
    WHEN 'failed>quarantined' THEN false
    WHEN 'quarantined>pending' THEN false
    ELSE true
END
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal job transition');
END;
CREATE TRIGGER executions_transition_is_legal BEFORE UPDATE OF status, disposition ON executions
WHEN CASE
    WHEN NEW.status <> OLD.status THEN CASE OLD.status || '>' || NEW.status
        WHEN 'leased>in_progress' THEN false
        WHEN 'leased>aborted' THEN false
        WHEN 'in_progress>committed' THEN false
        WHEN 'in_progress>aborted' THEN false
        WHEN 'committed>done' THEN false
        ELSE true
    END
    WHEN NEW.disposition IS NOT OLD.disposition THEN CASE OLD.disposition || '>' || NEW.disposition
        WHEN 'failed>retry' THEN false
        WHEN 'failed>quarantined' THEN false
        WHEN 'quarantined>retry' THEN false
        ELSE true
    END
    ELSE false
END
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal execution transition');
END;
CREATE TRIGGER executions_start_leased BEFORE INSERT ON executions
WHEN NEW.status <> 'leased'
    OR NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.job_id = NEW.job_id AND j.state = 'pending' AND j.attempt = NEW.attempt - 1
    )
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.exec_id = NEW.exec_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: an execution starts as leased, under a new id, as the next attempt of a pending job');
END;
CREATE TRIGGER executions_move_job AFTER INSERT ON executions
BEGIN
    UPDATE jobs SET attempt = NEW.attempt, updated_at = NEW.started_at, hold = 'none', waits_for = NULL, state = 'running'
    WHERE job_id = NEW.job_id;
END;
CREATE TRIGGER executions_change_job AFTER UPDATE OF status, disposition ON executions
WHEN NEW.status IN ('done', 'aborted') AND (NEW.status <> OLD.status OR NEW.disposition IS NOT OLD.disposition)
BEGIN
    UPDATE jobs
    SET updated_at = max(updated_at, coalesce(NEW.finished_at, NEW.progressed_at)),
        state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
    WHERE job_id = NEW.job_id AND state <> 'succeeded';
END;
CREATE TRIGGER journal_follows BEFORE INSERT ON journal
WHEN NEW.seq || ' ' || NEW.prev_hash IS NOT coalesce(
    (SELECT (j.seq + 1) || ' ' || j.hash FROM journal AS j WHERE j.job_id = NEW.job_id ORDER BY j.seq DESC LIMIT 1),
    '1 '
)
BEGIN
    SELECT raise(ABORT, 'holdfast: a journal entry must follow the one before it');
END;
COMMIT;
