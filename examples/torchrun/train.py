"""Two processes that train one model, under torchrun, on the CPU."""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--out")
parser.add_argument("--resume")
options = parser.parse_args()

dist.init_process_group("gloo")
torch.set_num_threads(1)
rank, first = dist.get_rank(), 1
task = torch.Generator().manual_seed(0)
x = torch.randn(256, 8, generator=task)
y = torch.tanh(x @ torch.randn(8, 1, generator=task))
torch.manual_seed(options.seed)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
order = torch.Generator().manual_seed(2 * options.seed + rank)
if options.resume:
    state = torch.load(options.resume, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    order.set_state(state["random"][rank])
    first = state["step"] + 1
for step in range(first, 101):
    batch = torch.randint(192, (8,), generator=order)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(torch.tanh(model(x[batch])), y[batch]).backward()
    optimizer.step()
    if step % 10 == 0:
        random = [torch.empty_like(order.get_state()) for _ in range(dist.get_world_size())]
        dist.all_gather(random, order.get_state())
        if rank == 0:
            val_loss = torch.nn.functional.mse_loss(torch.tanh(model(x[192:])), y[192:]).item()
            print("[ettsweep]", json.dumps({"step": step, "val_loss": val_loss}), flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random, "step": step}
            torch.save(state, f"{options.out}/part")
            Path(options.out, "part").rename(f"{options.out}/step-{step}.pt")
dist.destroy_process_group()
os._exit(0)  # all is done: some versions of torch abort now and then as a process with gloo ends
