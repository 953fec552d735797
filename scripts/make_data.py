"""Rebuild the held-out sets byte for byte, and print their rows of the table in `data/README.md`.

python scripts/make_data.py [FOLDER]      FOLDER defaults to data/held_out
"""

import hashlib
import sys
from collections import Counter
from pathlib import Path

import msgspec

from mathppo.problems import HELD_OUT_COUNTS, held_out_set


def held_out_lines(name: str) -> bytes:
    """Return the held-out file of a family: one problem record per line."""
    problems = held_out_set(name, HELD_OUT_COUNTS[name])
    return b"".join(msgspec.json.encode(problem) + b"\n" for problem in problems)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in HELD_OUT_COUNTS:
        content = held_out_lines(name)
        (folder / f"{name}.jsonl").write_bytes(content)
        levels = Counter(msgspec.json.decode(line)["level"] for line in content.splitlines())
        by_level = ", ".join(f"{levels[level]}" for level in sorted(levels))
        digest = hashlib.sha256(content).hexdigest()
        print(f"| `held_out/{name}.jsonl` | {levels.total():,} | {by_level} | `{digest}` |")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "data" / "held_out")
