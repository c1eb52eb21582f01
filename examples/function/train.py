"""Digits by a small network in plain torch: a run of a second that resumes exactly."""

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F


def main(run, width=32, steps=200, batch_size=64):
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(run.seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.lr, weight_decay=run.wd)
    if run.resume_from:
        state = torch.load(run.resume_from, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    for step in range(run.resume_step + 1, steps + 1):
        batch = torch.randint(1000, (batch_size,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(step, loss=loss.item())
        if step % 20 == 0:
            with torch.no_grad():
                run.log(step, val_loss=F.cross_entropy(model(images[1000:]), labels[1000:]).item())
        if step % 50 == 0 or run.should_stop:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
            run.save(step, lambda path, parts=parts: torch.save(parts, path))
        if run.should_stop:
            return
