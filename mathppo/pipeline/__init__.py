"""Pipeline stages: with the command line, the only package that imports every other.

    prepare → (warmstart) → generate → grade → learn → evaluate

Each stage is a function in `stages`, a verb of `mathppo` and a script; `train.train` runs them all in one process.
"""
