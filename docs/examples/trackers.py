"""A run's figures in Weights & Biases or MLflow: callbacks for the config's `callbacks`, on rank 0.

"callbacks": [{"name": "trackers:Wandb", "args": {"project": "imagenet"}, "ranks": "first"}]
"callbacks": [{"name": "trackers:Mlflow", "args": {"experiment": "imagenet"}, "ranks": "first"}]

cp docs/examples/trackers.py .
WANDB_MODE=offline python train.py -c CONFIG -l runs/x                      # wandb sync wandb/offline-run-*, later
MLFLOW_TRACKING_URI=sqlite:///mlruns.db python train.py -c CONFIG -l runs/x    # without a server
"""

from typing import Any

import keras


def figures(logs: dict[str, Any]) -> dict[str, float]:
    """Returns the numbers of an epoch's logs; tables by class are left out."""
    return {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}


class Wandb(keras.callbacks.Callback):
    """Logs each epoch to a run of Weights & Biases; `id` continues one after a resume."""

    def __init__(self, project: str, id: str | None = None) -> None:
        super().__init__()
        import wandb

        self.run = wandb.init(project=project, id=id, resume="allow")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self.run.log({"epoch": epoch + 1, **figures(logs)})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        self.run.finish()


class Mlflow(keras.callbacks.Callback):
    """Logs each epoch to a run of MLflow; `run_id` continues one after a resume."""

    def __init__(self, experiment: str, run_id: str | None = None) -> None:
        super().__init__()
        import mlflow

        self.mlflow = mlflow
        mlflow.set_experiment(experiment)
        mlflow.start_run(run_id=run_id)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self.mlflow.log_metrics(figures(logs), step=epoch + 1)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        self.mlflow.end_run()
