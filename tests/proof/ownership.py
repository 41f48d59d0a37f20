"""The invariants of ownership: who holds a part, who may delete it, and who is fenced (I14 to I20)."""

from z3 import And, Implies, Not, Or

from model import (
    GOOD,
    NONE,
    OPEN,
    UNDECLARED,
    C,
    D,
    I,
    K,
    S,
    begin,
    held,
    incarnation_of,
    owned,
    settled,
)
from model import Const as c
from statement import Invariant, Step, live


def mine(k):
    return c.desc(k), incarnation_of(k)


def i14(s, k):
    d, i = mine(k)
    handles = [s.in_upload(k), s.in_share(k), s.in_merge(k), s.in_offer(k)]
    pairs = [Not(And(a, b)) for n, a in enumerate(handles) for b in handles[n + 1 :]]
    return And(
        *pairs,
        0 <= s.queued(k),
        s.queued(k) <= 1,
        Not(And(s.linked(k), s.queued(k) > 0)),
        Implies(And(held(s, k), Or(s.linked(k), s.queued(k) > 0)), settled(s, k)),
    )


def i14_handles(s, k):
    d, i = mine(k)
    named_by = And(s.named(k), s.seen(k), s.said(d, c.reporter(k)) == GOOD)
    return And(
        Implies(Or(held(s, k), s.given_up(k), s.given_up_merge(k)), s.puts(k) > 0),
        Implies(s.in_upload(k), And(Not(s.named(k)), s.said(d, c.reporter(k)) == 0)),
        Implies(s.named(k), named_by),
        Implies(s.in_share(k), And(s.named(k), Not(s.batched(k)))),
        Implies(s.batched(k), And(s.named(k), s.counted(d, c.reporter(k)) > 0)),
        Implies(And(s.named(k), s.counted(d, c.reporter(k)) > 0), s.batched(k)),
        Implies(s.in_merge(k), And(s.batched(k), Not(s.merged(d)), Not(s.ended(i)))),
        Implies(s.in_offer(k), And(s.batched(k), s.merged(d), Not(s.ended(i)))),
    )


def i15(s, k):
    return Implies(
        s.linked(k),
        And(
            s.stored(k),
            s.seen(k),
            Not(s.deleted(k)),
            s.queued(k) == 0,
            s.ever_linked(k),
            s.first <= s.row(k),
            s.row(k) < s.next,
            live(s),
        ),
    )


def i15_proven(s, k):
    return And(
        Implies(
            Or(s.queued(k) > 0, s.deleted(k), s.ever_queued(k), s.judged(k)),
            And(settled(s, k), Not(s.linked(k))),
        ),
        Implies(And(s.seen(k), Not(s.deleted(k))), s.stored(k)),
        Implies(Or(s.stored(k), s.seen(k)), s.puts(k) > 0),
    )


def i15_unread(s, k):
    d = c.desc(k)
    return And(
        Implies(And(live(s), s.ever_linked(k), Not(s.linked(k))), s.piece_hi(d) <= begin(s)),
        Implies(s.linked(k), And(s.piece_hi(d) == s.row_hi(s.row(k)), s.piece_lo(d) == s.row_lo(s.row(k)))),
    )


def i15_acked(s, cons):
    return Implies(
        And(live(s), s.registered(cons)), And(s.released <= s.acked(cons), s.acked(cons) <= s.upper)
    )


def i15_present(s, t, cons):
    """One that stood below the beginning before was passed while it was absent, and reads that it is expired."""
    stands = And(live(s), live(t), s.registered(cons), Not(s.absent(cons)), begin(s) <= s.acked(cons))
    return Implies(And(stands, t.registered(cons)), begin(t) <= t.acked(cons))


def i16(s, k):
    return And(
        Implies(And(s.ever_linked(k), Not(s.linked(k))), s.ever_queued(k)),
        Implies(And(s.batched(k), s.outcome(c.desc(k)) != NONE, Not(s.linked(k))), s.ever_queued(k)),
    )


def i16_queue(s, k):
    return And(
        Implies(And(s.ever_queued(k), s.queued(k) == 0), s.deleted(k)),
        Implies(Or(s.queued(k) > 0, s.deleted(k)), s.ever_queued(k)),
    )


def i17(s, k):
    return Implies(And(s.puts(k) > 0, Not(settled(s, k))), Or(owned(s, k), s.lost(k)))


def i17_closed(s, k):
    return Implies(s.puts(k) > 0, Or(owned(s, k), s.lost(k), s.ever_queued(k)))


def i17_batched(s, k):
    minters = Or(s.in_merge(k), s.in_offer(k), s.given_up_merge(k))
    return Implies(And(s.batched(k), Not(s.ended(incarnation_of(k))), Not(settled(s, k))), minters)


def i17_lost(s, k):
    d, i = mine(k)
    return Implies(And(s.lost(k), s.batched(k), Not(settled(s, k))), s.ended(i))


def i18(s, sweep, k):
    return And(
        Implies(s.planned(sweep, k), And(s.listed(sweep, k), settled(s, k), Not(s.linked(k)))),
        Implies(s.listed(sweep, k), s.puts(k) > 0),
    )


