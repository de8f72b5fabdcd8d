"""The subcommands, one function each; --help shows the first line of its docstring."""

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path

from tfpipe.config import Config, DataConfig, load_config
from tfpipe.data.runtime.tracing import trace_folder
from tfpipe.distributed import World, find_launch
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.console import without_chatter


def train(args: argparse.Namespace) -> None:
    """Trains a model; under mpirun, srun or aprun on all ranks."""
    from tfpipe.data.sources.registry import open_source

    config = _config(args)
    launch = find_launch()
    if launch is None or launch.rank == 0:
        # Before TensorFlow loads. The other ranks report an error only after all are connected: Open MPI's mpirun may
        # hang if one rank exits while another connects.
        open_source(config.data).check(test=True)
    # A user's ~/.keras may name another backend.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        world = World.detect(args.horovod)
        from tfpipe.training import loop
        from tfpipe.training.checkpointing.start import choose_run_dir, run_lock

        loop.configure_devices(world, args.interop, args.intraop)
    run_dir = choose_run_dir(args.logdir, args.config, world, args.resume)
    window = args.profile if args.profile_ranks is None or world.rank in args.profile_ranks else None
    with run_lock(run_dir, world):
        loop.train(config, world, run_dir, args.resume is not None, args.resume_anyway, window)
    if world.rank == 0:
        print(f"the run is in {run_dir}: metrics.jsonl, model.keras; tensorboard --logdir {run_dir}")


def sample(args: argparse.Namespace) -> None:
    """Writes a small synthetic data set in ImageNet's layout."""
    from tfpipe.tools.sample.sample import write_sample

    summary = write_sample(args.out, args.images, args.val, args.scale, args.seed)
    print(
        f"{args.out}: {summary.train_images} training images ({summary.annotated_train_images} with an XML, "
        f"{summary.train_boxes} boxes), {summary.val_images} validation images, {summary.classes} classes, "
        f"{summary.bytes / 1e6:.1f} MB"
    )


def filelist(args: argparse.Namespace) -> None:
    """Writes the filelists of an ILSVRC or Pascal VOC tree."""
    from tfpipe.data.catalog.filelist import scan, write_filelist

    for split, images in scan(args.root).items():
        path = args.out / f"{split}.txt"
        write_filelist(path, images)
        print(f"{path}: {len(images)} images")


def order(args: argparse.Namespace) -> None:
    """Prints the samples that a rank visits in an epoch, one per line: position, image, box, path.

    Tabs separate the columns: the stream position, the image's index in the filelist, the index of its box (with
    data.unit "box"; otherwise "-", all boxes) and its path.
    """
    import numpy as np

    from tfpipe.data.sources.registry import load_catalog

    if not 0 <= args.rank < args.size:
        raise ConfigError(f"--rank must be in [0, --size), received {args.rank} of {args.size}")
    config, world = _config(args).data, World(args.rank, args.size)
    catalog = load_catalog(config, "train", world)
    positions = np.array(catalog.order(config).positions(args.epoch, world)[: args.head], np.int64)
    items = catalog.order(config).items(positions, world)
    for position, item in zip(positions, items, strict=True):
        image, box = catalog.image_and_box(int(item))
        print(position, image, "-" if box is None else box, catalog.paths[image], sep="\t")


