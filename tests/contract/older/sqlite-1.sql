-- {"succeeded": "01JXT21Q001SP6VZF0MF4ATDTM", "failed": "01JXT21Q001SP6VZF0MF4ATDTP", "quarantined": "01JXT21Q001SP6VZF0MF4ATDTR", "tried_again": {"job": {"job_id": "01JXT21Q001SP6VZF0MF4ATDTT", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 2, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 1, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000000000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5YSPB0CGMN32QF2H", "attempt": 2, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": true}, "leased": {"job": {"job_id": "01JXT22N8R5YSPB0CGMN32QF2J", "flow": "demo", "fingerprint": "5e374847e0eb0716", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5YSPB0CGMN32QF2K", "attempt": 1, "status": "leased", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "running": {"job": {"job_id": "01JXT22N8R5YSPB0CGMN32QF2M", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5YSPB0CGMN32QF2N", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "committed": {"job": {"job_id": "01JXT22N8R5YSPB0CGMN32QF2P", "flow": "demo", "fingerprint": "da4fbd80c76eae7e", "state": "running", "key": null, "queue": "", "priority": 0, "hold": "none", "not_before": 0, "run_after": null, "waits_for": null, "parent": null, "attempt": 1, "failures": 0, "failures_forgiven": 0, "failure_limit": 1, "crashes": 0, "crashes_forgiven": 0, "crash_limit": 5, "stall_ms": 600000, "cancel_reason": null, "ending": null, "created_at": 1750000031000, "updated_at": 1750000031000}, "exec_id": "01JXT22N8R5YSPB0CGMN32QF2Q", "attempt": 1, "status": "in_progress", "request": "{\"n\":1}", "position": 0, "response": null, "tries": 0, "interrupted": false}, "pending": "01JXT22N8R5YSPB0CGMN32QF2R", "waiting": "01JXT22N8R5YSPB0CGMN32QF2S", "now": 1750000031000}
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
    status TEXT NOT NULL CHECK (status IN ('leased', 'in_progress', 'committed', 'done', 'aborted')),
    disposition TEXT CHECK (disposition IN ('retry', 'failed', 'quarantined')),
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
INSERT INTO "executions" VALUES('01JXT21Q001SP6VZF0MF4ATDTN','01JXT21Q001SP6VZF0MF4ATDTM',1,'','done',NULL,'completed',NULL,'host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000000000);
INSERT INTO "executions" VALUES('01JXT21Q001SP6VZF0MF4ATDTQ','01JXT21Q001SP6VZF0MF4ATDTP',1,'','aborted','failed','error',NULL,'host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000000000);
INSERT INTO "executions" VALUES('01JXT21Q001SP6VZF0MF4ATDTS','01JXT21Q001SP6VZF0MF4ATDTR',1,'','aborted','quarantined','error',NULL,'host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000000000);
INSERT INTO "executions" VALUES('01JXT21Q001SP6VZF0MF4ATDTV','01JXT21Q001SP6VZF0MF4ATDTT',1,'','aborted','retry','crashed','pid 11 on host-a did not finish: its lease ran out (crash 1)','host-a:11:1:boot:1:one',1750000030000,0,0,0,NULL,1750000000000,NULL,1750000000000,1750000031000);
INSERT INTO "executions" VALUES('01JXT22N8R5YSPB0CGMN32QF2H','01JXT21Q001SP6VZF0MF4ATDTT',2,'','in_progress',NULL,NULL,NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,1,NULL,1750000031000,NULL,1750000031000,NULL);
INSERT INTO "executions" VALUES('01JXT22N8R5YSPB0CGMN32QF2K','01JXT22N8R5YSPB0CGMN32QF2J',1,'','leased',NULL,NULL,NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,0,NULL,1750000031000,NULL,1750000031000,NULL);
INSERT INTO "executions" VALUES('01JXT22N8R5YSPB0CGMN32QF2N','01JXT22N8R5YSPB0CGMN32QF2M',1,'','in_progress',NULL,NULL,NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,0,NULL,1750000031000,NULL,1750000031000,NULL);
INSERT INTO "executions" VALUES('01JXT22N8R5YSPB0CGMN32QF2Q','01JXT22N8R5YSPB0CGMN32QF2P',1,'','committed',NULL,'completed',NULL,'host-a:11:1:boot:1:one',1750000061000,0,0,0,NULL,1750000031000,NULL,1750000031000,NULL);
CREATE TABLE holdfast_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL);
INSERT INTO "holdfast_migrations" VALUES(1,'engine',1750000000000);
CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY,
    flow TEXT NOT NULL,
    fingerprint TEXT NOT NULL REFERENCES definitions (fingerprint),
    state TEXT NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'running', 'succeeded', 'failed', 'quarantined')),
    key TEXT,
    queue TEXT NOT NULL DEFAULT '' REFERENCES queues (name),
    priority INTEGER NOT NULL DEFAULT 0,
    hold TEXT NOT NULL DEFAULT 'none' CHECK (hold IN ('none', 'until', 'after', 'child')),
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
INSERT INTO "jobs" VALUES('01JXT21Q001SP6VZF0MF4ATDTM','demo','da4fbd80c76eae7e','succeeded',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000000000,1750000000000);
INSERT INTO "jobs" VALUES('01JXT21Q001SP6VZF0MF4ATDTP','demo','da4fbd80c76eae7e','failed',NULL,'',0,'none',0,NULL,NULL,NULL,1,1,0,1,0,0,5,600000,NULL,NULL,1750000000000,1750000000000);
INSERT INTO "jobs" VALUES('01JXT21Q001SP6VZF0MF4ATDTR','demo','da4fbd80c76eae7e','quarantined',NULL,'',0,'none',0,NULL,NULL,NULL,1,1,0,1,0,0,5,600000,NULL,NULL,1750000000000,1750000000000);
INSERT INTO "jobs" VALUES('01JXT21Q001SP6VZF0MF4ATDTT','demo','da4fbd80c76eae7e','running',NULL,'',0,'none',0,NULL,NULL,NULL,2,0,0,1,1,0,5,600000,NULL,NULL,1750000000000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R5YSPB0CGMN32QF2J','demo','5e374847e0eb0716','running',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R5YSPB0CGMN32QF2M','demo','da4fbd80c76eae7e','running',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R5YSPB0CGMN32QF2P','demo','da4fbd80c76eae7e','running',NULL,'',0,'none',0,NULL,NULL,NULL,1,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R5YSPB0CGMN32QF2R','demo','da4fbd80c76eae7e','pending','k','',0,'none',0,NULL,NULL,NULL,0,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
INSERT INTO "jobs" VALUES('01JXT22N8R5YSPB0CGMN32QF2S','demo','da4fbd80c76eae7e','pending',NULL,'',0,'after',0,'01JXT22N8R5YSPB0CGMN32QF2M','01JXT22N8R5YSPB0CGMN32QF2M',NULL,0,0,0,1,0,0,5,600000,NULL,NULL,1750000031000,1750000031000);
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
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTM',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','8bade796e78f6f81c2770e58c58839120c3f5e2461c1556facb25a304af735ae');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTM',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTN','pending','running',NULL,'leased',NULL,'claimed','{}','8bade796e78f6f81c2770e58c58839120c3f5e2461c1556facb25a304af735ae','b355d4f0f1e01ea1450a0276f641c9623b149c88e32680623b482b3e30c3c6b2');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTM',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTN','running','running','leased','in_progress',NULL,'started','{}','b355d4f0f1e01ea1450a0276f641c9623b149c88e32680623b482b3e30c3c6b2','29fbb4ebceddfd13f670a49062131213debf2490b4ac8a3f9c5214be17991e27');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTM',4,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTN','running','running','in_progress','committed','one','completed','{}','29fbb4ebceddfd13f670a49062131213debf2490b4ac8a3f9c5214be17991e27','e423f18e90541a97a33d1b8224d56141d9bc73058aff25c0b63b8b60e4714ef8');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTM',5,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTN','running','succeeded','committed','done',NULL,'finished','{}','e423f18e90541a97a33d1b8224d56141d9bc73058aff25c0b63b8b60e4714ef8','0cb17a17f449c454285c7452444f2a48ab543f680180c4b73aa535e4bab11c6b');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTP',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','1fad0ffc758a6f8de63ab95a6f5171e54caa22f5a3d147b1f04a02107e588cf8');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTP',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTQ','pending','running',NULL,'leased',NULL,'claimed','{}','1fad0ffc758a6f8de63ab95a6f5171e54caa22f5a3d147b1f04a02107e588cf8','b740deb30b2a50361f798bd167e7d0cd6f81dfaa20e4f35db130463479210424');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTP',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTQ','running','running','leased','in_progress',NULL,'started','{}','b740deb30b2a50361f798bd167e7d0cd6f81dfaa20e4f35db130463479210424','d2f267b9448980b919cf4ef3ba268900c79fc771dddcf32976fffd20ed094d77');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTP',4,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTQ','running','failed','in_progress','aborted',NULL,'error','{"code":"error"}','d2f267b9448980b919cf4ef3ba268900c79fc771dddcf32976fffd20ed094d77','e694aa783a12d141a881cd217454ee5e282bda4dc99b9ce583a03239aea43e18');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTR',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','30911bd2b5289ca9bce7dc39e27f68d1bd85f6c6958ceb1d14bed0d069c20dc1');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTR',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTS','pending','running',NULL,'leased',NULL,'claimed','{}','30911bd2b5289ca9bce7dc39e27f68d1bd85f6c6958ceb1d14bed0d069c20dc1','e15d5defced0162081a97ecd64b7f2d679c82992d1ea19130c5ca676bff2e9eb');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTR',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTS','running','running','leased','in_progress',NULL,'started','{}','e15d5defced0162081a97ecd64b7f2d679c82992d1ea19130c5ca676bff2e9eb','f8df1c4e32b823c19cd4f7987e6c00cc474684e83b7910fffae21dd4ddabd4e2');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTR',4,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTS','running','failed','in_progress','aborted',NULL,'error','{"code":"error"}','f8df1c4e32b823c19cd4f7987e6c00cc474684e83b7910fffae21dd4ddabd4e2','8a11fd073e95a2343ef93c389c1884737570f317c2086bd7dc6597ae7eb29878');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTR',5,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTS','failed','quarantined','aborted','aborted',NULL,'error','{}','8a11fd073e95a2343ef93c389c1884737570f317c2086bd7dc6597ae7eb29878','622f4c346ec807c5a1c9a3f0614907e963c287cf4ff2c9b17042735c2b866a70');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTT',1,1750000000000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','294638fa7acd1087a70be5c118805ca7ce32eb029d7a8022938fd89164d71375');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTT',2,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTV','pending','running',NULL,'leased',NULL,'claimed','{}','294638fa7acd1087a70be5c118805ca7ce32eb029d7a8022938fd89164d71375','c14f116396855832e4f363e3bc89f1ef91429e6e8ff840de3d582aa57ca5e1bf');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTT',3,1750000000000,'host-a:11:1:boot:1:one','01JXT21Q001SP6VZF0MF4ATDTV','running','running','leased','in_progress',NULL,'started','{}','c14f116396855832e4f363e3bc89f1ef91429e6e8ff840de3d582aa57ca5e1bf','f240c159d7e6456be73d9c8baabbabf3d2dbc0b204f37b2ce92a8d8a80502f7e');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTT',4,1750000031000,'host-a:12:1:boot:1:two','01JXT21Q001SP6VZF0MF4ATDTV','running','pending','in_progress','aborted',NULL,'pid 11 on host-a did not finish: its lease ran out (crash 1)','{"code":"crashed"}','f240c159d7e6456be73d9c8baabbabf3d2dbc0b204f37b2ce92a8d8a80502f7e','a7e21633a7310fd518497aef0823bfce0143143eb7f8375b4d63896e309d71e5');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTT',5,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2H','pending','running',NULL,'leased',NULL,'claimed','{}','a7e21633a7310fd518497aef0823bfce0143143eb7f8375b4d63896e309d71e5','cddb5dc506d3755c6b09aa134e4be5f19a823c96d41080d5131272db4bfdc370');
INSERT INTO "journal" VALUES('01JXT21Q001SP6VZF0MF4ATDTT',6,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2H','running','running','leased','in_progress',NULL,'started','{}','cddb5dc506d3755c6b09aa134e4be5f19a823c96d41080d5131272db4bfdc370','d5d1de68a8ed91174cec08c635531b0874ffe30923c768cc0e8bf34ba9dffa94');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2J',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','5aba8d9fb5ee8e0173641c6992fab0494f3b8149ccdd6a4cfd865664d8628634');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2J',2,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2K','pending','running',NULL,'leased',NULL,'claimed','{}','5aba8d9fb5ee8e0173641c6992fab0494f3b8149ccdd6a4cfd865664d8628634','58a935e408b6e6565d5eda47e97300640ffef9cd3c2af2ff9d653dbdfa1cbfcc');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2M',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','654d56b86f6ff686d67cbbe867a591442ad7166f094696d9a285884d5227d302');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2M',2,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2N','pending','running',NULL,'leased',NULL,'claimed','{}','654d56b86f6ff686d67cbbe867a591442ad7166f094696d9a285884d5227d302','b71767163a6e64a95b7d59125dc1b9857c73b33e28ef6c10f5b7c62b1bee79af');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2M',3,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2N','running','running','leased','in_progress',NULL,'started','{}','b71767163a6e64a95b7d59125dc1b9857c73b33e28ef6c10f5b7c62b1bee79af','ed35ca6e2b53c6beeade0cec50bfa9c458df8995f4b39737807dacaec23d555a');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2P',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','92700018e468f5a77e04a51a0714de8f8705a1dc3d0b32443fba5015861d6cff');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2P',2,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2Q','pending','running',NULL,'leased',NULL,'claimed','{}','92700018e468f5a77e04a51a0714de8f8705a1dc3d0b32443fba5015861d6cff','e2b8924c88e48847e812291b413cfa246ba1ea5d7d2550b21792e9b2883af2fe');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2P',3,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2Q','running','running','leased','in_progress',NULL,'started','{}','e2b8924c88e48847e812291b413cfa246ba1ea5d7d2550b21792e9b2883af2fe','e04ef7e7360aca973f99993c2f52dbdff9d0aa59fe2649586be5694c034ba3d6');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2P',4,1750000031000,'host-a:11:1:boot:1:one','01JXT22N8R5YSPB0CGMN32QF2Q','running','running','in_progress','committed','one','completed','{}','e04ef7e7360aca973f99993c2f52dbdff9d0aa59fe2649586be5694c034ba3d6','58abfc754e1efc5b8fa9f23bc4d57d329b1aa896a151cd70857c7f6add912ee4');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2R',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','2dbe7fd29c269f0634b4f024d22efa8ee8865255f678726ee7474e2273dc058d');
INSERT INTO "journal" VALUES('01JXT22N8R5YSPB0CGMN32QF2S',1,1750000031000,'client',NULL,NULL,'pending',NULL,NULL,NULL,'submitted','{}','','0e42ce03097491271b031381471b88152e6e9565505418f368f1fba4c02336b0');
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
INSERT INTO "requests" VALUES('01JXT21Q001SP6VZF0MF4ATDTM','{"n":1}');
INSERT INTO "requests" VALUES('01JXT21Q001SP6VZF0MF4ATDTP','{"n":1}');
INSERT INTO "requests" VALUES('01JXT21Q001SP6VZF0MF4ATDTR','{"n":1}');
INSERT INTO "requests" VALUES('01JXT21Q001SP6VZF0MF4ATDTT','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R5YSPB0CGMN32QF2J','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R5YSPB0CGMN32QF2M','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R5YSPB0CGMN32QF2P','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R5YSPB0CGMN32QF2R','{"n":1}');
INSERT INTO "requests" VALUES('01JXT22N8R5YSPB0CGMN32QF2S','{"n":1}');
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
INSERT INTO "steps" VALUES('01JXT21Q001SP6VZF0MF4ATDTM',0,'one','01JXT21Q001SP6VZF0MF4ATDTN',1,0,1750000000000,'{"ok":true}');
INSERT INTO "steps" VALUES('01JXT22N8R5YSPB0CGMN32QF2M',0,'one','01JXT22N8R5YSPB0CGMN32QF2N',1,0,1750000031000,'{}');
INSERT INTO "steps" VALUES('01JXT22N8R5YSPB0CGMN32QF2P',0,'one','01JXT22N8R5YSPB0CGMN32QF2Q',1,0,1750000031000,'{"ok":true}');
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
CREATE VIEW job_projection AS
SELECT
    job_id,
    coalesce((
        SELECT CASE
            WHEN e.status = 'done' THEN 'succeeded'
            WHEN e.status = 'aborted' THEN CASE e.disposition WHEN 'retry' THEN 'pending' ELSE e.disposition END
            ELSE 'running'
        END
        FROM executions AS e
        WHERE e.job_id = jobs.job_id
        ORDER BY CASE e.status WHEN 'done' THEN 2 WHEN 'committed' THEN 1 ELSE 0 END DESC, e.attempt DESC
        LIMIT 1
    ), 'pending') AS state
