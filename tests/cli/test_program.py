"""The command line as a user meets it: what it prints, what it leaves behind, and how it fails."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfpipe
from tests.support.commands import COLD, ROOT, Finished, run, run_train
from tests.support.runs import read_metrics
from tests.support.sample import TUTORIAL, SampleData
from tfpipe.cli import main
from tfpipe.cli.arguments import set_hints
from tfpipe.config import Config
from tfpipe.config.messages import ELSEWHERE, known_paths
from tfpipe.training.run_model import LATE


class Command(NamedTuple):
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *args: str | Path) -> Finished:
        try:
            code = main([str(arg) for arg in args])
        except SystemExit as ended:  # argparse's way
            code = ended.code
        return Finished(code, *self.capsys.readouterr())


@pytest.fixture
def tfpipe_command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def test_importing_tfpipe_loads_nothing_heavy_and_sets_nothing() -> None:
    code = (
        "import os, sys; before = dict(os.environ); import tfpipe; "
        "heavy = {'tensorflow', 'keras', 'horovod', 'mpi4py', 'numpy', 'lxml', 'pydantic'} & set(sys.modules); "
        "assert not heavy, heavy; assert dict(os.environ) == before; "
        "import tfpipe.cli.program, tfpipe.config, tfpipe.distributed, tfpipe.data.order.permutation; "
        "import tfpipe.data.catalog.labels, tfpipe.prepare.index, tfpipe.training.monitor.stragglers; "
        "import tfpipe.tools.check.split, tfpipe.tools.check.result; "  # workers and reports start none
        "assert not {'tensorflow', 'keras', 'horovod', 'mpi4py'} & set(sys.modules)"
    )
    assert run(sys.executable, "-c", code) == (0, "", "")


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"tfpipe {tfpipe.__version__}\n"


class Interrupts:
    """Ctrl-C during the import of a module: a finder of sys.meta_path."""

    def __init__(self, module: str) -> None:
        self.module = module

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.module:
            raise KeyboardInterrupt


@pytest.mark.parametrize("module", ["tfpipe.cli.program", "tfpipe.cli.commands.pack"])
def test_ctrl_c_during_imports_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, tfpipe_command: Command, module: str
) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(module), *sys.meta_path])
    assert tfpipe_command("order", "--help") == (130, "", "tfpipe: error: interrupted\n")


def test_the_public_names_are_there() -> None:
    for name in tfpipe.__all__:
        assert getattr(tfpipe, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'build_dataste'"):
        tfpipe.build_dataste  # noqa: B018


def test_a_run_prints_its_progress_and_leaves_what_is_promised(
    sample: SampleData, tmp_path: Path, tfpipe_command: Command
) -> None:
    path = sample.config(tmp_path / "c.json", training={"epochs": 2, "status": 3})
    done = run_train("-c", path, "-l", tmp_path / "run", **COLD)

    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len([line for line in lines if "step" in line]) == 2 * ((7 - LATE) // 3), "once their metrics are read"
    assert lines[-1].startswith(f"the run is in {tmp_path / 'run'}")
    assert "train: 96 images, " in done.err and " of 96 images (exact)" in done.err
    assert not [line for line in done.err.splitlines() if "oneDNN" in line or "cuda" in line.lower()]

    first, second = read_metrics(tmp_path / "run")
    wanted = {"epoch", "step", "loss", "top1", "top5", "images_per_second", "input_wait_fraction", "seconds"}
    wanted |= {f"test_{name}" for name in ("loss", "top1", "top5", "macro_recall", "images", "crops")}
    assert wanted <= first.keys()
    assert (first["epoch"], second["epoch"], second["step"]) == (1, 2, 2 * first["step"])
    assert first["test_images"] == second["test_images"] == 37
    assert f"on {second['test_crops']} crops  of 37 images" in lines[-2]
    assert 0 <= first["input_wait_fraction"] <= 1 and first["images_per_second"] > 0

    assert tfpipe.load_config(tmp_path / "run/config.json") == tfpipe.load_config(path)
    assert list((tmp_path / "run/train").glob("events*")) and list((tmp_path / "run/test").glob("events*"))
    model = keras.models.load_model(tmp_path / "run/model.keras")
    assert model(np.zeros((1, 32, 32, 3), np.uint8)).shape == (1, 8)

    said = "holds an earlier run; continue it with --resume, or give another --logdir"
    again = tfpipe_command("train", "-c", path, "-l", tmp_path / "run")
    assert again == (2, "", f"tfpipe: error: {tmp_path / 'run'} {said}\n")


def test_options_train_together(sample: SampleData, tmp_path: Path) -> None:
    data = {"crop": "random_resized", "dtype": "float32", "flip": True}
    sections = {"training": {"precision": "mixed_bfloat16"}, "data": data, "loss": {"args": {"label_smoothing": 0.1}}}
    path = sample.config(tmp_path / "c.json", **sections)
    done = run_train("-c", path, "-l", tmp_path / "run", "-n", "3", "--interop", "2", "--intraop", "1")
    assert done.code == 0, done.err
    (metrics,) = read_metrics(tmp_path / "run")
    assert metrics["step"] <= 3 and metrics["loss"] > 0 and metrics["test_images"] == 37
    assert json.loads((tmp_path / "run/config.json").read_text())["data"]["threads"] == 2


def test_the_tutorials_config_runs_with_its_paths_changed(sample: SampleData, tmp_path: Path) -> None:
    """Its validation images lie in folders by label; here the training images serve. A narrow model, for speed."""
    config = json.loads(json.dumps(TUTORIAL))
    config["data"] |= {"train_filelist": str(sample.train), "test_filelist": str(sample.train)}
    (tmp_path / "ilsvrc.json").write_text(json.dumps(config))
    small = ["--set", 'model.args={"width": 4}', "--set", "data.crop_image_size=[32,32]"]
    done = run_train("-c", tmp_path / "ilsvrc.json", "-l", tmp_path / "run", "-n", "2", *small)
    assert done.code == 0, done.err
    (metrics,) = read_metrics(tmp_path / "run")
    assert (metrics["step"], metrics["test_images"]) == (2, 96)
    assert keras.models.load_model(tmp_path / "run/model.keras").output_shape == (None, 1000)


REFUSED = {
    "order -c c.json --rank 2 --size 2": "--rank must be below --size, received 2 of 2",
    "order -c c.json --set data.seed=-1": "data.seed: received -1",
    "train -c c.json --resume": "--resume needs --logdir",
    "train -c c.json --resume auto": "--resume needs --logdir",
    "train -c c.json -l file/run": "argument -l/--logdir: cannot write to file/run: ",
    "train -c c.json -l new --resume": "new/checkpoints to resume; --resume auto would start a new run",
    "train -c c.json -l new --profile 20:10": 'FIRST:END, e.g. 10:20 for 10 to 19; received "20:10"',
    "train -c c.json -l earlier": "earlier holds an earlier run",
    "train -c c.json -n 3 --set training.epochs=5": "--nsteps 3 and --set training.epochs=5 set the same key",
    'train -c c.json -n 3 --set training={"epochs":2}': "--nsteps 3 and --set training=",
    "train -c c.json --interop 2 --set data.threads=1": "--interop 2 and --set data.threads=1 set the same key",
    "train -c c.json --resume-anyway": "--resume, which continues it, is missing",
    "train -c c.json --profile-ranks all": "--profile FIRST:END, the steps, is missing",
    "view -c c.json -o x.xyz": 'x.xyz: its suffix is ".xyz"; accepted: .png, .jpg',
    "view -c c.json -o x.png --epochs --split test": "view --epochs shows training data",
    "bench -c c.json --seconds 0": 'argument --seconds: received "0"',
    "bench -c c.json --sweep data.nothing=1,2": "data.nothing: unknown key",
    "bench -c c.json --sweep data.seed": "--sweep wants a key of the data section and two or more values",
    "tune -c c.json --minutes inf": 'argument --minutes: received "inf"',
    "pack -c c.json --out file": "argument --out: cannot write to file: ",
    "pack -c c.json": "--out is missing",
    "stage -c c.json --out file/x": "argument --out: cannot write to file/x: ",
    "filelist tree --out file": "argument --out: cannot write to file: ",
    "evaluate -m none.keras": "there is no file none.keras",
    "predict -m file -o x.csv": "there is no config.json next to file",
    "check -c c.json --split all --fix-list x.txt": "--fix-list writes one list",
    "check -c c.json --split test --set data.test_filelist=null": "no test data; name it in data.test_filelist",
    "index -c c.json --verify --processes 2": "--verify makes no use of --processes",
    "index -c c.json --split test --set data.test_filelist=null": "--split test: there is no test data",
    "report nothing": "there is no folder nothing",
    "serve dispatcher": 'tfpipe serve runs a "worker", received "dispatcher"; a worker includes its own dispatcher, '
    "because a shared one would deal images out in no fixed order: start `tfpipe serve worker` on each host, and list "
    "the addresses that they print in data.service",
    "config -c none.json": "cannot read the config none.json",
}


def test_a_refusal_of_arguments_takes_no_tensorflow(sample: SampleData, tmp_path: Path) -> None:
    """In one process, which has it as soon as one of them imports it."""
    sample.config(tmp_path / "c.json")
    (tmp_path / "file").touch()
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier/metrics.jsonl").touch()
    code = (
        "import sys\nfrom tfpipe.cli import main\nfor line in sys.argv[1:]:\n"
        "    try: code = main(line.split())\n    except SystemExit as ended: code = ended.code\n"
        "    print(line, code, {'tensorflow', 'keras'} & {*sys.modules}, file=sys.stderr, sep='|')"
    )
    done = run("env", "-C", tmp_path, sys.executable, "-c", code, *REFUSED)
    said = dict(zip(REFUSED, re.split(r"\n.*\|2\|set\(\)\n", done.err), strict=False))
    assert len(said) == len(REFUSED), done.err
    assert {line: message for line, message in REFUSED.items() if message not in said[line]} == {}, done.err
    assert not (tmp_path / "new").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"batch_sise": 3}, "data.batch_sise: unknown key; did you mean data.batch_size?"),
        ({"train_filelist": "/no/such/list.txt"}, "cannot read the filelist /no/such/list.txt: No such file"),
        ({"test_label_file": None}, "have a label that is no class"),
    ],
)
def test_a_mistake_is_one_clear_message_and_exit_code_2(
    sample: SampleData, tmp_path: Path, tfpipe_command: Command, data: dict, message: str
) -> None:
    config = sample.config(tmp_path / "c.json", data=data)
    code, out, err = tfpipe_command("train", "-c", config, "-l", tmp_path / "run")
    assert code == 2
    assert message in err and err.startswith("tfpipe: error: ")
    assert (out, err.count("tfpipe: error: ")) == ("", 1)
    assert not (tmp_path / "run/metrics.jsonl").exists()


def test_config_prints_the_resolved_config_and_the_schema(
    sample: SampleData, tmp_path: Path, tfpipe_command: Command
) -> None:
    path = sample.config(tmp_path / "c.json")
    done = tfpipe_command("config", "-c", path, "--set", "data.batch_size=5")
    resolved = json.loads(done.out)
    assert resolved["data"]["batch_size"] == 5 and resolved["data"]["crop"] == "boxes"
    schema = json.loads(tfpipe_command("config", "--schema").out)
    assert schema["$defs"]["DataConfig"]["properties"]["threads"]["description"].startswith("Threads of the input")
    assert tfpipe_command("config").code == 2


def test_paths_of_arguments_have_variables_and_a_home(
    tmp_path: Path, tfpipe_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "$c.json").write_text('{"data": {"train_filelist": "$HOME/a.txt"}}')
    done = [tfpipe_command("config", "-c", path) for path in ("~/$$c.json", "${HOME}/$$c.json")]
    assert [json.loads(each.out)["data"]["train_filelist"] for each in done] == [f"{tmp_path}/a.txt"] * 2
    unknown = tfpipe_command("config", "-c", "$NO_SUCH/c.json")
    assert unknown.code == 2 and "argument -c/--config: received" in unknown.err
    assert "the variable NO_SUCH is not set" in unknown.err


def test_sample_and_filelist_make_what_training_needs(tmp_path: Path, tfpipe_command: Command) -> None:
    done = tfpipe_command("sample", tmp_path / "s", "--images", "16", "--val", "8", "--scale", "0.1")
    assert done.code == 0 and "16 training images" in done.out and "8 validation images" in done.out
    done = tfpipe_command("filelist", tmp_path / "s", "--out", tmp_path / "lists")
    assert done.code == 0
    assert done.out.splitlines() == [f"{tmp_path}/lists/train.txt: 16 images", f"{tmp_path}/lists/val.txt: 8 images"]
    above = tfpipe_command("filelist", tmp_path, "--out", tmp_path)
    assert above.code == 2 and f"{tmp_path} holds a tree of its own, {tmp_path}/s: give that instead" in above.err


def test_serial_differs_from_sample_in_nothing_but_its_parallelism() -> None:
    serial, sample = (json.loads((ROOT / f"configs/{name}.json").read_text()) for name in ("serial", "sample"))
    assert serial["data"].pop("num_parallel_readers") == 1
    assert serial["data"].pop("prefetch_buffer_size") == 0
    assert serial == sample


@pytest.fixture
def listed(tfpipe_command: Command) -> Callable[..., list[list[str]]]:
    def order(*args: str | Path) -> list[list[str]]:
        done = tfpipe_command("order", *args)
        assert done.code == 0, done.err
        return [line.split("\t") for line in done.out.splitlines()]

    return order


def test_the_order_is_the_one_that_is_trained(sample: SampleData, tmp_path: Path, listed: Callable) -> None:
    path = sample.config(tmp_path / "c.json", data={"crop": "full", "batch_size": 3})
    config = tfpipe.load_config(path)
    paths = sample.train.read_text().split()
    for rank in range(2):
        lines = listed("-c", path, "--rank", str(rank), "--size", "2", "--epoch", "1")
        assert len(lines) == 48
        assert all(paths[int(image)] == path and box == "-" for _, image, box, path in lines)
        world = tfpipe.World(rank, 2)
        batches = tfpipe.build_dataset(config, world=world, with_positions=True).skip(16).take(16).as_numpy_iterator()
        trained = [int(position) for *_, positions in batches for position, _ in positions]
        assert [int(position) for position, *_ in lines] == trained
    both = [image for rank in "01" for _, image, *_ in listed("-c", path, "--rank", rank, "--size", "2")]
    assert sorted(map(int, both)) == list(range(96))
    assert listed("-c", path, "--head", "3") == listed("-c", path)[:3]


def test_the_order_of_boxes_names_each_box_once(sample: SampleData, tmp_path: Path, listed: Callable) -> None:
    lines = listed("-c", sample.config(tmp_path / "c.json"), "--set", "data.unit=box")
    samples = [(int(image), int(box)) for _, image, box, _ in lines]
    assert len(set(samples)) == len(samples) > 96
    assert {image for image, _ in samples} == set(range(96))
    of_one = [box for image, box in sorted(samples) if image == max(samples, key=lambda each: each[1])[0]]
    assert of_one == list(range(len(of_one)))


def test_an_order_that_is_cut_off_or_impossible(sample: SampleData, tmp_path: Path, tfpipe_command: Command) -> None:
    path = sample.config(tmp_path / "c.json")
    command = f'"{sys.executable}" -m tfpipe order -c "{path}" | head -1; exit ${{PIPESTATUS[0]}}'
    cut_off = run("bash", "-c", command)
    assert cut_off.code == 0 and "Traceback" not in cut_off.err and len(cut_off.out.splitlines()) == 1
    none = tfpipe_command("order", "-c", path, "--size", "97", "--rank", "96", "--set", "data.scope=shard")
    assert none.code == 2 and "data.scope" in none.err


@pytest.mark.parametrize(
    "words",
    [
        "order -c c.json --epoch -1",
        "order -c c.json --rank -1",
        "order -c c.json --size 0",
        "order -c c.json --head -3",
        "order -c c.json --epoch 99999999999999",
        "serve worker --port 99999",
        "serve worker --data-port -1",
        "serve worker --threads 0",
        "check -c c.json --processes 0",
        "index -c c.json --processes 1.5",
        "train -c c.json --nsteps 0",
        "train -c c.json --interop -2",
        "train -c c.json --profile-ranks 0,-3",
        "pack -c c.json --out out --quality 101",
        "pack -c c.json --out out --shards 0",
        "view -c c.json -o a.png --count 0",
        "view -c c.json -o a.png --first -1",
        "bench -c c.json --repeats 0",
    ],
)
def test_a_number_that_is_out_of_range_is_refused_before_anything_is_read(tfpipe_command: Command, words: str) -> None:
    code, out, err = tfpipe_command(*words.split())
    *_, option, value = words.split()
    assert (code, out) == (2, "")
    assert (
        f"argument {option}" in err.replace("-n/--", "--")
        and f'received "{value.split(",")[-1]}"; accepted: a whole number from ' in err
    )


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        ("pack --verify d --shards 3", "--verify makes no use of --shards"),
        ("pack --verify d --set data.seed=1 --kind raw", "--verify makes no use of --set and --kind"),
        ("config --schema --set data.seed=1", "--schema makes no use of --set"),
        ("bench -c c.json --sweep data.seed=1,2 --profile 1:2", "--sweep makes no use of --profile"),
    ],
)
def test_an_option_without_effect_is_refused(tfpipe_command: Command, words: str, unused: str) -> None:
    done = tfpipe_command(*words.split())
    assert (done.code, done.out) == (2, "") and f"{unused}: leave one of them out" in done.err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--epochs 3", "--set training.epochs=3"),
        ("--lr 0.1 --batch-size=8", "--set optimizer.args.learning_rate=0.1 --set data.batch_size=8"),
        ("--batch_size 8 --fp16", "--set data.batch_size=8 --set training.precision=..."),
        ("--seed 1 --model x", "--set data.seed=1 or --set training.seed=1 --set model.name=x"),
        ("--label-mode int", """--set 'data.targets={"kind": ...}'"""),
    ],
)
def test_an_argument_that_is_a_key_of_the_config_names_it(tfpipe_command: Command, words: str, hint: str) -> None:
    done = tfpipe_command("train", "-c", "c.json", *words.split())
    assert (done.code, done.out) == (2, "")
    assert f"unrecognized arguments: {words}; did you mean {hint}?" in done.err
    assert "did you mean" not in tfpipe_command("train", "-c", "c.json", "--zebra", "3").err


@given(st.sampled_from(sorted({*ELSEWHERE, *(path.rpartition(".")[2] for path in known_paths(Config) if "." in path)})))
def test_the_keys_of_hints_are_known_to_the_config(name: str) -> None:
    hint = set_hints([f"--{name}", "1"])
    settings = [word for word in shlex.split(hint.removeprefix("; did you mean").removesuffix("?")) if "." in word]
    assert settings
    for setting in settings:
        key = re.split(r"[=\s(]", setting)[0]
        assert key in known_paths(Config) or key.startswith("optimizer.args."), hint


def test_a_traceback_is_shown_and_the_other_ranks_are_ended_all_the_same(
    tfpipe_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("tfpipe.cli.program.end_other_ranks", ended.append)
    done = tfpipe_command("config", "-c", "/none.json", "--debug")
    assert done.code == 2 and ended == [2]
    assert "Traceback" in done.err and done.err.splitlines()[-1].startswith("tfpipe: error: ")
