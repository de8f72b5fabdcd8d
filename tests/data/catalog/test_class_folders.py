"""Images of class folders are found at any depth, by links too, and what is no image is counted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trees import touch
from tfpipe.data.catalog.class_folders import images_below, why_left_out
from tfpipe.util.ledger import Ledger


def test_images_are_found_at_any_depth_sorted_and_the_rest_is_counted(tmp_path: Path) -> None:
    images = ["a/1.jpg", "a/10.JPEG", "a/b/c/x.png", "fox.png/1.jpe", "z/0.webp", "z/2.jfif"]
    touch(tmp_path, *images, "a/notes.txt", "a/.hidden.jpg", ".git/1.jpg", "z/Thumbs.db", "z/3.PSD", "README")
    touch(tmp_path, "@eaDir/1.jpg", "__MACOSX/a/1.jpg", "lost+found/1.jpg", "train.catalog/table.npy", "only/text.txt")
    (tmp_path / "empty").mkdir()
    ledger = Ledger()
    assert images_below(tmp_path, ledger) == sorted(f"{tmp_path}/{name}" for name in images)
    assert {reason: count for reason, (count, _) in ledger.counts.items()} == {
        ".txt": 2,
        "names that begin with a dot": 2,
        "names of the operating system": 4,
        ".psd": 1,
        "names without an ending": 1,
        "files of tfpipe's own": 1,
        "folders without an image": 2,
    }
    assert ledger.counts[".psd"] == (1, f"{tmp_path}/z/3.PSD")


def test_links_are_followed_unless_they_lead_to_a_folder_above_them(tmp_path: Path) -> None:
    touch(tmp_path, "root/a/1.jpg", "elsewhere/2.jpg")
    (tmp_path / "root/a/up").symlink_to(tmp_path / "root")
    for name in ("b", "c"):
        (tmp_path / "root" / name).symlink_to(tmp_path / "elsewhere")
    ledger = Ledger()
    names = ("a/1.jpg", "b/2.jpg", "c/2.jpg")
    assert images_below(tmp_path / "root", ledger) == [f"{tmp_path}/root/{name}" for name in names]
    assert ledger.texts == [f"links to a folder above them (1, e.g. {tmp_path}/root/a/up)"]


def test_a_folder_of_other_data_is_left_by_whatever_path(tmp_path: Path) -> None:
    touch(tmp_path, "root/a/1.jpg", "test/2.jpg", "test/notes.txt")
    (tmp_path / "root/link").symlink_to(tmp_path / "test")
    ledger = Ledger()
    assert images_below(tmp_path / "root", ledger, but=tmp_path / "test") == [f"{tmp_path}/root/a/1.jpg"]
    assert not ledger


NAMES = st.sampled_from(["a", "b.jpg", "c.JPE", "d.txt", "@eaDir", ".x", "x.catalog", "Thumbs.db", "train"])
TREES = st.recursive(st.none(), lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(NAMES, TREES, max_size=4))
def test_every_entry_is_an_image_or_a_folder_that_is_listed_or_counted(
    tmp_path_factory: pytest.TempPathFactory, tree: dict
) -> None:
    root, listed, others, ledger = tmp_path_factory.mktemp("tree"), 0, 0, Ledger()

    def make(folder: Path, contents: dict, *, seen: bool) -> None:
        nonlocal listed, others
        folder.mkdir(exist_ok=True)
        for name, inner in contents.items():
            used = seen and not why_left_out(name, is_folder=inner is not None)
            listed += used and inner is not None
            others += seen and not (used and inner is not None)
            if inner is None:
                (folder / name).touch()
            else:
                make(folder / name, inner, seen=used)

    make(root, tree, seen=True)
    images = images_below(root, ledger)
    empty = ledger.counts.pop("folders without an image", (0, ""))[0]
    assert len(images) + sum(count for count, _ in ledger.counts.values()) == others
    assert empty <= listed + 1
    assert all(Path(example).exists() for _, example in ledger.counts.values())
