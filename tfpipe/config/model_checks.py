"""Settings of the sections besides `data` that exclude each other, where one would be ignored."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfpipe.config.model import Config

# Arguments of Keras' schedules that hold learning rates; "values" holds several.
RATES = ("initial_learning_rate", "warmup_target", "values")


def conflicts(config: "Config") -> Iterator[str]:
    """Yields a message for each pair of settings of which one would be ignored."""
    optimizer, schedule, model = config.optimizer, config.lr_schedule, config.model
    rates = {"optimizer.learning_rate": optimizer.learning_rate}
    rates["optimizer.args.learning_rate"] = optimizer.args.get("learning_rate")
    given = {key: rate for key, rate in rates.items() if rate is not None}
    if len(given) > 1 and optimizer.learning_rate != optimizer.args["learning_rate"]:
        yield f"{_said(given)}: both are the optimizer's rate; leave one of them out"
    scheduled = {f"lr_schedule.args.{key}": schedule.args[key] for key in RATES if key in schedule.args}
    known = [rate for value in scheduled.values() for rate in (value if isinstance(value, list) else [value])]
    if schedule.name is None and schedule.args:
        yield (
            f"lr_schedule.args {json.dumps(schedule.args)} are of no schedule, since lr_schedule.name is null: name "
            'it, e.g. "CosineDecay", or leave its args out'
        )
    elif known and given and not any(rate in known for rate in given.values()):
        yield (
            f"{_said(given | scheduled)}: the schedule has its own rate, and the optimizer's would be ignored; give "
            "the same, or leave one of them out"
        )
    if model.weights is not None and "weights" in model.args:
        yield (
            f"{_said({'model.weights': str(model.weights), 'model.args.weights': model.args['weights']})}: both are "
            "what the network starts from; leave one of them out"
        )


def _said(values: dict[str, Any]) -> str:
    return " and ".join(f"{key} {json.dumps(value)}" for key, value in values.items())
