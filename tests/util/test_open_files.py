"""The limit of open files: raised as far as needed, and no further than the system lets it be."""

import resource

import pytest

from tfpipe.errors import ConfigError
from tfpipe.util.open_files import SPARE_FILES, allow_open


@pytest.mark.parametrize(
    ("limits", "files", "raised"),
    [
        ((1024, 4096), 1024 - SPARE_FILES, None),
        ((1024, 4096), 1025 - SPARE_FILES, 1025),
        ((1024, 4096), 4096 - SPARE_FILES, 4096),
        ((1024, resource.RLIM_INFINITY), 100_000, 100_000 + SPARE_FILES),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 100_000, None),
    ],
)
def test_the_process_keeps_some_for_itself(
    limits: tuple[int, int], files: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, now: set_to.append(now))
    allow_open(files)
    assert set_to == ([] if raised is None else [(raised, limits[1])])


def test_more_than_the_system_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: pytest.fail("it is left as it is"))
    with pytest.raises(ConfigError, match="3841 shards are to be open at once, but this process may open 4096 files"):
        allow_open(4097 - SPARE_FILES)
