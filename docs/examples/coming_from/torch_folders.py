"""Class folders in PyTorch: a Dataset with Resize(146) and CenterCrop(128) in Pillow, and the same batches with tfpipe.

python docs/examples/coming_from/torch_folders.py FOLDER    # FOLDER/CLASS/*.jpg
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import tfpipe.torch

SIDE, RESIZED = 128, 146


class Folder(torch.utils.data.Dataset):
    """What torchvision's ImageFolder does with Resize(146), CenterCrop(128) and PILToTensor."""

    def __init__(self, root: str) -> None:
        self.classes = sorted(path.name for path in Path(root).iterdir() if path.is_dir())
        self.samples = [
            (path, number) for number, name in enumerate(self.classes) for path in sorted(Path(root, name).iterdir())
        ]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[number]
        image = Image.open(path).convert("RGB")
        width, height = (int(RESIZED * side / min(image.size)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((image.width - SIDE) / 2), round((image.height - SIDE) / 2)
        pixels = np.array(image.crop((left, top, left + SIDE, top + SIDE)))
        return torch.from_numpy(pixels).permute(2, 0, 1), label


def before(folder: str) -> Any:
    return torch.utils.data.DataLoader(Folder(folder), batch_size=16, num_workers=0)


def after(folder: str, **classes: Any) -> Any:
    return tfpipe.torch.Loader(
        folder,
        "test",
        image_size=SIDE,
        batch_size=16,
        test_crop="center",
        center_fraction=SIDE / RESIZED,
        resize="antialias",
        **classes,
    )


if __name__ == "__main__":
    with after(sys.argv[1], classes=Folder(sys.argv[1]).classes) as new:
        for (images, labels), (others, numbers) in zip(before(sys.argv[1]), new, strict=True):
            difference = (images.float() - others.float()).abs()
            same = torch.equal(labels, numbers.long())
            print(f"{len(labels)} images, {difference.mean():.3f} of 255 levels, labels {same}")
