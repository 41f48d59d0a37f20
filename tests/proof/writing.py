"""Sinks, incarnations, minting, PUTs, shares and the merge: all that happens before a batch is offered.

What a process does between two transactions of the catalog can happen in any order, and a process may go on
after its incarnation was closed.
"""

from z3 import And, BoolVal, If, Not, Or

from action import every, forgetting, now
from model import (
    FAILED,
    GOOD,
    NO_ERROR,
    OPEN,
    SILENT,
    UNDECLARED,
    I,
    K,
    W,
    granted,
    incarnation_of,
    larger,
    may_complete,
    put,
    where,
)
from model import (
    Const as c,
)

# Sinks and incarnations.


def declare(s, p):
    return now(s.status == UNDECLARED), s.after(status=OPEN)


def open_incarnation(s, p, as_of=None, ready=lambda s: BoolVal(True)):
    """Registers a new incarnation and closes its replica's older ones, in one transaction."""
    at = granted(s.upper) if as_of is None else as_of(s)
    guard = now(s.status == OPEN, s.upper < c.TOP, Not(s.known(p.i)), Not(s.dead(c.minter(p.i))), ready(s))
    return guard, s.after(
        known=put(s.known, p.i, True),
        as_of=put(s.as_of, p.i, at),
        resolved=put(s.resolved, p.i, at),
        next_lo=put(s.next_lo, p.i, at),
        position=put(s.position, p.i, at),
        open=lambda i: If(i == p.i, True, And(s.open(i), c.replica(i) != c.replica(p.i))),
        fence=s.fence + 1,
    )


def close(s, p):
    """By its replica, by anyone after its lease, or by whoever gives up."""
    return now(s.known(p.i), s.open(p.i)), s.after(open=put(s.open, p.i, False), fence=s.fence + 1)


def compact(s, p, heeds_pending=True):
    """The inputs forget history up to any time that the sink's hold allows."""
    guard = now(s.compacted <= p.t) + now(
        Or(And(s.status != OPEN, s.status != UNDECLARED), p.t <= granted(s.upper))
    )
    if heeds_pending:
        guard += every(
            I, lambda i: Or(Not(s.known(i)), Not(s.open(i)), s.resolved(i) != s.as_of(i), p.t <= s.as_of(i))
        )
    return guard, s.after(compacted=p.t)


# Minting and writing.


def mint(
    s,
    p,
    lower=lambda s, p: c.lo(p.d) == s.next_lo(c.inc(p.d)),
    floor=lambda s, p: c.floor(p.d) <= s.upper,
    complete=lambda: may_complete(),
):
    """The next description; also by an incarnation that was closed and does not know it. The floor is any upper
    that was known once."""
    i = c.inc(p.d)
    snapshot = If(s.as_of(i) + 1 >= c.UPTO, c.TOP, s.as_of(i) + 1)
    guard = now(
        s.known(i),
        Not(s.dead(c.minter(i))),
        Not(s.ended(i)),
        Not(s.minted(p.d)),
        c.ord(p.d) == s.next_ord(i),
        lower(s, p),
        c.lo(p.d) < c.hi(p.d),
        floor(s, p),
        s.next_lo(i) < c.TOP,
        If(s.next_ord(i) == 0, c.hi(p.d) == snapshot, Or(c.hi(p.d) < c.UPTO, c.hi(p.d) == c.TOP)),
        Or(c.hi(p.d) < c.TOP, complete()),
    )
    return guard, s.after(
        minted=put(s.minted, p.d, True),
        next_lo=put(s.next_lo, i, c.hi(p.d)),
        next_ord=put(s.next_ord, i, s.next_ord(i) + 1),
    )


def put_part(s, p, fresh=True):
    """The key enters the ledger under the next number, then the PUT is sent. Closing does not stop a writer."""
    d, i = c.desc(p.k), incarnation_of(p.k)
    guard = now(
        s.minted(d),
        Not(s.dead(c.process(p.k))),
        s.said(d, c.reporter(p.k)) == SILENT,
        c.is_worker(c.reporter(p.k), i),
        larger(c.lo(d), c.floor(d)) <= c.tmin(p.k),
        c.tmax(p.k) < c.hi(d),
    )
    if fresh:
        guard += now(c.n(p.k) == s.next_n(i, c.process(p.k)))
    return guard, s.after(
        puts=put(s.puts, p.k, s.puts(p.k) + 1),
        in_upload=put(s.in_upload, p.k, True),
        next_n=put(s.next_n, i, c.process(p.k), s.next_n(i, c.process(p.k)) + 1),
    )


def put_lands(s, p):
    """At any time after it was sent, and again: a retry may arrive when the part was deleted long since."""
    return now(s.puts(p.k) > 0), s.after(stored=put(s.stored, p.k, True))


def put_is_seen(s, p):
    """Its writer learns that it landed, by the answer or by reading back."""
    return now(s.in_upload(p.k), s.stored(p.k), Not(s.dead(c.process(p.k)))), s.after(
        seen=put(s.seen, p.k, True)
    )


