"""Training with crops that grow against crops of one size: images/s and test accuracy over time, as a picture.

python profiles/sizes.py -c configs/sample.json --sizes "[[0, 64], [3, 96], [6, 128]]" --epochs 9 -o sizes.png
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).resolve().parent.parent / "train.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    parser.add_argument("--sizes", default="[[0, 64], [3, 96], [6, 128]]", help="by epoch [%(default)s]")
    parser.add_argument("--epochs", type=int, default=9, help="[%(default)s]")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the picture")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of train.py")
    args = parser.parse_args()
    last = json.loads(args.sizes)[-1][1]
    fixed = json.dumps([last, last] if isinstance(last, int) else last)
    runs = {}
    for name, size in (("growing", args.sizes), ("fixed", fixed)):
        settings = [*args.set, f"training.epochs={args.epochs}", f"data.crop_image_size={size}"]
        runs[name] = run(args.config, settings)
        for seconds, line in runs[name]:
            rate = line["images_per_second"]
            print(
                f"{name:8} epoch {line['epoch']:3} {seconds:7.1f} s {rate:7.0f} images/s top-1 {line['test_top1']:.4f}"
            )
    draw(runs, args.sizes, fixed, args.out)


def run(config: Path, settings: list[str]) -> list[tuple[float, dict[str, Any]]]:
    """Trains; returns the seconds of training up to the end of each epoch, without the test passes, and its metrics."""
    flags = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(TRAIN), "-c", str(config), "-l", folder, *flags], check=True)
        lines = map(json.loads, (Path(folder) / "metrics.jsonl").read_text().splitlines())
        epochs = [line for line in lines if "test_top1" in line]
    seconds = [sum(line["seconds"] for line in epochs[: number + 1]) for number in range(len(epochs))]
    return list(zip(seconds, epochs, strict=True))


def draw(runs: dict[str, list[tuple[float, dict[str, Any]]]], sizes: str, fixed: str, out: Path) -> None:
    """Draws both curves of each run over the seconds of training."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for name, size in (("growing", sizes), ("fixed", fixed)):
        seconds = [at for at, _ in runs[name]]
        for axis, key in zip(axes, ("test_top1", "images_per_second"), strict=True):
            axis.plot(seconds, [line[key] for _, line in runs[name]], marker="o", label=size)
    for axis, title in zip(axes, ("test top-1", "images/s"), strict=True):
        axis.set(title=title, xlabel="seconds of training")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(title="data.crop_image_size")
    figure.suptitle(f"{time.strftime('%Y-%m-%d')}, CPU")
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    main()
