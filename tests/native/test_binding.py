"""The library in C as Python and TensorFlow call it, and what is said where it cannot be used."""

import math
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.commands import ROOT
from tests.support.decoding import memory
from tests.support.images import decoded, encoded, of_jfif_2, picture
from tfpipe import native
from tfpipe.data.images.crops import ALL
from tfpipe.data.images.headers import jpeg_header
from tfpipe.errors import ConfigError
from tfpipe.native import decoder_name
from tfpipe.util.resources import private_memory

FULL = (90, 120)


@tf.function(autograph=False)
def crops(jpegs: tf.Tensor, sizes: tf.Tensor, images: tf.Tensor, windows: tf.Tensor, flips: tf.Tensor) -> tf.Tensor:
    how = {"targets": [90, 120, -1, 0, 0], "channels": 3, "kernel": 0}
    crops = [memory(tf.size(images), *FULL)]
    (pixels,), refused = native.native().crops(jpegs, [], sizes, images, windows, flips, ALL, crops, **how)
    return pixels, refused


def test_targets_have_five_numbers_a_view_within_their_ranges() -> None:
    """As another version of the Python side might hand them over."""
    inputs = [encoded(picture(*FULL))], [], [FULL], [0], [[0, 0, *FULL]], tf.zeros(0, tf.bool), ALL, [memory(1, *FULL)]
    few = [[0, 120, -1, 0, 0], [90, -5, -1, 0, 0], [90, 120, 256, 0, 0], [90, 120, -1, 89, 120], [90, 120, -1, 0, 120]]
    for targets in ([90, 120, -1], [90, 120, -1, 0, 0] * 2, *few, []):
        with pytest.raises(tf.errors.InvalidArgumentError, match="TfpipeCrops: targets are not"):
            native.native().crops(*inputs, targets=targets, channels=3, kernel=0)


def called(
    jpegs: list[bytes], images: list[int], windows: list[list[int]], sizes: object = None, flips: tuple[bool, ...] = ()
) -> tuple[np.ndarray, np.ndarray]:
    sizes = [FULL] * len(jpegs) if sizes is None else sizes
    numbers, mirrored = tf.constant(images, tf.int64), tf.constant(flips, tf.bool)
    pixels, refused = crops(tf.constant(jpegs), tf.constant(sizes), numbers, tf.constant(windows), mirrored)
    return pixels.numpy(), refused.numpy()


def test_an_image_is_accepted_or_refused_by_itself() -> None:
    jpeg, other = encoded(picture(*FULL)), of_jfif_2(encoded(picture(*FULL, 1)))
    files = [jpeg, other, b"", jpeg[:2000], jpeg]
    pixels, refused = called(files, [0, 1, 2, 3, 4], [[0, 0, *FULL]] * 5, flips=(True, False, False, False, False))
    assert refused.tolist() == [False, True, True, True, False]
    expected = decoded(jpeg)
    assert (pixels[0] == expected[:, ::-1]).all() and (pixels[4] == expected).all()


@pytest.mark.parametrize(
    ("size", "window"),
    [
        (FULL, [0, 0, 91, 120]),
        (FULL, [-1, 0, 90, 120]),
        (FULL, [0, 1, 90, 120]),
        (FULL, [0, 0, 0, 120]),
        (FULL, [2**31 - 1, 0, 2, 120]),
        ((90, 121), [0, 0, 90, 120]),
        ((2**16, 2**16), [0, 0, 90, 120]),
        ((-90, 120), [0, 0, 90, 120]),
    ],
    ids=str,
)
def test_windows_beyond_the_image_and_other_sizes_are_refused(size: tuple[int, int], window: list[int]) -> None:
    _, refused = called([encoded(picture(*FULL))], [0], [window], [size])
    assert refused.tolist() == [True]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"images": [1, 0]}, "do not ascend"),
        ({"images": [0, 2]}, "do not ascend"),
        ({"images": [-1, 0]}, "do not ascend"),
        ({"images": [0]}, r"windows are not \[k, 4 \* views\]"),
        ({"windows": [[0, 0, 9]] * 2}, r"windows are not \[k, 4 \* views\]"),
        ({"sizes": [FULL]}, r"sizes are not \[n, 2\]"),
        ({"flips": (True,)}, r"flips are neither \[k \* views\] nor \[0\]"),
        ({"sizes": [90, 120]}, 'the rank of "sizes: int32" is not 2'),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_together_are_an_error(inputs: dict, message: str) -> None:
    """Before anything is read by their numbers."""
    whole = {"jpegs": [encoded(picture(*FULL))] * 2, "images": [0, 1], "windows": [[0, 0, 90, 120]] * 2}
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"TfpipeCrops: .*{message}|TfpipeCrops: {message}"):
        called(**{**whole, **inputs})


