"""The invariants of the cutover: what is minted, merged, offered, accepted and delivered (I1 to I13)."""

from z3 import And, If, Implies, Not, Or

from model import (
    ACCEPTED,
    COMPLETE,
    DROPPED,
    FAILED,
    GOOD,
    NO_ERROR,
    NONE,
    OPEN,
    POISONED,
    REFUSED,
    SILENT,
    TRIMMED,
    UNDECLARED,
    C,
    D,
    I,
    K,
    Q,
    W,
    X,
    begin,
    granted,
    keeps,
    larger,
    may_complete,
    smaller,
)
from model import Const as c
from statement import Invariant, Step, live


def taken(s, d):
    return Or(s.outcome(d) == ACCEPTED, s.outcome(d) == TRIMMED)


def linked_row(s, q):
    return And(live(s), s.first <= q, q < s.next)


def i1(s, d):
    i = c.inc(d)
    return Implies(
        s.minted(d),
        And(
            s.known(i),
            0 <= c.ord(d),
            c.ord(d) < s.next_ord(i),
            s.as_of(i) <= c.lo(d),
            c.lo(d) < c.hi(d),
            c.hi(d) <= s.next_lo(i),
            c.hi(d) <= c.TOP,
            (c.ord(d) == 0) == (c.lo(d) == s.as_of(i)),
            Implies(c.ord(d) == s.next_ord(i) - 1, c.hi(d) == s.next_lo(i)),
        ),
    )


def i1_follow(s, a, b):
    both = And(s.minted(a), s.minted(b), c.inc(a) == c.inc(b))
    return Implies(
        both,
        And(
            Implies(c.ord(a) == c.ord(b), a == b),
            Implies(c.ord(b) == c.ord(a) + 1, c.lo(b) == c.hi(a)),
            Implies(c.ord(a) < c.ord(b), c.hi(a) <= c.lo(b)),
        ),
    )


def i1_next(s, i):
    unused = And(s.next_ord(i) == 0, Not(s.skipped(i)), Implies(s.ended(i), s.dead(c.minter(i))))
    return And(
        s.next_ord(i) >= 0,
        Implies(Not(s.known(i)), unused),
        Implies(
            s.known(i),
            And(
                s.as_of(i) >= 0,
                s.as_of(i) <= s.next_lo(i),
                s.next_lo(i) <= c.TOP,
                (s.next_ord(i) == 0) == (s.next_lo(i) == s.as_of(i)),
            ),
        ),
    )


def i2(s, d, w):
    return Implies(
        And(s.merged(d), c.is_worker(w, c.inc(d))), And(s.counted(d, w) == 1, s.content(d, w) == 1)
    )


def i2_once(s, d, w):
    return And(
        0 <= s.counted(d, w),
        s.counted(d, w) <= 1,
        s.content(d, w) == s.counted(d, w),
        Implies(s.counted(d, w) > 0, And(s.minted(d), c.is_worker(w, c.inc(d)), s.said(d, w) == GOOD)),
    )


def i2_said(s, d, w):
    return And(
        SILENT <= s.said(d, w),
        s.said(d, w) <= FAILED,
        Implies(s.said(d, w) != SILENT, And(s.minted(d), c.is_worker(w, c.inc(d)))),
    )


def i3(s, k):
    d = c.desc(k)
    return Implies(
        s.puts(k) > 0, And(s.minted(d), larger(c.lo(d), c.floor(d)) <= c.tmin(k), c.tmax(k) < c.hi(d))
    )


def i4(s, q):
    return Implies(
        linked_row(s, q),
        And(
            s.row_lo(q) < s.row_hi(q),
            s.row_hi(q) <= s.row_extent(q),
            Implies(q + 1 < s.next, s.row_lo(q + 1) == s.row_extent(q)),
            s.row_extent(q) <= s.upper,
        ),
    )


def i4_ends(s):
    return And(
        s.first <= s.next,
        c.ASOF <= begin(s),
        Implies(
            live(s),
            If(
                s.first < s.next,
                And(s.row_lo(s.first) == begin(s), s.row_extent(s.next - 1) == s.upper),
                begin(s) == s.upper,
            ),
        ),
    )


def i5(s, k):
    d = c.desc(k)
    return Implies(And(s.outcome(d) == REFUSED, s.batched(k)), And(Not(s.ever_linked(k)), s.ever_queued(k)))


def i6(s, k):
    d = c.desc(k)
    wanted = keeps(k, s.piece_lo(d), s.piece_hi(d))
    return And(
        Implies(
            And(taken(s, d), s.batched(k)),
            And(s.ever_linked(k) == wanted, Implies(Not(wanted), s.ever_queued(k))),
        ),
        Implies(s.ever_linked(k), And(taken(s, d), s.batched(k))),
    )


