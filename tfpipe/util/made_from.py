"""Says what something stored was made from, so that it is made again when any of that has changed."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tfpipe.util.files import Stamp, stamp
from tfpipe.util.json_text import differences

CHANGED = "has changed since, by its time of change or version"


class MadeFrom(NamedTuple):
    """Everything that something stored depends on; stored with it, or as a part of its name."""

    version: int  # of the stored form
    files: Sequence[tuple[str, Stamp]]  # name or path of each file, and its stamp
    settings: dict[str, Any]  # plain values by name; config keys are named as in a config

    def text(self) -> str:
        """Returns the text to store; equal texts mean that nothing has changed."""
        return json.dumps([self.version, self.files, self.settings], sort_keys=True)

    def digest(self) -> str:
        """Returns the sha256 of the text in hex, for the name of what is stored."""
        return hashlib.sha256(self.text().encode()).hexdigest()

    def change(self, stored: str | bytes | None) -> str | None:
        """Returns the first change since `stored`, the text that was stored, in words; None if there is none."""
        if isinstance(stored, bytes):
            stored = stored.decode(errors="replace")
        if stored == self.text():
            return None
        try:
            version, files, settings = json.loads(stored or "")
            before, stored_settings = {name: Stamp(*fields) for name, fields in files}, dict(settings)
        except (ValueError, TypeError):
            version, before, stored_settings = None, {}, {}
        if version != self.version:
            return "another version of tfpipe made it"
        now, plain = dict(self.files), json.loads(json.dumps(self.settings))
        changes = differences(stored_settings, plain, "then", "now", sorted(stored_settings | plain))
        changes += [f"{name} is {'gone' if name in before else 'new'}" for name in sorted(before.keys() ^ now.keys())]
        for name in sorted(before.keys() & now.keys()):
            if before[name] != now[name]:
                then, size = before[name].size, now[name].size
                changes.append(f"{name} " + (CHANGED if then == size else f"had {then} bytes then, has {size} now"))
        more = f", and {len(changes) - 1} more changes" if len(changes) > 1 else ""
        return f"{changes[0]}{more}" if changes else "its files have another order"


def stamp_files(paths: Iterable[Path | None]) -> list[tuple[str, Stamp]]:
    """Returns the absolute path and the stamp of each file that is not None."""
    return [(str(path.absolute()), stamp(str(path))) for path in paths if path is not None]
