"""What loading a model folder of unknown making can raise."""

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

UNLOADABLE = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError),
    *(SafetensorError, StrictDataclassError),
)
"""Errors of transformers on a config, tokenizer or weights that it cannot make sense of; each is a `BadCheckpoint`."""
