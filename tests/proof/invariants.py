"""The invariants, by the names of the design, and the auxiliary ones that make them inductive.

An `Invariant` is a universal statement over a state; a `Step` is one over a state and its successor. Each carries
the sentence that the README's table shows.
"""

from dataclasses import dataclass
from typing import Callable

from z3 import And, If, Implies, Not, Or

from model import (ACCEPTED, C, COMPLETE, Const, D, DROPPED, FAILED, GOOD, I, K, NO_ERROR, NONE, OPEN, P, POISONED, Q, R,
                   REFUSED, S, SILENT, TRIMMED, UNDECLARED, W, X, granted, held, incarnation_of, keeps, larger,
                   may_complete, owned, settled, smaller)


@dataclass(frozen=True)
class Invariant:
    name: str
    says: str
    sorts: tuple
    holds: Callable
    step = False


@dataclass(frozen=True)
class Step:
    name: str
    says: str
    sorts: tuple
    holds: Callable
    step = True


c = Const


def mine(k):
    return c.desc(k), incarnation_of(k)


def taken(s, d):
    return Or(s.outcome(d) == ACCEPTED, s.outcome(d) == TRIMMED)


def i1(s, d):
    i = c.inc(d)
    return Implies(s.minted(d), And(
        s.known(i), 0 <= c.ord(d), c.ord(d) < s.next_ord(i), s.as_of(i) <= c.lo(d), c.lo(d) < c.hi(d),
        c.hi(d) <= s.next_lo(i), c.hi(d) <= c.TOP, (c.ord(d) == 0) == (c.lo(d) == s.as_of(i)),
        Implies(c.ord(d) == s.next_ord(i) - 1, c.hi(d) == s.next_lo(i))))


def i1_follow(s, a, b):
    both = And(s.minted(a), s.minted(b), c.inc(a) == c.inc(b))
    return Implies(both, And(
        Implies(c.ord(a) == c.ord(b), a == b), Implies(c.ord(b) == c.ord(a) + 1, c.lo(b) == c.hi(a)),
        Implies(c.ord(a) < c.ord(b), c.hi(a) <= c.lo(b))))


def i1_next(s, i):
    return And(s.next_ord(i) >= 0, Implies(s.known(i), And(
        s.as_of(i) >= 0, s.as_of(i) <= s.next_lo(i), s.next_lo(i) <= c.TOP,
        (s.next_ord(i) == 0) == (s.next_lo(i) == s.as_of(i)))))


def i2(s, d, w):
    return Implies(And(s.merged(d), c.is_worker(w, c.inc(d))), And(s.counted(d, w) == 1, s.content(d, w) == 1))


def i2_once(s, d, w):
    return And(0 <= s.counted(d, w), s.counted(d, w) <= 1, s.content(d, w) == s.counted(d, w),
               Implies(s.counted(d, w) > 0, And(s.minted(d), c.is_worker(w, c.inc(d)), s.said(d, w) == GOOD)))


def i2_said(s, d, w):
    return And(SILENT <= s.said(d, w), s.said(d, w) <= FAILED,
               Implies(s.said(d, w) != SILENT, And(s.minted(d), c.is_worker(w, c.inc(d)))))


def i3(s, k):
    d = c.desc(k)
    return Implies(s.puts(k) > 0, And(s.minted(d), larger(c.lo(d), c.floor(d)) <= c.tmin(k), c.tmax(k) < c.hi(d)))


def live(s):
    return s.status != DROPPED


def linked_row(s, q):
    return And(live(s), s.first <= q, q < s.next)


def i4(s, q):
    return Implies(linked_row(s, q), And(
        s.row_lo(q) < s.row_hi(q), s.row_hi(q) <= s.row_extent(q),
        Implies(q + 1 < s.next, s.row_lo(q + 1) == s.row_extent(q)), s.row_extent(q) <= s.upper))


def i4_ends(s):
    return And(s.first <= s.next, Implies(live(s), If(
        s.first < s.next,
        And(s.row_lo(s.first) == s.released, s.row_extent(s.next - 1) == s.upper),
        s.released == s.upper)))


