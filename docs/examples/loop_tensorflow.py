"""A GradientTape loop that resumes after a kill: mpirun -n 2 python docs/examples/loop_tensorflow.py -c CONFIG -o RUN

Started again, on any number of ranks, it resumes with the next crop after its last checkpoint. RUN/positions-*.csv
holds what each rank has trained: step, position, crop.
"""

import argparse
import json
from pathlib import Path

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

import tfpipe


def build(height: int, width: int, channels: int, classes: int) -> keras.Model:
    """From uint8 [batch, height, width, channels] to logits [batch, classes]."""
    keras.utils.set_random_seed(0)  # every rank begins with the same weights
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((height, width, channels), dtype="uint8"),
            layers.Rescaling(1 / 127.5, offset=-1),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(classes),
        ]
    )


def train(config: tfpipe.Config, run: Path, epochs: int, every: int) -> None:
    world = tfpipe.World.horovod()
    run.mkdir(parents=True, exist_ok=True)
    loader = tfpipe.Loader(config, "train", world, positions=True)
    model = build(*config.data.crop_image_size, config.data.num_channels, len(loader.catalog.classes))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    # One checkpoint holds the weights and the loader's state: neither is ever ahead of the other.
    state = tf.Variable("", dtype=tf.string)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, loader=state)
    manager = tf.train.CheckpointManager(checkpoint, str(run / "checkpoints"), max_to_keep=2)
    if manager.restore_or_initialize():
        loader.load_state_dict(json.loads(state.numpy()))
    loader.start()  # reads and decodes while the training step is compiled

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, model(images, training=True), from_logits=True
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        # Named: ranks that find other names for it wait for each other forever.
        gradients = hvd.grouped_allreduce(gradients, op=hvd.Average, name="gradients")
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def save() -> None:
        state.assign(json.dumps(loader.state_dict()))  # on every rank: it is of all of them
        if world.rank == 0:
            manager.save()

    with loader, open(run / f"positions-{world.rank}.csv", "a") as log:
        for epoch in range(loader.step // loader.steps_per_epoch, epochs):
            for images, labels, positions in loader.epoch(epoch):
                loss = step(images, labels)
                log.writelines(f"{loader.step},{place},{crop}\n" for place, crop in positions.numpy().tolist())
                log.flush()
                if loader.step % every == 0:
                    save()
            if world.rank == 0:
                print(f"epoch {epoch}  step {loader.step}  loss {loss:.3f}", flush=True)
        save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    parser.add_argument("-o", "--run", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--epochs", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints [%(default)s]")
    args = parser.parse_args()
    train(tfpipe.load_config(args.config), args.run, args.epochs, args.every)


if __name__ == "__main__":
    main()
