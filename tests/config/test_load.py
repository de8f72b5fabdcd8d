"""The config: old files load unchanged, and every mistake is named, all at once, by its path."""

import json
import math
import pickle
import re
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.support.sample import TUTORIAL
from tfpipe import config as config_module
from tfpipe.config import Config, DataConfig, load_config, make_config
from tfpipe.config.messages import ELSEWHERE, explain, known_paths
from tfpipe.config.model import resize_of_weights
from tfpipe.data.sources.recognize import recognize
from tfpipe.errors import ConfigError
from tfpipe.native import core

SIZES = "a side, [height, width], or by epoch [[0, 128], [6, 192]]"
EPOCHS = "accepted: the first epoch is 0, and each one after it is a later one"
SKELETON = {
    "model": {"name": "resnet"},
    "optimizer": {"name": "Adam", "learning_rate": 0.001},
    "lr_schedule": {
        "name": "ExponentialDecay",
        "args": {"initial_learning_rate": 0.001, "decay_steps": 2500, "decay_rate": 0.5, "staircase": False},
    },
    "loss": {"name": "SparseCategoricalCrossentropy", "args": {"from_logits": True}},
    "accuracy": {"name": "simple_class_accuracy"},
    "data": {**TUTORIAL["data"], "batch_size": 16, "num_parallel_readers": 8, "prefectch_buffer_size": 10},
    "training": {"epochs": 100, "status": 10},
    "validation": {"batches": 2},
}

