"""A Lightning module with its CSVLogger and its own checkpoints."""

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger


class Regression(lightning.LightningModule):
    """A small network that learns a sine."""

    def __init__(self, lr: float, wd: float) -> None:
        super().__init__()
        self.lr, self.wd = lr, wd
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        x, y = batch
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.wd)


parser = argparse.ArgumentParser()
for name in ("--lr", "--wd"):
    parser.add_argument(name, type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--out")
parser.add_argument("--resume")
options = parser.parse_args()

task = torch.Generator().manual_seed(0)
x = torch.randn(512, 8, generator=task)
y = torch.sin(x.sum(1, keepdim=True))
data = torch.utils.data.TensorDataset(x, y)
train, val = torch.utils.data.random_split(data, (384, 128), generator=task)
lightning.seed_everything(options.seed)
trainer = lightning.Trainer(
    max_epochs=8,
    accelerator="cpu",
    logger=CSVLogger(options.out, name="csv"),
    callbacks=[ModelCheckpoint(f"{options.out}/checkpoints", filename="{epoch}", save_top_k=-1)],
    enable_progress_bar=False,
)
loaders = (torch.utils.data.DataLoader(part, 32, shuffle=part is train) for part in (train, val))
trainer.fit(Regression(options.lr, options.wd), *loaders, ckpt_path=options.resume)
