"""Filelists: scanned from real trees, written whole or not at all, and read back as they were."""

import gzip
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.trees import touch
from tfpipe.data.catalog.class_folders import images_below
from tfpipe.data.catalog.filelist import check_filelists, read_filelist, write_filelist
from tfpipe.data.catalog.paths import CHUNK_NAMES, FileList
from tfpipe.errors import ConfigError
from tfpipe.util.ledger import Ledger


def below(root: Path, images: list[str]) -> list[str]:
    return [os.path.relpath(image, root) for image in images]


def test_lines_keep_their_order_and_blank_ones_are_left_out(tmp_path):
    (tmp_path / "list.txt").write_text("/x/b.JPEG\n\n  /x/a.JPEG  \r\n\t\n/x/b.JPEG\n/x/with space.JPEG")
    expected = ["/x/b.JPEG", "/x/a.JPEG", "/x/b.JPEG", "/x/with space.JPEG"]
    assert list(read_filelist(tmp_path / "list.txt")) == expected


def test_a_relative_line_is_relative_to_the_lists_folder(tmp_path, monkeypatch):
    touch(tmp_path, "lists/x")
    (tmp_path / "lists/list.txt").write_text("train/a.JPEG\n/abs/b.JPEG\n../c.JPEG\n")
    monkeypatch.chdir(tmp_path)
    paths = read_filelist("lists/list.txt")
    assert paths[:2] == [str(tmp_path / "lists/train/a.JPEG"), "/abs/b.JPEG"]
    assert os.path.normpath(paths[2]) == str(tmp_path / "c.JPEG")


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        *((text, r"list\.txt holds no line; make one with: tfpipe filelist") for text in (b"", b"\n", b" \n\t\r\n")),
        (gzip.compress(b"a/1.JPEG\n", mtime=0), r"list\.txt: it is compressed by gzip: unpack it first"),
        ("a/1.JPEG\n".encode("utf-16"), "it is a text in UTF-16: save it in UTF-8"),
        ("a/1.JPEG\nb/é.JPEG\n".encode("latin-1"),
         r"line 2 is not UTF-8: received b'b/\\xe9\.JPEG'; save the file in UTF-8"),
        (b"https://host/a/1.JPEG\n/b/2.JPEG\n",
         r"both URLs and paths, e\.g\. https://host/a/1.JPEG \(line 1\) and /b/2.JPEG"),
    ],
)  # fmt: skip
def test_a_list_that_cannot_be_used_is_refused(tmp_path, contents, said):
    (tmp_path / "list.txt").write_bytes(contents)
    with pytest.raises(ConfigError, match=said):
        read_filelist(tmp_path / "list.txt")


def test_a_list_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.txt: No such file.*tfpipe filelist"):
        read_filelist(tmp_path / "nothing.txt")


def test_a_folder_is_as_the_list_of_its_images_would_be(tmp_path):
    touch(tmp_path / "train", "b/2.jpg", "b/1.JPEG", "a/3.jpg", "a/notes.txt", ".b/4.jpg", "a/deep/5.jpg", "0.jpg")
    lines = ["0.jpg", "a/3.jpg", "a/deep/5.jpg", "b/1.JPEG", "b/2.jpg"]
    (tmp_path / "train/list.txt").write_text("\n".join(lines))
    listed, written = read_filelist(tmp_path / "train"), read_filelist(tmp_path / "train/list.txt")
    assert below(tmp_path / "train", listed) == lines
    assert listed == written and listed.digest == written.digest
    check_filelists([tmp_path / "train"])


@pytest.mark.parametrize("names", [[], ["a/notes.txt"], [".a/5.jpg"]])
def test_a_folder_without_images_is_refused(tmp_path, names):
    (tmp_path / "train").mkdir()
    touch(tmp_path / "train", *names)
    message = rf"no image in {tmp_path}/train or its folders; expected train/CLASS/\*\.jpg"
    for read in (read_filelist, lambda path: check_filelists([path])):
        with pytest.raises(ConfigError, match=message):
            read(tmp_path / "train")


def test_all_unusable_lists_are_named_at_once(tmp_path):
    (tmp_path / "good.txt").write_text("\n\na.JPEG\n")
    (tmp_path / "empty.txt").write_text(" \n")
    check_filelists([tmp_path / "good.txt", None])
    with pytest.raises(ConfigError) as caught:
        check_filelists([tmp_path / "gone.txt", tmp_path / "good.txt", None, tmp_path / "empty.txt"])
    message = str(caught.value)
    assert "gone.txt: No such file" in message and "empty.txt holds no line" in message
    assert "good.txt" not in message


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=["C", "Z"]), min_size=1)


PATHS = st.tuples(st.sampled_from(["", "/", "/data/", "../"]), st.lists(WORDS, min_size=1, max_size=3).map("/".join))


