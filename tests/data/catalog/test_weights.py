"""Weights of classes and samples: the shares that a run gets, on any ranks and after a resume, and what is refused."""

from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.images import encoded, picture
from tests.support.routes import SMALL
from tfpipe import Config, Loader, World, make_config
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError
from tfpipe.prepare.pack import PackPlan, pack

IMAGES = {"bird": 37, "cat": 8, "dog": 3}
COUNT = sum(IMAGES.values())
EPOCHS = 30


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with a long tail."""
    root = tmp_path_factory.mktemp("tail")
    for name, count in IMAGES.items():
        (root / name).mkdir()
        for number in range(count):
            (root / name / f"{number:02}.jpg").write_bytes(encoded(picture(24, 32, number)))
    return root


def config_of(root: Path, **data: object) -> Config:
    return make_config({"data": {**SMALL, "source": {"kind": "folders", "path": str(root)}, **data}})


def split_of(config: Config) -> Split:
    return load_split(config.data, "train", World())


def drawn(config: Config, batches: int, world: World = World(), state: dict | None = None) -> tuple[list, dict]:
    """(position, label) of the crops of the next batches, and the state after them."""
    with Loader(config, "train", world, positions=True, gather=lambda cursor: [cursor]) as loader:
        if state is not None:
            loader.load_state_dict(state)
        seen = []
        for _, labels, positions in islice(loader, batches):
            seen += zip(positions[:, 0].numpy().tolist(), labels.numpy().tolist(), strict=True)
        return seen, loader.state_dict() if world.size == 1 else {}


def assert_shares(labels: list[int], shares: np.ndarray) -> None:
    """Asserts each class's share to be within 3 standard errors of independent draws."""
    seen = np.bincount(labels, minlength=len(shares)) / len(labels)
    error = np.sqrt(shares * (1 - shares) / len(labels))
    assert (np.abs(seen - shares) <= 3 * error + 1e-12).all(), seen


