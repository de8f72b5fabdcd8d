"""XMLs to be read: as annotation tools write them, in unusual ways, damaged, and made at random."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st


def bndbox(xmin="1", ymin="2", xmax="3", ymax="4") -> str:
    edges = {"xmin": xmin, "ymin": ymin, "xmax": xmax, "ymax": ymax}
    return (
        "<bndbox>"
        + "".join(f"<{tag}>{value}</{tag}>" for tag, value in edges.items() if value is not None)
        + "</bndbox>"
    )


def thing(name: str = "<name>cat</name>", box: str = bndbox(), more: str = "") -> str:
    return f"<object>{name}{box}{more}</object>"


def sides(width: object, height: object = None) -> str:
    return (
        f"<size><width>{width}</width>{'' if height is None else f'<height>{height}</height>'}<depth>3</depth></size>"
    )


SIZE = sides("500", "375")
STATED = (100.0, 200.0)
LATIN_1 = '<?xml version="1.0" encoding="iso-8859-1"?>'
CAT = (["cat"], [[2.0, 1.0, 4.0, 3.0]], [375.0, 500.0])


def note(*parts: str, size: str = SIZE) -> str:
    return f"<annotation>{size}{''.join(parts)}</annotation>"


def annotation(*objects: tuple[str, Sequence[float]], size: Sequence[float] | None = STATED) -> str:
    """Returns the XML of objects (name, box: ymin, xmin, ymax, xmax), with the image's height and width or without."""
    things = [thing(f"<name>{name}</name>", bndbox(x1, y1, x2, y2)) for name, (y1, x1, y2, x2) in objects]
    return note(*things, size=sides(size[1], size[0]) if size else "")


PASCAL_VOC = """<?xml version="1.0"?>
<annotation>
\t<folder>VOC2007</folder>
\t<filename>000001.jpg</filename>
\t<source>
\t\t<database>The VOC2007 Database</database>
\t\t<annotation>PASCAL VOC2007</annotation>
\t\t<image>flickr</image>
\t</source>
\t<owner>
\t\t<flickrid>Fried Camels</flickrid>
\t\t<name>Jinky the Fruit Bat</name>
\t</owner>
\t<object>
\t\t<name>person</name>
\t\t<bndbox>
\t\t\t<xmax>195.5</xmax>
\t\t\t<xmin>48</xmin>
\t\t\t<ymax>371</ymax>
\t\t\t<ymin>240</ymin>
\t\t</bndbox>
\t\t<part>
\t\t\t<name>head</name>
\t\t\t<bndbox><xmin>60</xmin><ymin>245</ymin><xmax>90</xmax><ymax>270</ymax></bndbox>
\t\t</part>
\t\t<difficult>0</difficult>
\t</object>
\t<size><width>353</width><height>500</height><depth>3</depth></size>
\t<segmented>0</segmented>
\t<object>
\t\t<difficult>1</difficult>
\t\t<bndbox><xmin>8</xmin><ymin>12</ymin><xmax>352</xmax><ymax>498</ymax></bndbox>
\t\t<name>dining table</name>
\t</object>
</annotation>
"""


EDGES = ("xmin", "ymin", "xmax", "ymax")
SPACE = st.sampled_from(["", "", " ", "\n\t"])
NUMBERS = st.one_of(
    st.integers(-500, 20_000).map(str),
    st.floats(-1e4, 1e5, width=32, allow_subnormal=False).map(repr),
    st.floats(-1e3, 1e4).map("{:.2f}".format),
    st.sampled_from(["0", "-0.0", "+7", ".5", "5.", "1e3", "1E-2", "007"]),
)
NAMES = st.text(st.sampled_from("abNz09_- .>'\"éß猫"), max_size=12)
COMMENTS = st.sampled_from(["<!---->", "<!-- <object><name>x</name></object> -->", "<!-- <part> -->", "<!-- > < -->"])


@st.composite
def tags(draw, contents: dict[str, st.SearchStrategy[str]]) -> str:
    """These elements in any order, with white space and comments between and around them."""
    parts = [f"<{tag}>{draw(SPACE)}{draw(text)}{draw(SPACE)}</{tag}>" for tag, text in contents.items()]
    parts += draw(st.lists(COMMENTS, max_size=1))
    return "".join(part + draw(SPACE) for part in draw(st.permutations(parts)))


