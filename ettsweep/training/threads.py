"""With how many threads of the CPU a run is trained: more make small operators slower, not faster."""

import math
import time
from functools import cache

import torch

from ettsweep.models.cost import train_flops_per_sample
from ettsweep.spec import RunSpec
from ettsweep.training.memory import TrialModel, fitting_micro_batch

TRIAL_FLOPS = 1e10
"""Work of a step beyond which there is no trial: of some tenths of a second on one thread, which others shorten."""

TRIES = 5
"""Steps with each number of threads, of which the fastest counts: others use the machine too."""

GAIN = 1.1
"""How many times as fast more threads have to be: fewer leave the cores to others."""


@cache
def fastest_threads(spec: RunSpec, most: int) -> int:
    """Return with how many threads runs like one train fastest: 1, 2, 4 ... or the most there are, by a short trial."""
    device = torch.device("cpu")
    size = fitting_micro_batch(spec, spec.batch_size, device, recompute=False)
    if most == 1 or size * train_flops_per_sample(spec.model) > TRIAL_FLOPS:
        return most
    trainer, batches = TrialModel(spec, device, recompute=False).trainer(size)
    counts = sorted({2**k for k in range(most.bit_length()) if 2**k < most} | {most})
    took_s, before = dict.fromkeys(counts, math.inf), torch.get_num_threads()
    try:
        for _ in range(TRIES):
            for number in counts:
                torch.set_num_threads(number)
                started_s = time.perf_counter()
                trainer.train_step(0.0, batches)
                took_s[number] = min(took_s[number], time.perf_counter() - started_s)
    finally:
        torch.set_num_threads(before)
    return next(number for number in counts if took_s[number] <= GAIN * min(took_s.values()))
