"""A DDP loop that resumes after a kill: torchrun --nproc-per-node 2 docs/examples/loop_torch.py -c CONFIG -o RUN

Started again, on any number of ranks, it resumes with the next crop after its last checkpoint. RUN/positions-*.csv
holds what each rank has trained: step, position, crop.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import tfpipe.torch


def build(channels: int, classes: int) -> nn.Module:
    """From float [batch, channels, height, width] to logits [batch, classes]."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, classes)).to(memory_format=torch.channels_last)


def train(config: tfpipe.Config, run: Path, epochs: int, every: int, device: torch.device) -> None:
    run.mkdir(parents=True, exist_ok=True)
    loader = tfpipe.torch.Loader(config, device=device, positions=True)
    model = nn.parallel.DistributedDataParallel(build(config.data.num_channels, len(loader.catalog.classes)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    saved = run / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])

    def save() -> None:
        # One file holds the weights and the loader's state: neither is ever ahead of the other.
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state["loader"] = loader.state_dict()  # on every rank: it is of all of them
        if dist.get_rank() == 0:
            torch.save(state, saved.with_suffix(".new"))
            saved.with_suffix(".new").replace(saved)

    with loader, open(run / f"positions-{dist.get_rank()}.csv", "a") as log:
        for epoch in range(loader.step // loader.steps_per_epoch, epochs):
            for images, labels, positions in loader.epoch(epoch):
                loss = nn.functional.cross_entropy(model(images.float().div_(127.5).sub_(1)), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                log.writelines(f"{loader.step},{place},{crop}\n" for place, crop in positions.tolist())
                log.flush()
                if loader.step % every == 0:
                    save()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}  step {loader.step}  loss {loss.item():.3f}", flush=True)
        save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    parser.add_argument("-o", "--run", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--epochs", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints [%(default)s]")
    args = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group()
    train(tfpipe.load_config(args.config), args.run, args.epochs, args.every, device)
    # After the model, whose end would wait for the group's threads, and they for Python's lock.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
