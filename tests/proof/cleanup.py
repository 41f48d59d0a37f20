"""Consumers, the drop of a sink, the deleter, the sweep and crashes: how parts leave."""

from z3 import And, BoolVal, If, Not, Or

from action import every, forgetting, now, queue_all
from model import (
    DROPPED,
    UNDECLARED,
    C,
    K,
    Q,
    begin,
    garbage,
    incarnation_of,
    put,
    settled,
    where,
)
from model import Const as c

# Consumers.


def register(s, p):
    """A new consumer starts anywhere that is still linked; a known one gets a new session."""
    guard = now(
        s.status != DROPPED,
        s.status != UNDECLARED,
        Or(s.registered(p.c), And(begin(s) <= p.t, p.t <= s.upper)),
    )
    return guard, s.after(
        registered=put(s.registered, p.c, True),
        acked=put(s.acked, p.c, If(s.registered(p.c), s.acked(p.c), p.t)),
        session=put(s.session, p.c, s.session(p.c) + 1),
        absent=put(s.absent, p.c, False),
        fence=s.fence + 1,
    )


def grow_absent(s, p):
    """It was not heard for as long as the sink allows; by whatever clock, so at any time."""
    return now(s.registered(p.c)), s.after(absent=put(s.absent, p.c, True))


def be_heard(s, p):
    """It comes back, or the clock goes back. If it was passed meanwhile, it reads that."""
    return now(s.registered(p.c)), s.after(absent=put(s.absent, p.c, False))


def unregister(s, p):
    return now(s.registered(p.c)), s.after(registered=put(s.registered, p.c, False), fence=s.fence + 1)


def acknowledge(s, p, newest=True):
    guard = now(s.registered(p.c), s.status != DROPPED, s.acked(p.c) < p.t, p.t <= s.upper)
    if newest:
        guard += now(p.session == s.session(p.c))
    return guard, s.after(acked=put(s.acked, p.c, p.t), acked_by=put(s.acked_by, p.c, p.session))


def unlink_below(s, p, queues=True, by="released", prefix=True):
    """Rows before `f` go, and of row `f` what lies below `t`, which does not cut its updates.

    `by` is the frontier that rises. Without `prefix` it is row `f` that goes, wherever it stands."""
    cut = And(s.row_lo(p.f) <= p.t, p.t < s.row_extent(p.f), Or(p.t == s.row_lo(p.f), s.row_hi(p.f) <= p.t))
    guard = now(
        s.status != DROPPED,
        begin(s) <= p.t,
        p.t <= s.upper,
        s.first <= p.f,
        p.f <= s.next,
        If(p.f == s.next, p.t == s.upper, cut),
    )
    rest = And(p.f < s.next, s.row_hi(p.f) <= p.t)
    goes = lambda k: And(s.linked(k), Or(s.row(k) < p.f, And(rest, s.row(k) == p.f)))
    # Uppers of rows rise with their numbers, so "a row whose updates lie below t" is what is meant here.
    guard += every(Q, lambda q: Or(q < s.first, q >= p.f, s.row_hi(q) <= p.t))
    if not prefix:
        goes = lambda k: And(s.linked(k), s.row(k) == p.f)
    queue = queue_all(s, goes) if queues else {}
    return guard, s.after(
        **{by: p.t},
        first=p.f,
        linked=where(s.linked, goes, False),
        row_lo=put(s.row_lo, p.f, If(p.f < s.next, p.t, s.row_lo(p.f))),
        row_hi=put(s.row_hi, p.f, If(rest, s.row_extent(p.f), s.row_hi(p.f))),
        fence=s.fence + 1,
        **queue,
    )


def release(s, p, queues=True):
    """What all consumers acknowledged is unlinked and queued in one transaction."""
    guard, after = unlink_below(s, p, queues)
    return guard + now(s.registered(p.c)) + every(
        C, lambda x: Or(Not(s.registered(x)), p.t <= s.acked(x))
    ), after


def release_expired(s, p):
    """All acknowledged what expiry had taken before: nothing is left to unlink."""
    guard = now(s.registered(p.c), s.status != DROPPED, s.released <= p.t, p.t <= begin(s)) + every(
        C, lambda x: Or(Not(s.registered(x)), p.t <= s.acked(x))
    )
    return guard, s.after(released=p.t, fence=s.fence + 1)