# Of more than the first pixel: boxes within it are refused, as relative to the image's size.
BOXES = tags({**dict.fromkeys(EDGES, NUMBERS), "xmax": NUMBERS.filter(lambda text: abs(float(text)) > 1.5)})
PARTS = st.lists(tags({"name": NAMES, "bndbox": BOXES}).map("<part>{}</part>".format), max_size=2).map("".join)


@st.composite
def annotations(draw) -> str:
    objects = []
    for _ in range(draw(st.integers(0, 20) if draw(st.booleans()) else st.integers(0, 2))):
        inside = {"name": NAMES, "bndbox": BOXES}
        for extra in draw(st.sets(st.sampled_from(["difficult", "truncated", "pose"]))):
            inside[extra] = st.sampled_from(["0", "1", "Unspecified"])
        thing = draw(tags(inside))
        parts = draw(PARTS)
        objects.append(
            f"<object>{parts}{thing}</object>" if draw(st.booleans()) else f"<object>{thing}{parts}</object>"
        )
    stated = draw(st.sets(st.sampled_from(["width", "height", "depth"])))
    size = draw(tags(dict.fromkeys(stated, NUMBERS)))
    head = ["<folder>a</folder>", "<filename>b</filename>", "<source><annotation>PASCAL VOC</annotation></source>"]
    head += ["<owner><flickrid>?</flickrid><name>me</name></owner>"] * draw(st.booleans())
    head = draw(st.permutations(head))
    body = [*objects, "<segmented>0</segmented>", *[f"<size>{size}</size>"] * draw(st.booleans())]
    body += draw(st.lists(COMMENTS, max_size=2))
    start = draw(st.sampled_from(["", '<?xml version="1.0" encoding="utf-8"?>\n']))
    return f"{start}<annotation>{''.join(head)}{draw(SPACE)}{''.join(draw(st.permutations(body)))}</annotation>"


PIECES = [
    *("<object>", "</object>", "<object/>", "<part>", "</part>", "<name>x</name>", "</bndbox><bndbox>", "<size>"),
    *("<xmin>1</xmin>", "<!--", "-->", "<![CDATA[", "]]>", "&amp;", "&e;", "<?a?>", " a='1'", "nan", "<", ">", "\0"),
    "é",
]


def shuffled(draw: random.Random, parts: list[str]) -> str:
    spaces = ("", "", " ", "\n\t", "<!-- <object> -->")
    return "".join(part + draw.choice(spaces) for part in draw.sample(parts, len(parts)))


def generated(draw: random.Random) -> str:
    """An XML like those of `annotations`, a hundred times as fast."""

    def number() -> str:
        value = draw.choice((draw.randrange(-20, 600), draw.uniform(-9, 900), round(draw.uniform(0, 900), 2)))
        return draw.choice(("{}", " {}", "{}\n")).format(value)

    def elements(*tags: str) -> list[str]:
        return [f"<{tag}>{number()}</{tag}>" for tag in tags]

    def box() -> str:
        return f"<bndbox>{shuffled(draw, elements(*EDGES))}</bndbox>"

    objects = []
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 9))):
        parts = [f"<part>{shuffled(draw, ['<name>head</name>', box()])}</part>"] * draw.choice((0, 0, 0, 1, 2))
        inside = [f"<name>{draw.choice(('n02017213', ' a b ', 'éß', ''))}</name>", box(), "<pose>Left</pose>"]
        objects.append(f"<object>{shuffled(draw, inside + parts)}</object>")
    stated = elements(*draw.sample(("width", "height", "depth"), draw.choice((3, 3, 3, 2, 0))))
    head = ["<folder>a</folder>", "<source><annotation>VOC</annotation></source>", "<owner><name>me</name></owner>"]
    return f"<annotation>{shuffled(draw, [*head, f'<size>{shuffled(draw, stated)}</size>', *objects])}</annotation>"


