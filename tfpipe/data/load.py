"""A Loader of data that are described in one call."""

from typing import Any

from tfpipe.data.loader import Loader


def load(data: Any, split: str = "train", **arguments: Any) -> Loader:
    """Returns a Loader of data that are described in one call, without a config.

        train, test = tfpipe.load("flowers", image_size=128), tfpipe.load("flowers", "test", image_size=128)
        model.fit(train.dataset(), epochs=5, validation_data=test.dataset(), shuffle=False)

    Args:
        data: a path, whose kind is recognised: a folder of class folders, or of train and val with such; a filelist
            (.txt); a table (.csv, .parquet, .arrow, .jsonl); COCO's instances .json; tar shards; packed data;
            TFRecords. Or data in memory: a pandas DataFrame, or another table of Arrow, with the columns `path` or
            `image` (bytes), `label` and perhaps `boxes`; a list of (path, label); a list of paths with `labels`; a
            Dataset or DatasetDict of Hugging Face. Relative paths are relative to `images` or the current folder.
        split: "train": shuffled, augmented and endless. "test": one exact pass for each `for`, over the data that their
            names say are validation or test data, or over all of `data` if `classes` is given.
        **arguments: keys of the config's section `data`, e.g. `batch_size`, `crop` and `augment`, where a number stands
            for the sides of a square; those of `data.source`, e.g. `test_share` and `columns`; those of Loader, e.g.
            `world` and `positions`; `image_size` for `crop_image_size`; `labels` of a list of paths, and `classes`: the
            test data of another place than the training data need `classes=train.class_names`.

    Raises:
        ConfigError: an argument is wrong, or the data cannot be used; the message names the nearest right argument.
    """
    return Loader(data, split, **arguments)
