"""Seed derivation: every seed of a run derives from the run seed and a name.

A derived seed depends on its parts only, so results do not depend on batch order, replicas or interruptions.
"""

import hashlib


def derive_seed(run_seed: int, *parts: int | str) -> int:
    """Return the seed of one named use of randomness.

    The first 63 bits of BLAKE2b over the typed, length-prefixed parts: `derive_seed(1, "a", "b")` and
    `derive_seed(1, "ab")` differ, as do `1` and `"1"`; the value is the same on every platform and Python version.

    Args:
        run_seed: the run's seed, any integer.
        parts: name of the use, for instance `("sample", iteration, problem_id, sample_index)`.

    Returns:
        An integer, 0 <= seed < 2**63.

    Raises:
        TypeError: a part is neither an integer nor a string.

    >>> derive_seed(0, "sample", 3, "p17", 1) == derive_seed(0, "sample", 3, "p17", 1)
    True
    """
    digest = hashlib.blake2b(digest_size=8, person=b"mathppo-seed")
    for part in (run_seed, *parts):
        if isinstance(part, bool) or not isinstance(part, int | str):
            raise TypeError(f"derive_seed: expected integers and strings, got {part!r} ({type(part).__name__})")
        kind = b"s" if isinstance(part, str) else b"i"
        encoded = str(part).encode("utf-8", "surrogatepass")
        digest.update(kind + len(encoded).to_bytes(8, "big") + encoded)
    return int.from_bytes(digest.digest(), "big") >> 1
