"""Keeps the state of a Loader in Lightning's checkpoints, also in those of an epoch's end.

loader = tfpipe.torch.Loader(config)
trainer = lightning.Trainer(callbacks=[tfpipe.lightning.KeepState(loader)])
trainer.fit(model, loader, ckpt_path="last")
"""

from typing import Any

try:
    import lightning
except ImportError as error:
    raise ImportError(f"tfpipe.lightning needs Lightning ({error}): pip install lightning") from error

from tfpipe.errors import ConfigError
from tfpipe.interop.torch import Loader


class KeepState(lightning.Callback):
    """Saves the state of the Loader of training data with each checkpoint, and goes to it when a fit resumes.

    Lightning itself restores a loader's state from a checkpoint within an epoch, and from no other: its default, a
    checkpoint at each epoch's end, would begin the training data again.
    """

    def __init__(self, loader: Loader) -> None:
        """Keeps the state of `loader`, which fit takes, itself or in a DataLoader or StatefulDataLoader."""
        self.loader = loader
        self._state: dict[str, Any] | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Forgets the checkpoint of an earlier call."""
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the Loader's state; Lightning calls this on every rank."""
        return self.loader.state_dict()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Takes the state out of a checkpoint; raises ConfigError if a fit resumes from one without it."""
        self._state = checkpoint["callbacks"].get(self.state_key)
        if self._state is None and trainer.state.fn == "fit":
            raise ConfigError(
                f"{trainer.ckpt_path}: this checkpoint was saved without tfpipe.lightning.KeepState, so it does not "
                "tell which training data were used: leave KeepState out to begin them again, or fit from a later one"
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Goes to the state; evaluations with a checkpoint do not come here, and leave the Loader where it is."""
        if self._state is not None:
            self.loader.load_state_dict(self._state)