Load = Callable[..., Config]
Complain = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a config given as JSON text or as what it stands for, with overrides."""

    def load_raw(raw: Any, *overrides: str) -> Config:
        path = tmp_path / "config.json"
        path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
        return load_config(path, overrides)

    return load_raw


@pytest.fixture
def complain(load: Load) -> Complain:
    """The lines of the error that a config raises, the heading first."""

    def complaint(raw: Any, *overrides: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(raw, *overrides)
        return [line.strip() for line in str(caught.value).splitlines()]

    return complaint


def with_data(**keys: Any) -> dict[str, Any]:
    return {"data": {"train_filelist": "train.txt", **keys}}


def test_the_tutorials_file_loads_unchanged(load):
    data = load(TUTORIAL).data
    assert (data.batch_size, data.num_parallel_readers, data.prefetch_buffer_size) == (128, 1, 0)
    assert (data.crop_image_size, data.num_classes, data.num_channels) == ((256, 256), 1000, 3)
    assert (data.shuffle_buffer, data.reshuffle_each_iteration) == (200_000, True)
    assert data.train_filelist == Path(TUTORIAL["data"]["train_filelist"])
    assert data.test_filelist == Path(TUTORIAL["data"]["test_filelist"])


def test_the_older_skeletons_file_loads_unchanged_and_what_has_no_effect_is_named(load, complain, caplog):
    config = load(SKELETON)
    assert [line.split()[0] for line in caplog.messages] == ["accuracy.name", "validation.batches", "data.handler"]
    (_, unknown) = complain({**SKELETON, "validation": {"batches": 2, "batch_size": 64}})
    assert unknown.startswith("validation: unknown key")
    assert (config.model.name, config.optimizer.name, config.optimizer.learning_rate) == ("resnet", "Adam", 1e-3)
    assert config.lr_schedule.name == "ExponentialDecay"
    assert config.lr_schedule.args == SKELETON["lr_schedule"]["args"]
    assert (config.loss.name, config.loss.args) == ("SparseCategoricalCrossentropy", {"from_logits": True})
    assert (config.training.epochs, config.training.status) == (100, 10)
    assert (config.data.num_parallel_readers, config.data.prefetch_buffer_size) == (8, 10)


def test_only_the_training_filelist_is_needed(load):
    config = load(with_data())
    assert config == load({**with_data(), "model": {}, "optimizer": {}, "lr_schedule": {}, "loss": {}})
    assert (config.data.num_parallel_readers, config.data.prefetch_buffer_size) == ("auto", "auto")


def test_relative_paths_are_relative_to_the_config_file(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    names = {"train_filelist": "lists/a.txt", "test_filelist": "../b.txt", "classes": "c.txt"}
    labels = {"train_label_file": "d.txt", "test_label_file": str(tmp_path / "e.csv")}
    (tmp_path / "configs/x.json").write_text(json.dumps({"data": {**names, **labels}}))
    monkeypatch.chdir(tmp_path)
    data = load_config("configs/x.json").data
    here = tmp_path / "configs"
    assert (data.train_filelist, data.test_filelist) == (here / "lists/a.txt", tmp_path / "b.txt")
    assert (data.classes, data.train_label_file) == (here / "c.txt", here / "d.txt")
    assert data.test_label_file == tmp_path / "e.csv"


def test_a_byte_order_mark_is_no_error(load):
    assert load(f"\ufeff{json.dumps(with_data())}") == load(with_data())


@pytest.mark.parametrize("text", ["~/a.txt", "$HOME/a.txt", "${HOME}/a.txt", "/home/${USER}/a.txt"])
def test_home_and_variables_are_expanded(load, monkeypatch, text):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("USER", "someone")
    assert load({"data": {"train_filelist": text}}).data.train_filelist == Path("/home/someone/a.txt")
    assert make_config(with_data(), [f"data.cache={text}"]).data.cache == Path("/home/someone/a.txt")


PARTS = st.lists(
    st.sampled_from([("$$", "$"), ("${a}", "$x~"), ("$a/", "$x~/"), *((letter,) * 2 for letter in "ax/~.{} ")])
)


@given(PARTS)
def test_a_text_of_a_path_has_one_meaning(parts):
    """$NAME is a variable and $$ a $, in paths and URLs; a Path is what it says; all are the same when read again."""
    text, meaning = ("".join(part[number] for part in parts) for number in (0, 1))
    source = {"kind": "table", "path": f"s3://a/{text}/b", "images": f"/a/{text}"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("a", "$x~")
        data = {"source": source if " " not in text else None, "cache": f"/a/{text}", "index": Path(f"/a/{meaning}")}
        config = make_config({"data": {"train_filelist": None if data["source"] else "a.txt", **data}})
    assert config.data.cache == config.data.index == Path(f"/a/{meaning}").resolve()
    if config.data.source is not None:
        assert config.data.source.path == f"s3://a/{meaning}/b" and config.data.source.images == config.data.cache
    assert Config.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("$NONE/a", "the variable NONE is not set, or is empty"),
        ("s3://${NONE}/a", "the variable NONE is not set, or is empty"),
        ("/a/$EMPTY/b", "the variable EMPTY is not set, or is empty"),
        ("/a/b$", "a $ is not followed by the name of a variable"),
        ("/a/${EMPTY", "a $ is not followed by the name of a variable"),
    ],
)
def test_a_path_with_an_unknown_variable_is_refused(complain, monkeypatch, text, problem):
    monkeypatch.setenv("EMPTY", "")
    _, line = complain({"data": {"source": {"kind": "table", "path": text}}})
    assert line.startswith(f'data.source.path: received "{text}", and {problem}; accepted: ')
    with pytest.raises(ConfigError, match=re.escape(problem)):
        recognize(text, "train")


def test_a_recognised_path_is_expanded_once(tmp_path, monkeypatch):
    (tmp_path / "$HERE").mkdir()
    (tmp_path / "$HERE/a.txt").touch()
    monkeypatch.setenv("HERE", str(tmp_path))
    for path in ("$HERE/$$HERE/a.txt", tmp_path / "$HERE/a.txt"):
        config = make_config({"data": recognize(path, "train")})
        assert config.data.train_filelist == tmp_path / "$HERE/a.txt"


def test_the_home_of_an_unknown_user_is_refused(complain):
    _, line = complain(with_data(cache="~nobody-has-this-name/a"))
    assert line.startswith('data.cache: received "~nobody-has-this-name/a"; accepted: ~ of a user')


@pytest.mark.parametrize(
    ("raw", "path", "nearest"),
    [
        (with_data(batchsize=1), "data.batchsize", "data.batch_size"),
        (with_data(prefech_buffer_size=1), "data.prefech_buffer_size", "data.prefetch_buffer_size"),
        (with_data(BATCH_SIZE=1) | {"trainng": {}}, "trainng", "training"),
        # Of the words that both have, and of other tools.
        (with_data(batch=1), "data.batch", "data.batch_size"),
        (with_data(num_workers=1), "data.num_workers", "data.threads"),
        (with_data(class_name="a"), "data.class_name", "data.classes"),
        (with_data(img_size=1), "data.img_size", "data.crop_image_size"),
        (with_data() | {"optimizer": {"lr": 1}}, "optimizer.lr", "optimizer.args.learning_rate"),
        (with_data() | {"training": {"num_epochs": 1}}, "training.num_epochs", "training.epochs"),
        (with_data() | {"training": {"save_every": 1}}, "training.save_every", "training.checkpoint"),
        # Known elsewhere, misplaced here.
        (with_data(epochs=1), "data.epochs", "training.epochs"),
        (with_data() | {"batch_size": 1}, "batch_size", "data.batch_size"),
        (with_data() | {"model": {"nmae": "x"}}, "model.nmae", "model.name"),
        (with_data(random_resized={"areas": [0.1, 1]}), "data.random_resized.areas", "data.random_resized.area"),
        # In a member of a union.
        (with_data(layout={"image": "a", "annotations": "b"}), "data.layout.image", "data.layout.images"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(complain, raw, path, nearest):
    assert f"{path}: unknown key; did you mean {nearest}?" in complain(raw)


def test_keys_of_other_tools_lead_to_keys_that_are_there():
    known = set(known_paths(Config))
    for name, path in ELSEWHERE.items():
        key = re.split(r"[=\s(]", path)[0]
        assert key in known or key.startswith("optimizer.args."), name


@pytest.mark.parametrize("key", ["crop_image_size", "test_crop_image_size"])
def test_a_number_is_the_side_of_a_square(load: Load, key: str) -> None:
    assert getattr(load(with_data(**{key: 64})).data, key) == (64, 64)


def test_an_unknown_key_like_no_other_lists_those_known_there(complain):
    (line,) = complain(with_data() | {"model": {"zzzzzzzz": 1}})[1:]
    assert line == "model.zzzzzzzz: unknown key; known here: model.name, model.args, model.weights, model.freeze"
    (line,) = complain(with_data(zebra=1))[1:]
    assert line.startswith("data.zebra: unknown key; known here: data.source, data.train_filelist, ")


def test_all_mistakes_are_reported_at_once(complain):
    raw = {
        "data": {"batch_size": "128", "crop": "boxs", "shufle_buffer": 1},
        "training": {"epochs": 0, "precision": "float8"},
        "optimiser": {},
    }
    heading, *lines = complain(raw)
    assert heading.startswith("7 errors in the config ") and heading.endswith("config.json:")
    assert [line.split(":")[0] for line in lines] == [
        "data.batch_size",
        "data.crop",
        "data.shufle_buffer",
        "data.train_filelist",
        "optimiser",
        "training.epochs",
        "training.precision",
    ]


def wrong(key: str, value: Any, accepted: str) -> tuple[dict[str, Any], str]:
    """Returns a config with this value, and what is said of it."""
    raw = node = with_data()
    *outer, last = key.split(".")
    for part in outer:
        node = node.setdefault(part, {})
    node[last] = value
    return raw, f"{key}: received {json.dumps(value)}; accepted: {accepted}"


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        *(wrong("data.batch_size", size, "a valid integer") for size in ("128", 1.0, True)),
        wrong("data.batch_size", 0, "greater than 0"),
        (
            with_data(train_filelist=[{"path": "a.txt", "weight": math.inf}]),
            "data.train_filelist[0].weight: received Infinity; accepted: a finite number",
        ),
        (
            json.dumps(with_data(remote={"cache_gb": 1})).replace("1}", "1e999}"),
            "data.remote.cache_gb: received Infinity; accepted: a finite number",
        ),
        wrong("lr_schedule.warmup_epochs", math.nan, "a finite number"),
        wrong("optimizer.learning_rate", math.nan, "a finite number"),
        *(wrong("optimizer.args.learning_rate", rate, "a finite number above 0") for rate in (0, -0.1, "0.1", True)),
        *(
            wrong("training.metrics_port", port, 'a port from 0 to 65535, or "HOST:PORT"')
            for port in (99999, 65536, -1, "0.0.0.0:65536", "0.0.0.0:99999", "9400", "")
        ),
        wrong("optimizer.args", {"betas": [0.9, -math.inf]}, "finite numbers only"),
        wrong("data.flip", 1, "true or false"),
        wrong("data.num_channels", 4, "1 or 3"),
        wrong("data.num_parallel_readers", "8", "a valid integer or 'auto'"),
        wrong("data.layout", "foo", "'auto', 'ilsvrc', 'voc' or 'yolo' or an object"),
        *(wrong("data.crop_image_size", size, SIZES) for size in ("224", True, [224], [1, 2, 3], {})),
        *(
            wrong(f"data.random_resized.{key}", value, "[smallest, largest]")
            for key, value in (("area", 0.5), ("area", [0.9, 0.5]), ("aspect", [0.9, 0.5]))
        ),
        # It would name the config's own folder.
        *(
            wrong(f"data.{key}", "", "a path, which is not empty; null for none")
            for key in ("cache", "test_filelist", "train_filelist", "index")
        ),
        (
            with_data(layout={"images": "a", "annotations": 3}),
            "data.layout.annotations: received 3; accepted: a valid string",
        ),
        wrong("data.classes", 5, "a list of class names or a valid string"),
        wrong("data.train_filelist", 3, 'a valid string or a list of {"path": FILE, "weight": NUMBER}'),
        wrong("data.service", [], 'a valid integer or a valid string or a list of "host:port", not empty'),
        wrong("callbacks", {}, 'a list of {"name": NAME, "args": {...}}'),
        wrong("model.freeze", {}, "a list of layer names or a valid integer"),
        (
            with_data(prefectch_buffer_size=-1),
            "data.prefetch_buffer_size: received -1; accepted: greater than or equal to 0 or 'auto'",
        ),
        wrong("model", None, "an object"),
        wrong("lr_schedule.warmup_epochs", -1, "greater than or equal to 0"),
        wrong("data", [], "an object"),
        ([1, 2], "the config: received [1, 2]; accepted: an object"),
    ],
)  # fmt: skip
def test_a_wrong_value_says_what_was_received_and_what_is_accepted(complain, raw, line):
    assert complain(raw)[1:] == [line]


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({"crop_image_size": [[1, 64]]}, f"data.crop_image_size: received the epochs [1]; {EPOCHS}"),
        ({"crop_image_size": [[0, 64], [0, 32]]}, f"data.crop_image_size: received the epochs [0, 0]; {EPOCHS}"),
        ({"batch_size": [[0, 64], [3, 32], [2, 8]]}, f"data.batch_size: received the epochs [0, 3, 2]; {EPOCHS}"),
        ({"batch_size": []}, f"data.batch_size: received the epochs []; {EPOCHS}"),
        ({"batch_size": [0, 64]}, "data.batch_size: received 0 in a list by epoch; accepted: [epoch, size], e.g. [["),
        ({"batch_size": [[0, 64], [2, 0]]}, "data.batch_size: received 0; accepted: greater than 0"),
        (
            {"crop_image_size": [[0]]},
            "data.crop_image_size: received [0] in a list by epoch; accepted: [epoch, size], ",
        ),
        ({"crop_image_size": [[0, "64"]]}, f'data.crop_image_size: received "64"; accepted: {SIZES}'),
        ({"crop_image_size": [[0, 64], [1, [64]]]}, f"data.crop_image_size: received [64]; accepted: {SIZES}"),
    ],
)
def test_sizes_by_epoch_that_are_none_are_refused(complain, keys, line):
    text = complain(with_data(**keys))[1]
    assert text.startswith(line)


def test_sizes_by_epoch_are_those_of_the_last_one_and_written_as_they_were_given(tmp_path: Path) -> None:
    sizes = {"crop_image_size": [[0, 128], [6, [192, 160]]], "batch_size": [[0, 256], [12, 128]]}
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"data": {"train_filelist": "a.txt", **sizes}}))
    config = load_config(path)
    assert (config.data.crop_image_size, config.data.batch_size) == ((192, 160), 128)
    assert [config.at(epoch).data.crop_image_size for epoch in (0, 5, 6, 99)] == [(128, 128)] * 2 + [(192, 160)] * 2
    assert [config.at(epoch).data.batch_size for epoch in (0, 11, 12, None)] == [256] * 2 + [128] * 2
    assert config.data.has_phases and not config.at(3).data.has_phases
    path.write_text(config.model_dump_json())
    again = load_config(path)
    assert again.data.phases == config.data.phases == pickle.loads(pickle.dumps(config)).data.phases
    path.write_text(json.dumps({"data": {"train_filelist": "a.txt", "crop_image_size": [[0, 64]]}}))
    alone = load_config(path)
    assert alone.at(0) is alone and alone.data.for_split("test") is alone.data


def test_a_class_that_is_no_name_is_reported_at_its_key(complain):
    (line,) = complain(with_data(classes=["a", 3]))[1:]
    assert line.startswith("data.classes") and "3" in line and "a valid string" in line


def test_a_missing_key_says_what_it_is(complain):
    (line,) = complain({"data": {}})[1:]
    assert line.startswith("data.train_filelist: is missing: Text file, one image a line")


def test_a_long_value_is_cut_short(complain):
    (line,) = complain(with_data(batch_size="x" * 500))[1:]
    assert len(line) < 160 and "..." in line


def test_a_crop_has_an_upper_bound(complain):
    for size in ([65_501, 1], [2**31, 2**31]):
        text = "\n".join(complain(with_data(crop_image_size=size)))
        assert f"received {size[0]}" in text and "65500" in text
    assert complain(with_data(crop_image_size=[[0, 65_500], [1, 32]]))[1].startswith(
        "data.crop_image_size [[0, [65500, 65500]], [1, [32, 32]]] and data.num_channels 3: a crop has less than 2^29"
    )


def test_each_wrong_element_of_a_pair_is_reported(complain):
    text = "\n".join(complain(with_data(crop_image_size=[0, -1])))
    assert "0" in text and "received 0" in text and "-1" in text


def test_a_password_in_an_option_is_refused_and_not_shown(complain):
    """The config is written to the run's directory."""
    options = {"client_kwargs": {"proxy": "http://user:hidden@proxy:3128"}}
    _, line = complain(with_data(remote={"options": options}))
    assert line.startswith("data.remote.options: received a URL with a user or a password") and "hidden" not in line


