"""The notebook: it is kept without outputs, and runs from top to bottom with pictures."""

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.commands import ROOT
from tests.support.sample import SampleData


def test_the_notebook_runs_and_draws_crops_and_boxes(sample: SampleData, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "docs/examples/first_steps.ipynb", as_version=4)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in codes)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/sample").symlink_to(sample.root)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in codes for output in cell.outputs]
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    crops, boxes = (
        np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB"), int) for picture in pictures
    )
    # In each half of the crops there is something; lines in the colour of the boxes are drawn.
    assert all((part != 255).any(-1).mean() > 0.3 for part in np.array_split(crops, 2, axis=1))
    assert (np.abs(boxes - [0, 255, 0]).sum(-1) < 60).sum() > 50
    text = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "<dtype: 'uint8'> (32, 64, 64, 3)" in text and "Epoch 2/2" in text and "val_accuracy" in text
