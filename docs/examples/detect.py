"""A small detector: python docs/examples/detect.py BCCD -o RUN --classes RBC WBC Platelets

BCCD is a folder in the layout of Pascal VOC: JPEGImages, Annotations, ImageSets/Main. The detector is FCOS (Tian et al.
2019) with one level. Started again after a kill, it continues with the next image after its last checkpoint. Prints the
average precision of COCO, by pycocotools, over the test images.
"""

import argparse
import contextlib
import io
import json
import math
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import tfpipe

SIZE = (240, 320)  # height and width of the images
STRIDE = 8  # pixels of a cell
RADIUS = 1.5  # cells around a box's middle that detect it
KEPT = 100  # boxes of an image


def config_of(root: Path, run: Path, names: list[str], batch: int) -> tfpipe.Config:
    """Random parts of the training images, whole test images, each with its boxes."""
    lists = {}
    for split, file in (("train", "trainval"), ("test", "test")):
        stems = (root / f"ImageSets/Main/{file}.txt").read_text().split()
        lists[split] = run / f"{split}.txt"
        lists[split].write_text("\n".join(str(root.resolve() / f"JPEGImages/{stem}.jpg") for stem in stems))
    data = {
        "train_filelist": str(lists["train"]),
        "test_filelist": str(lists["test"]),
        "classes": names,
        "targets": {"kind": "boxes", "min_visible": 0.25},
        "crop": "random_resized",
        "random_resized": {"area": (0.4, 1.0), "aspect": (1.0, 1.8)},
        "flip": True,
        "augment": [{"name": "ColorJitter", "brightness": 0.2, "contrast": 0.2, "saturation": 0.2}],
        "crop_image_size": SIZE,
        "resize": "antialias",
        "batch_size": batch,
    }
    return tfpipe.make_config({"data": data})