def bench(args: argparse.Namespace) -> None:
    """Measures the input pipeline: images/s, this machine's limit, the cost of each stage, and the bottleneck.

    Under mpirun, srun or aprun, or with --ranks, measures the joint throughput of several ranks.
    """
    from tfpipe.data.sources.registry import open_source

    config, launch = _config(args), find_launch()
    if launch is None or launch.rank == 0:
        open_source(config.data).check()
    # A user's ~/.keras may name another backend.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        world = World.detect(horovod=False) if launch is None or launch.size == 1 else World.mpi()
        from tfpipe.tools import bench
        from tfpipe.tools.bench import ranks
        from tfpipe.tools.bench.text import as_json, render
        from tfpipe.tools.bench.traced import trace

        if args.headspace:
            from tfpipe.training.loop import configure_devices

            configure_devices(world)
        plan = bench.BenchPlan(args.seconds, args.repeats, args.stages, args.serial, args.headspace, args.ranks)
        several = plan.ranks is not None or world.size > 1
        report = ranks.run(config, world, plan) if several else bench.run(config, world, plan)
        if args.profile is not None:
            folder = args.logdir or Path("runs") / f"bench-{args.config.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
            trace(config, world, args.profile, trace_folder(folder, world))
    if world.rank > 0:
        return
    if args.json is not None:
        _write(args.json, json.dumps(as_json(report), indent=2) + "\n")
    print(render(report))


def report(args: argparse.Namespace) -> None:
    """Names the bottleneck of a run from its metrics and its trace, or compares several runs."""
    from tfpipe.tools.report.plot import plot
    from tfpipe.tools.report.runs import load_run
    from tfpipe.tools.report.text import as_json, render

    runs = [load_run(folder) for folder in args.runs]
    if args.json is not None:
        reports = [as_json(run) for run in runs]
        _write(args.json, json.dumps(reports if len(reports) > 1 else reports[0], indent=2) + "\n")
    if args.plot is not None:
        plot(runs, args.plot)
    print(render(runs))


def view(args: argparse.Namespace) -> None:
    """Draws a batch as training sees it, images with their boxes, or the files that cannot be decoded."""
    from tfpipe.data.sources.registry import open_source

    config = _config(args)
    open_source(config.data).check()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        from tfpipe.tools.view.view import ViewRequest, view

        message = view(config, ViewRequest(args.kind, args.split, args.count, args.first), args.out)
    print(message)


def check(args: argparse.Namespace) -> None:
    """Reads and decodes every file of a list, parses its XMLs, and reports oddities and what would stop training.

    Exit code 0: no oddities, or only ones that training handles correctly; 1: something is wrong or would stop it.
    """
    from tfpipe.data.catalog.filelist import check_filelists
    from tfpipe.tools.check import check
    from tfpipe.tools.check.fix import write_clean_list
    from tfpipe.tools.check.text import as_json, conclusion, render

    _check_processes(args.processes)
    config, launch = _config(args).data, find_launch()
    splits = _splits(args.split, config)
    if args.fix_list is not None and len(splits) > 1:
        raise ConfigError("--fix-list writes one list: choose --split train or --split test")
    lists = {"train": config.train_filelist, "test": config.test_filelist}
    check_filelists([path for path in map(lists.get, splits) if isinstance(path, Path)])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        world = World() if launch is None or launch.size == 1 else World.mpi()
        results = check(config, splits, world, args.processes)
    if world.rank > 0:
        return
    if args.json is not None:
        _write(args.json, json.dumps(as_json(results), indent=2) + "\n")
    print(render(results))
    if args.fix_list is not None:
        dropped = write_clean_list(results[0], args.fix_list)
        print(f"{args.fix_list}: {len(results[0].catalog) - dropped} lines, {dropped} left out")
    problem = conclusion(results)
    if problem is not None:
        fix = "" if args.fix_list is not None else "; --fix-list OUT writes a list without what stops training"
        raise TfpipeError(problem + fix)


def index(args: argparse.Namespace) -> None:
    """Indexes all boxes (of XMLs or a table) and image headers for training; under mpirun or srun on all ranks."""
    from tfpipe.prepare.index import build_index

    _check_processes(args.processes)
    config, launch = _config(args).data, find_launch()
    world = World() if launch is None or launch.size == 1 else World.mpi()
    for split in _splits(args.split, config):
        stats = build_index(config, split, world, args.processes)
        if world.rank == 0 and stats is not None:
            odd = ", ".join(f"{count} {code}" for code, count in stats.odd.items()) or "nothing odd"
            print(f"{stats.path}: {stats.images} images ({stats.annotated} annotated), {stats.boxes} boxes; {odd}")


