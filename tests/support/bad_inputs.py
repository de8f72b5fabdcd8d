"""Lists, label files and configs that cannot be used, and what a command says of each, PATH for the folder's path."""

from typing import Any, NamedTuple

LIST = "JPEGImages/n01/a.jpg\nJPEGImages/n01/b.jpg\nJPEGImages/n02/c.jpg\n"
DATA = {"train_filelist": "list.txt", "classes": ["n01", "n02"]}


class Input(NamedTuple):
    name: str
    files: dict[str, str | bytes | None]
    """Next to list.txt, which is good; None for a folder."""
    data: dict[str, Any] | str
    """The config's data section, or its text."""
    says: str
    """After "tfpipe: error: "."""


HOW = "make one with: tfpipe filelist ROOT --out DIR"
LABELS = {**DATA, "train_label_file": "labels.txt"}
INPUTS: list[Input] = [
    Input(
        "no list",
        {},
        {"train_filelist": "gone.txt"},
        f"cannot read the filelist PATH/gone.txt: No such file or directory; {HOW}",
    ),
    Input("an empty list", {"list.txt": ""}, DATA, f"the filelist PATH/list.txt holds no line; {HOW}"),
    Input("a list of blank lines", {"list.txt": " \n\n\t\n"}, DATA, f"the filelist PATH/list.txt holds no line; {HOW}"),
    Input(
        "a list that is a picture",
        {"list.txt": b"\xff\xd8\xff\xe0\x80"},
        DATA,
        f"cannot read the filelist PATH/list.txt: it is a JPEG; {HOW}",
    ),
    Input(
        "a folder without pictures",
        {"list.txt": None},
        DATA,
        "no image in PATH/list.txt or its folders; expected list.txt/CLASS/*.jpg, a folder a class",
    ),
    Input(
        "a list of nowhere's files",
        {"list.txt": "x/a.jpg\n"},
        {**DATA, "classes": ["x"]},
        'PATH/x/a.jpg is in no folder Data/CLS-LOC or JPEGImages, so where its XML would be is unknown; set data.layout to {"images": FOLDER, "annotations": FOLDER}, or data.annotations to "none"',
    ),
    Input(
        "a list of two roots",
        {"list.txt": LIST + "x/n01/a.jpg\n"},
        DATA,
        'PATH/x/n01/a.jpg is in no folder "JPEGImages", as data.layout has it',
    ),
    Input(
        "a label that is no class",
        {},
        {**DATA, "classes": ["n01", "n03"]},
        '1 of 3 images have a label that is no class, e.g. PATH/JPEGImages/n02/c.jpg: "n02" (its folder); 2 classes: n01, n03 ...; for a flat val folder set data.test_label_file, e.g. to LOC_val_solution.csv',
    ),
    Input(
        "classes twice",
        {},
        {**DATA, "classes": ["n01", "n02", "n01"]},
        'the class "n01" is there twice in data.classes',
    ),
    Input("no class file", {}, {**DATA, "classes": "gone.txt"}, "cannot read PATH/gone.txt: No such file or directory"),
    Input("no label file", {}, LABELS, "cannot read PATH/labels.txt: No such file or directory"),
    Input(
        "a label too few",
        {"labels.txt": "n01\nn01\n"},
        LABELS,
        "PATH/labels.txt holds 2 labels for 3 images; with a label and nothing else on a line there must be one for every image of the list, in the order of their names",
    ),
    Input(
        "two labels for an image",
        {"labels.txt": "a n01\na n02\nb n01\nc n02\n"},
        LABELS,
        "PATH/labels.txt holds two labels for a",
    ),
    Input(
        "no label for an image",
        {"labels.txt": "a n01\nb n01\n"},
        LABELS,
        "PATH/labels.txt holds no label for 1 of 3 images, e.g. c",
    ),
    Input(
        "two images of a name",
        {"list.txt": LIST + "JPEGImages/n02/a.jpg\n", "labels.txt": "a n01\n"},
        LABELS,
        "PATH/labels.txt goes by file names, but several images of the list are named a",
    ),
    Input(
        "no JSON",
        {},
        "{'data': 1}",
        "the config PATH/c.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); "
        "JSON has double quotes, not single ones",
    ),
    Input(
        "an empty config",
        {},
        "",
        "the config PATH/c.json is not JSON: Expecting value: line 1 column 1 (char 0); the file is empty: write at least "
        '{"data": {"train_filelist": "train.txt"}}',
    ),
    Input("no data section", {}, "{}", "1 error in the config PATH/c.json:\n  data: is missing"),
    Input(
        "a misspelt key",
        {},
        {**DATA, "bach_size": 8},
        "1 error in the config PATH/c.json:\n  data.bach_size: unknown key; did you mean data.batch_size?",
    ),
    Input(
        "an index that is not there",
        {},
        {**DATA, "annotations": "index"},
        "there is no index PATH/list.index.parquet; make it with: tfpipe index -c CONFIG --split train",
    ),
]
