"""Fit a line to noisy points by SGD, as a configuration file says, and write metrics.csv."""

import argparse
import csv
import random
from pathlib import Path

import yaml

parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path)
with parser.parse_args().config.open() as file:
    conf = yaml.safe_load(file)

rng, lr, wd = random.Random(conf["seed"]), conf["optim"]["lr"], conf["optim"]["weight_decay"]
slope = offset = 0.0


def point(noise: float) -> tuple[float, float]:
    x = rng.uniform(-1, 1)
    return x, 2 * x + 1 + rng.gauss(0, noise)


held_out = [point(conf["data"]["noise"]) for _ in range(1000)]
Path(conf["out"]).mkdir(exist_ok=True)
with Path(conf["out"], "metrics.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["step", "val_loss"])
    for step in range(1, 101):
        x, y = point(conf["data"]["noise"])
        error = slope * x + offset - y
        slope -= lr * (error * x + wd * slope)
        offset -= lr * error
        if step % 10 == 0:
            loss = sum((slope * x + offset - y) ** 2 for x, y in held_out) / len(held_out)
            table.writerow([step, loss])
