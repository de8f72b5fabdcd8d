"""Each bad file has the outcome that it should have: in training, by both decoders, and in `tfpipe check`."""

import json
from pathlib import Path

import pytest
import tensorflow as tf

from tests.support.bad_files import GOOD, GOOD_XML, IMAGES, XMLS, Fault
from tests.support.left_out import left_out
from tfpipe import World, build_dataset, load_config
from tfpipe.cli import main
from tfpipe.config import Config
from tfpipe.data.failures.diagnose import cannot_use
from tfpipe.data.images.decode import choose_decoder
from tfpipe.data.order.stream import Stream
from tfpipe.data.pipeline import crop, read, visit
from tfpipe.data.sources.registry import load_split
from tfpipe.tools.check.result import CODES, STOPS, CheckResult
from tfpipe.tools.check.split import check

FAULTS = [*IMAGES, *XMLS]
WHAT_TO_DO = "repair it or take it out of the filelist; tfpipe check finds all such files"
ALONE = World()


def stem(number: int) -> str:
    return f"{'image' if number < len(IMAGES) else 'xml'}-{number}"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image and its XML for each fault, one of which has it; and a good image that is listed last."""
    root = tmp_path_factory.mktemp("faults")
    for folder in ("JPEGImages/n01", "Annotations/n01"):
        (root / folder).mkdir(parents=True)
    names = []
    for number, fault in enumerate([*FAULTS, Fault("good", GOOD, None, set())]):
        name = stem(number)
        # After the end, so that no two have the same contents.
        image = fault.contents if number < len(IMAGES) else GOOD + name.encode()
        xml = fault.contents if len(IMAGES) <= number < len(FAULTS) else GOOD_XML
        if image is not None:
            (root / f"JPEGImages/n01/{name}.jpg").write_bytes(image)
        (root / f"Annotations/n01/{name}.xml").write_bytes(xml.encode() if isinstance(xml, str) else xml)
        names.append(f"JPEGImages/n01/{name}.jpg\n")
    (root / "list.txt").write_text("".join(names))
    return root


def config_of(tree: Path, **data: object) -> Config:
    """In the list's order, one image at a time."""
    keys = {"shuffle_buffer": 0, "crop_image_size": [16, 16], "num_parallel_readers": 1, "num_classes": 2, **data}
    (tree / "c.json").write_text(
        json.dumps({"data": {"train_filelist": "list.txt", "classes": ["n01", "n02"], **keys}})
    )
    return load_config(tree / "c.json")


@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_training_stops_at_each_and_says_why(tree: Path, decoder: str) -> None:
    data = config_of(tree, decoder=decoder).data
    split = load_split(data, "train", ALONE)
    images = read(visit(split, Stream.start(1)).take(len(split.catalog)), split)
    # One at a call: an error of a dataset costs its own element, and the next ones come.
    crops = iter(crop(images, split, decoder=choose_decoder(data)._replace(images=1)))
    wrong = {}
    for item, fault in enumerate(FAULTS):
        try:
            said = None
            assert next(crops).images.shape == (1, 16, 16, 3)
        except tf.errors.OpError as error:
            failure = split.explain(item, error)
            said = str(cannot_use(failure, split))
        own = split.catalog.paths[item] if item < len(IMAGES) else split.catalog.annotation(item)
        expected = None
        if fault.says is not None:
            reason = fault.says.replace("PATH", own)
            expected = f"rank 0: cannot use {own} of the train data: {reason}; {WHAT_TO_DO}"
        if not same(said, expected):
            wrong[fault.name] = said, expected
    assert wrong == {}
    assert next(crops).images.shape[0] == 1, "the good one, to the end"


@pytest.mark.parametrize(("decoder", "channels"), [("native", 1), ("graph", 3)])
def test_skipping_leaves_out_exactly_these(tree: Path, decoder: str, channels: int) -> None:
    """Nothing else of a batch that shares a call with them is missing."""
    how = {"on_error": "skip", "batch_size": 8, "num_parallel_readers": "auto"}
    config = config_of(tree, decoder=decoder, num_channels=channels, **how)
    split = load_split(config.data, "train", ALONE)
    batches = []
    for *_, positions in build_dataset(config, "train", ALONE, True, data=split).as_numpy_iterator():
        batches.append(positions)
        if positions[-1, 0] >= len(split.catalog):
            break
    seen = {position for positions in batches for position in positions[:, 0].tolist()}
    left = dict(left_out(split, Stream.start(1), batches))
    bad = {item: fault for item, fault in enumerate(FAULTS) if fault.says is not None}
    # Without shuffling, the positions of the first epoch are the places in the list.
    whole = set(range(len(split.catalog)))
    assert seen & whole == whole - bad.keys()
    assert left.keys() & whole == bad.keys()
    for item, fault in bad.items():
        own = split.catalog.paths[item] if item < len(IMAGES) else split.catalog.annotation(item)
        assert left[item].path == own
        assert same(left[item].reason, fault.says.replace("PATH", own)), fault.name


def same(said: str | None, expected: str | None) -> bool:
    if said is None or expected is None or "..." not in expected:
        return said == expected
    start, end = expected.split("...")
    return said.startswith(start) and said.endswith(end)


def test_the_command_ends_with_code_1_and_the_same_words(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where only the decoder that met the damage, below the crop, sees it."""
    number = next(number for number, fault in enumerate(FAULTS) if fault.name == "no end of image")
    lines = [f"JPEGImages/n01/{stem(each)}.jpg\n" for each in (len(FAULTS), number, len(FAULTS))]
    (tree / "one.txt").write_text("".join(lines))
    config_of(tree, train_filelist="one.txt", batch_size=2, decoder="native", num_parallel_readers="auto")
    assert main(["view", "-c", str(tree / "c.json"), "-o", str(tree / "x.png"), "--count", "3"]) == 1
    own = str(tree / f"JPEGImages/n01/{stem(number)}.jpg")
    reason = FAULTS[number].says.replace("PATH", own)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last == f"tfpipe: error: rank 0: cannot use {own} of the train data: {reason}; {WHAT_TO_DO}"


@pytest.fixture(scope="module")
def checked(tree: Path) -> CheckResult:
    (found,) = check(config_of(tree).data, ["train"], ALONE, processes=1)
    return found


def test_check_finds_each_and_nothing_else(checked: CheckResult) -> None:
    found = [{code for code in CODES if checked.having([code])[item]} for item in range(len(checked.catalog))]
    expected = [fault.codes for fault in FAULTS]
    wrong = {fault.name: each for fault, each, codes in zip(FAULTS, found, expected, strict=False) if each != codes}
    assert wrong == {}
    assert found[-1] == set()


def test_check_says_that_what_stops_training_does(checked: CheckResult) -> None:
    stops = checked.having(STOPS)
    for item, fault in enumerate(FAULTS):
        assert stops[item] == (fault.says is not None), fault.name
        # A kind that says all there is to say needs no reason.
        if stops[item]:
            assert checked.reasons.get(item) or fault.codes == {"no image"}, fault.name
