"""Refuses lists and tables whose URLs cannot be used: with a login, or mixed with paths."""

import numpy as np

from tfpipe.config.section import NETRC
from tfpipe.data.catalog.paths import FileList, is_url
from tfpipe.errors import LOGIN, ConfigError


def check_urls(paths: FileList, place: str, entry: str) -> None:
    """Raises ConfigError if one of the paths is a URL with a user or a password, or they are URLs and paths mixed.

    `place` and `entry` name the list or table, and an entry of it, in the message, e.g. "the filelist a.txt", "line".
    """
    remote = np.array([is_url(folder) for folder in paths.folders], bool)
    if not remote.any():
        return
    login = next((path for path in paths.folders if is_url(path) and LOGIN.search(path)), None)
    if login is not None:
        raise ConfigError(
            f"{place} has a URL with a user or a password, {login}..., which logs and copies of it would repeat: "
            f"{NETRC}"
        )
    if not remote.all():
        of_image = remote[paths.folder]
        first, second = (int(np.argmax(which)) for which in (of_image, ~of_image))
        raise ConfigError(
            f"{place} holds both URLs and paths, e.g. {paths[first]} ({entry} {first + 1}) and {paths[second]} "
            f"({entry} {second + 1}): use one kind, e.g. copy the remote files with `tfpipe stage`"
        )