def pack(args: argparse.Namespace) -> None:
    """Packs images or their crops into shards, under mpirun or srun on all ranks; or verifies packed data."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if args.verify is not None:
        from tfpipe.data.sources.packed.manifest import verify

        print(verify(args.verify))
        return
    if args.out is None:
        raise ConfigError("--out is missing: the folder to pack into")
    config, launch = _config(args).data, find_launch()
    splits = ["train", *(["test"] if config.test_filelist else [])] if args.split == "all" else [args.split]
    with nullcontext() if args.debug else without_chatter():
        world = World() if launch is None or launch.size == 1 else World.mpi()
        from tfpipe.prepare.pack import pack

        for split in splits:
            summary = pack(config, split, args.out.resolve(), PackPlan(args.kind, args.shards, args.quality), world)
            if world.rank == 0 and summary is not None:
                print(
                    f"{summary.path}: {summary.images} images, {summary.records} records in {summary.shards} shards, "
                    f"{summary.bytes / 1e6:.1f} MB"
                )


def serve(args: argparse.Namespace) -> None:
    """Runs a worker that reads, decodes and crops for trainings whose `data.service` names its address."""
    if args.role == "dispatcher":
        raise ConfigError(
            "a dispatcher would deal images out in no fixed order, so each worker has one of its own: start "
            "`tfpipe serve worker` on each host, and list the addresses that they print in data.service.address"
        )
    if args.parent is not None:
        from tfpipe.data.service.server import exit_with_parent

        exit_with_parent(args.parent)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with nullcontext() if args.debug else without_chatter():
        from tfpipe.data.service.server import Server

        server = Server(args.port, args.data_port, args.host, args.threads)
    print(f"serving at {server.address}", flush=True)
    server.join()


def stage(args: argparse.Namespace) -> None:
    """Copies a filelist's data to a local disk before a job; under mpirun or srun to each node's own.

    With data.scope "shard", each node gets only its ranks' share of the images.
    """
    from tfpipe.data.catalog.filelist import check_filelists
    from tfpipe.prepare.stage import Share, stage

    config, launch = _config(args).data, find_launch()
    world = World() if launch is None or launch.size == 1 else World.mpi()
    if args.share is not None and world.size > 1:
        raise ConfigError("--share is of one process: leave it out under a launcher, where each rank has its own")
    splits = ["train", *(["test"] if config.test_filelist else [])] if args.split == "all" else [args.split]
    check_filelists([*config.train_lists, config.test_filelist])
    staged = stage(config, splits, args.out, world, args.share and Share(*args.share))
    if world.rank == 0:
        copied = staged.copied
        print(f"{args.out}: {copied.files} files copied ({copied.bytes / 1e6:.1f} MB), {copied.there} were there")
        if args.share is not None:
            print('the lists are whole, the images those of the share: for data.scope "shard" with as many ranks')
        print("train from it with: " + " ".join(f"--set {override}" for override in staged.overrides))


def config(args: argparse.Namespace) -> None:
    """Prints the config with every default filled in, its JSON schema, or its reference."""
    if args.markdown:
        from tfpipe.config.reference import markdown

        print(markdown(), end="")
    elif args.schema:
        print(json.dumps(Config.model_json_schema(), indent=2))
    else:
        print(_config(args).model_dump_json(indent=2))


def _config(args: argparse.Namespace) -> Config:
    overrides = list(args.set)
    if getattr(args, "nsteps", None) is not None:
        overrides += ["training.epochs=1", f"training.steps_per_epoch={args.nsteps}"]
    return load_config(args.config, overrides)


def _check_processes(processes: int | None) -> None:
    if processes is not None and processes < 1:
        raise ConfigError(f"--processes must be at least 1, received {processes}")


def _splits(split: str, config: DataConfig) -> list[str]:
    """Returns the splits that "all" stands for, or the one named."""
    if split != "all":
        return [split]
    return ["train", *(["test"] if config.test_filelist else [])]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