def give_up_part(s, p):
    """A failed PUT, an input of a merge of runs, a share given up: the ledger keeps the key until it is proven."""
    return now(s.in_upload(p.k), Not(s.dead(c.process(p.k)))), s.after(
        in_upload=put(s.in_upload, p.k, False), given_up=put(s.given_up, p.k, True)
    )


# Shares and the merge.


def send_share(s, p):
    """A whole share with any of the parts that were seen to land; its ledger has them as given up from then on."""
    i = c.inc(p.d)
    guard = now(s.minted(p.d), s.said(p.d, p.w) == SILENT, c.is_worker(p.w, i)) + every(
        K,
        lambda k: Or(
            Not(p.parts(k)),
            And(c.desc(k) == p.d, c.reporter(k) == p.w, s.in_upload(k), s.seen(k), Not(s.dead(c.process(k)))),
        ),
    )
    # What the worker uploaded and does not report was given up before.
    guard += every(K, lambda k: Or(p.parts(k), c.desc(k) != p.d, c.reporter(k) != p.w, Not(s.in_upload(k))))
    return guard, s.after(
        said=put(s.said, p.d, p.w, GOOD),
        named=where(s.named, p.parts, True),
        in_upload=where(s.in_upload, p.parts, False),
        in_share=where(s.in_share, p.parts, True),
        given_up=where(s.given_up, p.parts, True),
    )


def send_failure(s, p):
    """A share that failed, or says that the sink is going away. What was uploaded for it was given up before."""
    guard = now(s.minted(p.d), s.said(p.d, p.w) == SILENT, c.is_worker(p.w, c.inc(p.d))) + every(
        K, lambda k: Or(c.desc(k) != p.d, c.reporter(k) != p.w, Not(s.in_upload(k)))
    )
    return guard, s.after(said=put(s.said, p.d, p.w, FAILED))


def lose_share(s, p):
    """A frame is lost on its way."""
    after = s.after(in_share=lambda k: And(s.in_share(k), Not(same_share(k, p.k))))
    return now(s.in_share(p.k)), forgetting(s, after)


def same_share(k, other):
    return And(c.desc(k) == c.desc(other), c.reporter(k) == c.reporter(other))


def report_share(s, p, once=True, failed=False):
    """The merge counts a share; the same frame may arrive any number of times."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, c.reporter(k) == p.w, s.named(k))
    guard = now(
        s.said(p.d, p.w) == (FAILED if failed else GOOD),
        Not(s.ended(i)),
        Not(s.dead(c.minter(i))),
        Not(s.merged(p.d)),
    )
    if once:
        guard += now(s.counted(p.d, p.w) == 0)
    return guard, s.after(
        counted=put(s.counted, p.d, p.w, s.counted(p.d, p.w) + 1),
        content=put(s.content, p.d, p.w, s.content(p.d, p.w) + (0 if failed else 1)),
        in_share=where(s.in_share, of, False),
        in_merge=where(s.in_merge, of, True),
        batched=where(s.batched, of, True),
        lost=where(s.lost, of, False),
    )


def refuse_share(s, p):
    """A duplicate, or a share after the end: its parts are given up by the process that received them."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, c.reporter(k) == p.w, s.named(k))
    guard = now(s.said(p.d, p.w) != SILENT, Not(s.dead(c.minter(i))), Or(s.counted(p.d, p.w) > 0, s.ended(i)))
    return guard, s.after(
        in_share=where(s.in_share, of, False), given_up_merge=where(s.given_up_merge, of, True)
    )


def let_go(s, p):
    """A failed share, an error of an offer, a close: the merge ends, and all it and the queue hold is given up.
    A commit that is under way may still land."""
    mine = lambda k: And(incarnation_of(k) == p.i, Or(s.in_merge(k), s.in_offer(k)))
    return now(s.known(p.i), Not(s.dead(c.minter(p.i)))), s.after(
        ended=put(s.ended, p.i, True),
        in_merge=where(s.in_merge, mine, False),
        in_offer=where(s.in_offer, mine, False),
        given_up_merge=where(s.given_up_merge, mine, True),
    )


def complete_batch(s, p, in_order=True):
    """All workers reported: the batch joins the offer queue, with the earliest dataflow error."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, s.in_merge(k))
    guard = now(
        s.minted(p.d),
        Not(s.merged(p.d)),
        Not(s.ended(i)),
        Not(s.dead(c.minter(i))),
        Or(p.e == NO_ERROR, And(c.lo(p.d) <= p.e, p.e < c.hi(p.d), p.e < c.UPTO)),
    )
    guard += every(W, lambda w: Or(Not(c.is_worker(w, i)), s.counted(p.d, w) > 0))
    if in_order:
        guard += now(c.ord(p.d) == s.left(i))
    return guard, s.after(
        merged=put(s.merged, p.d, True),
        error=put(s.error, p.d, p.e),
        left=put(s.left, i, s.left(i) + 1),
        in_merge=where(s.in_merge, of, False),
        in_offer=where(s.in_offer, of, True),
    )
