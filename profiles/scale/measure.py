"""Measures ranks of this machine for simulation.py: their rates on slow storage, and the times that it draws from.

    tfpipe sample data/scale --images 400 && tfpipe filelist data/scale --out data/scale/lists
    python profiles/scale/measure.py --list data/scale/lists/train.txt --cores 0.7

The ranks have `--cores` of this machine together, whatever else runs (a control group's quota, which needs root; 0: no
limit). What they really get is measured in each turn, by ranks that only count. They meet at a barrier after each step,
as in an allreduce. Turns are interleaved; rates are medians over them.
Writes measured.json next to this file, or --out.
"""

import argparse
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from multiprocessing import connection, get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
SIZES, DELAYS_MS = (1, 2, 4), (0.0, 3.0, 20.0)
BATCH, READS, PREFETCH = 16, 2, 2
GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000
QUANTILES = np.linspace(0, 100, 101)


class Meeting(NamedTuple):
    """The end of a step, at which ranks meet without using CPU time; rank 0 says at which one they stop."""

    barrier: Any
    last: Any  # number of the last step; negative: not known yet


class Rank(NamedTuple):
    """A rank of a measurement."""

    world: Any
    meeting: Meeting | None


def main() -> None:
    """Measures, and writes measured.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", type=Path, required=True)
    parser.add_argument("--cores", type=float, default=0.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of ranks %(default)s")
    parser.add_argument("--delays-ms", type=float, nargs="+", default=DELAYS_MS, help="%(default)s")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a segment [%(default)s]")
    parser.add_argument("--warm-up", type=float, default=1.5, help="seconds before each segment [%(default)s]")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("measured.json"))
    args = parser.parse_args()
    check_limit(args.cores)
    config = {
        **{"train_filelist": str(args.list.absolute()), "crop_image_size": [128, 128], "batch_size": BATCH},
        **{"crop": "random_resized", "prefetch_buffer_size": PREFETCH, "parallel": {"read": READS}, "threads": 1},
    }
    context = get_context("spawn")
    meetings = {size: Meeting(context.Barrier(size), context.Value("q", 0)) for size in {2, *args.sizes}}
    links, processes = [], []
    for rank in range(max(meetings)):
        here, there = context.Pipe()
        processes.append(context.Process(target=serve, args=(rank, there, config, meetings), daemon=True))
        processes[-1].start()
        links.append(here)
    ask(links, {"what": "hello"})
    group = limit(args.cores, [process.pid for process in processes])
    settings = {"quota": args.cores, "batch": BATCH, "reads": READS, "prefetch": PREFETCH, "threads": 1}
    try:
        for measured in measure(links, args):  # so far
            args.out.write_text(json.dumps({"settings": settings, **measured}, indent=1) + "\n")
    finally:
        for process in processes:
            process.kill()
            process.join()
        if group:
            group.rmdir()
    print(f"wrote {args.out}")


def check_limit(cores: float) -> None:
    """Raises SystemExit if CPU time is to be limited and cannot be."""
    if cores and not os.access(GROUPS, os.W_OK):
        raise SystemExit(f"{GROUPS} cannot be written: --cores takes root and control groups of version 1; 0: no limit")


def limit(cores: float, pids: list[int]) -> Path | None:
    """Limits processes to `cores` CPUs together; returns their control group."""
    if not cores:
        return None
    group = GROUPS / f"tfpipe-scale-{os.getpid()}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(int(cores * PERIOD_US)))
    (group / "cpu.shares").write_text("20000")  # the quota is to be had although others run
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    return group


def measure(links: list[connection.Connection], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields rates, CPU times and the distributions after each turn."""
    parts_s = args.warm_up, args.seconds
    rates: dict[tuple[int, float], list[float]] = {}
    cpu_us: dict[tuple[int, float], list[float]] = {}
    cores: list[float] = []
    delays: dict[tuple[int, float], list[list[float]]] = {}
    read_ms = ask(links[:1], {"what": "read"})[0]
    decode_us, barrier_ms = ask(links[:1], {"what": "decode"})[0], ask(links[:2], {"what": "barrier", "size": 2})[0]
    for turn in range(args.turns):
        cores.append(sum(ask(links, {"what": "spin", "seconds": parts_s[0]})))
        print(f"turn {turn}: {cores[-1]:.3f} cores", flush=True)
        for size, delay_ms in itertools.product(args.sizes, args.delays_ms):
            answers = ask(links[:size], {"what": "rate", "size": size, "delay_ms": delay_ms, "parts_s": parts_s})
            images, cpu_s = (sum(answer[key] for answer in answers) for key in ("images", "cpu_s"))
            rate = images / statistics.mean(answer["seconds"] for answer in answers)
            rates.setdefault((size, delay_ms), []).append(rate)
            cpu_us.setdefault((size, delay_ms), []).append(1e6 * cpu_s / images)
            delays.setdefault((size, delay_ms), []).extend(filter(None, (answer["delays_ms"] for answer in answers)))
            cpu = f"{1e6 * cpu_s / images:.0f} us"
            print(f"turn {turn}: {size} ranks, {delay_ms:g} ms: {rate:.0f} images/s, {cpu}", flush=True)
        rows = [
            {
                **{"ranks": size, "delay_ms": delay_ms, "images_per_second": round(statistics.median(each), 1)},
                "turns": [round(rate, 1) for rate in each],
                "cpu_us": round(statistics.median(cpu_us[size, delay_ms]), 1),
                "delays_ms": np.mean(delays[size, delay_ms], axis=0).round(3).tolist() if delay_ms else None,
            }
            for (size, delay_ms), each in rates.items()
        ]
        yield {
            **{"cores": round(statistics.median(cores), 3), "rates": rows},
            **{"read_ms": read_ms, "decode_us": decode_us, "barrier_ms": barrier_ms},
        }