def i5(s, k):
    d = c.desc(k)
    return Implies(And(s.outcome(d) == REFUSED, s.batched(k)), And(Not(s.ever_linked(k)), s.ever_queued(k)))


def i6(s, k):
    d = c.desc(k)
    wanted = keeps(k, s.piece_lo(d), s.piece_hi(d))
    return And(Implies(And(taken(s, d), s.batched(k)), And(
        s.ever_linked(k) == wanted, Implies(Not(wanted), s.ever_queued(k)))),
        Implies(s.ever_linked(k), And(taken(s, d), s.batched(k))))


def i6_piece(s, d):
    return Implies(taken(s, d), And(
        c.lo(d) <= s.piece_lo(d), s.piece_lo(d) < s.piece_hi(d), s.piece_hi(d) <= c.hi(d),
        s.piece_hi(d) <= s.upper, (s.outcome(d) == ACCEPTED) == (s.piece_lo(d) == c.lo(d))))


def i7(s, i):
    return Implies(And(s.known(i), s.status == OPEN, Not(s.skipped(i))), s.position(i) <= s.upper)


def i7_floor(s, d):
    return Implies(s.minted(d), c.floor(d) <= s.upper)


def i7_resolved(s, i):
    return Implies(And(s.known(i), s.status == OPEN), s.resolved(i) <= s.upper)


def i8(s, d):
    i = c.inc(d)
    return Implies(And(s.minted(d), c.ord(d) >= s.done(i)), Or(
        s.resolved(i) <= c.lo(d), And(c.ord(d) == s.done(i), s.resolved(i) == c.hi(d), s.outcome(d) != NONE)))


def i8_resolved(s, d):
    return And(NONE <= s.outcome(d), s.outcome(d) <= REFUSED, Implies(s.outcome(d) != NONE, And(
        s.merged(d), c.hi(d) <= s.resolved(c.inc(d)))))


def i8_order(s, d):
    i = c.inc(d)
    return And(s.merged(d) == And(s.minted(d), c.ord(d) < s.left(i)),
               Implies(s.saw(d), And(s.merged(d), c.ord(d) <= s.done(i))),
               Implies(And(s.minted(d), c.ord(d) == s.done(i)), c.lo(d) == s.position(i)))


def i8_counts(s, i):
    return And(0 <= s.done(i), s.done(i) <= s.left(i), s.left(i) <= s.next_ord(i), Implies(s.known(i), And(
        s.as_of(i) <= s.resolved(i), s.resolved(i) <= s.next_lo(i), s.as_of(i) <= s.position(i),
        Implies(s.done(i) == 0, s.position(i) == s.as_of(i)), Implies(s.done(i) == s.next_ord(i), And(
            s.position(i) == s.next_lo(i), s.resolved(i) <= s.position(i))))))


def i8_disjoint(s, a, b):
    return Implies(And(taken(s, a), taken(s, b), a != b),
                   Or(s.piece_hi(a) <= s.piece_lo(b), s.piece_hi(b) <= s.piece_lo(a)))


def i9(s, i):
    return Implies(s.known(i), And(c.ASOF <= s.as_of(i), Or(s.as_of(i) == c.ASOF, s.as_of(i) < s.upper)))


def i10(s, i):
    waits = And(s.known(i), s.open(i), s.resolved(i) == s.as_of(i))
    return And(Implies(waits, s.compacted <= s.as_of(i)),
               Implies(Or(s.status == OPEN, s.status == UNDECLARED), s.compacted <= granted(s.upper)))


def i11(s, x):
    return s.delivered(x) == If(larger(c.time(x), c.ASOF) < smaller(s.upper, c.UPTO), 1, 0)


def said_complete(s):
    return And(UNDECLARED <= s.status, s.status <= DROPPED, c.ASOF <= s.upper, Or(s.upper < c.UPTO, s.upper == c.TOP), s.upper <= c.TOP,
               Implies(s.upper == c.TOP, And(may_complete(), Or(s.status == COMPLETE, s.status == DROPPED))),
               Implies(s.status == COMPLETE, s.upper == c.TOP),
               Implies(s.status == POISONED, s.poisoned_at == s.upper),
               Implies(s.status == UNDECLARED, s.upper == c.ASOF))


