"""Fine-tunes a ResNet-18 on the images of a DataFrame: python docs/examples/finetune_torch.py flowers.csv

The table has the columns `path` and `label`. A fifth of the rows, the same in each run, is test data. --weights are
those of an earlier run, also of other classes: all layers but the last are taken over, and rest for the first epoch.
"""

import argparse
from pathlib import Path

import torch
from torch_resnet18 import resnet18
from tqdm import tqdm

import tfpipe.torch  # before TensorFlow, which the Loader starts

import pandas as pd  # isort: skip


def taken_over(model: torch.nn.Sequential, weights: Path) -> None:
    """Loads all but the last layer, and stops it from learning."""
    state = torch.load(weights, weights_only=True)
    last = f"{len(model) - 1}."
    model.load_state_dict({name: value for name, value in state.items() if not name.startswith(last)}, strict=False)
    for layer in model[:-1]:
        layer.requires_grad_(requires_grad=False)


def accuracy(model: torch.nn.Module, test: tfpipe.Loader) -> float:
    """The share of the test images whose class is right: each counts once."""
    model.eval()
    with torch.no_grad():
        right = [(model(images.float() / 255).argmax(1) == labels).float() for images, labels in test]
    return torch.cat(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--weights", type=Path, help="weights of an earlier run, e.g. model.pt")
    parser.add_argument("--size", type=int, default=128, help="height and width of the crops, in pixels")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path, default=Path("model.pt"), help="where to save the weights")
    args = parser.parse_args()

    frame = pd.read_csv(args.table, dtype={"label": str})
    frame["path"] = [str(args.table.parent / path) for path in frame["path"]]
    held_out = frame.sample(frac=0.2, random_state=0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    same = {"image_size": args.size, "batch_size": 32, "device": device}
    train = tfpipe.torch.Loader(frame.drop(held_out.index), crop="random_resized", **same)
    test = tfpipe.torch.Loader(held_out, "test", crop="center", classes=train.class_names, **same)

    torch.manual_seed(0)
    model = resnet18(len(train.class_names), width=args.width).to(device)
    if args.weights is not None:
        taken_over(model, args.weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    with train, test:
        for epoch in range(args.epochs):
            model.train()
            for images, labels in tqdm(train.epoch(epoch), f"epoch {epoch + 1}"):
                loss = torch.nn.functional.cross_entropy(model(images.float() / 255), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.requires_grad_(requires_grad=True)
            print(f"epoch {epoch + 1}: test accuracy {accuracy(model, test):.3f}")
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
