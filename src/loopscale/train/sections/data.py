"""``[data]``: the text or task of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from loopscale.core.schemas import Between, FromZero, Record, Whole
from loopscale.train.sections import MayChange

if TYPE_CHECKING:
    from loopscale.train.data.tasks import Task


class SourceSection(Record):
    """One source of a mixture."""

    files: tuple[str, ...] = ()
    dataset: str | None = None
    text_field: str = "text"


class DataSection(Record):
    """The text or task, how it becomes tokens, and how the tokens are divided into sequences."""

    task: str | None = None
    """A task with exact answers instead of text, like "s3" (`loopscale lab tasks` lists them). Its problems are drawn
    anew at every step, only their answers are targets, and the context follows from the task."""
    difficulty: Whole | None = None
    """How hard its problems are: elements of a word, hops, digits, facts; by default the task's usual difficulty."""
    task_seed: FromZero = 0
    """Selects the facts of the task "facts"."""
    format: Literal["text", "labels", "completion"] = "text"
    """What the rows of files hold: "text"; "labels", lists of ids in ``input_ids`` and ``labels`` as Hugging Face has
    them; or "completion", a ``prompt`` and a ``completion``, of which only the second is a target. Rows with targets of
    their own are not packed: each is one sequence, padded to the context."""
    mix: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Weights of a mixture by the name of the source: ``[data.mix] web = 0.6, code = 0.4``. Of every 1,000 sequences
    each source has its share at any size; a small one is repeated."""
    sources: dict[str, SourceSection] = Field(default_factory=dict)
    """The sources of the mixture: ``[data.sources.web] files = ["web/"]``, with the fields of a single source."""
    files: tuple[str, ...] = ()
    """Text (.txt, .text, .md), JSONL (.jsonl, .ndjson), each also with .gz, Parquet, or folders and globs of them.
    Without files and dataset: the built-in corpus."""
    dataset: str | None = None
    """A `datasets` name or folder, streamed: ``name``, ``name:config`` or ``name:config:split`` (by default train)."""
    text_field: str = "text"
    """The field that holds the text, in files and datasets that have rows."""
    tokenizer: str = "bytes"
    """``bytes``, ``train:1024`` (a BPE of that vocabulary, trained on the training documents), or the folder or name of
    a Hugging Face tokenizer."""
    validation: float = Field(default=0.01, ge=0, lt=1)
    """Fraction of documents held out. It depends on the text of a document only, so equal documents are in the same
    split. Of a text so small that none would be, some documents or the end of each are held out; 0 holds out none."""
    context: Annotated[int, Between(2, 10**9)] = 2048
    """Tokens of a packed sequence."""
    document_mask: bool = False
    """Keep attention within each document of a packed sequence, at the cost of an explicit mask."""
    folder: str | None = None
    """Folder of the token shards; by default in the user's cache, shared by all runs on the same text."""
    processes: MayChange[Whole | None] = None
    """Processes that tokenise in parallel, each on one core; by default one, whose library uses every core."""

    @model_validator(mode="before")
    @classmethod
    def _read_forms(cls, data: Any) -> Any:
        """Take one file for a list, and the context that a task has."""
        if not isinstance(data, dict):
            return data
        task = task_of(data)
        data = data if task is None else {"context": task.length + 1, **data}
        sources = data.get("sources")
        if isinstance(sources, dict):
            data = data | {"sources": {name: _with_tuple(source) for name, source in sources.items()}}
        return _with_tuple(data)

    @model_validator(mode="after")
    def _targets_have_a_source(self) -> DataSection:
        has_text = self.files or self.dataset or self.mix
        if self.task is None and (self.difficulty is not None or self.task_seed):
            raise ValueError("'difficulty' and 'task_seed' belong to a 'task', and there is none")
        if self.task is not None:
            if has_text or self.format != "text" or self.tokenizer != "bytes":
                raise ValueError(f"the task {self.task!r} has its own tokens: leave out files, tokenizer and format")
            if (task := task_of(self.model_dump())) is not None and self.context != task.length + 1:
                raise ValueError(f"a problem of {self.task!r} has {task.length + 1} tokens: leave 'context' out")
        elif self.format != "text" and (not self.files or self.mix):
            raise ValueError(f"format {self.format!r} is for 'files' of rows (JSONL or Parquet)")
        if self.document_mask and (self.task is not None or self.format != "text"):
            raise ValueError("'document_mask' is for packed text; each of these rows is a separate sequence")
        if self.format == "labels" and self.tokenizer.startswith("train"):
            raise ValueError("rows of ids hold no text to train a tokenizer on: name the tokenizer of the ids")
        return self

    @model_validator(mode="after")
    def _mixture_is_complete(self) -> DataSection:
        if set(self.mix) != set(self.sources):
            raise ValueError(
                f"'mix' names {', '.join(sorted(self.mix)) or 'no source'}, and 'sources' has "
                f"{', '.join(sorted(self.sources)) or 'none'}; every source needs a weight, and every weight a source"
            )
        if self.mix and (self.files or self.dataset):
            raise ValueError("'files' and 'dataset' of a mixture belong to its sources")
        if self.mix and self.tokenizer.startswith("train"):
            raise ValueError(
                "a mixture needs a tokenizer that does not depend on its sources: 'bytes', or the folder or name of one"
            )
        return self


def task_of(data: Mapping[Any, Any]) -> Task | None:
    """Return the task that the fields of [data] name, if they name one; fields of the wrong type name none."""
    from loopscale.train.data.puzzles import task_called

    name, difficulty = data.get("task"), data.get("difficulty")
    if not isinstance(name, str) or not isinstance(difficulty, int | None):
        return None
    seed = data.get("task_seed", 0)
    return task_called(name, difficulty, seed if isinstance(seed, int) else 0)


def _with_tuple(table: Any) -> Any:
    """Return a table with its files as a tuple: after a validator of the whole table pydantic accepts no list."""
    files = table.get("files", ()) if isinstance(table, dict) else ()
    if not isinstance(table, dict) or not isinstance(files, str | list):
        return table
    return table | {"files": (files,) if isinstance(files, str) else tuple(files)}
