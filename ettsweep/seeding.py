"""Random draws: each comes from (seed, purpose, position), so that none depends on those before it."""

import hashlib


def derive_seed(seed: int, purpose: str, *position: int | str) -> int:
    """Return a 63-bit seed for one generator.

    Args:
        seed: the run's seed.
        purpose: what is drawn, such as "init" or "order".
        position: where, such as an epoch or a parameter's name.
    """
    key = repr((seed, purpose, *position)).encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1
