"""A dataset of Hugging Face in PyTorch's DataLoader, and the same batches with tfpipe.

python docs/examples/coming_from/hugging_face.py FOLDER    # FOLDER/CLASS/*.jpg
"""

import sys
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image

import tfpipe
import tfpipe.torch


def open_folder(folder: str) -> datasets.Dataset:
    return datasets.load_dataset("imagefolder", data_dir=folder, split="train")


def before(dataset: datasets.Dataset) -> Any:
    def transform(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        small = [image.convert("RGB").resize((128, 128), Image.Resampling.BILINEAR) for image in rows["image"]]
        return {
            "image": [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in small],
            "label": rows["label"],
        }

    return torch.utils.data.DataLoader(dataset.with_transform(transform), batch_size=16)


def after(dataset: datasets.Dataset) -> Any:
    return tfpipe.torch.Loader(
        dataset,
        "test",
        image_size=128,
        batch_size=16,
        test_crop="full",
        resize="antialias",
        classes=dataset.features["label"].names,
    )


if __name__ == "__main__":
    data = open_folder(sys.argv[1])
    with after(data) as new:
        for old, (others, numbers) in zip(before(data), new, strict=True):
            difference = (old["image"].float() - others.float()).abs()
            same = torch.equal(old["label"], numbers.long())
            print(f"{len(numbers)} images, {difference.mean():.3f} of 255 levels, labels {same}")
