"""Which objects are in an image: python docs/examples/multi_label.py VOC/train.txt --classes red green blue

LIST is a filelist of images with XMLs of Pascal VOC. A tenth of the images tests; prints how well each class is found.
"""

import argparse
from pathlib import Path

import keras
from keras import layers

import tfpipe


def build(side: int, classes: int) -> keras.Model:
    """From uint8 [batch, side, side, 3] to logits [batch, classes]."""
    convolutions = [layers.Conv2D(filters, 3, 2, "same", activation="relu") for filters in (16, 32, 64)]
    head = [layers.GlobalMaxPooling2D(), layers.Dense(classes)]
    return keras.Sequential([layers.Input((side, side, 3)), layers.Rescaling(1 / 255), *convolutions, *head])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("list", type=Path, help="the filelist")
    parser.add_argument("--classes", nargs="+", required=True, help="names of the objects")
    parser.add_argument("--side", type=int, default=128, help="pixels of a side [%(default)s]")
    parser.add_argument("--epochs", type=int, default=10, help="[%(default)s]")
    args = parser.parse_args()

    lines = [str((args.list.parent / line).resolve()) for line in args.list.read_text().split()]
    parts = {"few": lines[::10], "most": [line for number, line in enumerate(lines) if number % 10]}
    lists = {name: args.list.with_name(f"{args.list.stem}-{name}.txt") for name in parts}
    for name, part in parts.items():
        lists[name].write_text("\n".join(part))
    options = {"targets": "labels", "classes": args.classes, "image_size": args.side, "batch_size": 16}
    train = tfpipe.load(lists["most"], flip=True, resize="antialias", **options)
    test = tfpipe.load(lists["few"], "test", resize="antialias", **options)

    model = build(args.side, len(args.classes))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
    model.fit(train.dataset(), epochs=args.epochs, shuffle=False, verbose=2)
    right, count = 0.0, 0
    for images, labels in test:
        found = model(images, training=False).numpy() > 0
        right, count = right + (found == (labels.numpy() > 0)).sum(0), count + len(images)
    for name, share in zip(args.classes, right / count, strict=True):
        print(f"{name}: {share:.3f} of {count} images are told right")


if __name__ == "__main__":
    main()
