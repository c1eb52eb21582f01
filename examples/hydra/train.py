"""A Hydra application: it is configured by overrides, and works in a folder that Hydra makes."""

import json
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig


@hydra.main(version_base=None, config_path=".", config_name="conf")
def main(conf: DictConfig) -> None:
    torch.manual_seed(conf.seed)
    task = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=task)
    y = torch.tanh(x @ torch.randn(8, 1, generator=task))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=conf.optim.lr, weight_decay=conf.optim.wd)
    out = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
    for step in range(1, conf.steps + 1):
        batch = torch.randint(192, (16,))
        loss = torch.nn.functional.mse_loss(torch.tanh(model(x[batch])), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            val_loss = torch.nn.functional.mse_loss(torch.tanh(model(x[192:])), y[192:]).item()
            with (out / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "val_loss": val_loss}) + "\n")


if __name__ == "__main__":
    main()