def ask(links: list[connection.Connection], request: dict[str, Any]) -> list[Any]:
    """Returns the ranks' answers."""
    for link in links:
        link.send(request)
    return [link.recv() for link in links]


def serve(rank: int, parent: connection.Connection, config: dict[str, Any], meetings: dict[int, Meeting]) -> None:
    """Runs in the process of a rank: answers requests."""
    import tfpipe

    while True:
        request = parent.recv()
        what = request.pop("what")
        if what == "hello":
            take_batches(config, (0.0,), Rank(tfpipe.World(), None))
            parent.send(True)
        elif what == "rate":
            size = request["size"]
            world = tfpipe.World(rank, size, local_rank=rank, local_size=size, threads=1)
            os.environ["TFPIPE_STORAGE_DELAY_MS"] = str(request["delay_ms"])
            parent.send(take_batches(config, request["parts_s"], Rank(world, meetings[size])))
        elif what == "spin":
            parent.send(spin(request["seconds"]))
        elif what == "read":
            parent.send(read_times(config["train_filelist"]))
        elif what == "decode":
            parent.send(decode_times(config["train_filelist"]))
        else:
            parent.send(barrier_times(meetings[request["size"]].barrier))


def take_batches(config: dict[str, Any], parts_s: tuple[float, ...], rank: Rank) -> dict[str, float]:
    """Takes the batches of a new pipeline, for a warm-up and then for a segment; all ranks take as many."""
    import tfpipe

    delays_s = record_delays()
    batches = iter(tfpipe.build_dataset(tfpipe.make_config({"data": config}), "train", rank.world))
    for part_s in parts_s:
        began_s, cpu_s, steps = time.perf_counter(), time.process_time(), 0
        last = rank.meeting.last if rank.meeting else None
        if rank.meeting:
            rank.meeting.barrier.wait()  # all have read the last part's
            rank.meeting.last.value = -1
            rank.meeting.barrier.wait()
        while True:
            next(batches)
            steps += 1
            if rank.meeting is None:
                break
            # Before the meeting, so that all ranks know it after the meeting.
            if rank.world.rank == 0 and time.perf_counter() - began_s > part_s and last.value < 0:
                last.value = steps
            rank.meeting.barrier.wait()
            if 0 <= last.value <= steps:
                break
        ended_s, used_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    delays_ms = np.percentile(np.multiply(delays_s, 1000), QUANTILES).tolist() if delays_s else None
    return {"images": steps * BATCH, "seconds": ended_s, "cpu_s": used_s, "delays_ms": delays_ms}


def record_delays() -> list[float]:
    """Records how long the simulated delays of reads really last: a rank that wakes up may have to wait for a CPU."""
    from tfpipe.data.runtime import clock

    delays_s: list[float] = []

    def sleep(seconds: float) -> None:
        began_s = time.perf_counter()
        time.sleep(seconds)
        delays_s.append(time.perf_counter() - began_s)

    clock.time = SimpleNamespace(sleep=sleep)  # type: ignore[assignment]
    return delays_s


def spin(seconds: float) -> float:
    """Returns the share of a CPU that this process gets if it never waits."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    while time.perf_counter() - began_s < seconds:
        pass
    return (time.process_time() - cpu_s) / (time.perf_counter() - began_s)


def read_times(filelist: str) -> list[float]:
    """Milliseconds of reads without a delay, READS at once: quantiles."""
    paths = Path(filelist).read_text().split()
    times_ms: list[float] = []

    def read(number: int) -> None:
        for path in paths[number : 100 * READS : READS]:
            began_s = time.perf_counter()
            Path(filelist).parent.joinpath(path).read_bytes()
            times_ms.append(1000 * (time.perf_counter() - began_s))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return np.percentile(times_ms, QUANTILES).round(4).tolist()


def decode_times(filelist: str) -> list[float]:
    """Microseconds of CPU time to decode an image: quantiles. Only their shape is used: the mean is the pipeline's."""
    import tensorflow as tf

    times_us = []
    for path in Path(filelist).read_text().split()[:400]:
        contents = Path(filelist).parent.joinpath(path).read_bytes()
        began_s = time.thread_time()
        tf.io.decode_jpeg(contents)
        times_us.append(1e6 * (time.thread_time() - began_s))
    return np.percentile(times_us, QUANTILES).round(1).tolist()


def barrier_times(barrier: Any) -> float:
    """Milliseconds of a meeting of two ranks that arrive together: the median."""
    times_s = []
    for _ in range(200):
        began_s = time.perf_counter()
        barrier.wait()
        times_s.append(time.perf_counter() - began_s)
    return round(1000 * statistics.median(times_s), 4)


if __name__ == "__main__":
    main()
