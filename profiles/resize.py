"""What the kernels of `data.resize` cost the whole pipeline, in turns: python profiles/resize.py LIST [LIST ...].

Random crops (`data.crop` "random_resized") of the images of filelists, to 224x224: crops/s and CPU time a crop by
kernel, and their ratios to "bilinear" turn by turn.
"""

import argparse
import time
from pathlib import Path
from statistics import median

from tfpipe import build_dataset, make_config

KERNELS = ("bilinear", "antialias", "bicubic", "area")
BATCH = 64


def measure(data: dict[str, object], images: int) -> tuple[float, float]:
    """Crops/s, and microseconds of CPU time a crop, over that many images."""
    iterator = iter(build_dataset(make_config({"data": data})))
    for _ in range(4):  # traces the graph, and fills the buffers
        next(iterator)
    start, used = time.perf_counter(), time.process_time()
    for _ in range(images // BATCH):
        next(iterator)
    seconds, cpu = time.perf_counter() - start, time.process_time() - used
    return images // BATCH * BATCH / seconds, cpu / (images // BATCH * BATCH) * 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", type=Path, nargs="+")
    parser.add_argument("--images", type=int, default=3840, help="of a turn")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--decoder", default="native")
    parser.add_argument("--side", type=int, default=224)
    chosen = parser.parse_args()
    print("| list | kernel | crops/s | of bilinear's (min to max) | CPU us a crop | of bilinear's rate by CPU time |")
    print("|---|---|---|---|---|---|")
    for path in chosen.lists:
        data = {"train_filelist": str(path.resolve()), "crop": "random_resized", "annotations": "none"}
        data |= {"batch_size": BATCH, "shuffle_buffer": 2, "prefetch_buffer_size": 4, "decoder": chosen.decoder}
        data |= {"crop_image_size": [chosen.side] * 2}
        turns = [
            {kernel: measure({**data, "resize": kernel}, chosen.images) for kernel in KERNELS}
            for _ in range(chosen.turns)
        ]
        for kernel in KERNELS:
            rates = [turn[kernel][0] / turn["bilinear"][0] for turn in turns]
            cpu = median(turn["bilinear"][1] / turn[kernel][1] for turn in turns)
            print(
                f"| {path.parent.name}/{path.name} | `{kernel}` | {median(turn[kernel][0] for turn in turns):,.0f} "
                f"| {median(rates):.3f} ({min(rates):.3f} to {max(rates):.3f}) "
                f"| {median(turn[kernel][1] for turn in turns):,.0f} | {cpu:.3f} |"
            )
