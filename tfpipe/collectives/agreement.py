"""The agreement of ranks: what all of them must have alike, compared before they work together."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any

from tfpipe.errors import ConfigError, mask_passwords

# Keys in a message, characters of a value, and those of them before a difference.
MOST_NAMED, LENGTH, BEFORE = 10, 80, 20


def check_equal(facts: Mapping[str, Any], gather: Callable[[Any], list[Any]]) -> None:
    """Checks that all ranks that `gather` reaches have equal `facts`, values for JSON by key, and one version.

    All of them must call. A key that a rank lacks is null there. Raises ConfigError on every rank, which names each key
    that differs, with its values and their ranks.
    """
    # An import of the package from within it would be a circle.
    facts = {"the version of tfpipe": sys.modules["tfpipe"].__version__, **facts}
    # A digest suffices while all agree, which is nearly always.
    text = json.dumps({name: json.dumps(value, sort_keys=True) for name, value in facts.items()}, sort_keys=True)
    if len(set(gather(hashlib.sha256(text.encode()).hexdigest()))) == 1:
        return
    every: list[dict[str, str]] = [json.loads(each) for each in gather(text)]
    names = dict.fromkeys(name for each in every for name in each)
    values = {name: [each.get(name, "null") for each in every] for name in names}
    lines = [f"{name}: {_by_rank(texts)}" for name, texts in values.items() if len(set(texts)) > 1]
    if lines:
        more = [f"and {len(lines) - MOST_NAMED} more"] * (len(lines) > MOST_NAMED)
        raise ConfigError(
            "\n  ".join(["the ranks must have the same settings and data, and differ:", *lines[:MOST_NAMED], *more])
            + "\nstart all of them with the same config, command and data; if they are of two launches with the same "
            "MASTER_ADDR and MASTER_PORT, give each launch its own"
        )


def _by_rank(texts: list[str]) -> str:
    """Returns each of the values with its ranks, e.g. "1 on ranks 0 to 2, 7 on rank 3"."""
    ranks: dict[str, list[int]] = {}
    for rank, text in enumerate(texts):
        ranks.setdefault(mask_passwords(text), []).append(rank)
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*ranks, strict=False))
    begin = sum(1 for _ in alike) - BEFORE if max(map(len, ranks)) > LENGTH else 0
    return ", ".join(f"{_part(text, max(begin, 0))} on {name_ranks(numbers)}" for text, numbers in ranks.items())


def _part(text: str, begin: int) -> str:
    """Returns the part of a value in which it differs from the others."""
    end = begin + LENGTH
    return "..." * (begin > 0) + text[begin:end] + "..." * (end < len(text))


def name_ranks(ranks: list[int]) -> str:
    """Returns the names of ranks, e.g. "ranks 0 to 2, 5"."""
    texts = spans(ranks)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(texts[:MOST_NAMED])}{' ...' * (len(texts) > MOST_NAMED)}"


def spans(numbers: Iterable[int]) -> list[str]:
    """Returns the texts of numbers, in ascending order and each once, e.g. "4", "6 to 20 in steps of 2"."""
    texts, rest = [], sorted({*numbers})
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        count = next((n for n in range(1, len(rest)) if rest[n] != rest[0] + n * step), len(rest))
        span, rest = (rest[:count], rest[count:]) if count > 2 else (rest[:1], rest[1:])
        steps = f" in steps of {step}" if step > 1 else ""
        texts.append(f"{span[0]} to {span[-1]}{steps}" if len(span) > 1 else f"{span[0]}")
    return texts
