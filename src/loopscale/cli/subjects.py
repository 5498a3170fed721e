"""The options that name a law or a model, and what they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loopscale.architecture import RUNGS, Architecture, at_width, read_config, rung, rung_name
from loopscale.cli.params import ACTIVE, EXPERTS, WHOLE, WIDTH, QuantityType, options
from loopscale.core.errors import InputError, require
from loopscale.scaling import DEFAULT, find_law

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig


class LawType(QuantityType):
    """A law by its name or file; ``--group``, which is read before, chooses one of several in a file."""

    def __init__(self) -> None:
        super().__init__("NAME|FILE", find_law)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return find_law(value, None if ctx is None else ctx.meta.get(GROUP))
        except InputError as error:
            self.fail(error.told({"group": "--group"}.get), param, ctx)


LAW = LawType()
GROUP = "loopscale.group"


def _store_group(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[GROUP] = value


law_option = options(
    click.option(
        "--law", type=LAW, default=DEFAULT, show_default=True, help="A published law by name, or a law file (JSON)."
    ),
    click.option(
        "--group", is_eager=True, expose_value=False, callback=_store_group, help="Which law of `fit --group`."
    ),
)


def _rungs(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rung_name(part) for part in text.split(",")))


RUNG_LIST = QuantityType("RUNG,…", _rungs)


model_options = options(
    click.option("--rung", help=f"A rung of the ladder: {', '.join(RUNGS)}."),
    click.option("--width", type=WIDTH, help="Any other width by the ladder's rules."),
    click.option("--layers", type=WHOLE, help="Depth for --width.  [default: by the ladder's rules]"),
    click.option("--experts", type=EXPERTS, help="E: experts stored for each active one.  [default: 1]"),
    click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts that a token uses."),
    click.option("--config", type=click.Path(), help="A Hugging Face config.json, its folder, or a training file."),
)
"""The options that name one model: a rung, a width, or a config file."""


def one_model(
    rung_text: str | None,
    width: int | None,
    layers: int | None,
    experts: tuple[float, ...] | None,
    active_experts: int,
    config: str | None,
) -> Architecture:
    """Return the model that the options name; exactly one of rung, width and config."""
    named = [text for text, value in (("--rung", rung_text), ("--width", width), ("--config", config)) if value]
    if len(named) != 1:
        stated = f"found {' and '.join(named)}" if named else "found none"
        raise click.UsageError(f"give one of --rung, --width or --config ({stated})")
    if config is not None:
        if experts is not None or layers is not None:
            raise click.UsageError("--experts and --layers do not go with --config, which states them itself")
        if config.endswith(".toml"):
            built: Architecture = trained_model(config)[1].to_architecture()
            return replace(built, name=Path(config).stem)
        return read_config(config)
    E = one_of(experts)
    if rung_text is not None:
        if layers is not None:
            raise click.UsageError("--layers goes with --width; a rung has its own depth")
        return rung(rung_text, E, active_experts)
    assert width is not None
    return at_width(width, layers, experts=E, active_experts=active_experts)


def trained_model(path: str) -> tuple[TrainConfig, LoopedMoEConfig]:
    """Read a training file, and the model that it trains."""
    require("torch", extra="train")
    from loopscale.train.config import TrainConfig
    from loopscale.train.job import model_without_text

    config = TrainConfig.read(path)
    return config, model_without_text(config)


def one_of(experts: tuple[float, ...] | None) -> float:
    """Return the one number of experts that an option names."""
    if experts is not None and len(experts) != 1:
        raise click.UsageError("--experts takes one number here")
    return experts[0] if experts else 1


def check_recurrence(model: Architecture, recurrence: int | None) -> None:
    """Refuse to loop a model that has nothing to loop."""
    if recurrence is not None and recurrence > 1 and model.loop == 0:
        raise click.UsageError(f"--recurrence {recurrence}: {model.name} has no loop block; leave it at 1")