@pytest.mark.parametrize("kind", ["packed", "webdataset", "table", "coco", "folders", "tfrecord"])
@pytest.mark.parametrize("key", ["path", "test_path", "images"])
def test_a_password_in_a_source_is_refused_and_not_shown(kind, key):
    source = {"kind": kind, "path": "/data", key: "https://user:hidden@host/data"}
    with pytest.raises(ConfigError, match="a URL with a user or a password") as caught:
        make_config({"data": {"source": source}})
    assert_hidden(caught.value)


@pytest.mark.parametrize("key", ["train_filelist", "test_filelist", "train_label_file", "classes", "index", "cache"])
def test_a_password_in_any_path_is_refused_and_not_shown(key):
    for sections, overrides in (
        ({"data": {key: "https://user:hidden@host/list.txt"}}, []),
        ({"data": {}}, [f"data.{key}=https://user:hidden@host/list.txt"]),
        ({"data": 1}, [f"data.{key}=https://user:hidden@host/list.txt"]),
    ):
        with pytest.raises(ConfigError) as caught:
            make_config(sections, overrides)
        assert_hidden(caught.value)


def assert_hidden(error: BaseException) -> None:
    """Python shows an uncaught error with its causes."""
    assert "hidden" not in "".join(traceback.format_exception(error))


