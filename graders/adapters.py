"""Adapters to and from reward functions of TRL, verl and OpenRLHF: the public import path."""

from graders.integrations.reward_functions import from_openrlhf, from_trl, from_verl, to_openrlhf, to_trl, to_verl

__all__ = ["from_openrlhf", "from_trl", "from_verl", "to_openrlhf", "to_trl", "to_verl"]
