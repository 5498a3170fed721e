"""The settings of a training run: a TOML file, or the same in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from loopscale.core.errors import InputError, shown
from loopscale.core.files import read_toml
from loopscale.core.schemas import Record, parse
from loopscale.planning.recipes import RECIPES
from loopscale.train.sections import MayChange
from loopscale.train.sections.data import DataSection, task_of
from loopscale.train.sections.model import ModelSection
from loopscale.train.sections.optimizer import OptimizerSection, ScheduleSection
from loopscale.train.sections.run import CallbackSection, ParallelSection, RecipeSection, ResourcesSection, RunSection

if TYPE_CHECKING:
    from loopscale.train.data.tasks import Task

SCHEMA = 1
FIXED = {("model", "placement"): "edges"}
"""Settings of version 0.2, with the only value that they have now: runs saved with it can be read."""
DEMO: dict[str, Any] = {
    "model": {"width": 64, "experts": 4, "recurrence": 2},
    "data": {"context": 128},
    "run": {"tokens": "2M"},
}
"""What ``loopscale train`` trains without a file: a minute or two on two cores, on the built-in corpus."""


class TrainConfig(Record):
    """A training run."""

    recipe: RecipeSection = Field(default_factory=RecipeSection)
    model: ModelSection = Field(default_factory=ModelSection)
    data: DataSection = Field(default_factory=DataSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    run: RunSection = Field(default_factory=RunSection)
    parallel: MayChange[ParallelSection] = Field(default_factory=ParallelSection)
    resources: MayChange[ResourcesSection] = Field(default_factory=ResourcesSection)
    callbacks: tuple[CallbackSection, ...] = ()

    @model_validator(mode="after")
    def _recurrence_within_the_models(self) -> TrainConfig:
        most = max((passes for _, passes in self.schedule.recurrence), default=0)
        if most > self.model.recurrence:
            raise ValueError(
                f"[schedule]: 'recurrence' goes up to {most}, and the model's 'recurrence' is {self.model.recurrence}; "
                "raise the model's"
            )
        return self

    @model_validator(mode="after")
    def _benchmarks_read_text(self) -> TrainConfig:
        if self.run.eval_tasks is not None and self.data.task is not None:
            raise ValueError(f"[run]: 'eval_tasks' asks questions in text, and the task {self.data.task!r} has none")
        return self

    @property
    def task(self) -> Task | None:
        """The task of [data], if it names one."""
        return task_of(self.data.model_dump())

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.run.batch * self.data.context

    @property
    def steps(self) -> int:
        """Steps of the whole run: tokens are rounded to whole steps, at least one."""
        return max(1, round(self.run.tokens / self.step_tokens))

    def changed(self, **sections: dict[str, Any]) -> TrainConfig:
        """Return a copy with some values changed: ``config.changed(model={"recurrence": 4}, run={"seed": 1})``."""
        values = self.to_dict()
        return self.from_dict(values | {name: values.get(name, {}) | changes for name, changes in sections.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads; plain values, for JSON."""
        values = self.model_dump(mode="json")
        values["model"] |= values["model"].pop("options")
        values["callbacks"] = [{"use": listed["use"], **listed["options"]} for listed in values["callbacks"]]
        for name, unset in {"callbacks": [], "resources": ResourcesSection().model_dump()}.items():
            if values[name] == unset:  # files of version 0.2 do not have them
                del values[name]
        return {"schema": SCHEMA, **values}

    @classmethod
    def from_dict(cls, data: object, where: str = "config") -> TrainConfig:
        """Read a run from a mapping; an unknown key is refused with the nearest known one."""
        if isinstance(data, dict) and "schema" in data:
            schema = data["schema"]
            if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
                raise InputError(
                    f"{where}: schema is {shown(schema)}; this loopscale reads up to {SCHEMA}; upgrade loopscale"
                )
            data = {key: _without_fixed(key, value, where) for key, value in data.items() if key != "schema"}
        from loopscale.train.start import with_start

        return parse(cls, _with_recipe(with_start(data)), where)

    @classmethod
    def read(cls, path: str | Path) -> TrainConfig:
        """Read a TOML file."""
        return cls.from_dict(read_toml(path), str(path))


def _without_fixed(section: str, values: Any, where: str) -> Any:
    """Return the values of a saved section without settings that cannot be changed any more."""
    if not isinstance(values, dict):
        return values
    for (owner, name), value in FIXED.items():
        if owner == section and values.get(name, value) != value:
            raise InputError(
                f"[{section}] {name} is {shown(values[name])}, and this version knows only {value!r}",
                where=where,
                remedy="use the version of loopscale that wrote it",
            )
    return {name: value for name, value in values.items() if (section, name) not in FIXED}


def _with_recipe(data: object) -> object:
    """Return the values of a file with those of its recipe beneath them."""
    section = data.get("recipe") if isinstance(data, dict) else None
    recipe = RECIPES.get(str(section.get("name"))) if isinstance(section, dict) else None
    if not recipe or not isinstance(data, dict):
        return data
    sections = {name: data.get(name, {}) for name in recipe}
    return data | {name: recipe[name] | own if isinstance(own, dict) else own for name, own in sections.items()}
