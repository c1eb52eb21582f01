"""Start `ettsweep.trainer` on each device of this node, as torchrun does: `python -m ettsweep.trainer.torchrun`.

A warning signal of SLURM to all processes of a job would kill torchrun itself.
"""

from torch.distributed.run import main

from ettsweep.call import heed_worker_alone

if __name__ == "__main__":
    heed_worker_alone()  # its processes inherit that
    main(["--max-restarts=0", "-m", "ettsweep.trainer"])
