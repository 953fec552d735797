"""Errors that transformers raises while loading a broken or unsupported model folder."""

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

UNLOADABLE = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError),
    *(SafetensorError, StrictDataclassError),
)
"""Errors on an unreadable config, tokenizer or weights; callers turn them into a `BadCheckpoint`."""