@given(st.lists(st.text("a/.heicfHEICFé", min_size=1), max_size=8))
def test_names_are_found_by_their_ends_in_any_case(names: list[str]) -> None:
    ends = (".heic", ".heif")
    places = [number for number, name in enumerate(names) if name.rpartition("/")[2].lower().endswith(ends)]
    assert FileList.of(names).ending(*ends).tolist() == places


@given(st.lists(PATHS.map("".join)))
def test_a_file_list_is_the_list_of_its_paths(paths):
    files = FileList.of(paths)
    assert list(files) == files[:] == [files[item] for item in range(len(paths))] == paths
    assert files[::-2] == paths[::-2]
    assert [files.name(item) for item in range(len(paths))] == [path.rpartition("/")[2] for path in paths]
    assert (files.folder.dtype, files.offsets.dtype) == (np.int32, np.int64)
    assert len(set(files.folders)) == len(files.folders)
    assert files == FileList.of(paths) and (not paths or files != FileList.of(paths[1:]))


@given(st.lists(PATHS.map("".join), min_size=1))
@example(["\\"])
def test_a_list_of_any_paths_is_read_as_os_path_join_has_them(tmp_path_factory, paths):
    path = tmp_path_factory.getbasetemp() / "any/list.txt"
    write_filelist(path, paths)
    assert list(read_filelist(path)) == [os.path.join(path.parent, line) for line in paths]


def test_a_backslash_is_a_character_of_a_name_that_exists_so(tmp_path):
    touch(tmp_path, "a/1.jpg", "a\\1.jpg")
    (tmp_path / "list.txt").write_text("a\\1.jpg\n")
    assert list(read_filelist(tmp_path / "list.txt")) == [str(tmp_path / "a\\1.jpg")]
    (tmp_path / "a\\1.jpg").unlink()
    with pytest.raises(ConfigError, match="has Windows' separators"):
        read_filelist(tmp_path / "list.txt")


def test_a_byte_order_mark_is_no_part_of_the_first_path(tmp_path):
    (tmp_path / "list.txt").write_text("/a.JPEG\n/b.JPEG\n", encoding="utf-8-sig")
    assert list(read_filelist(tmp_path / "list.txt")) == ["/a.JPEG", "/b.JPEG"]


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_a_list_of_many_chunks_is_read_whole(tmp_path, ends):
    paths = [f"/data/n{number % 7}/é{number}.JPEG" for number in range(3 * CHUNK_NAMES + 1)]
    (tmp_path / "list.txt").write_bytes(ends.join(["", *paths[:5], " " * 300_000, *paths[5:]]).encode())
    files = read_filelist(tmp_path / "list.txt")
    assert list(files) == paths
    assert [files[item] for item in (0, CHUNK_NAMES, -1)] == [paths[item] for item in (0, CHUNK_NAMES, -1)]


def test_places_are_those_of_a_sequence():
    files = FileList.of(["/a/b.jpg", "c.jpg"])
    assert files[np.int64(1)] == files[-1] == "c.jpg" and files[-2] == "/a/b.jpg"
    for item in (2, -3):
        with pytest.raises(IndexError):
            files[item]
        with pytest.raises(IndexError):
            files.name(item)
    assert "c.jpg" in files and files.index("c.jpg") == 1
    assert not FileList.of([])


@pytest.mark.parametrize("path", ["/a.jpg", "a.jpg", "//a.jpg", "/x//a.jpg", "./a.jpg", "/x/", "/x/no_extension"])
def test_odd_paths_stay_as_they_are(path):
    assert list(FileList.of([path])) == [path]


def test_a_folder_spelt_in_two_ways_is_one(tmp_path):
    (tmp_path / "list.txt").write_text(f"n01/a.JPEG\n{tmp_path}/n01/b.JPEG\nc.JPEG\nn01/d.JPEG\n")
    files = read_filelist(tmp_path / "list.txt")
    assert files.folders == [f"{tmp_path}/n01/", f"{tmp_path}/"]
    assert files.folder.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("name", [b"a\nb.JPEG", b"a\rb.JPEG", b"\xff.JPEG"])
def test_a_file_whose_name_a_list_cannot_hold_is_named_and_no_list_is_written(tmp_path, name):
    touch(tmp_path / "Data/CLS-LOC/train/n01", "fine\u2028\x85é.JPEG", os.fsdecode(name))
    images = images_below(tmp_path / "Data", Ledger())
    with pytest.raises(ConfigError) as caught:
        write_filelist(tmp_path / "list.txt", images)
    assert f"1 of 2 paths are not UTF-8, hold a line break or have white space around them, e.g. '{tmp_path}" in str(
        caught.value
    )
    assert ascii(os.fsdecode(name))[1:-1] in str(caught.value) and not (tmp_path / "list.txt").exists()
    write_filelist(tmp_path / "list.txt", images := [path for path in images if "fine" in path])
    assert list(read_filelist(tmp_path / "list.txt")) == images
    with pytest.raises(ConfigError, match=r"cannot write .*list\.txt/list\.txt"):
        write_filelist(tmp_path / "list.txt/list.txt", images)


