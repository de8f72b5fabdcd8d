"""A clock that tests set."""


class Clock:
    """Time that passes when told to; the time of day is a million seconds ahead."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def of_day(self) -> float:
        return self.now_s + 1e6