def test_both_spellings_of_one_key_are_refused(complain):
    text = "\n".join(complain(with_data(prefetch_buffer_size=5, prefectch_buffer_size=3)))
    assert "prefetch_buffer_size" in text and "prefectch_buffer_size" in text


def test_a_key_that_is_there_twice_is_refused_wherever_it_is(complain: Complain) -> None:
    """Python's json keeps the last one in silence: of two data sections the first would be gone."""
    data = '{"train_filelist": "a.txt", "random_resized": {"area": [0.1, 1], "area": [0.2, 1]}}'
    line = complain(f'{{"data": {{"batch_size": 4}}, "data": {data}}}')[0]
    assert "has a key twice, of which one would be ignored: " in line and "is not JSON" not in line
    assert 'data is {"batch_size": 4} and {"train_filelist": "a.txt", ' in line
    assert "data.random_resized.area is [0.1, 1] and [0.2, 1]" in line
    listed = '{"data": {"train_filelist": "a.txt"}, "metrics": [{"name": "a", "name": "b"}]}'
    assert 'metrics.0.name is "a" and "b"' in complain(listed)[0]
    override = 'data.random_resized={"area": [0.1, 1], "area": [0.2, 1]}'
    assert complain(TUTORIAL, override)[0].startswith(f"--set {override} has a key twice")


