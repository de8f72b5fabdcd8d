"""The callbacks for Weights & Biases and MLflow, without a network."""

from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.runs import read_metrics
from tests.support.sample import SampleData
from tfpipe import Config, World, load_config
from tfpipe.training.loop import train

pytestmark = pytest.mark.full("W&B and MLflow are large")


def config_with(sample: SampleData, folder: Path, name: str, **args: str) -> Config:
    callbacks = [{"name": f"trackers:{name}", "args": args, "ranks": "first"}]
    training = {"epochs": 2, "steps_per_epoch": 2}
    return load_config(sample.config(folder / "c.json", training=training, callbacks=callbacks))


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def test_mlflow_has_each_epochs_figures(sample: SampleData, run_dir: Path) -> None:
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{run_dir.parent}/mlruns.db")
    train(config_with(sample, run_dir.parent, "Mlflow", experiment="flowers"), World(), run_dir)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([mlflow.get_experiment_by_name("flowers").experiment_id])
    logged = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "test_top1")]
    assert logged == [(line["epoch"], pytest.approx(line["test_top1"])) for line in read_metrics(run_dir)]
    assert run.info.status == "FINISHED"


def test_wandb_has_each_epochs_figures(sample: SampleData, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    train(config_with(sample, run_dir.parent, "Wandb", project="flowers"), World(), run_dir)
    (record,) = (run_dir.parent / "wandb").glob("offline-run-*/run-*.wandb")
    contents = record.read_bytes()
    assert all(str(line["test_loss"]).encode() in contents for line in read_metrics(run_dir))
