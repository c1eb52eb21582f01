"""A training script as one has it: arguments, checkpoints, a line of metrics now and then. It knows no ettsweep."""

import argparse
import json
from pathlib import Path

import torch


def main() -> None:
    """Train a small network on a made task with noisy targets, from its last checkpoint if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--resume", type=Path)
    options = parser.parse_args()

    torch.set_num_threads(1)
    task = torch.Generator().manual_seed(0)
    x, x_val = torch.randn(512, 16, generator=task), torch.randn(1024, 16, generator=task)
    teacher = torch.randn(16, generator=task) / 4
    noise = 0.3 * torch.randn(512, generator=task)
    y, y_val = torch.tanh(2 * x @ teacher) + noise, torch.tanh(2 * x_val @ teacher)

    torch.manual_seed(options.seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    first = 1
    if options.resume:
        state = torch.load(options.resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        first = state["step"] + 1

    for step in range(first, options.steps + 1):
        batch = torch.randint(512, (32,))
        loss = torch.nn.functional.mse_loss(model(x[batch]).squeeze(1), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            with torch.no_grad():
                val_loss = torch.nn.functional.mse_loss(model(x_val).squeeze(1), y_val).item()
            with (options.out / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "loss": loss.item(), "val_loss": val_loss}) + "\n")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state | {"random": torch.get_rng_state()}, options.out / f"step-{step}.pt")


if __name__ == "__main__":
    main()
