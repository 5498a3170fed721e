PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
INSERT INTO facts VALUES('name','small');
INSERT INTO facts VALUES('file','sweep.toml');
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    config TEXT NOT NULL,
    points TEXT NOT NULL,
    cost REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    error TEXT,
    claim_id TEXT,
    machine TEXT, pid INTEGER, started_at TEXT,
    steps_done INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    heartbeat INTEGER NOT NULL DEFAULT 0,
    gpus INTEGER NOT NULL DEFAULT 1,
    nodes INTEGER NOT NULL DEFAULT 1,
    cell TEXT NOT NULL DEFAULT '{}'
) STRICT;
INSERT INTO runs VALUES('small-E1-R1-s0',0,1,'{"schema": 1, "recipe": {"name": "none"}, "model": {"rung": null, "width": 32, "layers": 3, "edge_layers": 1, "placement": "edges", "head_size": 16, "kv_heads": null, "experts": 1, "active_experts": 2, "recurrence": 1, "residual_init": "unrolled"}, "data": {"mix": {}, "sources": {}, "files": ["texts"], "dataset": null, "text_field": "text", "tokenizer": "bytes", "validation": 0.2, "context": 64, "document_mask": false, "folder": null, "processes": null}, "optimizer": {"learning_rate": 0.003, "betas": [0.9, 0.95], "eps": 1e-15, "weight_decay": 0.1, "clip": 1.0, "width_rule": "none", "base_width": 64, "recurrence_rule": 0.0}, "schedule": {"kind": "wsd", "warmup_steps": 100, "cooldown": 0.2, "final": 0.0, "recurrence": []}, "run": {"tokens": 5000.0, "batch": 8, "accumulate": 1, "seed": 0, "precision": "auto", "compile": false, "activation_checkpointing": false, "activation_memory": null, "log_every": 10, "validate_every": 0, "validation_sequences": 256, "checkpoint_every": 500, "keep": 2, "async_checkpoints": false, "divergence": 2.0, "skip_spikes": 0, "spike": 1.0, "deterministic": "auto", "track": [], "law": null, "law_slack": 0.1, "eval_tasks": null, "eval_every": 0, "eval_limit": 100}, "parallel": {"experts": 1, "replicas": 1, "reduce": "step", "offload": false}}','{"5120": 5000.0}',3309465600.0,'done',NULL,NULL,'laptop',22055,'2650.9',10,10,4.0701168169998709345,0,3,1,1,'{"size": "small", "experts": 1, "recurrence": 1, "seed": 0, "settings": []}');
INSERT INTO runs VALUES('small-E1-R2-s0',1,1,'{"schema": 1, "recipe": {"name": "none"}, "model": {"rung": null, "width": 32, "layers": 3, "edge_layers": 1, "placement": "edges", "head_size": 16, "kv_heads": null, "experts": 1, "active_experts": 2, "recurrence": 2, "residual_init": "unrolled"}, "data": {"mix": {}, "sources": {}, "files": ["texts"], "dataset": null, "text_field": "text", "tokenizer": "bytes", "validation": 0.2, "context": 64, "document_mask": false, "folder": null, "processes": null}, "optimizer": {"learning_rate": 0.003, "betas": [0.9, 0.95], "eps": 1e-15, "weight_decay": 0.1, "clip": 1.0, "width_rule": "none", "base_width": 64, "recurrence_rule": 0.0}, "schedule": {"kind": "wsd", "warmup_steps": 100, "cooldown": 0.2, "final": 0.0, "recurrence": []}, "run": {"tokens": 5000.0, "batch": 8, "accumulate": 1, "seed": 0, "precision": "auto", "compile": false, "activation_checkpointing": false, "activation_memory": null, "log_every": 10, "validate_every": 0, "validation_sequences": 256, "checkpoint_every": 500, "keep": 2, "async_checkpoints": false, "divergence": 2.0, "skip_spikes": 0, "spike": 1.0, "deterministic": "auto", "track": [], "law": null, "law_slack": 0.1, "eval_tasks": null, "eval_every": 0, "eval_limit": 100}, "parallel": {"experts": 1, "replicas": 1, "reduce": "step", "offload": false}}','{"5120": 5000.0}',4266639360.0,'done',NULL,NULL,'laptop',22055,'2650.9',10,10,4.8708289050000530551,0,3,1,1,'{"size": "small", "experts": 1, "recurrence": 2, "seed": 0, "settings": []}');
CREATE TABLE observations (
    run TEXT NOT NULL REFERENCES runs (key),
    tokens INTEGER NOT NULL,
    loss REAL NOT NULL,
    facts TEXT NOT NULL,
    UNIQUE (run, tokens)
) STRICT;
INSERT INTO observations VALUES('small-E1-R1-s0',5120,5.273067787165349074,'{"kind": "training summary", "schema": 1, "validation_loss": 5.273067787165349, "tokens": 5120, "recurrence": 1, "experts": 1, "active": 49344, "loop": 16448, "total": 49344, "training_flops": 1515847680.0, "real_training_flops": 1961164800.0, "seed": 0, "width": 32, "layers": 3, "learning_rate": 0.003, "run": "small-E1-R1-s0", "size": "small", "config": {"schema": 1, "recipe": {"name": "none"}, "model": {"rung": null, "width": 32, "layers": 3, "edge_layers": 1, "placement": "edges", "head_size": 16, "kv_heads": null, "experts": 1, "active_experts": 2, "recurrence": 1, "residual_init": "unrolled"}, "data": {"mix": {}, "sources": {}, "files": ["texts"], "dataset": null, "text_field": "text", "tokenizer": "bytes", "validation": 0.2, "context": 64, "document_mask": false, "folder": null, "processes": null}, "optimizer": {"learning_rate": 0.003, "betas": [0.9, 0.95], "eps": 1e-15, "weight_decay": 0.1, "clip": 1.0, "width_rule": "none", "base_width": 64, "recurrence_rule": 0.0}, "schedule": {"kind": "wsd", "warmup_steps": 100, "cooldown": 0.2, "final": 0.0, "recurrence": []}, "run": {"tokens": 5120.0, "batch": 8, "accumulate": 1, "seed": 0, "precision": "auto", "compile": false, "activation_checkpointing": false, "activation_memory": null, "log_every": 10, "validate_every": 0, "validation_sequences": 256, "checkpoint_every": 500, "keep": 2, "async_checkpoints": false, "divergence": 2.0, "skip_spikes": 0, "spike": 1.0, "deterministic": "auto", "track": [], "law": null, "law_slack": 0.1, "eval_tasks": null, "eval_every": 0, "eval_limit": 100}, "parallel": {"experts": 1, "replicas": 1, "reduce": "step", "offload": false}}, "schedule": "wsd", "data": "a6d341927729d80a82b494d0da8467c98093e5bce52e4be396bc0482dc8d2052", "version": "0.2.0", "resumes": 0}');
INSERT INTO observations VALUES('small-E1-R2-s0',5120,5.2677014070175376403,'{"kind": "training summary", "schema": 1, "validation_loss": 5.267701407017538, "tokens": 5120, "recurrence": 2, "experts": 1, "active": 49344, "loop": 16448, "total": 49344, "training_flops": 2021130240.0, "real_training_flops": 2528378880.0, "seed": 0, "width": 32, "layers": 3, "learning_rate": 0.003, "run": "small-E1-R2-s0", "size": "small", "config": {"schema": 1, "recipe": {"name": "none"}, "model": {"rung": null, "width": 32, "layers": 3, "edge_layers": 1, "placement": "edges", "head_size": 16, "kv_heads": null, "experts": 1, "active_experts": 2, "recurrence": 2, "residual_init": "unrolled"}, "data": {"mix": {}, "sources": {}, "files": ["texts"], "dataset": null, "text_field": "text", "tokenizer": "bytes", "validation": 0.2, "context": 64, "document_mask": false, "folder": null, "processes": null}, "optimizer": {"learning_rate": 0.003, "betas": [0.9, 0.95], "eps": 1e-15, "weight_decay": 0.1, "clip": 1.0, "width_rule": "none", "base_width": 64, "recurrence_rule": 0.0}, "schedule": {"kind": "wsd", "warmup_steps": 100, "cooldown": 0.2, "final": 0.0, "recurrence": []}, "run": {"tokens": 5120.0, "batch": 8, "accumulate": 1, "seed": 0, "precision": "auto", "compile": false, "activation_checkpointing": false, "activation_memory": null, "log_every": 10, "validate_every": 0, "validation_sequences": 256, "checkpoint_every": 500, "keep": 2, "async_checkpoints": false, "divergence": 2.0, "skip_spikes": 0, "spike": 1.0, "deterministic": "auto", "track": [], "law": null, "law_slack": 0.1, "eval_tasks": null, "eval_every": 0, "eval_limit": 100}, "parallel": {"experts": 1, "replicas": 1, "reduce": "step", "offload": false}}, "schedule": "wsd", "data": "a6d341927729d80a82b494d0da8467c98093e5bce52e4be396bc0482dc8d2052", "version": "0.2.0", "resumes": 0}');
CREATE TABLE events (time REAL NOT NULL, run TEXT NOT NULL, what TEXT NOT NULL, worker TEXT NOT NULL) STRICT;
CREATE TABLE sightings (
    run TEXT NOT NULL,
    observer TEXT NOT NULL,
    claim_id TEXT NOT NULL,
    heartbeat INTEGER NOT NULL,
    seen REAL NOT NULL,
    UNIQUE (run, observer)
) STRICT
;
PRAGMA application_id = 1280530256;
PRAGMA user_version = 2;
COMMIT;