FROM jobs;
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
CREATE TRIGGER journal_is_not_replaced BEFORE INSERT ON journal
WHEN EXISTS (SELECT 1 FROM journal AS j WHERE j.job_id = NEW.job_id AND j.seq = NEW.seq)
BEGIN
    SELECT raise(ABORT, 'holdfast: the journal is append-only');
END;
CREATE TRIGGER requests_are_not_replaced BEFORE INSERT ON requests
WHEN EXISTS (SELECT 1 FROM requests AS r WHERE r.job_id = NEW.job_id)
BEGIN
    SELECT raise(ABORT, 'holdfast: a request does not change');
END;
CREATE TRIGGER executions_are_not_replaced BEFORE INSERT ON executions
WHEN EXISTS (SELECT 1 FROM executions AS e WHERE e.exec_id = NEW.exec_id)
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('leased', 'in_progress'))
BEGIN
    SELECT raise(ABORT, 'holdfast: an execution is not replaced');
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
CREATE TRIGGER jobs_transition_is_legal BEFORE UPDATE OF state ON jobs
WHEN NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
    'pending>running',
    'running>succeeded', 'running>failed', 'running>pending',
    'failed>pending', 'failed>quarantined',
    'quarantined>pending'
)
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal job transition');
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
CREATE TRIGGER executions_start_leased BEFORE INSERT ON executions
WHEN NEW.status <> 'leased'
    OR NEW.attempt <> 1 + (SELECT j.attempt FROM jobs AS j WHERE j.job_id = NEW.job_id)
    OR EXISTS (SELECT 1 FROM executions AS e WHERE e.job_id = NEW.job_id AND e.status IN ('committed', 'done'))