FOLDERS = {"kind": "folders", "path": "/tree"}


@pytest.mark.parametrize(
    ("raw", "messages"),
    [
        (
            with_data(source=FOLDERS, train_filelist=[{"path": "/a.txt", "weight": 1}]),
            [
                'data.source {"kind": "folders", "path": "/tree"} and data.train_filelist [{"path": "/a.txt", '
                '"weight": 1.0}]: both name the data: leave one of them out, or null'
            ],
        ),
        (
            with_data() | {"optimizer": {"learning_rate": 0.1, "args": {"learning_rate": 0.2}}},
            ["optimizer.learning_rate 0.1 and optimizer.args.learning_rate 0.2: both are the optimizer's rate"],
        ),
        (
            SKELETON | {"optimizer": {"learning_rate": 0.1}},
            ["optimizer.learning_rate 0.1 and lr_schedule.args.initial_learning_rate 0.001: the schedule has its own"],
        ),
        (
            with_data()
            | {
                "optimizer": {"args": {"learning_rate": 0.1}},
                "lr_schedule": {"name": "PiecewiseConstantDecay", "args": {"boundaries": [5], "values": [1.0, 0.5]}},
            },
            ["optimizer.args.learning_rate 0.1 and lr_schedule.args.values [1.0, 0.5]"],
        ),
    ],
)
def test_of_two_settings_none_is_ignored_in_silence(complain: Complain, raw: dict, messages: list[str]) -> None:
    (line,) = complain(raw)[1:]
    assert [message for message in messages if message not in line] == []


@pytest.mark.parametrize(
    "sections",
    [
        {"optimizer": {"learning_rate": 0.1, "args": {"learning_rate": 0.1}}},
        {
            "optimizer": {"learning_rate": 0.1},
            "lr_schedule": {"name": "CosineDecay", "args": {"initial_learning_rate": 0.0, "warmup_target": 0.1}},
        },
        {"data": {"source": {**FOLDERS}, "train_label_file": "/l.csv"}},
    ],
)
def test_settings_that_agree_are_accepted(load: Load, sections: dict) -> None:
    load(with_data() | sections)


