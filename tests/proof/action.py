"""What an action is, and what several of them have in common.

An action is a function of a state and of parameters of any value; it returns its guards and the state after it.
A guard is a list of sorts and a universal statement over them.
"""

from dataclasses import dataclass
from typing import Callable

from z3 import And, BoolSort, Const, Function, If, Int, Not, Or

from model import SORTS, owned, where


@dataclass(frozen=True)
class Action:
    """`params` maps a name to a sort, to "time" for an integer, or to a tuple of sorts for a set."""

    name: str
    params: dict
    does: Callable

    def make_params(self):
        made, given = {}, {}
        for name, kind in self.params.items():
            if isinstance(kind, tuple):
                made[name] = Function(f"p_{name}", *[SORTS[sort] for sort in kind], BoolSort())
            elif kind == "time":
                made[name] = Int(f"p_{name}")
            else:
                made[name] = Const(f"p_{name}", SORTS[kind])
                given.setdefault(kind, []).append(made[name])
        return made, given


class Params(dict):
    __getattr__ = dict.__getitem__


def now(*conditions):
    return [((), lambda: And(*conditions))]


def every(*sorts_and_statement):
    *sorts, statement = sorts_and_statement
    return [(tuple(sorts), statement)]


def forgetting(s, after):
    """Marks as lost what had an owner before and has none after."""
    return after.after(lost=lambda k: Or(s.lost(k), And(owned(s, k), Not(owned(after, k)))))


def queue_all(s, which):
    """Into the deletion queue, unless a part is there already."""
    return dict(
        queued=where(s.queued, which, lambda k: If(s.queued(k) > 0, s.queued(k), 1)),
        ever_queued=where(s.ever_queued, which, True),
    )