def changed(draw: random.Random, text: str) -> str:
    """The text with something cut out, doubled, moved or put in."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        start = draw.randrange(len(text) + 1)
        end = start + draw.choice((0, 1, 5, 20, 200))
        piece = draw.choice(("", text[start:end], draw.choice(PIECES), chr(draw.randrange(1, 256))))
        to = draw.choice((start, end, draw.randrange(len(text) + 1)))
        text = text[:start] + piece + text[end:] if draw.random() < 0.7 else text[:to] + piece + text[to:]
    return text


NO_NUMBERS = ["", " ", "x", "1 2", "1,5", "--1", "1e", "0x10", "nan", "inf", "-Infinity", "1_000", "\u0661", "."]
REFUSED = [
    *[pytest.param(note(thing(box=bndbox(**{edge: None}))), id=f"without-{edge}") for edge in EDGES],
    *[pytest.param(note(thing(box=bndbox(ymax=value))), id=f"ymax-{value!a}") for value in NO_NUMBERS],
    pytest.param(note(thing(), size=sides("wide", "9")), id="width-no-number"),
    *[
        pytest.param(note(*[thing(box=bndbox("0.25", "0", "1", "0.75"))] * 2, size=size), id=f"relative-{name}")
        for name, size in (("to-a-stated-size", SIZE), ("without-a-size", ""))
    ],
    pytest.param(note(thing(), size=sides("", "9")), id="width-empty"),
    pytest.param(note(thing(name="")), id="without-name"),
    pytest.param(note(thing(box="")), id="without-bndbox"),
    pytest.param(note("<object></object>"), id="object-empty"),
    pytest.param(note("<object/>"), id="object-empty-tag"),
    pytest.param(note(thing(), "<object/>"), id="object-empty-tag-after-another"),
    pytest.param(note(thing(), thing(name="")), id="second-without-name"),
    # What one object lacks, another has twice.
    pytest.param(note(thing(name=""), thing(name="<name>a</name><name>b</name>")), id="name-given-to-another"),
    pytest.param(note(thing(box=""), thing(box=bndbox() * 2)), id="bndbox-given-to-another"),
    pytest.param(
        note(thing(box=bndbox(ymin=None)), thing(box=bndbox() + "<ymin>2</ymin>")), id="ymin-given-to-another"
    ),
    pytest.param(note(thing(box=bndbox(ymin="2</ymin><ymin>2", xmin=None))), id="xmin-replaced-by-ymin"),
    pytest.param(note(thing(more="<pose>Left</part>")), id="closed-by-another"),
    pytest.param(note(thing(more="<pose><part></pose></part>")), id="closed-in-another-order"),
    pytest.param(note(thing(more="<pose>a & b</pose>")), id="bare-ampersand"),
    pytest.param(note(thing(more="<pose>&nbsp;</pose>")), id="unknown-entity"),
    pytest.param(note(thing(more="<pose>\x07</pose>")), id="control-character"),
    pytest.param(note(thing(more="<pose a=1>x</pose>")), id="attribute-without-quotes"),
    pytest.param(note(thing(more="<po<!-- -->se>x</pose>")), id="comment-in-a-tag"),
    pytest.param(note(thing(more="<!-- a -- b -->")), id="hyphens-in-a-comment"),
    pytest.param(note(thing(box=bndbox(xmin="1e999"))), id="xmin-infinite"),
    pytest.param(note(thing(), size=sides("2e9", "3")), id="width-too-large"),
    pytest.param("<!DOCTYPE annotation>" + note(thing()), id="document-type"),
    pytest.param('<!DOCTYPE a [<!ENTITY e "x">]>' + note(thing("<name>&e;</name>")), id="entity-of-its-own"),
    pytest.param(note(" " * 1_000_000), id="too-large"),
    pytest.param(note("<a>" * 256 + "</a>" * 256, thing()), id="too-deep"),
    pytest.param(note(thing(box=bndbox(xmin="\xa01"))), id="xmin-after-another-blank"),
    pytest.param(note(thing()) + "<<", id="nothing-in-a-tag"),
    pytest.param(note(thing()).replace("<bndbox>", "<bndbox\x0c>"), id="form-feed-in-a-tag"),
    pytest.param("\x0c" + note(thing()), id="form-feed-in-front"),
    pytest.param(note(thing(), "<a;b/>"), id="no-name-for-a-tag"),
    pytest.param(note(thing(), "<a×b/>"), id="no-letter-in-a-name"),
    pytest.param(note(thing(), "<a b='1' b='2'/>"), id="attribute-twice"),
    pytest.param(note(thing(box=bndbox(ymax="tall</ymax><ymax>4"))), id="ymax-after-no-number"),
    pytest.param("", id="empty"),
    pytest.param(" \n", id="blank"),
    pytest.param("hello", id="text"),
    pytest.param(b"\xff\xd8\xff\xe0\x00\x10JFIF", id="jpeg"),
    pytest.param(b"\x00" * 64, id="zeros"),
    pytest.param("<html><body>404 Not Found</body>", id="html"),
    pytest.param(note(thing()) + note(thing()), id="two-documents"),
]  # fmt: skip
