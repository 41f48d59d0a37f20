"""Offers: a decision is made of a snapshot (`look`), and its commit takes effect if the head still stands there.

Left out on purpose, so that the proof does not lean on it: the checks that the code makes in addition
(`RenderedTooLate`, `RenderedTooEarly`, `FloorAboveUpper`, `MayNotComplete`, the refusal to link a queued key). They
are shown to be never needed while the others hold.
"""

from z3 import And, If, Not, Or

from action import every, now, queue_all
from model import (
    ACCEPTED,
    COMPLETE,
    DROPPED,
    NO_ERROR,
    NONE,
    OPEN,
    POISONED,
    REFUSED,
    TRIMMED,
    K,
    X,
    brought,
    keeps,
    put,
    where,
)
from model import (
    Const as c,
)


def look(s, p):
    i = c.inc(p.d)
    return now(s.merged(p.d), c.ord(p.d) == s.done(i), s.known(i), s.resolved(i) <= c.lo(p.d)), s.after(
        saw=put(s.saw, p.d, True),
        saw_upper=put(s.saw_upper, p.d, s.upper),
        saw_fence=put(s.saw_fence, p.d, s.fence),
        saw_resolved=put(s.saw_resolved, p.d, s.resolved(i)),
        saw_status=put(s.saw_status, p.d, s.status),
    )


def lose_race(s, p):
    """The head moved: the decision is void."""
    guard = now(s.saw(p.d), Or(s.upper != s.saw_upper(p.d), s.fence != s.saw_fence(p.d)))
    return guard, s.after(saw=put(s.saw, p.d, False))


def fenced(s, p, by=lambda p: c.inc(p.d), cas=True):
    """What the transaction checks by itself."""
    i = by(p)
    guard = now(
        s.saw(p.d),
        s.status != DROPPED,
        s.known(i),
        s.open(i),
        c.hi(p.d) > s.resolved(i),
        s.saw_resolved(p.d) <= c.lo(p.d),
    )
    if cas:
        guard += now(s.upper == s.saw_upper(p.d), s.fence == s.saw_fence(p.d))
    return guard


def of_batch(s, d):
    return lambda k: And(c.desc(k) == d, s.batched(k))


def resolve(s, p, i, outcome, lo=None, hi=None):
    changes = dict(outcome=put(s.outcome, p.d, outcome), resolved=put(s.resolved, i, c.hi(p.d)))
    if lo is not None:
        changes.update(piece_lo=put(s.piece_lo, p.d, lo), piece_hi=put(s.piece_hi, p.d, hi))
    return changes


def take(s, p, lo, hi, outcome, status, i=None, empty=False, kept=None, resolves=True):
    """The piece `[lo, hi)` joins the chain. `empty`: it holds nothing, and extends the last row."""
    i = c.inc(p.d) if i is None else i
    of = of_batch(s, p.d)
    kept = kept or (lambda k: keeps(k, lo, hi))
    link = lambda k: And(of(k), kept(k))
    unlink = lambda k: And(of(k), Not(kept(k)))
    changes = dict(upper=hi, status=status, **resolve(s, p, i, outcome, lo, hi), **queue_all(s, unlink))
    if not resolves:
        del changes["resolved"]
    if empty:
        fresh = s.first == s.next
        changes.update(
            next=If(fresh, s.next + 1, s.next),
            row_lo=lambda q: If(And(fresh, q == s.next), lo, s.row_lo(q)),
            row_hi=lambda q: If(And(fresh, q == s.next), hi, s.row_hi(q)),
            row_extent=lambda q: If(
                Or(And(fresh, q == s.next), And(Not(fresh), q == s.next - 1)), hi, s.row_extent(q)
            ),
        )
    else:
        changes.update(
            next=s.next + 1,
            row_lo=put(s.row_lo, s.next, lo),
            row_hi=put(s.row_hi, s.next, hi),
            row_extent=put(s.row_extent, s.next, hi),
            linked=where(s.linked, link, True),
            row=where(s.row, link, lambda k: s.next),
            ever_linked=where(s.ever_linked, link, True),
            delivered=lambda x: s.delivered(x) + brought(s, p.d, x, lo, hi),
        )
    return s.after(**changes)


def ending(hi):
    return If(hi == c.TOP, COMPLETE, OPEN)


def decided(s, p, error=None):
    """What the decision saw of an open chain: the batch begins at or below U and ends above it."""
    wanted = s.error(p.d) == NO_ERROR if error is None else error
    return now(
        s.saw_status(p.d) == OPEN,
        s.status == OPEN,
        c.lo(p.d) <= s.saw_upper(p.d),
        c.hi(p.d) > s.saw_upper(p.d),
        wanted,
    )