def i6_piece(s, d):
    return Implies(
        taken(s, d),
        And(
            c.lo(d) <= s.piece_lo(d),
            s.piece_lo(d) < s.piece_hi(d),
            s.piece_hi(d) <= c.hi(d),
            s.piece_hi(d) <= s.upper,
            (s.outcome(d) == ACCEPTED) == (s.piece_lo(d) == c.lo(d)),
        ),
    )


def i7(s, i):
    return Implies(And(s.known(i), s.status == OPEN, Not(s.skipped(i))), s.position(i) <= s.upper)


def i7_floor(s, d):
    return Implies(s.minted(d), c.floor(d) <= s.upper)


def i7_resolved(s, i):
    return Implies(And(s.known(i), s.status == OPEN), s.resolved(i) <= s.upper)


def i8(s, d):
    i = c.inc(d)
    return Implies(
        And(s.minted(d), c.ord(d) >= s.done(i)),
        Or(
            s.resolved(i) <= c.lo(d),
            And(c.ord(d) == s.done(i), s.resolved(i) == c.hi(d), s.outcome(d) != NONE),
        ),
    )


def i8_resolved(s, d):
    return And(
        NONE <= s.outcome(d),
        s.outcome(d) <= REFUSED,
        Implies(s.outcome(d) != NONE, And(s.merged(d), c.hi(d) <= s.resolved(c.inc(d)))),
    )


def i8_order(s, d):
    i = c.inc(d)
    return And(
        s.merged(d) == And(s.minted(d), c.ord(d) < s.left(i)),
        Implies(s.saw(d), And(s.merged(d), c.ord(d) <= s.done(i))),
        Implies(And(s.minted(d), c.ord(d) == s.done(i)), c.lo(d) == s.position(i)),
    )


def i8_counts(s, i):
    return And(
        0 <= s.done(i),
        s.done(i) <= s.left(i),
        s.left(i) <= s.next_ord(i),
        Implies(
            s.known(i),
            And(
                s.as_of(i) <= s.resolved(i),
                s.resolved(i) <= s.next_lo(i),
                s.as_of(i) <= s.position(i),
                Implies(s.done(i) == 0, s.position(i) == s.as_of(i)),
                Implies(
                    s.done(i) == s.next_ord(i),
                    And(s.position(i) == s.next_lo(i), s.resolved(i) <= s.position(i)),
                ),
            ),
        ),
    )


def i8_disjoint(s, a, b):
    return Implies(
        And(taken(s, a), taken(s, b), a != b),
        Or(s.piece_hi(a) <= s.piece_lo(b), s.piece_hi(b) <= s.piece_lo(a)),
    )


def i9(s, i):
    return Implies(s.known(i), And(c.ASOF <= s.as_of(i), Or(s.as_of(i) == c.ASOF, s.as_of(i) < s.upper)))


def i10(s, i):
    waits = And(s.known(i), s.open(i), s.resolved(i) == s.as_of(i))
    return And(
        Implies(waits, s.compacted <= s.as_of(i)),
        Implies(Or(s.status == OPEN, s.status == UNDECLARED), s.compacted <= granted(s.upper)),
    )


def i11(s, x):
    return s.delivered(x) == If(larger(c.time(x), c.ASOF) < smaller(s.upper, c.UPTO), 1, 0)


def said_complete(s):
    return And(
        UNDECLARED <= s.status,
        s.status <= DROPPED,
        c.ASOF <= s.upper,
        Or(s.upper < c.UPTO, s.upper == c.TOP),
        s.upper <= c.TOP,
        Implies(s.upper == c.TOP, And(may_complete(), Or(s.status == COMPLETE, s.status == DROPPED))),
        Implies(s.status == COMPLETE, s.upper == c.TOP),
        Implies(s.status == POISONED, s.poisoned_at == s.upper),
        Implies(s.status == UNDECLARED, s.upper == c.ASOF),
    )


def said_minted(s, d):
    return Implies(
        s.minted(d), And(Or(c.hi(d) < c.UPTO, c.hi(d) == c.TOP), Implies(c.hi(d) == c.TOP, may_complete()))
    )


def merge_error(s, d):
    return Or(s.error(d) == NO_ERROR, And(c.lo(d) <= s.error(d), s.error(d) < c.hi(d), s.error(d) < c.UPTO))


def i8_stable(s, t, d):
    return Implies(
        s.outcome(d) != NONE,
        And(t.outcome(d) == s.outcome(d), t.piece_lo(d) == s.piece_lo(d), t.piece_hi(d) == s.piece_hi(d)),
    )


