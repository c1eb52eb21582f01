"""Random draws: each comes from (seed, purpose, position), independent of earlier ones."""

import hashlib


def derive_seed(seed: int, purpose: str, *position: int | str) -> int:
    """Return a 63-bit seed for one generator.

    Args:
        seed: the run's seed.
        purpose: of the draw, such as "init" or "order".
        position: of the draw, such as an epoch or a parameter's name.
    """
    key = repr((seed, purpose, *position)).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1