def expire(s, p, heeds_present=True, queues=True, prefix=True):
    """Retention, or the absence of consumers, takes rows that nobody who is present holds, without
    acknowledgement: a prefix, queued in the transaction that unlinks it."""
    guard, after = unlink_below(s, p, queues, by="expired", prefix=prefix)
    if heeds_present:
        guard += every(C, lambda x: Or(Not(s.registered(x)), s.absent(x), p.t <= s.acked(x)))
    return guard, after


def drop_sink(s, p):
    every_row = lambda k: s.linked(k)
    return now(s.status != DROPPED, s.status != UNDECLARED), s.after(
        status=DROPPED,
        fence=s.fence + 1,
        open=lambda i: BoolVal(False),
        linked=lambda k: BoolVal(False),
        first=s.next,
        **queue_all(s, every_row),
    )


# The deleter and the sweep.


def ledger_judges(s, p):
    """A deleter asks the catalog about what was given up; only what is proven garbage may be queued."""
    return now(Or(s.given_up(p.k), s.given_up_merge(p.k)), garbage(s, p.k)), s.after(
        judged=put(s.judged, p.k, True)
    )


def ledger_queues(s, p):
    guard = now(s.judged(p.k), Not(s.linked(p.k)), s.queued(p.k) == 0)
    return guard, s.after(judged=put(s.judged, p.k, False), **queue_all(s, lambda k: k == p.k))


def ledger_settles(s, p):
    """A ledger forgets what the catalog owns."""
    return now(Or(s.linked(p.k), s.queued(p.k) > 0)), s.after(
        given_up=put(s.given_up, p.k, False), given_up_merge=put(s.given_up_merge, p.k, False)
    )


def delete(s, p):
    return now(s.queued(p.k) > 0), s.after(
        stored=put(s.stored, p.k, False), deleted=put(s.deleted, p.k, True)
    )


def dequeue(s, p):
    """What the store said is gone. A late PUT may have brought it back: then the sweep finds it."""
    return now(s.queued(p.k) > 0, s.deleted(p.k)), s.after(queued=put(s.queued, p.k, 0))


def sweep_lists(s, p):
    """A listing shows some of what stands in the store, and forgets what an older one had planned."""
    guard = every(K, lambda k: Or(Not(p.seen(k)), s.stored(k)))
    return guard, s.after(
        listed=lambda v, k: If(v == p.v, p.seen(k), s.listed(v, k)),
        planned=lambda v, k: And(v != p.v, s.planned(v, k)),
    )


def sweep_reads(s, p, verdict=lambda s, k: garbage(s, k)):
    """References, queue and incarnations in one snapshot, after the listing."""
    return now(), s.after(
        planned=lambda v, k: If(v == p.v, And(s.listed(v, k), verdict(s, k)), s.planned(v, k))
    )


def sweep_queues(s, p, heeds_queue=True, judges_again=True):
    again = lambda k: And(Not(s.linked(k)), Or(s.queued(k) == 0, not heeds_queue))
    takes = lambda k: And(s.planned(p.v, k), again(k), settled(s, k) if judges_again else True)
    entry = lambda k: s.queued(k) + 1
    return now(), s.after(queued=where(s.queued, takes, entry), ever_queued=where(s.ever_queued, takes, True))


def crash(s, p):
    """A process dies with every handle, ledger, merge and queue it held."""
    mine = lambda k: c.minter(incarnation_of(k)) == p.p
    writer = lambda k: c.process(k) == p.p
    after = s.after(
        dead=put(s.dead, p.p, True),
        in_upload=where(s.in_upload, writer, False),
        given_up=where(s.given_up, writer, False),
        in_merge=where(s.in_merge, mine, False),
        in_offer=where(s.in_offer, mine, False),
        given_up_merge=where(s.given_up_merge, mine, False),
        ended=lambda i: Or(s.ended(i), c.minter(i) == p.p),
    )
    return now(Not(s.dead(p.p))), forgetting(s, after)
