"""The samples that were used, as a run's folder says: of train.py, and of a consumer of a Loader."""

import json
import subprocess
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.chaos.consumers import USED
from tests.support.commands import WARM, start, start_ranks
from tests.support.runs import read_metrics, steps, train, trained
from tfpipe.training.skipping import BAD_FILES


class TrainLogs:
    def __init__(self, run_dir: Path, _: str) -> None:
        """Takes the run's folder."""
        self.run_dir, self.progress = run_dir, run_dir / "positions-0.csv"

    def start(self, ranks: int, config: Path, overrides: tuple[str, ...], environ: Any) -> subprocess.Popen[str]:
        words = [word for option in overrides for word in ("--set", option)]
        return train(ranks, "-c", config, "-l", self.run_dir, "--resume", "auto", *words, **environ)

    def written_ns(self) -> int:
        """Returns when the run has last shown that it gets on; 0 if it has not."""
        with suppress(OSError):
            return self.progress.stat().st_mtime_ns
        return 0

    def steps(self) -> int:
        return steps(self.run_dir)

    def saved(self) -> int:
        return max((int(path.stem[5:]) for path in self.run_dir.glob("checkpoints/step-*.npz")), default=0)

    def used(self) -> Counter[tuple[int, int]]:
        return Counter((position, crop) for _, position, crop in trained(self.run_dir))

    def left_out(self) -> set[int]:
        """Returns the positions of the samples that were left out, each listed once."""
        left = Counter(int(line[3]) for line in self._bad_files())
        assert max(left.values(), default=1) == 1, f"left out twice: {left.most_common(3)}"
        return set(left)

    def _bad_files(self) -> list[list[str]]:
        """Returns the lines on training samples in bad_files.txt."""
        path = self.run_dir / BAD_FILES
        lines = [line.split("\t") for line in path.read_text().splitlines()[1:]] if path.exists() else []
        return [line for line in lines if line[2] == "train"]

    def check(self, epochs: int, batch: int) -> None:
        """Checks what else a run that has trained `epochs` in batches of `batch` must have left."""
        counts = Counter(step for step, *_ in trained(self.run_dir))
        assert sorted(counts) == list(range(1, max(counts) + 1)), "steps are missing"
        assert all(count % batch == 0 for count in counts.values()), "a batch is cut"
        metrics = read_metrics(self.run_dir)
        assert [line["epoch"] for line in metrics] == list(range(1, epochs + 1)), "epochs"
        counted, listed = sum(line.get("dropped_images", 0) for line in metrics), len(self._bad_files())
        assert counted == listed, f"dropped_images {counted}, bad_files.txt {listed}"
        assert (self.run_dir / "model.keras").exists(), "no model"
        leftover = [path.name for path in self.run_dir.rglob(".*") if path.name != ".writable"]
        assert not leftover, f"left in the run's directory: {leftover}"


class ConsumerLogs:
    """The file of a consumer of a Loader."""

    def __init__(self, run_dir: Path, kind: str) -> None:
        """Takes the consumer's folder, and its name in KINDS."""
        self.run_dir, self.kind, self.progress = run_dir, kind, run_dir / USED

    def start(self, ranks: int, config: Path, overrides: tuple[str, ...], environ: Any) -> subprocess.Popen[str]:
        command = (*WARM, "-m", "tests.chaos.consumers", config, self.run_dir, self.kind, *overrides)
        return start(*command, **environ) if ranks == 1 else start_ranks(ranks, *command, **environ)

    written_ns = TrainLogs.written_ns

    def _read(self) -> dict[str, Any]:
        empty = {"step": 0, "used": [], "left_out": []}
        return json.loads(self.progress.read_text()) if self.progress.exists() else empty

    def steps(self) -> int:
        return self._read()["step"]

    saved = steps

    def used(self) -> Counter[tuple[int, int]]:
        return Counter((position, crop) for position, crop in self._read()["used"])

    def left_out(self) -> set[int]:
        """Returns the positions of the samples that were left out; those that were to come again are listed again."""
        return set(self._read()["left_out"])

    def check(self, _: int, batch: int) -> None:
        """Checks that all batches were whole, and that the state counts them."""
        saved = self._read()
        assert len(saved["used"]) % batch == 0, "a batch is cut"
        assert saved["crops"] == len(saved["used"]), f"counted {saved['crops']}, used {len(saved['used'])}"
