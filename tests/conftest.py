"""Set-up of all tests: one torch thread, no network, no display, and hypothesis without deadlines."""

import gc
import os

# Set before the libraries that read them are imported; inherited by processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MPLBACKEND"] = "agg"

import torch
from hypothesis import settings

torch.set_num_threads(1)

# Collection creates no garbage; looking for it takes a third of the time.
gc.disable()

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_finish() -> None:
    """Resume garbage collection, without the objects that live as long as the process."""
    gc.freeze()
    gc.enable()