def build(classes: int) -> keras.Model:
    """From uint8 [batch, *SIZE, 3] to [batch, cells, classes + 4]: logits, and distances to a box's sides in cells."""

    def block(x: keras.KerasTensor, filters: int, stride: int = 1) -> keras.KerasTensor:
        shortcut = x
        for step in (stride, 1):
            x = layers.Conv2D(filters, 3, step, "same", use_bias=False)(x)
            x = layers.GroupNormalization(8)(x)
            x = layers.ReLU()(x)
        return x if shortcut.shape != x.shape else x + shortcut

    pixels = keras.Input((*SIZE, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    x = layers.ReLU()(layers.Conv2D(16, 5, 2, "same")(x))
    fine = block(block(block(x, 32, 2), 64, 2), 64)
    coarse = block(block(fine, 96, 2), 96)
    x = block(layers.Concatenate()([fine, layers.UpSampling2D()(coarse)]), 96)
    prior = keras.initializers.Constant(-math.log(99))  # 1 in 100 cells detects something
    logits = layers.Conv2D(classes, 3, padding="same", bias_initializer=prior)(x)
    sides = layers.Conv2D(4, 3, padding="same", activation="softplus", bias_initializer="ones")(x)
    both = layers.Concatenate()([logits, sides])
    return keras.Model(pixels, layers.Reshape((-1, classes + 4))(both))


def middles() -> tf.Tensor:
    """The middle of each cell in pixels, float32 [cells, 2]: x, y."""
    rows, columns = (STRIDE * (tf.range(side // STRIDE, dtype=tf.float32) + 0.5) for side in SIZE)
    return tf.reshape(tf.stack(tf.meshgrid(columns, rows), axis=-1), [-1, 2])


def assign(boxes: tf.Tensor, labels: tf.Tensor, classes: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Which cell detects what: classes, float32 [batch, cells, classes]; sides in cells, [batch, cells, 4]; and whether
    it detects any, [batch, cells]. Of several boxes a cell takes the smallest."""
    points = middles()[None, :, None]
    sides = tf.concat([points - boxes[:, None, :, :2], boxes[:, None, :, 2:] - points], axis=-1)
    centres = (boxes[..., :2] + boxes[..., 2:])[:, None] / 2
    near = tf.reduce_max(tf.abs(points - centres), axis=-1) < RADIUS * STRIDE
    inside = (tf.reduce_min(sides, axis=-1) > 0) & near & (labels >= 0)[:, None]
    areas = tf.reduce_prod(boxes[..., 2:] - boxes[..., :2], axis=-1)[:, None]
    chosen = tf.argmin(tf.where(inside, areas, math.inf), axis=-1)
    found = tf.reduce_any(inside, axis=-1)
    one_hot = tf.one_hot(tf.gather(labels, chosen, batch_dims=1), classes) * tf.cast(found, tf.float32)[..., None]
    return one_hot, tf.gather(sides, chosen, axis=2, batch_dims=2) / STRIDE, found


def loss_of(outputs: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor, classes: int) -> tf.Tensor:
    """Focal loss of the classes (Lin et al. 2017), and the logarithm of the boxes' IoU, per cell that detects."""
    one_hot, sides, found = assign(boxes, labels, classes)
    count = tf.maximum(tf.reduce_sum(tf.cast(found, tf.float32)), 1.0)
    focal = keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True, from_logits=True, reduction="sum")
    own, wanted = outputs[..., classes:][found], sides[found]
    overlap = tf.reduce_prod(tf.minimum(own[:, :2], wanted[:, :2]) + tf.minimum(own[:, 2:], wanted[:, 2:]), axis=1)
    areas = [tf.reduce_prod(each[:, :2] + each[:, 2:], axis=1) for each in (own, wanted)]
    iou = overlap / (areas[0] + areas[1] - overlap)
    # Keras' loss is the mean over classes, summed up.
    classified = classes * focal(one_hot, outputs[..., :classes])
    return (classified - tf.reduce_sum(tf.math.log(iou + 1e-6))) / count


def boxes_in(outputs: tf.Tensor, classes: int) -> list[tf.Tensor]:
    """The boxes found: relative ymin, xmin, ymax, xmax, scores, classes, and how many there are."""
    scores, sides, points = tf.sigmoid(outputs[..., :classes]), STRIDE * outputs[..., classes:], middles()
    corners = tf.concat([points - sides[..., :2], points + sides[..., 2:]], axis=-1)
    shares = tf.gather(corners, [1, 0, 3, 2], axis=-1) / [SIZE[0], SIZE[1], SIZE[0], SIZE[1]]
    return tf.image.combined_non_max_suppression(shares[:, :, None], scores, KEPT, KEPT, 0.5, 0.05)


def evaluate(model: keras.Model, config: tfpipe.Config, names: list[str]) -> np.ndarray:
    """COCO's average precision of each class at an IoU of 0.5, float [classes], over the test images."""
    found, truth, images = [], [], []
    with tfpipe.Loader(config, "test") as loader:
        for pixels, targets in loader:
            detected = boxes_in(model(pixels, training=False), len(names))
            for boxes, scores, classes, count, real, labels in zip(
                *(part.numpy() for part in (*detected, targets["boxes"], targets["labels"])), strict=True
            ):
                image = len(images)
                images.append({"id": image})
                for box, label in zip(real[labels >= 0], labels[labels >= 0], strict=True):
                    sides = [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()]
                    about = {"id": len(truth) + 1, "image_id": image, "category_id": int(label), "iscrowd": 0}
                    truth.append(about | {"bbox": sides, "area": sides[2] * sides[3]})
                for box, score, label in zip(boxes[:count], scores[:count], classes[:count], strict=True):
                    top, left, bottom, right = (box * [SIZE[0], SIZE[1], SIZE[0], SIZE[1]]).tolist()
                    sides = [left, top, right - left, bottom - top]
                    about = {"image_id": image, "category_id": int(label), "score": float(score)}
                    found.append(about | {"bbox": sides})
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        categories = [{"id": number, "name": name} for number, name in enumerate(names)]
        coco.dataset = {"images": images, "annotations": truth, "categories": categories}
        coco.createIndex()
        if not found:
            return np.zeros(len(names))
        evaluation = COCOeval(coco, coco.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"][0, :, :, 0, -1].mean(0)


def train(config: tfpipe.Config, run: Path, names: list[str], epochs: int, every: int) -> keras.Model:
    """Returns the trained model."""
    keras.utils.set_random_seed(0)
    model, loader = build(len(names)), tfpipe.Loader(config)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, epochs * loader.steps_per_epoch, warmup_target=2e-3, warmup_steps=100
    )
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=1e-4, global_clipnorm=5.0)
    optimizer.build(model.trainable_variables)
    state = tf.Variable("", dtype=tf.string)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, loader=state)
    manager = tf.train.CheckpointManager(checkpoint, str(run / "checkpoints"), max_to_keep=1)
    if manager.restore_or_initialize():
        loader.load_state_dict(json.loads(state.numpy()))

    @tf.function
    def step(images: tf.Tensor, boxes: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(model(images, training=True), boxes, labels, len(names))
        weights = [weight.value for weight in model.trainable_variables]
        optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)
        return loss

    with loader:
        for epoch in range(loader.step // loader.steps_per_epoch, epochs):
            losses = []
            for images, targets in loader.epoch(epoch):
                losses.append(float(step(images, targets["boxes"], targets["labels"])))
                if loader.step % every == 0:
                    state.assign(json.dumps(loader.state_dict()))
                    manager.save()
            print(f"epoch {epoch}  step {loader.step}  loss {np.mean(losses):.3f}", flush=True)
        state.assign(json.dumps(loader.state_dict()))
        manager.save()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, help="the folder of JPEGImages, Annotations and ImageSets")
    parser.add_argument("-o", "--run", type=Path, required=True, help="folder of checkpoints")
    parser.add_argument("--classes", nargs="+", required=True, help="names of the classes")
    parser.add_argument("--epochs", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--batch", type=int, default=8, help="images of a step [%(default)s]")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints [%(default)s]")
    args = parser.parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    config = config_of(args.root, args.run, args.classes, args.batch)
    model = train(config, args.run, args.classes, args.epochs, args.every)
    precisions = evaluate(model, config, args.classes)
    each = "  ".join(f"{name} {value:.3f}" for name, value in zip(args.classes, precisions, strict=True))
    print(f"AP50 {precisions.mean():.3f}  ({each})")


if __name__ == "__main__":
    main()
