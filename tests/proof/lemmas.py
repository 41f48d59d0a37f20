"""What follows from the invariants in one state: progress, and that the sweep can finish what a crash left.

Safety alone is kept by a system that does nothing. A lemma with `holds=False` must be refuted: strict lower
equality breaks no invariant, it only loses the progress that `some action moves U` promises.
"""

from dataclasses import dataclass
from typing import Callable

from z3 import And, Not, Or

from action import Params
from model import (
    NO_ERROR,
    OPEN,
    C,
    D,
    K,
    garbage,
    granted,
    held,
    incarnation_of,
    owned,
    settled,
)
from model import Const as c
from offers import (
    commit_accept,
    commit_drop,
    commit_poison,
    commit_poison_at_upper,
    commit_trim,
)
from writing import close


@dataclass(frozen=True)
class Lemma:
    name: str
    params: dict
    given: Callable
    then: Callable
    holds: bool = True
    mutant: str = ""


def possible(s, p, universe, *actions):
    """That the guards of one of these hold here."""
    return Or(
        *[
            And(
                *[
                    instance
                    for sorts, statement in action(s, p)[0]
                    for instance in universe.instances(sorts, statement)
                ]
            )
            for action in actions
        ]
    )


def front(s, p):
    """An open incarnation's next offer, seen against the head as it stands."""
    d, i = p.d, c.inc(p.d)
    return And(
        s.status == OPEN,
        s.known(i),
        s.open(i),
        Not(s.ended(i)),
        Not(s.skipped(i)),
        s.merged(d),
        c.ord(d) == s.done(i),
        s.resolved(i) <= c.lo(d),
        s.saw(d),
        s.saw_upper(d) == s.upper,
        s.saw_fence(d) == s.fence,
        s.saw_status(d) == s.status,
        s.saw_resolved(d) == s.resolved(i),
    )


def reaches_past(s, p):
    return And(front(s, p), s.upper < c.hi(p.d), s.error(p.d) == NO_ERROR)


def at_rest(s, p):
    """No handle, no ledger entry, nothing queued, the incarnation closed, nothing lost, no PUT came late."""
    k = p.k
    return And(
        s.stored(k),
        Not(held(s, k)),
        Not(s.given_up(k)),
        Not(s.given_up_merge(k)),
        s.queued(k) == 0,
        Not(s.lost(k)),
        Not(s.deleted(k)),
    )


LEMMAS = [
    Lemma(
        "some action moves U: the next offer of an open incarnation, if it reaches past U",
        {"d": D},
        reaches_past,
        lambda s, p, universe: possible(s, p, universe, commit_accept, commit_trim),
    ),
    Lemma(
        "refuted: with strict lower equality some action moves U",
        {"d": D},
        reaches_past,
        lambda s, p, universe: possible(s, p, universe, commit_accept),
        holds=False,
        mutant="strict lower equality",
    ),
    Lemma(
        "no next offer of an open chain is left undecided, unless its error is below U",
        {"d": D},
        front,
        lambda s, p, universe: Or(
            possible(
                s, p, universe, commit_accept, commit_trim, commit_poison, commit_poison_at_upper, commit_drop
            ),
            And(s.error(p.d) != NO_ERROR, s.error(p.d) < s.upper),
        ),
    ),
    Lemma(
        "a fresh incarnation's first offer, or the one after it, begins at or below U",
        {},
        lambda s, p: And(s.status == OPEN, s.upper < c.TOP),
        lambda s, p, universe: And(
            granted(s.upper) >= s.compacted,
            Or(granted(s.upper) + 1 <= s.upper, And(granted(s.upper) == s.upper, s.upper == c.ASOF)),
        ),
    ),
    Lemma(
        "an unowned part of something settled is garbage to the sweep",
        {"k": K},
        lambda s, p: And(s.stored(p.k), Not(owned(s, p.k)), settled(s, p.k)),
        lambda s, p, universe: garbage(s, p.k),
    ),
    Lemma(
        "an unowned part of something not settled belongs to an incarnation that can be closed",
        {"k": K},
        lambda s, p: And(s.stored(p.k), Not(owned(s, p.k)), Not(settled(s, p.k))),
        lambda s, p, universe: possible(s, Params(i=incarnation_of(p.k)), universe, close),
    ),
    Lemma(
        "at rest without a crash the store holds what the chain references, and nothing else",
        {"k": K},
        at_rest,
        lambda s, p, universe: s.linked(p.k),
    ),
    Lemma(
        "no registered consumer misses a part it has not acknowledged, unless it reads that it is expired",
        {"k": K, "c": C},
        lambda s, p: And(
            s.ever_linked(p.k),
            s.registered(p.c),
            s.piece_hi(c.desc(p.k)) > s.acked(p.c),
            s.acked(p.c) >= s.expired,
            s.status == OPEN,
        ),
        lambda s, p, universe: And(s.linked(p.k), s.stored(p.k)),
    ),
]
