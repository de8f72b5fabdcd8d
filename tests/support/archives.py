"""Archives made in code from pictures: the forms in which ImageNet is downloaded."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.routes import Sample, as_xml, tar_bytes


def class_tars(chosen: Sequence[Sample]) -> dict[str, bytes]:
    """Returns a flat tar file for each class, by name, as ILSVRC2012_img_train.tar holds them."""
    return {
        f"{label}.tar": tar_bytes({f"{one.name}.jpg": one.file for one in chosen if one.label == label})
        for label in sorted({one.label for one in chosen})
    }


def tree(chosen: Sequence[Sample], images: str, xmls: str | None = None) -> dict[str, bytes]:
    """Returns images below a folder, in folders of their classes, and their XMLs below another one."""
    files = {f"{images}/{one.label}/{one.name}.jpg": one.file for one in chosen}
    if xmls is not None:
        files |= {f"{xmls}/{one.label}/{one.name}.xml": as_xml(one).encode() for one in chosen if one.boxes}
    return files


def write_zip(
    path: Path, members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED, *, large: bool = False
) -> Path:
    """Writes a zip file; `large` gives every member the headers of zip64."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, contents in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with archive.open(info, "w", force_zip64=large) as member:
                member.write(contents)
    return path