def sizes(images: list[bytes]) -> list[list[int]]:
    return native.native().sizes(tf.constant(images), tf.zeros([len(images), 2], tf.int32)).numpy().tolist()


def test_sizes_are_those_of_ordinary_headers_and_known_ones_stay() -> None:
    kinds = [{}, {"progressive": True}, {"exif": b"Exif\0\0" + bytes(9000)}, {"comment": b"c"}, {"format": "PNG"}]
    images = [encoded(picture(*FULL), **kind) for kind in kinds]
    images += [encoded(picture(*FULL).convert(mode)) for mode in ("L", "CMYK")]
    assert sizes(images) == [[*FULL]] * 4 + [[0, 0]] + [[*FULL]] * 2
    odd = [b"", b"\xff", images[0][:100], b"\xff\xd8\xff" + images[0][2:], images[0].replace(b"\xff\xc0", b"\xff\xc9")]
    assert sizes(odd) == [[0, 0]] * len(odd)
    assert native.native().sizes([images[0]] * 2, [[7, 0], [0, 9]]).numpy().tolist() == [[7, 0], [*FULL]]
    for images, known in (([[b""]], [[0, 0]]), ([b""], [[0, 0]] * 2), ([b""], [[0]])):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"TfpipeSizes: (the rank of|sizes are not)"):
            native.native().sizes(images, known)


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=4), st.integers(20, 3000))
def test_sizes_of_spoilt_headers_are_pythons_or_unknown(changes: list[tuple[int, int]], length: int) -> None:
    spoilt = bytearray(encoded(picture(*FULL))[:length])
    for at, value in changes:
        if at < len(spoilt):
            spoilt[at] = value
    found, header = sizes([bytes(spoilt)])[0], jpeg_header(bytes(spoilt))
    assert found == [0, 0] or (header is not None and found == [header.height, header.width])


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (9, 7, 1), (1, 1, 3), (8, 8, 3), (5, 5, 3), (33, 31, 3), (224, 224, 3)], ids=str
)
@pytest.mark.parametrize("start", [0, 1, 33])
def test_records_are_copied_or_mirrored_wherever_they_are(shape: tuple[int, int, int], start: int) -> None:
    """To the byte, and no other byte."""
    size = math.prod(shape)
    data = np.random.default_rng(size).integers(0, 256, 4 * size + 9, np.uint8)
    places, flips = np.array([3 * size + 5, 0, size + 1, 0]), np.array([True, False, True, True])
    records = np.array([data[place : place + size].reshape(shape) for place in places])
    mirrored = np.where(flips[:, None, None, None], records[:, :, ::-1], records)
    for chosen, expected in ((np.zeros(0, bool), records), (flips, mirrored)):
        memory = np.full(start + 4 * size + 64, 7, np.uint8)
        crops = memory[start : start + 4 * size].reshape(4, *shape)
        native.native().copy((data.ctypes.data + places).astype(np.uintp), chosen, crops)
        assert memory.tobytes() == bytes([7]) * start + expected.tobytes() + bytes([7]) * 64


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The library is looked for again, within the test."""
    for name in ("_library", "core", "native"):
        monkeypatch.setattr(native, name, getattr(native, name).__wrapped__)
    return monkeypatch


def test_it_names_its_instructions(unloaded: pytest.MonkeyPatch) -> None:
    assert native.native().simd == native.core().simd in ("avx2", "neon", "plain")
    assert decoder_name() == f"tfpipe's own in C ({native.core().simd})"


@pytest.mark.parametrize("capacity", [0, -1])
def test_no_capacity_to_record_is_an_error(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"a capacity of {capacity} events"):
        native.native().record(capacity)


# The C library frees stacks so large when a later thread ends; what is written to one then ends the process.
RECORDED = """
import sys, threading
import numpy as np
from tfpipe.native import core
jpeg, library, crops, refused = sys.stdin.buffer.read(), core(), np.empty((1, 90, 120, 3), np.uint8), np.empty(1, bool)
def decode():
    library.record(1)
    bytes_ = np.frombuffer(jpeg, np.uint8)
    library.whole(np.array([bytes_.ctypes.data], np.uintp), np.array([len(jpeg)]), np.zeros(0, bool), crops, refused)
for number, work in enumerate((decode, int, int)):
    threading.stack_size(2 ** (28 + number))
    thread = threading.Thread(target=work)
    thread.start(), thread.join()
