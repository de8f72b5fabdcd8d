"""Draws the confusion of classes: python docs/examples/confusion.py evaluated.json confusion.png

Reads what `tfpipe evaluate --model MODEL --json evaluated.json` writes; a PNG, SVG or PDF, each row a class, as shares
of its crops. Needs matplotlib: pip install 'tfpipe[profile]'
"""

import json
import sys

import numpy as np
from matplotlib.figure import Figure

# Classes up to which rows have names and cells numbers; a picture of more than MOST would have cells below a pixel.
NAMED, NUMBERED, MOST = 40, 20, 1000


def draw(evaluated: dict, path: str) -> None:
    names = [each["name"] for each in evaluated["classes"]]
    count = min(len(names), MOST)
    pairs = np.array(evaluated["confusion"], int).reshape(-1, 3)
    matrix = np.zeros((count, count), int)
    truth, predicted, crops = pairs[(pairs[:, :2] < count).all(axis=1)].T
    matrix[truth, predicted] = crops
    side = 3.5 + 0.28 * count if count <= NAMED else 9.0
    figure = Figure((side + 1.5, side), layout="constrained")
    ax = figure.subplots()
    shares = matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
    image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=ax, shrink=0.8, label="share of the class's crops")
    ax.set(xlabel="predicted class", ylabel="class")
    ax.set_title(f"top-1 {evaluated['test_top1']:.4f}, the first {count} of {len(names)} classes", loc="left", size=10)
    if count <= NAMED:
        ax.set_xticks(range(count), names, rotation=90, fontsize=7, parse_math=False)
        ax.set_yticks(range(count), names, fontsize=7, parse_math=False)
    for row, column in np.argwhere(matrix) if count <= NUMBERED else ():
        color = "white" if shares[row, column] > 0.5 else "black"
        ax.text(column, row, str(matrix[row, column]), ha="center", va="center", fontsize=7, color=color)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    source, target = sys.argv[1:]
    with open(source) as file:
        draw(json.load(file), target)
