"""Speed of the training data on one core: making a store of 1 GB, opening it, and reading it against training steps.

The steps are of the smallest models that one would train, which take the most tokens a second.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers.utils import logging

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.train.data import corpus
from loopscale.train.data.batches import Batches
from loopscale.train.data.prepare import DataSource, prepare
from loopscale.train.data.token_store import TokenStore
from timing import compare

STORE_BYTES = 1_000_000_000


def write_text(path: Path, size: int) -> None:
    """Write the built-in corpus over and over, up to a size."""
    speeches = [f"{text}\n\n".encode() for _, text in corpus.documents()]
    with path.open("wb") as file:
        for speech in itertools.cycle(speeches):
            if file.tell() >= size:
                return
            file.write(speech)


def preparation(source: DataSource, folder: Path, what: str) -> TokenStore:
    """Time the making of a store."""
    start = time.process_time()
    store = prepare(source, folder, progress=False)
    seconds, tokens = time.process_time() - start, sum(store.tokens.values())
    characters = sum(map(len, source.documents()))
    print(f"prepare, {what}: {characters / seconds / 1e6:.1f} MB/s of text, {tokens / seconds / 1e6:.1f}M tokens/s")
    return store


def opening(store: TokenStore, rounds: int = 7) -> None:
    """Time how long it takes from nothing to the first batch."""
    size = sum(path.stat().st_size for path in store.folder.glob("*.bin"))
    times = []
    for seed in range(rounds):
        start = time.perf_counter()
        Batches(TokenStore.open(store.folder), split="train", batch=8, context=2048, seed=seed).batch(0)
        times.append(time.perf_counter() - start)
    print(
        f"open {size / 1e9:.2f} GB to the first batch: {statistics.median(times) * 1e3:.1f} ms, "
        f"at most {max(times) * 1e3:.1f} ms (wanted below 1 s)"
    )


def tiny(vocabulary: int, width: int, context: int) -> LoopedMoEForCausalLM:
    """Return a model of four layers, two of them looped twice."""
    config = LoopedMoEConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        prelude_layers=1,
        loop_layers=2,
        coda_layers=1,
        recurrence=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=width // 2,
        num_experts=1,
        intermediate_size=4 * width,
        max_position_embeddings=context,
    )
    return LoopedMoEForCausalLM(config).train()


def streaming(store: TokenStore, width: int, batch: int, context: int) -> None:
    """Compare reading a batch with training on it."""
    batches, step = Batches(store, split="train", batch=batch, context=context, seed=0), itertools.count()
    model = tiny(store.vocabulary, width, context)
    optimiser = torch.optim.AdamW(model.parameters())
    given = batches.batch(0)
    ids, labels = torch.from_numpy(given.ids), torch.from_numpy(given.labels)

    def read() -> None:
        batches.batch(next(step))

    def train() -> None:
        optimiser.zero_grad()
        model(ids, labels=labels, use_cache=False).loss.backward()
        optimiser.step()

    found = compare(f"width {width}, {batch} x {context}, wanted 10", read, train, 15, time.process_time)
    rates = (batch * context / statistics.median(times) for times in (found.ours, found.peer))
    print("read {:.2e} tokens/s, train {:.2e};".format(*rates), found, flush=True)


def parallel(folder: Path, size: int = 100_000_000, rounds: int = 3) -> None:
    """Compare one process that tokenises with two, each on one core: time on the clock."""
    write_text(folder / "part.txt", size)
    text = (folder / "part.txt").read_bytes()
    for part in range(8):  # processes share files
        (folder / f"part-{part}.txt").write_bytes(text[part * size // 8 : (part + 1) * size // 8])
    files, tokenizer = tuple(str(folder / f"part-{part}.txt") for part in range(8)), str(folder / "bpe" / "tokenizer")
    fresh = itertools.count()

    def tokenise(processes: int) -> None:
        prepare(
            DataSource(files, tokenizer=tokenizer), folder / f"parallel-{next(fresh)}", progress=False,
            processes=processes,
        )  # fmt: skip

    what = f"tokenise {size / 1e6:.0f} MB with two processes over one, wanted 1.7"
    print(compare(what, lambda: tokenise(2), lambda: tokenise(1), rounds), flush=True)


def main() -> None:
    """Run everything."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "text.txt", STORE_BYTES // 2)
        store = preparation(DataSource((str(folder / "text.txt"),)), folder / "bytes", "bytes")
        preparation(DataSource(tokenizer="train:1024"), folder / "bpe", "BPE of 1,024, trained first")
        parallel(folder)
        opening(store)
        for width, batch, context in ((32, 16, 128), (64, 16, 128), (64, 2, 2048)):
            streaming(store, width, batch, context)


if __name__ == "__main__":
    main()