def said_minted(s, d):
    return Implies(s.minted(d), And(
        Or(c.hi(d) < c.UPTO, c.hi(d) == c.TOP), Implies(c.hi(d) == c.TOP, may_complete())))


def merge_error(s, d):
    return Or(s.error(d) == NO_ERROR, And(c.lo(d) <= s.error(d), s.error(d) < c.hi(d), s.error(d) < c.UPTO))


def i14(s, k):
    d, i = mine(k)
    handles = [s.in_upload(k), s.in_share(k), s.in_merge(k), s.in_offer(k)]
    pairs = [Not(And(a, b)) for n, a in enumerate(handles) for b in handles[n + 1:]]
    return And(*pairs, 0 <= s.queued(k), s.queued(k) <= 1, Not(And(s.linked(k), s.queued(k) > 0)),
               Implies(And(held(s, k), Or(s.linked(k), s.queued(k) > 0)), settled(s, k)))


def i14_handles(s, k):
    d, i = mine(k)
    named_by = And(s.named(k), s.seen(k), s.said(d, c.reporter(k)) == GOOD)
    return And(Implies(Or(held(s, k), s.given_up(k), s.given_up_merge(k)), s.puts(k) > 0),
               Implies(s.in_upload(k), And(Not(s.named(k)), s.said(d, c.reporter(k)) == 0)),
               Implies(s.named(k), named_by),
               Implies(s.in_share(k), And(s.named(k), Not(s.batched(k)))),
               Implies(s.batched(k), And(s.named(k), s.counted(d, c.reporter(k)) > 0)),
               Implies(And(s.named(k), s.counted(d, c.reporter(k)) > 0), s.batched(k)),
               Implies(s.in_merge(k), And(s.batched(k), Not(s.merged(d)), Not(s.ended(i)))),
               Implies(s.in_offer(k), And(s.batched(k), s.merged(d), Not(s.ended(i)))))


def i15(s, k):
    return Implies(s.linked(k), And(s.stored(k), s.seen(k), Not(s.deleted(k)), s.queued(k) == 0, s.ever_linked(k),
                                    s.first <= s.row(k), s.row(k) < s.next, live(s)))


def i15_proven(s, k):
    return And(Implies(Or(s.queued(k) > 0, s.deleted(k), s.ever_queued(k), s.judged(k)),
                       And(settled(s, k), Not(s.linked(k)))),
               Implies(And(s.seen(k), Not(s.deleted(k))), s.stored(k)),
               Implies(Or(s.stored(k), s.seen(k)), s.puts(k) > 0))


def i15_unread(s, k):
    d = c.desc(k)
    return And(Implies(And(live(s), s.ever_linked(k), Not(s.linked(k))), s.piece_hi(d) <= s.released),
               Implies(s.linked(k), And(s.piece_hi(d) == s.row_hi(s.row(k)), s.piece_lo(d) == s.row_lo(s.row(k)))))


def i15_acked(s, cons):
    return Implies(And(live(s), s.registered(cons)), And(s.released <= s.acked(cons), s.acked(cons) <= s.upper))


def i16(s, k):
    return And(Implies(And(s.ever_linked(k), Not(s.linked(k))), s.ever_queued(k)),
               Implies(And(s.batched(k), s.outcome(c.desc(k)) != NONE, Not(s.linked(k))), s.ever_queued(k)))


def i16_queue(s, k):
    return And(Implies(And(s.ever_queued(k), s.queued(k) == 0), s.deleted(k)),
               Implies(Or(s.queued(k) > 0, s.deleted(k)), s.ever_queued(k)))


def i17(s, k):
    return Implies(And(s.puts(k) > 0, Not(settled(s, k))), Or(owned(s, k), s.lost(k)))


def i17_lost(s, k):
    d, i = mine(k)
    return Implies(And(s.lost(k), s.batched(k), Not(settled(s, k))), s.ended(i))


def i17_batched(s, k):
    minters = Or(s.in_merge(k), s.in_offer(k), s.given_up_merge(k))
    return Implies(And(s.batched(k), Not(s.ended(incarnation_of(k))), Not(settled(s, k))), minters)