def test_a_class_has_its_share_on_one_rank_and_three_and_after_a_resume(folders: Path) -> None:
    config = config_of(folders, class_weights={"bird": 1, "cat": 2, "dog": 5}, batch_size=16)
    shares = np.array([1, 2, 5]) / 8
    batches = EPOCHS * COUNT // 16
    whole, _ = drawn(config, batches)
    assert_shares([label for _, label in whole], shares)
    for epoch in range(EPOCHS):
        own = [label for position, label in whole if position // COUNT == epoch]
        assert (np.abs(np.bincount(own, minlength=3) - COUNT * shares) < 1).all()
    ranks = [drawn(config, batches // 3, World(rank, 3))[0] for rank in range(3)]
    assert sorted(chain(*ranks)) == whole
    first, state = drawn(config, 31)
    rest, _ = drawn(config, batches - 31, state=state)
    assert first + rest == whole


def test_within_a_class_samples_come_by_their_own_weights(folders: Path, tmp_path: Path) -> None:
    own = np.random.default_rng(0).integers(0, 4, COUNT) + np.arange(COUNT) // 45
    (tmp_path / "weights.txt").write_text("\n".join(map(str, own)))
    config = config_of(folders, class_weights="balanced", sample_weights=str(tmp_path / "weights.txt"))
    items = split_of(config).order.items(np.arange(90 * COUNT))
    seen = np.bincount(items, minlength=COUNT)
    expected = np.concatenate([30 * COUNT * part / part.sum() for part in np.split(own, np.cumsum([37, 8]))])
    assert np.abs(seen - expected).max() < 3
    alone = config_of(folders, sample_weights=str(tmp_path / "weights.txt"))
    items = split_of(alone).order.items(np.arange(90 * COUNT))
    assert np.abs(np.bincount(items, minlength=COUNT) - 90 * COUNT * own / own.sum()).max() < 3


def test_a_tables_column_of_weights_is_kept_by_pack(folders: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in sorted(folders.glob("*/*.jpg"))]
    weights = np.arange(len(paths)) % 3
    table = {"path": paths, "label": [Path(path).parent.name for path in paths], "often": weights}
    pq.write_table(pa.table(table), tmp_path / "train.parquet")
    source = {"kind": "table", "path": str(tmp_path / "train.parquet")}
    ignored = make_config({"data": {**SMALL, "source": source}})
    config = make_config({"data": {**SMALL, "source": {**source, "columns": {"weight": "often"}}}})
    assert split_of(ignored).catalog.weights is None
    assert split_of(config).catalog.weights.tolist() == weights.tolist()
    pack(config.data, "train", tmp_path / "packed", PackPlan(), World())
    pack(ignored.data, "train", tmp_path / "even", PackPlan(), World())
    packed = make_config({"data": {**SMALL, "source": {"kind": "packed", "path": str(tmp_path / "packed")}}})
    then, now = (data_contract(split_of(each)) for each in (config, packed))
    assert not [line for line in contract_differences(then, now) if "weights" in line] and now["weights"]
    # The order of packing does not depend on the weights, and data without any is packed as before.
    names = [file.name for file in (tmp_path / "packed").iterdir() if file.name.startswith("train-")]
    assert names and all((tmp_path / "packed" / n).read_bytes() == (tmp_path / "even" / n).read_bytes() for n in names)
    assert "weight" not in pq.read_schema(tmp_path / "even/train.images.parquet").names


def test_a_file_of_weights_is_kept_by_pack_and_read_once(folders: Path, tmp_path: Path) -> None:
    file, weights = tmp_path / "weights.txt", np.arange(COUNT) % 3
    file.write_text("\n".join(map(str, weights)))
    config = config_of(folders, sample_weights=str(file))
    pack(config.data, "train", tmp_path / "packed", PackPlan(), World())
    assert pq.read_table(tmp_path / "packed/train.images.parquet")["weight"].to_pylist() == weights.tolist()
    split = split_of(config)
    before = split.order.items(np.arange(COUNT)).tolist()
    file.write_text("1\n" * COUNT)
    assert split.serial().order.items(np.arange(COUNT)).tolist() == before


def test_boxes_as_samples_have_the_shares_of_their_classes(folders: Path, tmp_path: Path) -> None:
    """With three boxes for each bird, classes of boxes still have equal shares; with images, crops are expected."""
    rows = []
    for path in sorted(folders.glob("*/*.jpg")):
        name = path.parent.name
        boxes = [[0.1, 0.1, 0.9, 0.9]] * (3 if name == "bird" else 1)
        rows.append({"path": str(path), "label": name, "boxes": boxes})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    source = {"kind": "table", "path": str(tmp_path / "train.parquet")}
    data = {**SMALL, "source": source, "class_weights": "balanced"}
    boxes, images = make_config({"data": {**data, "unit": "box"}}), make_config({"data": data})
    split = split_of(boxes)
    samples = 3 * 37 + 8 + 3
    labels = split.catalog.sampled_boxes.labels[split.order.items(np.arange(30 * samples))]
    assert np.abs(np.bincount(labels) - 10 * samples).max() < 3
    assert count_crops(split) == (samples, True)
    # A third of the 48 samples are birds, of 3 crops each.
    assert count_crops(split_of(images)) == (80, False)


def test_a_run_goes_on_only_with_the_same_weights(folders: Path) -> None:
    configs = [config_of(folders, class_weights=each) for each in (None, "balanced", {"bird": 2, "cat": 2, "dog": 2})]
    plain, balanced, same = (data_contract(split_of(config)) for config in configs)
    assert contract_differences(balanced, same) == []
    assert [line.partition(":")[0] for line in contract_differences(plain, balanced)] == ["weights"]
    before = {name: value for name, value in plain.items() if name != "weights"}
    assert contract_differences(before, plain) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"class_weights": {"bird": 1, "cat": 1, "dgo": 1}}, 'there is no class "dgo"; did you mean "dog"'),
        ({"class_weights": {"bird": 1}}, '2 of 3 classes have no weight, e.g. "cat"'),
        ({"class_weights": {"bird": 0, "cat": 0, "dog": 0}}, "all weights are 0"),
        ({"class_weights": {"bird": 1, "cat": 1, "dog": -1}}, "class_weights"),
        ({"sample_weights": "few.txt"}, "few.txt has 2 numbers for 48 training images"),
        ({"sample_weights": "words.txt"}, "words.txt has a line that is no number"),
        ({"sample_weights": "zeros.txt"}, "weights of samples must be finite, none below 0 and one above it"),
        ({"sample_weights": "missing.txt"}, "cannot read .*missing.txt"),
        ({"classes": ["bird", "cat", "dog", "emu"], "class_weights": {"bird": 1, "cat": 1, "dog": 1, "emu": 1}},
         'the class "emu" has no sample to draw'),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(folders: Path, tmp_path: Path, data: dict, message: str) -> None:
    for name, lines in (("few", ["1", "2"]), ("words", ["one"] * COUNT), ("zeros", ["0"] * COUNT)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    if "sample_weights" in data:
        data = {"sample_weights": str(tmp_path / data["sample_weights"])}
    with pytest.raises(ConfigError, match=message):
        split_of(config_of(folders, **data))


def test_a_mixture_of_lists_has_no_other_weights(folders: Path, tmp_path: Path) -> None:
    for name in IMAGES:
        (tmp_path / f"{name}.txt").write_text("\n".join(map(str, sorted((folders / name).iterdir()))))
    mixed = [{"path": str(tmp_path / f"{name}.txt"), "weight": 1} for name in IMAGES]
    data = {**SMALL, "train_filelist": mixed, "class_weights": "balanced", "annotations": "none"}
    config = make_config({"data": data})
    with pytest.raises(ConfigError, match=r"mixes lists by weights: leave out data\.class_weights"):
        split_of(config)
