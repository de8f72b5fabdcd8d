"""Class folders with Keras' image_dataset_from_directory, and the same batches with tfpipe.

python docs/examples/coming_from/keras_folders.py FOLDER    # FOLDER/CLASS/*.jpg
"""

import sys
from typing import Any

import keras
import numpy as np

import tfpipe


def before(folder: str) -> Any:
    return keras.utils.image_dataset_from_directory(
        folder, label_mode="int", image_size=(128, 128), batch_size=16, shuffle=False
    )


def after(folder: str, **classes: Any) -> Any:
    return tfpipe.load(folder, "test", image_size=128, batch_size=16, test_crop="full", resize="bilinear", **classes)


if __name__ == "__main__":
    old = before(sys.argv[1])
    with after(sys.argv[1], classes=old.class_names) as new:
        for (images, labels), (others, numbers) in zip(old, new, strict=True):
            difference = np.abs(np.asarray(images) - np.asarray(others, np.float32))
            print(
                f"{len(labels)} images, {difference.mean():.3f} of 255 levels, labels {np.array_equal(labels, numbers)}"
            )