def i18(s, sweep, k):
    return And(Implies(s.planned(sweep, k), And(s.listed(sweep, k), settled(s, k), Not(s.linked(k)))),
               Implies(s.listed(sweep, k), s.puts(k) > 0))


def i19(s, k):
    i = incarnation_of(k)
    return And(0 <= s.puts(k), s.puts(k) <= 1, Implies(s.puts(k) > 0, c.n(k) < s.next_n(i, c.process(k))))


def i20_one(s, i, j):
    both = And(s.known(i), s.known(j), s.open(i), s.open(j), c.replica(i) == c.replica(j))
    return And(Implies(both, i == j), Implies(s.open(i), And(s.known(i), live(s))),
               Implies(s.known(i), s.status != UNDECLARED))


def i20_saw(s, d):
    return Implies(s.saw(d), And(
        s.saw_upper(d) <= s.upper, s.saw_fence(d) <= s.fence, s.saw_resolved(d) <= s.resolved(c.inc(d)),
        Implies(s.saw_status(d) != OPEN, s.status != OPEN),
        s.saw_resolved(d) <= c.lo(d), s.saw_status(d) != UNDECLARED, s.status != UNDECLARED))


def i8_stable(s, t, d):
    return Implies(s.outcome(d) != NONE, And(t.outcome(d) == s.outcome(d), t.piece_lo(d) == s.piece_lo(d),
                                             t.piece_hi(d) == s.piece_hi(d)))


def i13(s, t):
    return And(s.upper <= t.upper, s.released <= t.released, s.fence <= t.fence, s.next <= t.next,
               s.compacted <= t.compacted, s.status <= t.status, s.first <= t.first)


def i13_acked(s, t, cons):
    return Implies(And(s.registered(cons), t.registered(cons)), s.acked(cons) <= t.acked(cons))


def i13_resolved(s, t, i):
    return Implies(s.known(i), And(t.known(i), s.resolved(i) <= t.resolved(i), t.as_of(i) == s.as_of(i),
                                   Implies(t.open(i), s.open(i))))


def i18_step(s, t, k):
    return And(Implies(And(s.stored(k), Not(t.stored(k))), And(s.queued(k) > 0, Not(s.linked(k)))),
               Implies(settled(s, k), settled(t, k)))


def i19_step(s, t, k):
    return And(Implies(s.puts(k) > 0, t.puts(k) == s.puts(k)),
               Implies(And(s.deleted(k), t.linked(k)), s.linked(k)))


def i20_step(s, t, k):
    i = incarnation_of(k)
    return Implies(And(s.known(i), Not(s.open(i))), And(
        t.resolved(i) == s.resolved(i), Implies(t.linked(k), s.linked(k)),
        t.outcome(c.desc(k)) == s.outcome(c.desc(k))))


def i20_session(s, t, cons):
    return Implies(And(s.registered(cons), t.acked(cons) != s.acked(cons)), t.acked_by(cons) == s.session(cons))


