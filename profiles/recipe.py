"""Test accuracy with and without augmentation: python profiles/recipe.py [--recipes NAME ...] [--seeds 5].

Trains four convolutions on the first 40 images of each class of `make train`'s sample, once for each seed and recipe,
and tests them on all 800 test images: configs/sample.json with another network, whose training takes a minute. A seed
sets the order, all augmentation and the first weights; all recipes have the same seeds. `--results FILE` keeps each
training's accuracy, and a later call trains only what the file lacks. Prints a table: the mean of the accuracies, the
smallest and the largest.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from keras import layers

from tfpipe import World, load_config
from tfpipe.training.loop import train

ROOT = Path(__file__).resolve().parents[1]
SIDE = 48  # of a crop, in pixels
SAMPLE = ROOT / "data/sample/lists/train.txt"

JITTER = {"name": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}
ERASING = {"name": "RandomErasing", "p": 0.25, "value": [124, 116, 104]}
RECIPES: dict[str, dict[str, Any]] = {
    "none": {},
    "flip": {"flip": True},
    "random_resized": {"flip": True, "crop": "random_resized", "test_crop": "boxes"},
    "ColorJitter": {"flip": True, "augment": [JITTER]},
    "RandomErasing": {"flip": True, "augment": [ERASING]},
    "TrivialAugmentWide": {"flip": True, "augment": ["TrivialAugmentWide"]},
    "RandAugment": {"flip": True, "augment": ["RandAugment"]},
    "MixUp": {"flip": True, "mix": {"mixup": 0.2}},
    "CutMix": {"flip": True, "mix": {"cutmix": 1.0}},
    "TrivialAugmentWide, CutMix": {"flip": True, "augment": ["TrivialAugmentWide"], "mix": {"cutmix": 1.0}},
    "TrivialAugmentWide, RandomErasing, MixUp or CutMix": {
        "flip": True,
        "augment": ["TrivialAugmentWide", {**ERASING, "p": 0.1}],
        "mix": {"mixup": 0.2, "cutmix": 1.0},
    },
}


def main(args: argparse.Namespace) -> None:
    """Trains what the results lack, and prints the table."""
    kept = [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    scores = {(row["recipe"], row["seed"]): row["top1"] for row in kept if row["epochs"] == args.epochs}
    with tempfile.TemporaryDirectory() as folder:
        subset = write_subset(args.list, Path(folder) / "train.txt", args.images)
        # Seed by seed, so that a run that was cut short has compared the recipes on the same seeds.
        for seed in range(args.seeds):
            for name in args.recipes:
                if (name, seed) in scores:
                    continue
                began = time.monotonic()
                scores[name, seed] = accuracy(args, name, seed, subset, Path(folder) / f"{name}-{seed}")
                row = {"recipe": name, "seed": seed, "epochs": args.epochs, "top1": scores[name, seed]}
                with args.results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(f"{name}, seed {seed}: {scores[name, seed]:.3f} in {time.monotonic() - began:.0f} s", flush=True)
    print(f"\n{args.seeds} seeds, {args.images} images a class, {args.epochs} epochs.\n")
    print("| recipe | test top-1, mean | smallest to largest |")
    print("|---|---|---|")
    for name in args.recipes:
        values = [scores[name, seed] for seed in range(args.seeds)]
        print(f"| {name} | {mean(values):.3f} | {min(values):.3f} to {max(values):.3f} |")


def write_subset(filelist: Path, path: Path, images: int) -> Path:
    """Writes a list of the first `images` images of each class, by the numbers in their names, to `path`."""
    classes: dict[str, list[Path]] = {}
    for line in filelist.read_text().splitlines():
        image = filelist.parent / line
        classes.setdefault(image.parent.name, []).append(image)
    chosen = [sorted(files, key=lambda file: int(file.stem.rpartition("_")[2]))[:images] for files in classes.values()]
    path.write_text("".join(f"{file}\n" for files in chosen for file in files))
    return path


def accuracy(args: argparse.Namespace, name: str, seed: int, subset: Path, run_dir: Path) -> float:
    """Returns the test top-1 after training on the images of a list."""
    data = {"train_filelist": str(subset), "seed": seed, "crop_image_size": [SIDE, SIDE], "batch_size": 32}
    data |= RECIPES[name]
    training = {"seed": seed, "epochs": args.epochs, "test_every": args.epochs, "status": 10**6}
    settings = {f"data.{key}": value for key, value in data.items()}
    settings |= {f"training.{key}": value for key, value in training.items()}
    settings |= {"model": {"name": "recipe:network"}}
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    config = load_config(args.config, overrides)
    run_dir.mkdir(parents=True)
    metrics = train(config, World(), run_dir)
    keras.backend.clear_session()
    return float(metrics["test_top1"])


def network(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Builds four convolutions: float32 images [batch, *shape] in [0, 255] -> logits [batch, classes]."""
    inputs = keras.Input(shape)
    x = layers.Rescaling(1 / 127.5, -1)(inputs)
    for filters in (16, 32, 64, 128):
        x = layers.Conv2D(filters, 3, 2, padding="same", use_bias=False)(x)
        x = layers.Activation("relu")(layers.BatchNormalization(momentum=0.8)(x))
    return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", type=Path, default=ROOT / "configs/sample.json")
    parser.add_argument("--list", type=Path, default=SAMPLE, help="training list of the sample [of make train]")
    parser.add_argument("--images", type=int, default=40, help="training images of a class")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--results", type=Path, default=Path("recipe.jsonl"), help="file of finished trainings")
    main(parser.parse_args())
