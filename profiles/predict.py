"""The rate of tfpipe predict with a model of no cost, against the bench's rate of the same images and crops.

    make train    # makes the sample
    python profiles/predict.py [-c configs/sample.json] [--images 50000] [--seconds 10] [--repeats 3]

Lists the config's training images again and again until there are as many as --images, and takes turns: `tfpipe bench`
over the list with "center" crops, then `tfpipe predict` over it. Prints both rates, and their ratio in each turn.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, default=ROOT / "configs" / "sample.json")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, classes, shape = prepare(args.config, folder, args.images)
        save_model(folder / "model.keras", shape, classes)
        ratios = []
        for _ in range(args.repeats):
            bench = bench_rate(args.config, images, folder, args.seconds)
            predicted = predict_rate(args.config, images, folder)
            ratios.append(predicted / bench)
            print(f"bench {bench:.0f} images/s, predict {predicted:.0f} images/s: {ratios[-1]:.3f}", flush=True)
        print(f"median {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def prepare(config: Path, folder: Path, count: int) -> tuple[Path, list[str], tuple[int, int, int]]:
    """Writes the list of `count` images; returns it, the class names, and the shape of a test crop."""
    from tfpipe import World, load_config
    from tfpipe.data.sources.registry import load_split

    data = load_config(config).data
    split = load_split(data, "train", World())
    images = folder / "images.txt"
    images.write_text("".join(f"{path}\n" for path in islice(cycle(split.catalog.paths), count)))
    return images, list(split.classes), (*data.for_split("test").crop_image_size, data.num_channels)


def save_model(path: Path, shape: tuple[int, int, int], classes: list[str]) -> None:
    """Saves a model that looks at a sixteenth of the rows and columns, and costs next to nothing."""
    import keras
    from keras import layers

    inputs = keras.Input(shape, dtype="uint8")
    x = layers.GlobalAveragePooling2D()(layers.Rescaling(1 / 255)(inputs[:, ::16, ::16]))
    keras.Model(inputs, layers.Dense(len(classes))(x)).save(path)
    (path.parent / "classes.json").write_text(json.dumps({"classes": classes, "normalize": None}))


def bench_rate(config: Path, images: Path, folder: Path, seconds: float) -> float:
    """Returns the median of tfpipe bench's images/s over the list, of center crops without mirroring."""
    out = folder / "bench.json"
    keys = (f"train_filelist={images}", "crop=center", "annotations=none", "flip=false", "shuffle_buffer=1")
    sets = [word for key in keys for word in ("--set", f"data.{key}")]
    _run("bench", "-c", config, "--seconds", seconds, "--repeats", 1, "--json", out, *sets)
    return float(json.loads(out.read_text())["images_per_second"])


def predict_rate(config: Path, images: Path, folder: Path) -> float:
    """Returns the images/s that tfpipe predict prints for the list."""
    said = _run(
        *("predict", images, "-c", config, "--model", folder / "model.keras", "-o", folder / "out.csv"),
        *("--top", 2, "--set", "data.test_crop=center"),
    )
    rate = re.search(r"(\d+) a second", said)
    assert rate, said
    return float(rate[1])


def _run(*words: object) -> str:
    done = subprocess.run([sys.executable, "-m", "tfpipe", *map(str, words)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"tfpipe {' '.join(map(str, words))} has failed")
    return done.stdout


if __name__ == "__main__":
    main()