def i19(s, k):
    i = incarnation_of(k)
    return And(0 <= s.puts(k), s.puts(k) <= 1, Implies(s.puts(k) > 0, c.n(k) < s.next_n(i, c.process(k))))


def i20_one(s, i, j):
    both = And(s.known(i), s.known(j), s.open(i), s.open(j), c.replica(i) == c.replica(j))
    return And(
        Implies(both, i == j),
        Implies(s.open(i), And(s.known(i), live(s))),
        Implies(s.known(i), s.status != UNDECLARED),
    )


def i20_saw(s, d):
    return Implies(
        s.saw(d),
        And(
            s.saw_upper(d) <= s.upper,
            s.saw_fence(d) <= s.fence,
            s.saw_resolved(d) <= s.resolved(c.inc(d)),
            Implies(s.saw_status(d) != OPEN, s.status != OPEN),
            s.saw_resolved(d) <= c.lo(d),
            s.saw_status(d) != UNDECLARED,
            s.status != UNDECLARED,
        ),
    )


def i18_step(s, t, k):
    return And(
        Implies(And(s.stored(k), Not(t.stored(k))), And(s.queued(k) > 0, Not(s.linked(k)))),
        Implies(settled(s, k), settled(t, k)),
    )


def i19_step(s, t, k):
    return And(
        Implies(s.puts(k) > 0, t.puts(k) == s.puts(k)), Implies(And(s.deleted(k), t.linked(k)), s.linked(k))
    )


def i20_step(s, t, k):
    i = incarnation_of(k)
    return Implies(
        And(s.known(i), Not(s.open(i))),
        And(
            t.resolved(i) == s.resolved(i),
            Implies(t.linked(k), s.linked(k)),
            t.outcome(c.desc(k)) == s.outcome(c.desc(k)),
        ),
    )


def i20_head(s, t, i):
    same = And(s.status != UNDECLARED, t.upper == s.upper, t.fence == s.fence)
    return Implies(same, And(t.status == s.status, t.open(i) == s.open(i)))


def i20_session(s, t, cons):
    return Implies(
        And(s.registered(cons), t.acked(cons) != s.acked(cons)), t.acked_by(cons) == s.session(cons)
    )


OWNERSHIP = [
    Invariant(
        "I14",
        "one handle at most, none of what the catalog owns unless settled; never linked and queued, nor queued twice",
        (K,),
        i14,
    ),
    Invariant(
        "I14.handles",
        "auxiliary: which handle goes with which state of a share and a batch",
        (K,),
        i14_handles,
    ),
    Invariant(
        "I15", "a referenced part stands in the store, was never deleted, and is not queued", (K,), i15
    ),
    Invariant(
        "I15.proven", "what is queued, deleted or judged garbage can never be referenced", (K,), i15_proven
    ),
    Invariant("I15.unread", "a part is unlinked only when its piece was released or expired", (K,), i15_unread),
    Invariant("I15.acked", "nothing is released that a consumer has not acknowledged", (C,), i15_acked),
    Invariant(
        "I16",
        "what was referenced, or batched and decided, and is not referenced, was queued for deletion",
        (K,),
        i16,
    ),
    Invariant("I16.queue", "nothing leaves the deletion queue that was not deleted", (K,), i16_queue),
    Invariant(
        "I17",
        "nothing is unowned unless its incarnation is closed, its description resolved, or a crash lost it",
        (K,),
        i17,
    ),
    Invariant(
        "I17.closed",
        "without a crash or a lost frame, whatever was PUT has an owner or was queued for deletion",
        (K,),
        i17_closed,
    ),
    Invariant(
        "I17.batched",
        "as long as a merge lives, its process holds all it counted that is not settled",
        (K,),
        i17_batched,
    ),
    Invariant(
        "I17.lost", "what was counted and then lost belonged to a merge that has ended", (K,), i17_lost
    ),
    Invariant(
        "I18",
        "what a sweep plans to take is settled and not referenced, for as long as the plan stands",
        (S, K),
        i18,
    ),
    Invariant("I19", "a key is written at most once, and numbers are never used again", (K,), i19),
    Invariant(
        "I20.one", "a replica has at most one open incarnation; a dropped sink has none", (I, I), i20_one
    ),
    Invariant("I20.saw", "auxiliary: what an offerer saw is never ahead of the catalog", (D,), i20_saw),
    Step(
        "I18.settled",
        "only what is queued is deleted from the store, and being settled is for good",
        (K,),
        i18_step,
    ),
    Step("I15.present", "no consumer that is present is passed", (C,), i15_present),
    Step("I19.revive", "nothing is linked that was deleted, whatever a late PUT brings back", (K,), i19_step),
    Step("I20", "after its closing nothing of an incarnation is resolved or linked", (K,), i20_step),
    Step("I20.head", "what a decision rests on never changes under the same U and fence", (I,), i20_head),
    Step("I20.session", "only the newest session of a consumer moves its frontier", (C,), i20_session),
]