def holds_nothing(s, p, lo, hi):
    """No part and no run of the batch holds anything of the piece."""
    return every(K, lambda k: Not(And(of_batch(s, p.d)(k), keeps(k, lo, hi)))) + every(
        X, lambda x: brought(s, p.d, x, lo, hi) == 0
    )


def commit_accept(s, p):
    u = s.saw_upper(p.d)
    return fenced(s, p) + decided(s, p) + now(c.lo(p.d) == u), take(
        s, p, u, c.hi(p.d), ACCEPTED, ending(c.hi(p.d))
    )


def commit_trim(s, p):
    u = s.saw_upper(p.d)
    return fenced(s, p) + decided(s, p) + now(c.lo(p.d) < u), take(
        s, p, u, c.hi(p.d), TRIMMED, ending(c.hi(p.d))
    )


def commit_extend(s, p):
    """An accepted piece that holds nothing: the last row's extent moves, no row is written."""
    u, hi = s.saw_upper(p.d), c.hi(p.d)
    return fenced(s, p) + decided(s, p) + holds_nothing(s, p, u, hi), take(
        s, p, u, hi, If(c.lo(p.d) == u, ACCEPTED, TRIMMED), ending(hi), empty=True
    )


def commit_poison(s, p, empty=False):
    """An error above U: what lies before it is accepted, and the chain ends there."""
    u, e = s.saw_upper(p.d), s.error(p.d)
    guard = (
        fenced(s, p) + decided(s, p, And(e != NO_ERROR, e > u)) + (holds_nothing(s, p, u, e) if empty else [])
    )
    after = take(s, p, u, e, If(c.lo(p.d) == u, ACCEPTED, TRIMMED), POISONED, empty=empty)
    return guard, after.after(poisoned_at=e)


def commit_poison_at_upper(s, p):
    u = s.saw_upper(p.d)
    return fenced(s, p) + decided(s, p, s.error(p.d) == u), s.after(
        status=POISONED,
        poisoned_at=u,
        fence=s.fence + 1,
        **resolve(s, p, c.inc(p.d), REFUSED),
        **queue_all(s, of_batch(s, p.d)),
    )


def covered(s, p):
    return now(Or(s.saw_status(p.d) != OPEN, And(s.error(p.d) == NO_ERROR, c.hi(p.d) <= s.saw_upper(p.d))))


def commit_drop(s, p, queues=True):
    """A covered batch, or one of a chain that takes nothing: its parts are queued."""
    queue = queue_all(s, of_batch(s, p.d)) if queues else {}
    return fenced(s, p) + covered(s, p), s.after(**resolve(s, p, c.inc(p.d), REFUSED), **queue)


def pop(s, d):
    i = c.inc(d)
    return dict(
        done=put(s.done, i, s.done(i) + 1), position=put(s.position, i, c.hi(d)), saw=put(s.saw, d, False)
    )


def drop_unwritten(s, p):
    """A covered batch without parts, not its incarnation's first: nothing is written."""
    i = c.inc(p.d)
    guard = now(
        s.saw(p.d),
        c.ord(p.d) == s.done(i),
        Not(s.ended(i)),
        s.saw_resolved(p.d) != s.as_of(i),
        s.outcome(p.d) == NONE,
    )
    guard += covered(s, p) + every(K, lambda k: Not(of_batch(s, p.d)(k)))
    return guard, s.after(**pop(s, p.d))


def learn_outcome(s, p):
    """The answer to the commit, the read-back, or a new decision that finds it recorded: the handles are settled."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, s.in_offer(k))
    guard = now(
        s.merged(p.d),
        c.ord(p.d) == s.done(i),
        c.hi(p.d) <= s.resolved(i),
        Not(s.ended(i)),
        Not(s.dead(c.minter(i))),
    )
    return guard, s.after(in_offer=where(s.in_offer, of, False), **pop(s, p.d))


def outcome_unknown(s, p, queues=False):
    """No answer: the handles are given up to the ledger, which queues only what is proven; the queue goes on."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, s.in_offer(k))
    guard = now(s.merged(p.d), c.ord(p.d) == s.done(i), Not(s.ended(i)), Not(s.dead(c.minter(i))))
    queue = queue_all(s, of) if queues else {}
    popped = {name: value for name, value in pop(s, p.d).items() if name != "saw"}
    return guard, s.after(
        in_offer=where(s.in_offer, of, False),
        given_up_merge=where(s.given_up_merge, of, True),
        skipped=put(s.skipped, i, True),
        **popped,
        **queue,
    )
