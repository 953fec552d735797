"""Stages: one module per stage command, each a function from artefacts to an artefact.

A stage reads only finished artefacts and writes only its output, can be killed at any point, and when run again does
only what is missing. Commands and `train` call the same functions.
"""