INVARIANTS = [
    Invariant("I1", "a description lies between its incarnation's as-of and the next lower; the first begins at the as-of", (D,), i1),
    Invariant("I1.follow", "descriptions of one incarnation follow one another without gap or overlap", (D, D), i1_follow),
    Invariant("I1.next", "auxiliary: the next lower is the as-of exactly while nothing is minted", (I,), i1_next),
    Invariant("I2", "of a batch that left the merge, every worker's share was counted once, with its updates", (D, W), i2),
    Invariant("I2.once", "a share counts at most once, only of a worker of the incarnation, and only if it is whole", (D, W), i2_once),
    Invariant("I2.said", "auxiliary: only an incarnation's own workers report, and only what was minted", (D, W), i2_said),
    Invariant("I3", "a part's times lie within its description, and not below its floor", (K,), i3),
    Invariant("I4", "each row begins where the one before extends to", (Q,), i4),
    Invariant("I4.ends", "the first row begins at the released frontier, the last extends to U", (), i4_ends),
    Invariant("I5", "no part of a refused batch is ever referenced, and each was queued for deletion", (K,), i5),
    Invariant("I6", "of an accepted batch exactly the parts that hold something of the piece are referenced", (K,), i6),
    Invariant("I6.piece", "an accepted piece lies within its description and below U; accepted whole iff it begins there", (D,), i6_piece),
    Invariant("I7", "an open incarnation's next offer does not begin above U, unless it had an offer refused", (I,), i7),
    Invariant("I7.floor", "no floor is above U", (D,), i7_floor),
    Invariant("I7.resolved", "while the chain is open, nothing is resolved above U", (I,), i7_resolved),
    Invariant("I8", "what is not resolved begins at or after the resolved upper; else it is the next, and recorded", (D,), i8),
    Invariant("I8.resolved", "what has an outcome lies below its incarnation's resolved upper", (D,), i8_resolved),
    Invariant("I8.order", "batches leave the merge and are offered in the order of their descriptions", (D,), i8_order),
    Invariant("I8.counts", "auxiliary: done, left and minted are in this order; the position is where the next offer begins", (I,), i8_counts),
    Invariant("I8.disjoint", "accepted pieces do not overlap, whoever offered them", (D, D), i8_disjoint),
    Invariant("I9", "every incarnation renders at the original as-of or strictly below U", (I,), i9),
    Invariant("I10", "the inputs are not compacted beyond what a pending rendering or the next grant reads", (I,), i10),
    Invariant("I11", "every update below U was delivered exactly once, every other never", (X,), i11),
    Invariant("Said", "U is empty only if the chain may complete; a poisoned chain ends at its error", (), said_complete),
    Invariant("Said.minted", "a description reaches the empty frontier only if the chain may complete", (D,), said_minted),
    Invariant("Error", "auxiliary: a batch's dataflow error lies within its description", (D,), merge_error),
    Invariant("I14", "one handle at most; never both referenced and queued, nor queued twice; a handle of what the catalog owns is of something settled", (K,), i14),
    Invariant("I14.handles", "auxiliary: which handle goes with which state of a share and a batch", (K,), i14_handles),
    Invariant("I15", "a referenced part stands in the store, was never deleted, and is not queued", (K,), i15),
    Invariant("I15.proven", "what is queued, deleted or judged garbage can never be referenced", (K,), i15_proven),
    Invariant("I15.unread", "a part is unlinked only when its piece was released", (K,), i15_unread),
    Invariant("I15.acked", "nothing is released that a consumer has not acknowledged", (C,), i15_acked),
    Invariant("I16", "what was referenced, or batched and decided, and is not referenced, was queued for deletion", (K,), i16),
    Invariant("I16.queue", "nothing leaves the deletion queue that was not deleted", (K,), i16_queue),
    Invariant("I17", "nothing is owned by nobody unless its incarnation is closed, its description resolved, or it was lost with a crash", (K,), i17),
    Invariant("I17.batched", "as long as a merge lives, its process holds all it counted that is not settled", (K,), i17_batched),
    Invariant("I17.lost", "what was counted and then lost belonged to a merge that has ended", (K,), i17_lost),
    Invariant("I18", "what a sweep plans to take is settled and not referenced, for as long as the plan stands", (S, K), i18),
    Invariant("I19", "a key is written at most once, and numbers are never used again", (K,), i19),
    Invariant("I20.one", "a replica has at most one open incarnation; a dropped sink has none", (I, I), i20_one),
    Invariant("I20.saw", "auxiliary: what an offerer saw is never ahead of the catalog", (D,), i20_saw),
    Step("I8.stable", "an outcome once recorded never changes", (D,), i8_stable),
    Step("I13", "U, the released frontier, the fence, the compaction and the status never move back", (), i13),
    Step("I13.acked", "an acknowledged frontier never moves back", (C,), i13_acked),
    Step("I13.resolved", "a resolved upper never moves back, an as-of never changes, what is closed stays closed", (I,), i13_resolved),
    Step("I18.settled", "only what is queued is deleted from the store, and being settled is for good", (K,), i18_step),
    Step("I19.revive", "nothing is linked that was deleted, whatever a late PUT brings back", (K,), i19_step),
    Step("I20", "after its closing nothing of an incarnation is resolved or linked", (K,), i20_step),
    Step("I20.session", "only the newest session of a consumer moves its frontier", (C,), i20_session),
]
BY_NAME = {invariant.name: invariant for invariant in INVARIANTS}