def test_settings_of_a_crop_that_is_not_taken_are_named(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    area = {"area": [0.2, 1.0]}
    load(with_data(random_resized=area, crop="random_resized", center_fraction=0.5))
    assert caplog.messages == [], "test crops are central then"
    load(with_data(random_resized=area, center_fraction=0.5))
    assert caplog.messages == [
        'data.random_resized has no effect: it is for data.crop "random_resized", and data.crop is "boxes"',
        'data.center_fraction has no effect: it is for data.crop "center", and data.crop is "boxes"',
    ]


def test_settings_of_filelists_and_of_skipping_are_named_without_these(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    load({"data": {"source": FOLDERS, "layout": "yolo", "annotations": "xml", "max_bad_fraction": 0.5}})
    named = [message.partition(" has no effect: ")[0] for message in caplog.messages]
    assert named == ["data.layout", "data.annotations", "data.max_bad_fraction"]
    caplog.clear()
    load({"data": {"source": FOLDERS, "annotations": "none", "max_bad_fraction": 0.5, "on_error": "skip"}})
    load(with_data(layout="yolo", annotations="xml"))
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("model", "resize", "nearest"),
    [
        ({"name": "resnet", "weights": "imagenet"}, "bilinear", None),
        ({"name": "resnet", "weights": "imagenet"}, "antialias", "bilinear"),
        ({"name": "ConvNeXtBase", "weights": "imagenet"}, "antialias", "bicubic"),
        ({"name": "ConvNeXtBase", "weights": "imagenet"}, "bicubic", None),
        ({"name": "resnet", "weights": "mine.keras"}, "antialias", None),
        ({"name": "resnet"}, "area", None),
    ],
)
def test_weights_of_otherwise_resized_crops_are_told(load: Load, model: dict, resize: str, nearest: str | None) -> None:
    message = resize_of_weights(load({"data": {"train_filelist": "a.txt", "resize": resize}, "model": model}))
    assert message is None if nearest is None else f'data.resize is "{resize}": "{nearest}" is nearest' in message


OBJECTS = {"label_source": "object", "classes": ["a"]}


@pytest.mark.parametrize(
    ("keys", "train", "test"),
    [
        ({}, "boxes", "boxes"),
        ({"crop": "full"}, "full", "full"),
        ({"crop": "center", "test_crop": "boxes"}, "center", "boxes"),
        ({"crop": "random_resized"}, "random_resized", "center"),
        ({"crop": "random_resized", "test_crop": "full"}, "random_resized", "full"),
        ({**OBJECTS, "crop": "random_resized"}, "random_resized", "boxes"),
        (OBJECTS, "boxes", "boxes"),
    ],
)
def test_test_data_is_never_cropped_at_random(load, keys, train, test):
    data = load(with_data(**keys)).data
    assert (data.crop_for("train"), data.crop_for("test")) == (train, test)


@pytest.mark.parametrize("text", ["{", "", '{"data": }', "\ufeff{"])
def test_what_is_not_json_is_named_with_its_place(complain, text):
    (line,) = complain(text)
    assert "config.json is not JSON" in line and "line 1" in line


@given(st.data())
def test_what_is_nearly_json_is_told_what_to_change(data):
    """A comma too many, a comment, single quotes: wherever it is in a config."""
    value = {
        "data": {"classes": ["a", "b//c"], "train_filelist": "a'b.txt", "mix": {"mixup": 0.2}},
        "training": {"epochs": 3},
    }
    lines = json.dumps(value, indent=1).split("\n")
    fault = data.draw(st.sampled_from(["comma", "//", "/*", "#", "'"]))
    if fault == "comma":
        at = data.draw(st.sampled_from([n for n, line in enumerate(lines[1:]) if line.lstrip()[0] in "}]"]))
        lines[at] += data.draw(st.sampled_from([",", " ,", ",\n\n"]))
    elif fault == "'":
        at = data.draw(st.sampled_from([n for n, line in enumerate(lines) if re.match(r'\s*"\w+"', line)]))
        lines[at] = re.sub(r'"(\w+)"', r"'\1'", lines[at], count=1)
    else:
        lines[data.draw(st.integers(0, len(lines) - 1))] += f"  {fault} a note"
    says = {"comma": "no comma after the last", "'": "double quotes"}.get(fault, "no comments")
    with tempfile.TemporaryDirectory() as place, pytest.raises(ConfigError, match=f"is not JSON: .*; JSON has {says}"):
        path = Path(place, "c.json")
        path.write_text("\n".join(lines))
        load_config(path)


def test_another_encoding_is_told(tmp_path):
    (tmp_path / "c.json").write_bytes("{}".encode("utf-16"))
    with pytest.raises(ConfigError, match="save it as UTF-8"):
        load_config(tmp_path / "c.json")


@pytest.mark.parametrize("name", ["config.yaml", "config.YML"])
def test_a_yaml_is_called_one_and_the_command_makes_json_of_it(tmp_path, name):
    (tmp_path / name).write_text("data:\n  train_filelist: train.txt\n  batch_size: 7\n")
    with pytest.raises(ConfigError, match=rf"{name} is not JSON: .*; configs are JSON, not YAML: convert") as caught:
        load_config(tmp_path / name)
    subprocess.run(str(caught.value).partition("convert it by ")[2], shell=True, check=True)
    assert load_config(tmp_path / "config.json").data.batch_size == 7


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the config .*nothing\.json: No such file"):
        load_config(tmp_path / "nothing.json")
    with pytest.raises(ConfigError, match=r"cannot read the config .*directory"):
        load_config(tmp_path)
    (tmp_path / "image.json").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(ConfigError, match=r"image\.json is not JSON"):
        load_config(tmp_path / "image.json")


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("data.batch_size=64", 64),
        ("data.crop_image_size=[32, 64]", (32, 64)),
        ("data.reshuffle_each_iteration=false", False),
        ("data.test_filelist=null", None),
        ("data.num_parallel_readers=auto", "auto"),
        ('data.num_parallel_readers="auto"', "auto"),
        ('data.classes=["a", "b"]', ["a", "b"]),
        ("data.transform=a=b", "a=b"),
        ("data.test_filelist=None", None),
        ("data.reshuffle_each_iteration=False", False),
        ('data.transform=""', ""),
        ("data.prefectch_buffer_size=7", 7),
        ("data.center_fraction=0.5", 0.5),
        ("model.args.width=16", {"width": 16}),
        ('optimizer={"name": "SGD"}', "SGD"),
        ("training.epochs=3", 3),
    ],
)
def test_set_overrides_one_key(load, override, value):
    before, after = load(SKELETON).model_dump(), load(SKELETON, override).model_dump()
    section, _, key = override.partition("=")[0].replace("fectch", "fetch").partition(".")
    key = (key or "name").partition(".")[0]
    assert after[section][key] == value
    if "." in override.partition("=")[0]:  # otherwise the whole section is replaced
        after[section][key] = before[section][key]
    else:
        after[section] = before[section]
    assert after == before