@pytest.mark.parametrize("name", ["a/b\n.jpg", "a/\udcff.jpg", "a\n/b.jpg", "\udcff/b.jpg"])
def test_a_name_that_would_shift_the_names_after_it_is_refused(tmp_path, name):
    for paths in ([f"/{name}"], ["/x.jpg", f"/{name}", "/y.jpg"]):
        with pytest.raises(ConfigError) as caught:
            FileList.of(paths)
        assert ("\\n" if "\n" in name else "\\udcff") in str(caught.value) and "line end" in str(caught.value)
    touch(tmp_path, "0/0.jpg", os.fsencode(name).decode(errors="surrogateescape"), "z/1.jpg")
    with pytest.raises(ConfigError) as caught:
        read_filelist(tmp_path)
    assert f"the name '{tmp_path}/" in str(caught.value) and "rename the file or the folder" in str(caught.value)


def test_a_list_that_is_an_archive_is_called_one(tmp_path):
    with zipfile.ZipFile(tmp_path / "list.txt", "w") as archive:
        archive.writestr("list.txt", "a/1.JPEG\n" * 99, zipfile.ZIP_DEFLATED)
    for read in (read_filelist, lambda path: check_filelists([path])):
        with pytest.raises(ConfigError, match=r"list\.txt: it is a zip archive .*: unpack it first; make one with"):
            read(tmp_path / "list.txt")


def digest_of(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "list.txt").write_bytes(text.encode())
    return read_filelist(folder / "list.txt").digest


TEXT = "n01/a.JPEG\nn02/b.JPEG\nn02/ö.JPEG\n"


def test_the_digest_is_of_the_lines_wherever_the_list_is_and_however_they_end(tmp_path):
    digest = digest_of(tmp_path / "here", TEXT)
    assert digest == FileList.of(TEXT.split()).digest == digest_of(tmp_path / "there", TEXT)
    assert digest == digest_of(tmp_path / "here", "\n \n" + TEXT.replace("\n", "  \r\n\t").strip())


@pytest.mark.parametrize(
    "text",
    [
        "n02/b.JPEG\nn01/a.JPEG\nn02/ö.JPEG\n",
        "n01/a.JPEG\nn02/b.JPEG\n",
        TEXT + "n02/b.JPEG\n",
        TEXT.replace("b.", "c."),
        TEXT.replace("n01", "n03"),
        TEXT.replace("n01/", "./n01/"),
        "/x/" + TEXT,
    ],
)
def test_any_other_list_has_another_digest(tmp_path, text):
    assert digest_of(tmp_path, text) != digest_of(tmp_path, TEXT)


def test_a_file_costs_few_bytes(tmp_path):
    count = 200_000
    path = tmp_path / "list.txt"
    folders = [f"ILSVRC/Data/CLS-LOC/train/n{number:08d}" for number in range(1000)]
    write_filelist(path, (f"{folders[n % 1000]}/{folders[n % 1000][-9:]}_{n}.JPEG" for n in range(count)))
    files = read_filelist(path)
    held = sum(
        sys.getsizeof(part) for part in (files.folder, files.names, files.offsets, files.folders, *files.folders)
    )
    assert len(files) == count and held < 60 * count


def test_reading_a_list_needs_no_tensorflow():
    program = (
        "import sys, tfpipe.data.catalog.load, tfpipe.data.catalog.filelist; assert 'tensorflow' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_list_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "list.txt"
    write_filelist(path, ["/a.JPEG"])

    def failing():
        yield "/b.JPEG"
        raise OSError("the tree went away")

    with pytest.raises(OSError, match="went away"):
        write_filelist(path, failing())
    assert path.read_text() == "/a.JPEG\n"
    assert list(tmp_path.iterdir()) == [path]


def test_urls_are_left_as_they_are(tmp_path: Path) -> None:
    urls = ["https://host:8000/a/1.JPEG", "s3://bucket/a/b/2.JPEG", "gs://bucket/3.JPEG", "https://host:8000/a/4.JPEG"]
    (tmp_path / "list.txt").write_text("\n".join(urls))
    paths = read_filelist(tmp_path / "list.txt")
    assert list(paths) == urls and paths.remote
    assert paths.folders == ["https://host:8000/a/", "s3://bucket/a/b/", "gs://bucket/"]
    (tmp_path / "list.txt").write_text("http/1.JPEG\n")
    assert not read_filelist(tmp_path / "list.txt").remote


def test_a_password_in_a_url_is_refused_and_not_shown(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("/b/1@2/2.JPEG\nhttps://user:hidden@host:80/a/1@2/1.JPEG\n")
    with pytest.raises(
        ConfigError,
        match=r"a URL with a user or a password, https://\*\*\*@host:80/a/1@2/\.\.\., .*put them into ~/\.netrc",
    ) as caught:
        read_filelist(tmp_path / "list.txt")
    assert "hidden" not in str(caught.value)
