"""A torch ResNet-18 on the crops of a config: python docs/examples/torch_resnet18.py -c configs/sample.json

Under torchrun, or with RANK and WORLD_SIZE set, each process trains on its own share, with gradients averaged.
"""

import argparse
import itertools
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import tfpipe.torch

import tensorflow as tf  # isort: skip  # after tfpipe.torch, which says why


def unit(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Sequential:
    """A convolution, normalised."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(unit(inputs, outputs, stride), nn.ReLU(inplace=True), unit(outputs, outputs))
        same = inputs == outputs and stride == 1
        # Every other pixel, then 1x1, equals 1x1 with stride 2, whose gradient in PyTorch 2.13's oneDNN writes beyond
        # its memory if there are fewer than 8 channels, and crashes the process.
        self.shortcut = nn.Identity() if same else nn.Sequential(nn.MaxPool2d(1, stride), unit(inputs, outputs, size=1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet18(num_classes: int, channels: int = 3, width: int = 64) -> nn.Module:
    """From float [batch, channels, height, width] to logits [batch, num_classes]."""
    layers = [unit(channels, width, stride=2, size=7), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def to_device(images: torch.Tensor, labels: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Moved while they are uint8, then made floats around 0."""
    images = images.to(device, non_blocking=True).float().div_(127.5).sub_(1)
    return images, labels.to(device, non_blocking=True)


def train(config: tfpipe.Config, steps: int, width: int) -> tuple[list[float], float]:
    """The loss of each step, and the accuracy on the test data of this rank, NaN without any."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    tf.config.set_visible_devices([], "GPU")  # TensorFlow would take their memory
    world = tfpipe.World(rank, size, threads=max(1, len(os.sched_getaffinity(0)) // local_size))

    data = config.data
    catalog = tfpipe.stages.load_split(data, "train", world).catalog
    torch.manual_seed(config.training.seed)
    model = resnet18(len(catalog.classes), data.num_channels, width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    if size > 1:
        dist.init_process_group()
        model = nn.parallel.DistributedDataParallel(model)

    def loader(split: str) -> DataLoader:
        batches = tfpipe.torch.iterable(tfpipe.build_dataset(config, split, world))
        return DataLoader(batches, batch_size=None, pin_memory=device.type == "cuda")

    losses, began_s = [], time.monotonic()
    model.train()
    for images, labels in itertools.islice(loader("train"), steps):
        images, labels = to_device(images, labels, device)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and len(losses) % config.training.status == 0:
            rate = size * data.batch_size * len(losses) / (time.monotonic() - began_s)
            print(f"step {len(losses)} of {steps}  loss {losses[-1]:.3f}  {rate:.0f} crops/s")

    if data.test_filelist is None:
        return losses, float("nan")
    right = torch.zeros(2, device=device)
    model.eval()
    with torch.inference_mode():
        for images, labels in loader("test"):
            images, labels = to_device(images, labels, device)
            hits = (model(images).argmax(1) == labels).sum()
            right += torch.stack([hits, torch.tensor(len(labels), device=device)])
    if size > 1:
        dist.all_reduce(right)
        # Before the group: if it went last, it would wait for the group's threads, and they for Python's lock.
        del model
        dist.destroy_process_group()
    return losses, (right[0] / right[1]).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--steps", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--width", type=int, default=64, help="channels of the first layers [%(default)s]")
    args = parser.parse_args()
    losses, accuracy = train(tfpipe.load_config(args.config, args.set), args.steps, args.width)
    if int(os.environ.get("RANK", 0)) == 0:
        print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last; test top-1 {accuracy:.3f}")


if __name__ == "__main__":
    main()
