"""Images of a tree that are spoilt in several ways."""

from pathlib import Path


def spoil(tree: Path) -> dict[str, str]:
    """Spoils some images of a tree: by the name of the file at fault, what is to be said of it."""
    images = sorted((tree / "Data/CLS-LOC/train").rglob("*.JPEG"))
    xmls = [Path(str(image).replace("Data", "Annotations")).with_suffix(".xml") for image in images]
    gone, empty, cut, page = images[0], images[7], images[11], images[12]
    gone.unlink()
    empty.write_bytes(b"")
    cut.write_bytes(cut.read_bytes()[:200])
    page.write_bytes(b"<html>not found</html>")
    xml = next(
        xml for image, xml in zip(images, xmls, strict=True) if xml.exists() and image not in (gone, empty, cut, page)
    )
    xml.write_text("<annotation><object>")
    return {
        gone.name: "No such file or directory",
        empty.name: "the file is empty",
        cut.name: "a JPEG without a whole header",
        page.name: "it is HTML or XML, as a failed download leaves it",
        xml.name: "is not XML: Premature end of data in tag object line 1",
    }
