"""Public sweeps that are converted from published files: the numbers here are made up, in the form of the originals."""

import csv
import http.server
import json
import os
import re
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.core.files import cache_folder
from loopscale.core.tables import Table
from loopscale.fitting import Observations, fit
from loopscale.fitting.data.converters import qlabs_geometry
from loopscale.fitting.data.downloads import PUBLIC_FILES, rows_checksum
from loopscale.fitting.data.looped import TABLES
from loopscale.fitting.data.public import load_public, load_table
from loopscale.fitting.residuals import diverged_rows

FOLDER = os.environ.get("LOOPSCALE_DATA", "")
public_data = pytest.mark.skipif(not FOLDER, reason="LOOPSCALE_DATA names no folder with the public sweeps")
CONVERTED = [name for name, source in PUBLIC_FILES.items() if source.convert and name not in TABLES]

MADE_UP = {
    "datablations": [
        ("2b84b4b", 2.81e9, 4e9, 3.1, 4e9), ("2b855b1b25", 2.81e9, 55e9, 2.9, 1.25e9),
        ("14m1b5100m", 1.41e7, 1.5e9, 5.3, 1e8), ("1b58b84b8", 1.5e9, 8.8e9, 3.02, 4.8e9),
    ],
    "gemstones-hot": [("PyGemma-64x2_pretrain", 12345678, steps * 4194304, 3 + 1 / steps, 64, 2) for steps in (7, 9)],
    "marin-comma-isoflop": [(0, 272513792.0, 2e10, 3.4256324768), (1, 156508160.0, 4e10, 3.7)],
    "misfitting-isoflop": [(0, 57234240.0, 246319834.185, 5.1), (1, 62052928.0, 2.2e8, 5.4)],
    "mlf-redpajama-c4val": [
        ("rpj-d=96_l=8_h=4-1.0", 10569312, 211386240, 5.4), ("rpj-open_lm_1b-1.0", 1439795200, 28795904000, 2.7),
    ],
    "olmo-ladder": [
        ("190M-1xC-rerun", 190354176, 3812622336.0, 3.6), ("190M-1xC", 190354176, 3812622336.0, 3.61),
        ("peteish13_eval_full", 13202396160, 8388608.0 * 7, 2.4), ("peteish7_eval_anneal", 6887575552, 3.9e12, 2.5),
    ],
    "qlabs-loops": [("tpl-d8-K1-b8", 102760448, 1440743424, 3.25), ("tpl-d8-K2-b8", 102760448, 1152385024, 3.24)],
    "qlabs-growth": [("grow-b8-d8-rho0.00", "0.00", 2355, 3.235066), ("grow-b8-d8-rho0.05", "0.05", 2309, 3.233427)],
}  # fmt: skip
TABLES_OF_RUNS = (
    "epoch-chinchilla.csv", "isodepth.csv", "downstream/dclm-downstream.csv", "looped/marin-reentrant-moe.csv",
    "looped/qlabs-loop-isocompute.csv", "looped/qlabs-loop-regimes.csv", "moe/marin-moe-experts.csv",
    "real/datablations.csv", "real/gemstones-hot.csv", "real/marin-comma-isoflop.csv", "real/misfitting-isoflop.csv",
    "real/mlf-redpajama-c4val.csv", "real/nxai-xlstm-isoflop.csv", "real/olmo-ladder.csv",
    "real/porian-chinchilla-decay.csv",
)  # fmt: skip


@public_data
@pytest.mark.parametrize("name", TABLES_OF_RUNS)
def test_no_public_table_is_suspected_of_a_misreading(name):
    path = Path(FOLDER) / name
    if not path.is_file():
        pytest.skip(f"{name} is not in LOOPSCALE_DATA")
    assert Observations.of(path).warnings == ()


@public_data
@pytest.mark.parametrize(
    ("name", "diverged"),
    [("epoch-chinchilla.csv", 0), ("real/datablations.csv", 0), ("real/nxai-xlstm-isoflop.csv", 3),
     ("real/misfitting-isoflop.csv", 0)],
)  # fmt: skip
def test_only_diverged_runs_of_public_tables_are_called_so(name, diverged):
    assert len(diverged_rows(fit(Path(FOLDER) / name, resamples=0))) == diverged


SIZE = re.compile(r"\d+m|\d+b\d")


