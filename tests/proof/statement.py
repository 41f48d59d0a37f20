"""What an invariant is: a name, a sentence, and a universal statement over a state, or over a step."""

from dataclasses import dataclass
from typing import Callable

from model import DROPPED


@dataclass(frozen=True)
class Invariant:
    """Holds in every state."""

    name: str
    says: str
    sorts: tuple
    holds: Callable
    step = False


@dataclass(frozen=True)
class Step:
    """Holds of a state and any that may follow it."""

    name: str
    says: str
    sorts: tuple
    holds: Callable
    step = True


def live(s):
    return s.status != DROPPED