def test_a_later_override_wins_and_the_rest_of_the_section_stays(load):
    args = load(SKELETON, "lr_schedule.args.decay_rate=0.1", "lr_schedule.args.decay_rate=0.2").lr_schedule.args
    assert args == {**SKELETON["lr_schedule"]["args"], "decay_rate": 0.2}


def test_an_override_reaches_the_misspelt_key_of_the_file(load):
    assert load(TUTORIAL, "data.prefetch_buffer_size=4").data.prefetch_buffer_size == 4
    assert load(TUTORIAL, "data.prefectch_buffer_size=5").data.prefetch_buffer_size == 5


def test_an_overriding_path_is_relative_to_the_config_file(load, tmp_path):
    assert load(TUTORIAL, "data.train_filelist=a.txt").data.train_filelist == tmp_path / "a.txt"


@pytest.mark.parametrize("override", ["data.batch_size", "=3", ".batch_size=3", "data.=3", "data..x=3", ""])
def test_an_override_that_is_none_is_refused_with_an_example(complain, override):
    (line,) = complain(TUTORIAL, override)
    assert "data.batch_size=64" in line and f'received "{override}"' in line


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.cache=", "received no value; accepted: JSON, e.g. null for none"),
        ("data.cache= ", "received no value"),
        ("data.cache='/disk'", "received '/disk', which is not JSON"),
        ('data.cache="/disk', 'received "/disk, which is not JSON'),
        ("data.classes=['a', 'b']", "received ['a', 'b'], which is not JSON"),
        ("optimizer={name: SGD}", "received {name: SGD}, which is not JSON"),
    ],
)
def test_an_override_without_a_value_or_in_spoilt_quotes_is_no_path(
    complain: Complain, override: str, said: str
) -> None:
    (line,) = complain(TUTORIAL, override)
    assert line.startswith("--set ") and said in line and "accepted: " in line


def test_overrides_are_checked_like_the_file(complain):
    lines = complain(TUTORIAL, "data.batch_size=many", "data.batchsize=3", "trainin.epochs=1")[1:]
    assert lines == [
        'data.batch_size: received "many"; accepted: a valid integer',
        "data.batchsize: unknown key; did you mean data.batch_size?",
        "trainin: unknown key; did you mean training?",
    ]


def test_an_override_below_a_value_is_refused(complain):
    (line,) = complain(TUTORIAL, "data.batch_size.x=3")
    assert '"x" is no key of 128' in line


