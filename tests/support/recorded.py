"""Runs of train.py and tfpipe bench, recorded for tfpipe report: python -m tests.support.end_recording RUN_DIR NAME.

tests/recorded/NAME holds what the report reads of a run: config.json, metrics.jsonl or pipeline.json, and traces
without what is not of the pipeline or the steps, compressed.
"""

import gzip
import shutil
import sys
from pathlib import Path

RECORDED = Path(__file__).resolve().parents[1] / "recorded"
FILES = ("config.json", "metrics.jsonl", "pipeline.json")
TRACES = "**/plugins/profile/*/*.xplane.pb"
STATS = {"step_num", "_r", "id"}


def unpack(name: str, folder: Path) -> Path:
    """Restores a recorded run below `folder`; returns its directory."""
    run_dir = folder / name
    shutil.copytree(RECORDED / name, run_dir)
    for packed in run_dir.glob(f"{TRACES}.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return run_dir


def pack(run_dir: Path, name: str) -> None:
    """Records a run as `name`."""
    target = RECORDED / name
    target.mkdir(parents=True)
    for path in filter(Path.exists, map(run_dir.joinpath, FILES)):
        shutil.copy(path, target)
    for path in run_dir.glob(TRACES):
        packed = target / f"{path.relative_to(run_dir)}.gz"
        packed.parent.mkdir(parents=True)
        packed.write_bytes(gzip.compress(stripped(path.read_bytes()), 9, mtime=0))


def stripped(trace: bytes) -> bytes:
    """Returns a trace with the threads of tf.data and of the step marks alone, and of the stats only STATS."""
    from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

    space = XSpace.FromString(trace)
    for plane in space.planes:
        names = {key: metadata.name for key, metadata in plane.event_metadata.items()}
        stats = {key for key, metadata in plane.stat_metadata.items() if metadata.name in STATS}
        lines = [line for line in plane.lines if line.name.startswith("tf_data") or _has_step(line, names)]
        for line in lines:
            for event in line.events:
                kept = [stat for stat in event.stats if stat.metadata_id in stats]
                del event.stats[:]
                event.stats.extend(kept)
        used = {event.metadata_id for line in lines for event in line.events}
        del plane.lines[:]
        plane.lines.extend(lines)
        del plane.stats[:]
        for table, keys in ((plane.event_metadata, used), (plane.stat_metadata, stats)):
            for key in set(table) - keys:
                del table[key]
        for metadata in plane.event_metadata.values():
            del metadata.stats[:]
    return space.SerializeToString()


def _has_step(line: object, names: dict[int, str]) -> bool:
    """Returns whether a thread has a step's mark."""
    return any(names[event.metadata_id] == "train" and event.stats for event in line.events)


if __name__ == "__main__":
    pack(Path(sys.argv[1]), sys.argv[2])
