-- The database of a sweep that loopscale 0.1 half finished.
BEGIN TRANSACTION;
CREATE TABLE events (time REAL NOT NULL, run TEXT NOT NULL, what TEXT NOT NULL, worker TEXT NOT NULL) STRICT;
INSERT INTO "events" VALUES(1.79483341053547358514e+09,'base-E1-R1-s0','claimed','vm/e7dae1a8:20788');
INSERT INTO "events" VALUES(1.79483341107026386261e+09,'base-E1-R1-s0','observed 64','vm/e7dae1a8:20788');
INSERT INTO "events" VALUES(1.79483341132620072364e+09,'base-E1-R1-s0','observed 128','vm/e7dae1a8:20788');
INSERT INTO "events" VALUES(1.79483341135709762578e+09,'base-E1-R1-s0','finished','vm/e7dae1a8:20788');
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO "facts" VALUES('name','tiny');
INSERT INTO "facts" VALUES('file','sweep.toml');
CREATE TABLE observations (
    run TEXT NOT NULL REFERENCES runs (key),
    tokens INTEGER NOT NULL,
    loss REAL NOT NULL,
    facts TEXT NOT NULL,
    UNIQUE (run, tokens)
) STRICT;
INSERT INTO "observations" VALUES('base-E1-R1-s0',64,5.18352389335632324218e+00,'{"kind": "training summary", "schema": 1, "validation_loss": 5.183523893356323, "tokens": 64, "recurrence": 1, "experts": 1, "active": 12384, "loop": 4128, "total": 12384, "training_flops": 4755456.0, "seed": 0, "real_training_flops": 6653952.0, "width": 16, "layers": 3, "learning_rate": 0.003, "cooldown_seconds": 0.06486756699996477}');
INSERT INTO "observations" VALUES('base-E1-R1-s0',128,4.6936016082763671875e+00,'{"kind": "training summary", "schema": 1, "validation_loss": 4.693601608276367, "tokens": 128, "recurrence": 1, "experts": 1, "active": 12384, "loop": 4128, "total": 12384, "training_flops": 9510912.0, "seed": 0, "real_training_flops": 13307904.0, "width": 16, "layers": 3, "learning_rate": 0.003, "cooldown_seconds": 0.1448005069996725}');
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    place INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    config TEXT NOT NULL,
    points TEXT NOT NULL,
    cost REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    error TEXT,
    claim TEXT,
    machine TEXT, pid INTEGER, begun TEXT,
    beat REAL,
    steps_done INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO "runs" VALUES('base-E1-R1-s0',0,1,'{"schema": 1, "model": {"rung": null, "width": 16, "layers": 3, "edge_layers": 1, "head_size": 8, "kv_heads": null, "experts": 1, "active_experts": 2, "recurrence": 1, "residual_init": "unrolled"}, "data": {"files": ["text.txt"], "dataset": null, "text_field": "text", "tokenizer": "bytes", "validation": 0.2, "context": 16, "separate": false, "folder": "tokens"}, "optimizer": {"learning_rate": 0.003, "betas": [0.9, 0.95], "eps": 1e-15, "weight_decay": 0.1, "clip": 1.0, "width_rule": "none", "base_width": 64, "recurrence_rule": 0.0}, "schedule": {"kind": "wsd", "warmup_steps": 2, "cooldown": 0.2, "final": 0.0}, "run": {"tokens": 128.0, "batch": 2, "accumulate": 1, "seed": 0, "precision": "auto", "compile": false, "activation_checkpointing": false, "log_every": 10, "validate_every": 0, "validation_sequences": 4, "checkpoint_every": 4, "keep": 2, "divergence": 2.0, "track": []}, "parallel": {"experts": 1}}','{"64": 64.0, "128": 128.0}',21070848.0,'done',NULL,NULL,'vm/e7dae1a8',20788,'285460',1.7948334113446609974e+09,5,5,7.95557046999874728498e-01,0);
INSERT INTO "runs" VALUES('base-E1-R2-s0',1,1,'{"schema": 1, "model": {"rung": null, "width": 16, "layers": 3, "edge_layers": 1, "head_size": 8, "kv_heads": null, "experts": 1, "active_experts": 2, "recurrence": 2, "residual_init": "unrolled"}, "data": {"files": ["text.txt"], "dataset": null, "text_field": "text", "tokenizer": "bytes", "validation": 0.2, "context": 16, "separate": false, "folder": "tokens"}, "optimizer": {"learning_rate": 0.003, "betas": [0.9, 0.95], "eps": 1e-15, "weight_decay": 0.1, "clip": 1.0, "width_rule": "none", "base_width": 64, "recurrence_rule": 0.0}, "schedule": {"kind": "wsd", "warmup_steps": 2, "cooldown": 0.2, "final": 0.0}, "run": {"tokens": 128.0, "batch": 2, "accumulate": 1, "seed": 0, "precision": "auto", "compile": false, "activation_checkpointing": false, "log_every": 10, "validate_every": 0, "validation_sequences": 4, "checkpoint_every": 4, "keep": 2, "divergence": 2.0, "track": []}, "parallel": {"experts": 1}}','{"64": 64.0, "128": 128.0}',26382336.0,'waiting',NULL,NULL,NULL,NULL,NULL,NULL,0,5,0.0,0);
COMMIT;
PRAGMA user_version = 1;
PRAGMA application_id = 1280530256;
