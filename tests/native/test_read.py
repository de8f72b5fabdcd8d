"""The ops that read files and ranges of them; the first against TensorFlow's op."""

import gc
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.batches import elements
from tfpipe import native

# Strings of up to 22 bytes lie within a tensor, longer ones elsewhere, in multiples of 16 bytes.
SIZES = [0, 1, 15, 16, 22, 23, 30, 31, 32, 33, 4095, 4096, 115_000, 2**21 + 15]
# By which this process may grow in the test below, which reads 800 MiB, and doubles them.
MOST_MIB = 500


def read(path: object) -> bytes:
    return native.native().read(str(path)).numpy()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SIZES) | st.integers(0, 5000))
def test_a_file_is_read_to_its_last_byte(tmp_path: Path, size: int) -> None:
    contents = os.urandom(size)
    (tmp_path / "file").write_bytes(contents)
    assert read(tmp_path / "file") == contents


def test_there_is_no_file_at_an_empty_path() -> None:
    assert read("") == b""


@pytest.mark.parametrize("path", ["/proc/self/mountinfo", "/dev/null"])
def test_a_file_that_states_no_size_is_read_to_its_end(path: str) -> None:
    assert os.stat(path).st_size == 0
    assert read(path) == Path(path).read_bytes()


def test_a_stamp_is_the_size_and_the_time_of_a_file_or_of_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    for time_ns in (0, -1, 1_795_924_221_762_156_789):
        os.utime(tmp_path / "file", ns=(time_ns, time_ns))
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to("file")
        assert native.native().stamp(str(tmp_path / "link")).numpy().tolist() == [5, time_ns]
    for path in ("", str(tmp_path / "none"), "x" * 5000):
        assert native.native().stamp(path).numpy().tolist() == [-1, -1]


def test_a_file_that_comes_in_pieces(tmp_path: Path) -> None:
    """From a pipe, which states no size either."""
    pipe, contents = tmp_path / "pipe", os.urandom(300_000)
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(contents,), daemon=True)
    writer.start()
    assert read(pipe) == contents
    writer.join()


def test_a_string_that_was_read_is_an_ordinary_one(tmp_path: Path) -> None:
    """TensorFlow cuts, joins, copies and frees it; what is freed is freed once, and all of it."""
    contents = os.urandom(4) + b"\0" + os.urandom(2**23 - 5)
    (tmp_path / "file").write_bytes(contents)
    path, before = str(tmp_path / "file"), resident_mib()

    def used(path: tf.Tensor) -> tf.Tensor:
        contents = native.native().read(path)
        return tf.strings.substr(contents + contents, 2**23 - 5, 10)

    dataset = tf.data.Dataset.from_tensors(path).repeat(100).map(used, 4).batch(10)
    # As lists: NumPy would compare without the zeros that random contents may end in.
    assert [batch.tolist() for batch in elements(dataset)] == [[contents[-5:] + contents[:5]] * 10] * 10
    assert resident_mib() - before < MOST_MIB


def resident_mib() -> float:
    with open("/proc/self/status") as status:
        (resident,) = (int(line.split()[1]) / 2**10 for line in status if line.startswith("VmRSS"))
    return resident


@pytest.mark.parametrize("bad", ["absent", ".", "file/a.JPEG", "loop", "a" * 256])
def test_errors_are_those_of_tensorflows_op(tmp_path: Path, bad: str) -> None:
    """And what was opened is closed. The second is a folder, the last too long."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    path, raised, before = str(tmp_path / bad), [], open_files()
    for how in (tf.io.read_file, native.native().read):
        with pytest.raises(tf.errors.OpError) as error:
            how(path)
        message = error.value.message
        raised.append((type(error.value), message[message.index("}} ") : message.index(" [Op:")]))
    assert raised[0] == raised[1]
    assert open_files() == before


def test_a_path_longer_than_the_system_takes_is_an_error() -> None:
    """Its first 4,095 bytes are not taken for it."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="/a; File name too long"):
        read("/proc/" + "./" * 2044 + "a" * 9)


def test_a_file_larger_than_any_image_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(tf.errors.OpError, match="sparse; File too large"):
        read(tmp_path / "sparse")


def test_a_path_that_is_no_scalar_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match='TfpipeRead: the rank of "path: string" is not 0'):
        native.native().read(["/dev/null"])


def test_ranges_of_several_files_by_several_readers(tmp_path: Path) -> None:
    """Each file is opened once, and closed with what read it."""
    contents = [os.urandom(5000 + 1000 * number) for number in range(4)]
    paths = [tmp_path / str(number) for number in range(4)]
    for path, bytes_ in zip(paths, contents, strict=True):
        path.write_bytes(bytes_)
    draw, before = random.Random(1), open_files()
    places = [(draw.randrange(4), draw.randrange(5000)) for _ in range(400)]
    ranges = [(number, at, draw.choice((0, 1, 22, 23, len(contents[number]) - at))) for number, at in places]
    columns = [np.array(column, kind) for column, kind in zip(zip(*ranges, strict=True), "ill", strict=True)]

    def read_all() -> None:
        dataset = tf.data.Dataset.from_tensor_slices(tuple(columns)).map(
            lambda *place: native.native().range([str(path) for path in paths], *place), num_parallel_calls=8
        )
        got = dataset.as_numpy_iterator()
        assert next(got) == contents[ranges[0][0]][ranges[0][1] : ranges[0][1] + ranges[0][2]]
        assert before < open_files() <= before + 4
        assert list(got) == [contents[number][at : at + length] for number, at, length in ranges[1:]]

    read_all()
    gc.collect()
    assert open_files() == before


def test_a_range_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    with pytest.raises(tf.errors.NotFoundError, match="file; No such file or directory"):
        native.native().range([path], np.int32(0), 0, 10)
    Path(path).write_bytes(bytes(100))
    assert native.native().range([path], np.int32(0), 90, 10).numpy() == bytes(10)
    with pytest.raises(tf.errors.FailedPreconditionError, match="the shard ends within it"):
        native.native().range([path], np.int32(0), 91, 10)
    for number, offset, length in ((1, 0, 1), (-1, 0, 1), (0, -1, 1), (0, 0, -1), (0, 0, 2**30 + 1)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="there is no such file or range"):
            native.native().range([path], np.int32(number), offset, length)
    with pytest.raises(tf.errors.InvalidArgumentError, match='the rank of "paths: string" is not 1'):
        native.native().range(path, np.int32(0), 0, 1)