assert library.end_recording()["header_ns"] > 0 and not refused
assert library.is_damaged(jpeg, 90, 120) is False
"""


def test_a_call_leaves_the_next_one_no_place_for_its_times() -> None:
    """Which was on the stack of a thread that may have ended."""
    done = subprocess.run([sys.executable, "-c", RECORDED], input=encoded(picture(*FULL)), cwd=ROOT, check=False)
    assert done.returncode == 0


def test_a_large_files_memory_is_given_back() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3000, 4000), np.uint8)
    jpeg = encoded(Image.fromarray(noise), quality=100)
    assert len(jpeg) > 12_000_000
    files = {FULL: encoded(picture(*FULL)), noise.shape: jpeg}

    def refused(size: tuple[int, int]) -> bool:
        return called([files[size]], [0], [[0, 0, 9, 9]], [size])[1][0]

    assert not refused(FULL)
    before = private_memory()
    assert not refused(noise.shape) and not refused(FULL)
    assert private_memory() - before < len(jpeg) // 2


def build_ops(folder: Path, version: int, failure: str) -> None:
    """Builds a library of no ops, which states this version and this failure."""
    source = f"int tfpipe_native_ops_version(void) {{ return {version}; }}\n"
    source += f'const char *tfpipe_native_failure(void) {{ return "{failure}"; }}\n'
    source += "long long tfpipe_native_origin(void) { return 0; }\n"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "_ops.so")]
    subprocess.run(command, input=source, text=True, check=True)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("not built", r"library in C \(absent\*\.so\) is not built, and nothing runs without it"),
        ("no library", "__init__.py cannot be loaded"),
        ("another version", r"_core\.abi3\.so was built from another version of tfpipe"),
        ("no ops", r"library in C \(absent\*\.so\) is not built, and nothing runs without it"),
        ("ops of another version", r"_ops\.so was built from another version"),
        ("ops refused", r"\(op TfpipeCrops: taken\)"),
    ],
)
def test_without_it_the_error_says_why_and_the_remedy(
    unloaded: pytest.MonkeyPatch, tmp_path: Path, how: str, reason: str
) -> None:
    if how == "another version":
        unloaded.setattr(native, "VERSION", -1)
    elif how == "no ops":
        unloaded.setattr(native, "OPS", "absent*.so")
    elif how.startswith("ops"):
        version, failure = (native.VERSION, "op TfpipeCrops: taken") if how == "ops refused" else (-1, "")
        build_ops(tmp_path, version, failure)
        unloaded.setattr(native, "OPS", os.path.relpath(tmp_path / "_ops*.so", Path(native.__file__).parent))
    else:
        unloaded.setattr(native, "CORE", "absent*.so" if how == "not built" else "__init__.py")
    with pytest.raises(ConfigError, match=rf"{reason}.*: {re.escape(native.REMEDY)}"):
        native.native()
    if "ops" not in how:
        with pytest.raises(ConfigError, match=reason):
            native.core()


def test_importing_tfpipe_loads_no_library() -> None:
    code = "import tfpipe, tfpipe.native as native; assert not native._library.cache_info().currsize"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """What a source distribution builds a wheel from."""
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tfpipe", tmp_path / "tfpipe", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return tmp_path


def build_wheel(package: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "-d", "dist"]
    return subprocess.run(command, cwd=package, env={**os.environ, "CC": compiler}, capture_output=True, text=True)


def test_a_wheel_holds_it(package: Path) -> None:
    """One wheel for all versions of Python, and no C source in it."""
    build_wheel(package, "cc").check_returncode()
    (wheel,) = (package / "dist").iterdir()
    files = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tfpipe/native/")}
    library = {"tfpipe/native/_core.abi3.so", "tfpipe/native/_ops.abi3.so"}
    assert files == {"tfpipe/native/__init__.py", "tfpipe/native/version.py", *library}
    assert wheel.name.split("-")[2:4] == ["cp310", "abi3"]
    # The C library of manylinux_2_17 suffices: newer functions have newer versions.
    for name in library:
        content = zipfile.ZipFile(wheel).read(name)
        versions = [tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_([0-9.]+)\0", content)]
        assert versions and max(versions) <= (2, 17)


def test_without_a_compiler_there_is_no_wheel_but_a_remedy(package: Path) -> None:
    done = build_wheel(package, "/absent/cc")
    assert done.returncode and not (package / "dist").exists()
    assert "library in C cannot be built" in done.stderr and done.stderr.strip().endswith(native.REMEDY)