def records(name, rows):
    if name == "qlabs-growth":
        return [
            {"run": run, "depth": 8, **qlabs_geometry(8), "E": 1, "R_start": 2, "R_end": 4, "grown": share}
            | {"D": steps * 524_288, "loss": loss}
            for run, share, steps, loss in rows
        ]
    if name == "qlabs-loops":
        return [looped_record(*row) if len(row) == 4 else dict(zip(LOOPED, row, strict=True)) for row in rows]
    extra = {"datablations": ["unique_tokens"], "gemstones-hot": ["width", "depth"]}.get(name, [])
    return [dict(zip(["run", "params", "tokens", "loss", *extra], row, strict=True)) for row in rows]


LOOPED = ["run", "set", "depth", "N_act", "N_total", "N_loop", "N_embedding", "E", "R", "D", "flops", "loss"]


def looped_record(run, params, tokens, loss):
    counts = qlabs_geometry(8)
    passes = int(run.split("-K")[1][0])
    flops = 6 * (params + counts["N_embedding"] // 2 + (passes - 1) * counts["N_loop"]) * tokens
    group = "fixed-anchor K sweep (tied, Operator-1 recipe)"
    return dict(zip(LOOPED, [run, group, 8, *counts.values(), 1, passes, tokens, int(float(flops)), loss], strict=True))


def looped_files(rows):
    """Write the runs that vary passes to one file and those that vary size to the other."""
    arms = {"vanilla": "van", "operator": "k1", "loop": "k2"}
    flops = (1.333e18, 2.19e18, 3.73e18, 5.756e18, 8.66e18, 1.35e19, 1.94e19)
    budgets = {str(name): value for name, value in enumerate(flops, start=8)}
    tpl, tpp = [], []
    for row in rows:
        kind, recipe = row["run"].split("-")[:2]
        cell = {"C": float(row["flops"]), "L": row["loss"], "D": float(row["D"]), "depth": row["depth"]}
        if kind == "tpl":
            compute = row["N_act"] + row["N_embedding"] // 2 + (row["R"] - 1) * row["N_loop"]
            tpl.insert(0, cell | {"family": "loop", "anchor": row["depth"], "k": row["R"], "Nc": compute})
            tpl.append(tpl[0] | {"family": "dep"})
        else:
            tpp.append(cell | {"arm": arms[recipe], "budget": int(row["run"].rsplit("-b", 1)[1])})
    texts = {"tpl.json": tpl, "tpp.json": tpp, "tpl_budgets.json": budgets}
    return {file: json.dumps(content) for file, content in texts.items()}


def growth_file(rows):
    """Write the runs that grow their passes, each beside one of another arm that is not read."""
    cells = [
        {"budget": 8.0, "depth": 8, "rho": float(row["grown"]), "loss": row["loss"], "steps": row["D"] // 524_288}
        for row in rows
    ]
    return {"growth.json": json.dumps([cell | {"arm": arm} for arm in ("dep", "k2") for cell in cells])}


def as_published(name, rows):
    """Return the rows in the form in which their authors publish them: text by file name."""
    return FORMS[name](records(name, rows))


def notebook(rows):
    losses = {row["run"]: row["loss"] for row in rows} | {"2b84b4bc4seed1": 3.2, "2b84b4bopt": 3.0}
    lines = [f'    "{run}": {loss}, # a note\n' for run, loss in losses.items()]
    lines += ['    "146m5b9100mdedup": 3.8,\n', '    "3b926b400m": 0,\n', '    # "2b88b4b": 2.9,\n']
    sizes = {SIZE.match(row["run"])[0]: row["params"] for row in rows}
    code = ["NAMES_TO_VAL_LOSSES = {\n", *lines, "}\n", f"PARAMS_MAP = {sizes}\n"]
    use = ["for name, loss in NAMES_TO_VAL_LOSSES.items():\n", "    raise RuntimeError\n"]
    cells = [{"cell_type": "code", "source": source} for source in (["import os\n"], code, use)]
    return {"return_alloc.ipynb": json.dumps({"cells": cells})}


def json_lines(rows):
    theirs = {"run": "run_name", "params": "params_active_precise", "loss": "final_loss"}
    lines = [json.dumps({theirs.get(key, key): value for key, value in row.items()} | {"step": 9}) for row in rows]
    return {"wandb_df_for_fitting_hot.jsonl": "\n".join(lines) + "\n"}


def quoted(rows):
    names = ["Name", "parameter_count", "throughput/total_tokens", "eval/paloma/macro_loss"]
    cells = [names, ["exp2166-validation-optimal", 1, 2, 3.5]]
    cells += [[f"isoflop-1e+20-run{row['run']}", row["params"], row["tokens"], row["loss"]] for row in rows]
    return {"isoflop-comma.csv": "\n".join(",".join(f'"{cell}"' for cell in row) for row in cells)}


def isoflops(rows):
    lines = [f"misfitting,c4,{row['tokens']},{row['params']},1e18,{row['loss']}" for row in rows]
    return {"isoflops.csv": "\n".join(["source,dataset,tokens,params,budget,loss", *lines]) + "\n"}


def one_json_a_model(rows):
    def text(row):
        evaluations = [("val_tok_mult/openlm", 1.5), ("c4_val", row["loss"]), ("val_tok_mult/paloma_c4_en", 2.5)]
        results = [{"loss": loss, "val_data": [f"training/eval_data/{path}/a.tar"]} for path, loss in evaluations]
        size = {"params": row["params"], "tokens": row["tokens"]}
        return json.dumps({"name": row["run"], "hyperparameters": size, "results": results})

    return {f"{row['run']}.json": text(row) for row in rows}


def one_csv_a_run(rows):
    loss = "eval/c4_en-validation/CrossEntropyLoss"

    def text(row):
        batch = 8388608 if row["run"].startswith("peteish13") else 4194304
        if row["run"].startswith("peteish") and not row["run"].endswith("anneal"):
            return (
                f"_step,{loss},batch_size_in_tokens\n1,9.5,{batch}\n{row['tokens'] / batch:.0f},{row['loss']},{batch}\n"
            )
        return f"_step,{loss},throughput/total_tokens\n50,9.5,26214400\n100,{row['loss']},{row['tokens']}\n"

    return {f"{row['run']}.csv": text(row) for row in rows}


FORMS = {
    "datablations": notebook, "gemstones-hot": json_lines, "marin-comma-isoflop": quoted,
    "misfitting-isoflop": isoflops, "mlf-redpajama-c4val": one_json_a_model, "olmo-ladder": one_csv_a_run,
    "qlabs-loops": looped_files, "qlabs-growth": growth_file,
}  # fmt: skip


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Serve published files over loopback in the place of a sweep's real ones, with an empty cache."""
    monkeypatch.delenv("LOOPSCALE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "www"
    folder.mkdir()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def serve(name, rows):
        files = as_published(name, rows)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        address = f"http://127.0.0.1:{server.server_port}"
        source = replace(
            PUBLIC_FILES[name],
            parts=tuple(f"{address}/{quote(file)}" for file in files),
            sha256=rows_checksum(Table.from_records(records(name, rows)).csv().encode()),
        )
        monkeypatch.setitem(PUBLIC_FILES, name, source)
        return folder

    yield serve
    server.shutdown()
    server.server_close()


def cached(name):
    return cache_folder() / PUBLIC_FILES[name].file


@pytest.mark.parametrize("name", CONVERTED)
def test_published_files_become_the_sweep_and_are_asked_for_once(name, publish):
    expected = records(name, MADE_UP[name])
    folder = publish(name, MADE_UP[name])
    data = load_public(name)
    assert [str(run) for run in data.run] == [str(row["run"]) for row in expected]
    names = ("N_act", "D", "loss") if name == "qlabs-loops" else ("params", "tokens", "loss")
    for found, column in zip((data.points.active, data.points.tokens, data.loss), names, strict=True):
        np.testing.assert_allclose(found, [row[column] for row in expected], rtol=1e-12)
    for file in folder.iterdir():
        file.unlink()
    np.testing.assert_array_equal(load_public(name).loss, data.loss)
    assert [path.name for path in cache_folder().rglob("*.*")] == [cached(name).name]


@pytest.mark.parametrize("name", CONVERTED)
def test_a_changed_loss_is_refused_in_one_sentence_and_not_kept(name, publish):
    folder = publish(name, MADE_UP[name])
    run, params, tokens, loss, *rest = MADE_UP[name][-1]
    for file, text in as_published(name, [*MADE_UP[name][:-1], (run, params, tokens, loss + 1e-6, *rest)]).items():
        (folder / file).write_text(text, encoding="utf-8")
    changed = r"what was downloaded from .* is not what it was: it converts to rows with SHA-256 .*; nothing was kept"
    with pytest.raises(InputError, match=changed) as refused:
        load_public(name)
    assert "\n" not in str(refused.value)
    assert not cached(name).exists()


@pytest.mark.parametrize("name", CONVERTED)
@pytest.mark.parametrize(
    "page", ["<html>\nplease sign in\n</html>\n", "", "{}", "[1, 2]", '{"cells": [{"source": 1}]}']
)
def test_a_page_in_the_place_of_a_file_is_refused_in_one_sentence(name, page, publish):
    for file in publish(name, MADE_UP[name]).iterdir():
        file.write_text(page)
    with pytest.raises(InputError, match=r"is not what it was: (no rows can be read|it converts to)") as refused:
        load_public(name)
    assert "\n" not in str(refused.value)
    assert not cached(name).exists()


def test_a_table_is_downloaded_once_and_refused_if_it_has_changed(publish):
    folder = publish("qlabs-growth", MADE_UP["qlabs-growth"])
    table = load_table("qlabs-growth")
    assert table.columns["loss"] == [3.235066, 3.233427]
    assert table.columns["D"] == [2355 * 524_288, 2309 * 524_288]
    published = (folder / "growth.json").read_text()
    (folder / "growth.json").write_text(published.replace("3.235066", "3.235067"))
    assert load_table("qlabs-growth").columns["loss"] == table.columns["loss"]  # from the cache
    cached("qlabs-growth").unlink()
    with pytest.raises(InputError, match=r"is not what it was: it converts to rows with SHA-256 .*; nothing was kept"):
        load_table("qlabs-growth")
    assert not cached("qlabs-growth").exists()


def test_a_part_that_cannot_be_downloaded_is_named_and_nothing_is_kept(publish):
    (publish("olmo-ladder", MADE_UP["olmo-ladder"]) / "peteish7_eval_anneal.csv").unlink()
    with pytest.raises(
        InputError, match=r"peteish7_eval_anneal\.csv: download failed: .*real/olmo-ladder\.csv in LOOP"
    ):
        load_public("olmo-ladder")
    assert not cached("olmo-ladder").exists()


def test_a_spoiled_cache_of_a_converted_sweep_is_noticed(publish):
    publish("misfitting-isoflop", MADE_UP["misfitting-isoflop"])
    load_public("misfitting-isoflop")
    cached("misfitting-isoflop").write_text(cached("misfitting-isoflop").read_text().replace("5.1", "5.2"))
    with pytest.raises(InputError, match="remove the file to download it again"):
        load_public("misfitting-isoflop")


def test_a_folder_without_the_sweep_says_how_to_download_it(publish, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPSCALE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"gemstones-hot\.csv: no such file .*unset LOOPSCALE_DATA to download"):
        load_public("gemstones-hot")


def test_the_checksum_of_rows_sees_cells_and_their_order_and_no_more():
    table = b"run,params,loss\na,1e9,2.5\nb,2e9,2.25\n"
    for same in (table.replace(b"\n", b"\r\n"), table.rstrip(), table.replace(b"2.25", b"2.2500000000000004")):
        assert rows_checksum(same) == rows_checksum(table)
    others = (
        b"run,params,loss\nb,2e9,2.25\na,1e9,2.5\n",
        table.replace(b"2.25", b"2.25000001"),
        table[:-10],
        b"\0",
        b"",
    )
    assert len({rows_checksum(content) for content in (table, *others)}) == 6


def test_every_address_is_at_a_fixed_commit_of_a_public_repository():
    addresses = [url for source in PUBLIC_FILES.values() for url in (*source.parts, source.url) if url]
    at_a_commit = r"https://raw\.githubusercontent\.com/[\w.-]+/[\w.-]+/[0-9a-f]{40}/[\w./=-]+"
    assert [url for url in addresses if not re.fullmatch(at_a_commit, url)] == []
    assert len(addresses) == len(set(addresses)) == 86
    for source in PUBLIC_FILES.values():
        assert bool(source.parts) == bool(source.convert)
        assert bool(source.url or source.parts) != bool(source.otherwise)


@public_data
@pytest.mark.parametrize("name", CONVERTED)
def test_the_whole_sweep_comes_out_of_files_in_the_published_form(name):
    """Names of the files, order of the rows and every number, against the checksum that a download must have."""
    source = PUBLIC_FILES[name]
    table = (Path(FOLDER) / source.file).read_text(encoding="utf-8")
    rows = [[number_of(cell) for cell in row] for row in csv.reader(table.splitlines()[1:])]
    files = as_published(name, rows)
    assert sorted(files) == sorted(url.rsplit("/", 1)[-1] for url in source.parts)
    in_order = {file: files[file] for file in (url.rsplit("/", 1)[-1] for url in source.parts)}
    converted = Table.from_records(source.convert(in_order)).csv()
    assert rows_checksum(converted.encode()) == rows_checksum(table.encode()) == source.sha256


def number_of(cell):
    try:
        return float(cell) if "." in cell or "e" in cell else int(cell)
    except ValueError:
        return cell