BEGIN
    SELECT raise(ABORT, 'holdfast: an execution starts as leased, as the next attempt of an uncommitted job');
END;
CREATE TRIGGER executions_move_job AFTER INSERT ON executions
BEGIN
    UPDATE jobs
    SET attempt = NEW.attempt, updated_at = NEW.started_at, hold = 'none', waits_for = NULL,
        state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
    WHERE job_id = NEW.job_id;
END;
CREATE TRIGGER executions_transition_is_legal BEFORE UPDATE OF status, disposition ON executions
WHEN (NEW.status <> OLD.status AND (OLD.status || '>' || NEW.status) NOT IN (
        'leased>in_progress', 'leased>aborted',
        'in_progress>committed', 'in_progress>aborted',
        'committed>done'
    ))
    OR (NEW.status = OLD.status AND NEW.disposition IS NOT OLD.disposition
        AND (OLD.disposition || '>' || NEW.disposition) NOT IN (
            'failed>retry', 'failed>quarantined', 'quarantined>retry'
        ))
BEGIN
    SELECT raise(ABORT, 'holdfast: illegal execution transition');
END;
CREATE TRIGGER executions_change_job AFTER UPDATE OF status, disposition ON executions
WHEN NEW.status <> OLD.status OR NEW.disposition IS NOT OLD.disposition
BEGIN
    UPDATE jobs
    SET updated_at = max(updated_at, coalesce(NEW.finished_at, NEW.progressed_at)),
        state = (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id)
    WHERE job_id = NEW.job_id
        AND state <> (SELECT p.state FROM job_projection AS p WHERE p.job_id = NEW.job_id);
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
CREATE TRIGGER journal_follows BEFORE INSERT ON journal
WHEN NEW.prev_hash IS NOT CASE NEW.seq WHEN 1 THEN '' ELSE (
    SELECT j.hash FROM journal AS j WHERE j.job_id = NEW.job_id AND j.seq = NEW.seq - 1
) END
BEGIN
    SELECT raise(ABORT, 'holdfast: a journal entry must follow the one before it');
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
COMMIT;