@pytest.mark.parametrize(
    "raw",
    [
        TUTORIAL,
        SKELETON,
        with_data(classes="c.txt", layout={"images": "a", "annotations": "b"}),
        with_data(classes=["b", "a"], random_resized={"area": [0.2, 0.5]}, test_label_file="~/labels.csv"),
    ],
)
def test_a_resolved_config_loads_again_to_the_same(load, tmp_path, raw):
    resolved = load(raw)
    elsewhere = tmp_path / "elsewhere/resolved.json"
    elsewhere.parent.mkdir()
    elsewhere.write_text(resolved.model_dump_json(indent=2))
    assert load_config(elsewhere) == resolved


def test_a_loaded_config_cannot_be_changed(load):
    config = load(TUTORIAL)
    with pytest.raises(ValueError, match="frozen"):
        config.data.batch_size = 3


def _sections() -> list[type[BaseModel]]:
    kinds = [each for each in vars(config_module).values() if isinstance(each, type)]
    return [kind for kind in kinds if issubclass(kind, config_module.Section) and kind is not config_module.Section]


def _fields() -> Iterator[tuple[type[BaseModel], str, FieldInfo]]:
    for section in _sections():
        for name, field in section.model_fields.items():
            yield section, name, field


def test_every_section_and_key_is_documented():
    assert {DataConfig, Config} < set(_sections())
    assert [kind.__name__ for kind in _sections() if not kind.__doc__] == []
    # A key of the whole config is a section, which its class documents.
    keys = [(kind.__name__, name) for kind, name, field in _fields() if kind is not Config and not field.description]
    assert keys == []


def test_the_json_schema_says_what_each_key_means():
    schema = Config.model_json_schema()
    assert set(schema["properties"]) == set(Config.model_fields)
    for section, name, field in _fields():
        if section is Config or not field.description:
            continue  # missing descriptions: test_every_section_and_key_is_documented
        assert schema["$defs"][section.__name__]["properties"][name]["description"] == field.description
    for section in _sections():
        if section is not Config:
            assert schema["$defs"][section.__name__]["description"] == section.__doc__
            assert schema["$defs"][section.__name__]["additionalProperties"] is False


def test_errors_are_explained_in_the_order_of_their_paths():
    class Inner(config_module.Section):
        b: int
        a: int

    class Outer(config_module.Section):
        z: int
        inner: Inner

    with pytest.raises(ValueError, match="validation errors") as caught:
        Outer.model_validate_json('{"z": "x", "inner": {"c": 1}}')
    assert [line.split(":")[0] for line in explain(caught.value, Outer)] == ["inner.a", "inner.b", "inner.c", "z"]


def test_a_dict_gives_the_config_that_its_file_gives(tmp_path: Path) -> None:
    sections = {"data": {"train_filelist": "lists/train.txt", "prefectch_buffer_size": 2}, "training": {"epochs": 3}}
    (tmp_path / "c.json").write_text(json.dumps(sections))
    overrides = ["data.batch_size=5"]
    assert make_config(sections, overrides, tmp_path) == load_config(tmp_path / "c.json", overrides)
    by_path = {"data": {"train_filelist": tmp_path / "lists/train.txt", "crop_image_size": (8, 9)}}
    assert make_config(by_path).data.train_filelist == tmp_path / "lists/train.txt"
    assert sections["data"]["prefectch_buffer_size"] == 2, "the caller's dict stays as it is"


def test_mistakes_in_a_dict_are_explained_as_those_in_a_file() -> None:
    with pytest.raises(ConfigError) as raised:
        make_config({"data": {"train_filelist": "a.txt", "batch_sise": 3, "crop": "box"}})
    first, *lines = str(raised.value).split("\n  ")
    assert first == "2 errors in the config:"
    assert lines[0].startswith("data.batch_sise: unknown key; did you mean data.batch_size?")
    assert lines[1].startswith('data.crop: received "box"; accepted: ')
    with pytest.raises(ConfigError, match=r"cannot be written as JSON: <object .* is neither a number"):
        make_config({"data": {"train_filelist": object()}})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            {"kind": "zip"},
            'data.source.kind: received "zip"; accepted: "folders", "table", "coco", "archive", "webdataset", '
            '"packed", "tfrecord" or "package.module:Class"',
        ),
        (
            {"kind": "table", "path": "x", "columns": {"extra": {"boxes": "age"}}},
            'data.source.columns.extra: received "boxes", the name of the labels themselves',
        ),
    ],
)
def test_a_source_is_of_a_kind_that_there_is(source: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config({"data": {"source": source}})


@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_only_kernels_whose_pixels_have_changed_have_another_name(decoder: str) -> None:
    """In packed data and in checkpoints; TensorFlow's ops made what they hold of other kernels."""
    names = {kernel: DataConfig(train_filelist=Path("x"), decoder=decoder, resize=kernel) for kernel in core().kernels}
    assert {kernel for kernel, config in names.items() if config.stored_resize != kernel} == {"bicubic"}
    assert all(config.native == (decoder == "native") for config in names.values())
