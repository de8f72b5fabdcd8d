"""Plans of random runs, each drawn from one number."""

import random
from typing import Any, NamedTuple

from tests.chaos.consumers import KINDS, ON_RANKS
from tests.chaos.faults import FAULTS
from tests.chaos.forms import FORMS

BATCH = 4
SOURCES = ("files", "files", "index", "original", "crops", "raw", "cache", "memory", "service", *FORMS)
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Lamb", "Lion", "RMSprop", "Adafactor", "Ftrl")


class Leg(NamedTuple):
    """A command of a run, with the fault that it meets."""

    ranks: int
    fault: str
    """Name in FAULTS."""
    after: int
    """Steps trained by this command before the fault; 0: the fault is there before the command starts."""


class Plan(NamedTuple):
    """A run: its settings, and the commands that end early; the last command, without a fault, comes after them."""

    seed: int
    source: str
    overrides: dict[str, Any]
    """Config keys, e.g. "data.unit"."""
    legs: tuple[Leg, ...]
    ranks: int
    """Ranks of the last command."""
    consumer: str
    """The consumer of the batches: "train.py", or a name in KINDS."""

    def labels(self) -> list[str]:
        """The values of this run in each dimension, to count."""
        values = [f"source {self.source}", f"consumer {self.consumer}", *(f"fault {leg.fault}" for leg in self.legs)]
        values += [f"ranks {ranks}" for ranks in [*(leg.ranks for leg in self.legs), self.ranks]]
        named = ("unit", "scope", "on_error", "crop", "decoder", "precision", "compression")
        return values + [
            f"{key.rpartition('.')[2]} {value}"
            for key, value in self.overrides.items()
            if key.rpartition(".")[2] in named or key == "optimizer.name"
        ]

    def __str__(self) -> str:
        legs = "; ".join(f"{leg.ranks} ranks, {leg.fault} after {leg.after}" for leg in self.legs)
        legs += f"; {self.ranks} ranks to the end"
        return f"seed {self.seed}: {self.source} to {self.consumer}, {self.overrides}: {legs}"


def draw(seed: int) -> Plan:
    rng = random.Random(seed)
    source = rng.choice(SOURCES)
    scope = rng.choice(("global", "global", "shard"))
    sizes = rng.choices((1, 2, 3), (5, 4, 1), k=4)
    consumer = rng.choice((*["train.py"] * 7, *KINDS, *ON_RANKS))
    if consumer not in ("train.py", *ON_RANKS):
        sizes = [1] * 4
    if scope == "shard":  # a rank keeps its share
        sizes = sizes[:1] * 4
    crop = "boxes" if source in ("crops", "raw", "coco") else rng.choice(("boxes", "boxes", "random_resized", "full"))
    overrides = {
        "data.scope": scope,
        "data.unit": rng.choice(("image", "box")),
        "data.crop": crop,
        "data.on_error": "raise" if source == "service" else rng.choice(("raise", "skip")),
        "data.decoder": "native" if source in ("service", "crops", "raw") else rng.choice(("native", "graph")),
        "data.seed": rng.randrange(1000),
        "optimizer.name": rng.choice(OPTIMIZERS),
        "training.precision": rng.choice(("float32", "float32", "mixed_bfloat16", "mixed_float16")),
        "training.compression": rng.choice(("none", "fp16")),
        "training.interval": rng.choice((1, 7, 100)),
        "training.checkpoint.every_steps": rng.choice((1, 5, 20)),
        "training.checkpoint.keep": rng.choice((1, 2)),
        "training.test_every": rng.choice((1, 3)),
    }
    if rng.random() < 0.5:
        overrides["data.test_filelist"] = None
    names = [
        name
        for name, fault in FAULTS.items()
        if source in fault.sources and (consumer == "train.py" or not fault.writes)
    ]
    legs = [
        Leg(size, rng.choice(names), rng.choice((0, rng.randrange(1, 10), rng.randrange(1, 44 // size))))
        for size in sizes[: rng.choice((1, 2, 3))]
    ]
    legs = [leg._replace(after=0) if FAULTS[leg.fault].is_before else leg for leg in legs]
    return Plan(seed, source, overrides, tuple(legs), sizes[3], consumer)
