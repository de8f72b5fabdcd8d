"""Networks that are traced in a tenth of the time of a ResNet-18, for tests that are not about networks."""

import keras
from keras import layers, ops


def tiny(
    shape: tuple[int, int, int], classes: int, norm: str = "batch", dropout: float = 0.0, idle: bool = False
) -> keras.Model:
    """Builds one convolution with normalisation: float32 [batch, *shape] in [0, 255] -> logits [batch, classes].

    With `idle`, it has a layer whose weights get no gradient, although they are trainable.
    """
    inputs = keras.Input(shape)
    x = layers.Rescaling(1 / 127.5, -1)(inputs)
    x = layers.Conv2D(8, 3, 2, use_bias=False)(x)
    x = layers.BatchNormalization()(x) if norm == "batch" else layers.GroupNormalization(2)(x)
    x = layers.GlobalAveragePooling2D()(layers.Activation("relu")(x))
    x = layers.Dropout(dropout)(x) if dropout else x
    x = x + ops.stop_gradient(layers.Dense(8, name="idle")(x)) if idle else x
    return keras.Model(inputs, layers.Dense(classes)(x))


def learner(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Builds four convolutions, enough to tell the sample's classes apart: the same arguments and result as `tiny`."""
    inputs = keras.Input(shape)
    x = layers.Rescaling(1 / 127.5, -1)(inputs)
    for filters in (16, 32, 64, 128):
        x = layers.Conv2D(filters, 3, 2, padding="same", use_bias=False)(x)
        x = layers.Activation("relu")(layers.BatchNormalization(momentum=0.8)(x))
    return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))


def of_one_size(shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Builds a layer with a weight for each pixel: the same arguments and result as `tiny`."""
    inputs = keras.Input(shape)
    return keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(inputs)))


def odd(
    shape: tuple[int, int, int], classes: int, outputs: int | None = None, count: int = 1, flat: bool = True
) -> keras.Model:
    """Builds a network with another number of `outputs`, several of them, or one for each pixel."""
    inputs = keras.Input(shape)
    x = layers.GlobalAveragePooling2D()(inputs) if flat else inputs
    logits = [layers.Dense(outputs or classes)(x) for _ in range(count)]
    return keras.Model(inputs, logits if count > 1 else logits[0])