def i13(s, t):
    return And(
        s.upper <= t.upper,
        s.released <= t.released,
        s.expired <= t.expired,
        s.fence <= t.fence,
        s.next <= t.next,
        s.compacted <= t.compacted,
        s.status <= t.status,
        s.first <= t.first,
    )


def i13_acked(s, t, cons):
    return Implies(And(s.registered(cons), t.registered(cons)), s.acked(cons) <= t.acked(cons))


def i13_resolved(s, t, i):
    return Implies(
        s.known(i),
        And(
            t.known(i),
            s.resolved(i) <= t.resolved(i),
            t.as_of(i) == s.as_of(i),
            Implies(t.open(i), s.open(i)),
        ),
    )


CUTOVER = [
    Invariant(
        "I1",
        "a description lies between its incarnation's as-of and the next lower; the first begins at the as-of",
        (D,),
        i1,
    ),
    Invariant(
        "I1.follow",
        "descriptions of one incarnation follow one another without gap or overlap",
        (D, D),
        i1_follow,
    ),
    Invariant(
        "I1.next",
        "auxiliary: the next lower is the as-of while nothing is minted; what is not registered is unused",
        (I,),
        i1_next,
    ),
    Invariant(
        "I2",
        "of a batch that left the merge, every worker's share was counted once, with its updates",
        (D, W),
        i2,
    ),
    Invariant(
        "I2.once",
        "a share counts at most once, only of a worker of the incarnation, and only if it is whole",
        (D, W),
        i2_once,
    ),
    Invariant(
        "I2.said",
        "auxiliary: only an incarnation's own workers report, and only what was minted",
        (D, W),
        i2_said,
    ),
    Invariant("I3", "a part's times lie within its description, and not below its floor", (K,), i3),
    Invariant("I4", "each row begins where the one before extends to", (Q,), i4),
    Invariant(
        "I4.ends",
        "the first row begins where release and expiry ended, the last extends to U",
        (),
        i4_ends,
    ),
    Invariant(
        "I5", "no part of a refused batch is ever referenced, and each was queued for deletion", (K,), i5
    ),
    Invariant(
        "I6",
        "of an accepted batch exactly the parts that hold something of the piece are referenced",
        (K,),
        i6,
    ),
    Invariant(
        "I6.piece",
        "an accepted piece lies within its description and below U; accepted whole iff it begins there",
        (D,),
        i6_piece,
    ),
    Invariant(
        "I7",
        "an open incarnation's next offer does not begin above U, unless it had an offer refused",
        (I,),
        i7,
    ),
    Invariant("I7.floor", "no floor is above U", (D,), i7_floor),
    Invariant("I7.resolved", "while the chain is open, nothing is resolved above U", (I,), i7_resolved),
    Invariant(
        "I8",
        "what is not resolved begins at or after the resolved upper; else it is the next, and recorded",
        (D,),
        i8,
    ),
    Invariant(
        "I8.resolved", "what has an outcome lies below its incarnation's resolved upper", (D,), i8_resolved
    ),
    Invariant(
        "I8.order",
        "batches leave the merge and are offered in the order of their descriptions",
        (D,),
        i8_order,
    ),
    Invariant(
        "I8.counts",
        "auxiliary: done, left and minted are in this order; the position is where the next offer begins",
        (I,),
        i8_counts,
    ),
    Invariant("I8.disjoint", "accepted pieces do not overlap, whoever offered them", (D, D), i8_disjoint),
    Invariant("I9", "every incarnation renders at the original as-of or strictly below U", (I,), i9),
    Invariant(
        "I10",
        "the inputs are not compacted beyond what a pending rendering or the next grant reads",
        (I,),
        i10,
    ),
    Invariant("I11", "every update below U was delivered exactly once, every other never", (X,), i11),
    Invariant(
        "Said",
        "U is empty only if the chain may complete; a poisoned chain ends at its error",
        (),
        said_complete,
    ),
    Invariant(
        "Said.minted",
        "a description reaches the empty frontier only if the chain may complete",
        (D,),
        said_minted,
    ),
    Invariant("Error", "auxiliary: a batch's dataflow error lies within its description", (D,), merge_error),
    Step("I8.stable", "an outcome once recorded never changes", (D,), i8_stable),
    Step(
        "I13",
        "U, the released and expired frontiers, the fence, the compaction and the status never move back",
        (),
        i13,
    ),
    Step("I13.acked", "an acknowledged frontier never moves back", (C,), i13_acked),
    Step(
        "I13.resolved",
        "a resolved upper never moves back, an as-of never changes, what is closed stays closed",
        (I,),
        i13_resolved,
    ),
]
