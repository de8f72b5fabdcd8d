"""Chooses samples to estimate a mean from."""


def evenly_spaced(count: int, most: int) -> list[int]:
    """Returns at most `most` of the numbers below `count`, evenly spaced."""
    return sorted({round(step * (count - 1) / max(1, most - 1)) for step in range(most)}) if count else []
