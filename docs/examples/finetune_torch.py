"""Fine-tunes a model on the images of a DataFrame: python docs/examples/finetune_torch.py flowers.csv --size 128

The table has the columns `path` and `label`. A fifth of the rows, the same in each run, is test data. A model of
torchvision or timm, with its weights as a file:

    --model torchvision.models:resnet50 --weights resnet50.pt --size 224
    --model timm.models.resnet:resnet50 --weights resnet50.pt --size 224 --resize bicubic

The weights, also those of an earlier run, may be of other classes: the last layer is new, and the others rest for the
first epoch. Images are resized by --resize and normalised by ImageNet's mean and deviation, in training and in testing:
for weights of another normalisation, such as timm's with a mean of 0.5, change IMAGENET.
"""

import argparse
import importlib
import json
from pathlib import Path

import torch
from tqdm import tqdm

import tfpipe.torch  # before TensorFlow, which the Loader starts

import pandas as pd  # isort: skip

IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}  # torchvision's, and most of timm's


def build(name: str, classes: int, arguments: dict) -> torch.nn.Module:
    """Calls the function of a module that returns the model."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(num_classes=classes, **arguments)


def take_over(model: torch.nn.Module, weights: Path) -> None:
    """Loads all but the last layer, and stops it from learning; refuses the weights of another model."""
    *_, last = (name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear))
    state = torch.load(weights, map_location="cpu", weights_only=True)
    state = {name: value for name, value in state.items() if not name.startswith(f"{last}.")}
    found = model.load_state_dict(state, strict=False)
    if odd := [name for name in (*found.missing_keys, *found.unexpected_keys) if not name.startswith(f"{last}.")]:
        raise SystemExit(f"{weights} is of another model: {len(odd)} names differ, e.g. {odd[0]}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(f"{last}."))


def accuracy(model: torch.nn.Module, test: tfpipe.Loader) -> float:
    """The share of the test images whose class is right: each counts once."""
    model.eval()
    with torch.no_grad():
        right = [(model(images).argmax(1) == labels).float() for images, labels in test]
    return torch.cat(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--model", default="torch_resnet18:resnet18", help="MODULE:FUNCTION [%(default)s]")
    parser.add_argument("--args", type=json.loads, default={}, help="JSON: further arguments of the function")
    parser.add_argument("--weights", type=Path, help="the state_dict of such a model, or of an earlier run")
    parser.add_argument("--size", type=int, default=128, help="height and width of the crops, in pixels [%(default)s]")
    parser.add_argument("--resize", default="antialias", help="kernel that the model was trained with [%(default)s]")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path, default=Path("model.pt"), help="where to save the weights")
    args = parser.parse_args()

    frame = pd.read_csv(args.table, dtype={"label": str})
    frame["path"] = [str(args.table.parent / path) for path in frame["path"]]
    held_out = frame.sample(frac=0.2, random_state=0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    same = {"image_size": args.size, "batch_size": 32, "device": device, "resize": args.resize}
    same |= {"dtype": "float32", "normalize": IMAGENET}
    train = tfpipe.torch.Loader(frame.drop(held_out.index), crop="random_resized", **same)
    test = tfpipe.torch.Loader(held_out, "test", crop="center", classes=train.class_names, **same)

    torch.manual_seed(0)
    model = build(args.model, len(train.class_names), args.args)
    if args.weights is not None:
        take_over(model, args.weights)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    with train, test:
        for epoch in range(args.epochs):
            model.train()
            for images, labels in tqdm(train.epoch(epoch), f"epoch {epoch + 1}"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.requires_grad_(requires_grad=True)
            print(f"epoch {epoch + 1}: test accuracy {accuracy(model, test):.3f}")
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
