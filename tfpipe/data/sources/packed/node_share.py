"""The note of `tfpipe stage` beside a copy of packed data: what was copied, and for which ranks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tfpipe.config import DataConfig
from tfpipe.data.sources.packed.manifest import PREFIX
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import read_text


class NodeShare(NamedTuple):
    """The ranks whose images a copy holds; in the place of the others its shards have holes."""

    manifest: str  # sha256 of the manifest of what was copied
    size: int  # number of ranks; 1 if the copy is whole
    ranks: Sequence[int] = (0,)

    @property
    def whole(self) -> bool:
        """Returns whether the copy holds the images of all ranks."""
        return len(self.ranks) == self.size

    def hold(self, folder: Path, split: str) -> None:
        """Writes the note, or checks the one that is there; raises ConfigError if that is of another copy."""
        path = _note(folder, split)
        before = read_share(folder, split)
        if before is not None and before != self:
            raise ConfigError(f"{folder} holds {before}, and this is {self}: remove the folder, or copy to another one")
        if before is None:
            with atomic_write(path) as partial:
                partial.write_text(json.dumps(self._asdict()))

    def __str__(self) -> str:
        ranks = "all ranks" if self.whole else f"ranks {', '.join(map(str, self.ranks))} of {self.size}"
        return f"a copy for {ranks} of the data {self.manifest[:8]}"


def read_share(folder: Path, split: str) -> NodeShare | None:
    """Returns the share that a folder holds; None if it is no copy of `tfpipe stage`."""
    try:
        values = json.loads(read_text(_note(folder, split)))
    except FileNotFoundError:
        return None
    return NodeShare(values["manifest"], values["size"], tuple(values["ranks"]))


def check_share(folder: Path, split: str, config: DataConfig, world: World) -> None:
    """Raises ConfigError if this rank reads images that a copy does not hold, whose bytes are zeros."""
    share = read_share(folder, split)
    if share is None or share.whole:
        return
    if config.scope != "shard" or world.size != share.size or world.rank not in share.ranks:
        raise ConfigError(
            f'{folder} holds {share} with data.scope "shard"; this is rank {world.rank} of {world.size} with scope '
            f'"{config.scope}": copy the data again for it, or use the original'
        )


def check_whole(folder: Path) -> None:
    """Raises ConfigError if a folder holds the images of some ranks only, so that no checksum of a shard matches."""
    for split in PREFIX:
        share = read_share(folder, split)
        if share is not None and not share.whole:
            raise ConfigError(f"{folder} holds {share}; checksums are of whole shards: verify the original")


def _note(folder: Path, split: str) -> Path:
    return folder / f".{PREFIX[split]}.staged.json"
