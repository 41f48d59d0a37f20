"""What can happen, one named action after another.

An action is a function of a state and of parameters of any value; it returns its guards and the state after it.
A guard is a list of sorts and a universal statement over them. Actions of the catalog are its transactions, and
what a process does between two of them can happen in any order.

Left out on purpose, so that the proof does not lean on it: the checks that the code makes in addition
(`RenderedTooLate`, `FloorAboveUpper`, `MayNotComplete`, the refusal to link a queued key). They are shown to be
never needed while the others hold.
"""

from dataclasses import dataclass, field
from typing import Callable

from z3 import And, BoolVal, Function, If, Int, Not, Or, Const as Z3Const, BoolSort

from model import (ACCEPTED, C, COMPLETE, Const as c, D, DROPPED, FAILED, GOOD, I, K, NO_ERROR, NONE, OPEN, P,
                   POISONED, Q, REFUSED, S, SILENT, SORTS, TRIMMED, UNDECLARED, W, X, brought, garbage, granted,
                   incarnation_of, keeps, larger, may_complete, owned, put, settled, smaller, where)


@dataclass(frozen=True)
class Action:
    """`params` maps a name to a sort, to "time" for an integer, or to a tuple of sorts for a set."""

    name: str
    params: dict
    does: Callable
    terms: dict = field(default_factory=dict)

    def make_params(self):
        made, given = {}, {}
        for name, kind in self.params.items():
            if isinstance(kind, tuple):
                made[name] = Function(f"p_{name}", *[SORTS[sort] for sort in kind], BoolSort())
            elif kind == "time":
                made[name] = Int(f"p_{name}")
            else:
                made[name] = Z3Const(f"p_{name}", SORTS[kind])
                given.setdefault(kind, []).append(made[name])
        return made, given


class Params(dict):
    __getattr__ = dict.__getitem__


def now(*conditions):
    return [((), lambda: And(*conditions))]


def every(*sorts_and_statement):
    *sorts, statement = sorts_and_statement
    return [(tuple(sorts), statement)]


# Sinks and incarnations.

def declare(s, p):
    return now(s.status == UNDECLARED), s.after(status=OPEN)


def open_incarnation(s, p, as_of=None, ready=lambda s: BoolVal(True)):
    """Registers a new incarnation and closes its replica's older ones, in one transaction."""
    at = granted(s.upper) if as_of is None else as_of(s)
    guard = now(s.status == OPEN, s.upper < c.TOP, Not(s.known(p.i)), Not(s.dead(c.minter(p.i))), s.next_ord(p.i) == 0,
                ready(s))
    return guard, s.after(
        known=put(s.known, p.i, True), as_of=put(s.as_of, p.i, at), resolved=put(s.resolved, p.i, at),
        next_lo=put(s.next_lo, p.i, at), position=put(s.position, p.i, at),
        open=lambda i: If(i == p.i, True, And(s.open(i), c.replica(i) != c.replica(p.i))), fence=s.fence + 1)


def close(s, p):
    """By its replica, by anyone after its lease, or by whoever gives up."""
    return now(s.known(p.i), s.open(p.i)), s.after(open=put(s.open, p.i, False), fence=s.fence + 1)


def compact(s, p, heeds_pending=True):
    """The inputs forget history up to any time that the sink's hold allows."""
    guard = now(s.compacted <= p.t) + now(Or(And(s.status != OPEN, s.status != UNDECLARED), p.t <= granted(s.upper)))
    if heeds_pending:
        guard += every(I, lambda i: Or(Not(s.known(i)), Not(s.open(i)), s.resolved(i) != s.as_of(i), p.t <= s.as_of(i)))
    return guard, s.after(compacted=p.t)


# Minting and writing.

def mint(s, p, lower=lambda s, p: c.lo(p.d) == s.next_lo(c.inc(p.d)), floor=lambda s, p: c.floor(p.d) <= s.upper,
         complete=lambda: may_complete()):
    """The next description; also by an incarnation that was closed and does not know it. The floor is any upper
    that was known once."""
    i = c.inc(p.d)
    snapshot = If(s.as_of(i) + 1 >= c.UPTO, c.TOP, s.as_of(i) + 1)
    guard = now(s.known(i), Not(s.dead(c.minter(i))), Not(s.ended(i)), Not(s.minted(p.d)), Not(s.merged(p.d)),
                c.ord(p.d) == s.next_ord(i), lower(s, p), c.lo(p.d) < c.hi(p.d), floor(s, p),
                s.next_lo(i) < c.TOP,
                If(s.next_ord(i) == 0, c.hi(p.d) == snapshot, Or(c.hi(p.d) < c.UPTO, c.hi(p.d) == c.TOP)),
                Or(c.hi(p.d) < c.TOP, complete()))
    return guard, s.after(minted=put(s.minted, p.d, True), next_lo=put(s.next_lo, i, c.hi(p.d)),
                          next_ord=put(s.next_ord, i, s.next_ord(i) + 1))


def put_part(s, p, fresh=True):
    """The key enters the ledger under the next number, then the PUT is sent. Closing does not stop a writer."""
    d, i = c.desc(p.k), incarnation_of(p.k)
    guard = now(s.minted(d), Not(s.dead(c.process(p.k))), s.said(d, c.reporter(p.k)) == SILENT,
                c.is_worker(c.reporter(p.k), i), larger(c.lo(d), c.floor(d)) <= c.tmin(p.k), c.tmax(p.k) < c.hi(d))
    if fresh:
        guard += now(c.n(p.k) == s.next_n(i, c.process(p.k)))
    return guard, s.after(puts=put(s.puts, p.k, s.puts(p.k) + 1), in_upload=put(s.in_upload, p.k, True),
                          next_n=put(s.next_n, i, c.process(p.k), s.next_n(i, c.process(p.k)) + 1))


def put_lands(s, p):
    """At any time after it was sent, and again: a retry may arrive when the part was deleted long since."""
    return now(s.puts(p.k) > 0), s.after(stored=put(s.stored, p.k, True))


def put_is_seen(s, p):
    """Its writer learns that it landed, by the answer or by reading back."""
    return now(s.in_upload(p.k), s.stored(p.k), Not(s.deleted(p.k)), Not(s.dead(c.process(p.k)))), s.after(
        seen=put(s.seen, p.k, True))


def give_up_part(s, p):
    """A failed PUT, an input of a merge of runs, a share given up: the ledger keeps the key until it is proven."""
    return now(s.in_upload(p.k), Not(s.dead(c.process(p.k)))), s.after(
        in_upload=put(s.in_upload, p.k, False), given_up=put(s.given_up, p.k, True))


# Shares and the merge.

def send_share(s, p):
    """A whole share with any of the parts that were seen to land; its ledger has them as given up from then on."""
    i = c.inc(p.d)
    guard = now(s.minted(p.d), s.said(p.d, p.w) == SILENT, c.is_worker(p.w, i)) + every(K, lambda k: Or(
        Not(p.parts(k)), And(c.desc(k) == p.d, c.reporter(k) == p.w, s.in_upload(k), s.seen(k),
                             Not(s.dead(c.process(k))))))
    # What the worker uploaded and does not report was given up before.
    guard += every(K, lambda k: Or(p.parts(k), c.desc(k) != p.d, c.reporter(k) != p.w, Not(s.in_upload(k))))
    return guard, s.after(
        said=put(s.said, p.d, p.w, GOOD), named=where(s.named, p.parts, True),
        in_upload=where(s.in_upload, p.parts, False), in_share=where(s.in_share, p.parts, True),
        given_up=where(s.given_up, p.parts, True))


def send_failure(s, p):
    """A share that failed, or says that the sink is going away. What was uploaded for it was given up before."""
    guard = now(s.minted(p.d), s.said(p.d, p.w) == SILENT, c.is_worker(p.w, c.inc(p.d))) + every(K, lambda k: Or(
        c.desc(k) != p.d, c.reporter(k) != p.w, Not(s.in_upload(k))))
    return guard, s.after(said=put(s.said, p.d, p.w, FAILED))


def lose_share(s, p):
    """A frame is lost on its way."""
    after = s.after(in_share=lambda k: And(s.in_share(k), Not(same_share(k, p.k))))
    return now(s.in_share(p.k)), forgetting(s, after)


def forgetting(s, after):
    """Marks as lost what had an owner before and has none after."""
    return after.after(lost=lambda k: Or(s.lost(k), And(owned(s, k), Not(owned(after, k)))))


def same_share(k, other):
    return And(c.desc(k) == c.desc(other), c.reporter(k) == c.reporter(other))


def report_share(s, p, once=True, failed=False):
    """The merge counts a share; the same frame may arrive any number of times."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, c.reporter(k) == p.w, s.named(k))
    guard = now(s.said(p.d, p.w) == (FAILED if failed else GOOD), Not(s.ended(i)), Not(s.dead(c.minter(i))),
                Not(s.merged(p.d)))
    if once:
        guard += now(s.counted(p.d, p.w) == 0)
    return guard, s.after(
        counted=put(s.counted, p.d, p.w, s.counted(p.d, p.w) + 1),
        content=put(s.content, p.d, p.w, s.content(p.d, p.w) + (0 if failed else 1)),
        in_share=where(s.in_share, of, False), in_merge=where(s.in_merge, of, True),
        batched=where(s.batched, of, True), lost=where(s.lost, of, False))


def refuse_share(s, p):
    """A duplicate, or a share after the end: its parts are given up by the process that received them."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, c.reporter(k) == p.w, s.named(k))
    guard = now(s.said(p.d, p.w) != SILENT, Not(s.dead(c.minter(i))), Or(s.counted(p.d, p.w) > 0, s.ended(i)))
    return guard, s.after(in_share=where(s.in_share, of, False),
                          given_up_merge=where(s.given_up_merge, of, True))


def let_go(s, p):
    """A failed share, an error of an offer, a close: the merge ends, and all it and the queue hold is given up.
    A commit that is under way may still land."""
    mine = lambda k: And(incarnation_of(k) == p.i, Or(s.in_merge(k), s.in_offer(k)))
    return now(s.known(p.i), Not(s.dead(c.minter(p.i)))), s.after(
        ended=put(s.ended, p.i, True), in_merge=where(s.in_merge, mine, False),
        in_offer=where(s.in_offer, mine, False), given_up_merge=where(s.given_up_merge, mine, True))


def complete_batch(s, p, in_order=True):
    """All workers reported: the batch joins the offer queue, with the earliest dataflow error."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, s.in_merge(k))
    guard = now(s.minted(p.d), Not(s.merged(p.d)), Not(s.ended(i)), Not(s.dead(c.minter(i))),
                Or(p.e == NO_ERROR, And(c.lo(p.d) <= p.e, p.e < c.hi(p.d), p.e < c.UPTO)))
    guard += every(W, lambda w: Or(Not(c.is_worker(w, i)), s.counted(p.d, w) > 0))
    if in_order:
        guard += now(c.ord(p.d) == s.left(i))
    return guard, s.after(
        merged=put(s.merged, p.d, True), error=put(s.error, p.d, p.e), left=put(s.left, i, s.left(i) + 1),
        in_merge=where(s.in_merge, of, False), in_offer=where(s.in_offer, of, True))


# Offers. `look` is the snapshot a decision is made of; a commit takes effect if the head still stands there.

def look(s, p):
    i = c.inc(p.d)
    return now(s.merged(p.d), c.ord(p.d) == s.done(i), s.known(i), s.resolved(i) <= c.lo(p.d)), s.after(
        saw=put(s.saw, p.d, True), saw_upper=put(s.saw_upper, p.d, s.upper),
        saw_fence=put(s.saw_fence, p.d, s.fence), saw_resolved=put(s.saw_resolved, p.d, s.resolved(i)),
        saw_status=put(s.saw_status, p.d, s.status))


def lose_race(s, p):
    """The head moved: the decision is void."""
    guard = now(s.saw(p.d), Or(s.upper != s.saw_upper(p.d), s.fence != s.saw_fence(p.d)))
    return guard, s.after(saw=put(s.saw, p.d, False))


def fenced(s, p, by=lambda p: c.inc(p.d), cas=True):
    """What the transaction checks by itself."""
    i = by(p)
    guard = now(s.saw(p.d), s.status != DROPPED, s.known(i), s.open(i), c.hi(p.d) > s.resolved(i),
                s.saw_resolved(p.d) <= c.lo(p.d))
    if cas:
        guard += now(s.upper == s.saw_upper(p.d), s.fence == s.saw_fence(p.d))
    return guard


def of_batch(s, d):
    return lambda k: And(c.desc(k) == d, s.batched(k))


def queue_all(s, which):
    """Into the deletion queue, unless a part is there already."""
    return dict(queued=where(s.queued, which, lambda k: If(s.queued(k) > 0, s.queued(k), 1)),
                ever_queued=where(s.ever_queued, which, True))


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
            row_extent=lambda q: If(Or(And(fresh, q == s.next), And(Not(fresh), q == s.next - 1)), hi, s.row_extent(q)))
    else:
        changes.update(
            next=s.next + 1, row_lo=put(s.row_lo, s.next, lo), row_hi=put(s.row_hi, s.next, hi),
            row_extent=put(s.row_extent, s.next, hi), linked=where(s.linked, link, True),
            row=where(s.row, link, lambda k: s.next), ever_linked=where(s.ever_linked, link, True),
            delivered=lambda x: s.delivered(x) + brought(s, p.d, x, lo, hi))
    return s.after(**changes)


def ending(hi):
    return If(hi == c.TOP, COMPLETE, OPEN)


def decided(s, p, error=None):
    """What the decision saw of an open chain: the batch begins at or below U and ends above it."""
    wanted = s.error(p.d) == NO_ERROR if error is None else error
    return now(s.saw_status(p.d) == OPEN, s.status == OPEN, c.lo(p.d) <= s.saw_upper(p.d),
               c.hi(p.d) > s.saw_upper(p.d), wanted)


def holds_nothing(s, p, lo, hi):
    """No part and no run of the batch holds anything of the piece."""
    return every(K, lambda k: Not(And(of_batch(s, p.d)(k), keeps(k, lo, hi)))) + every(
        X, lambda x: brought(s, p.d, x, lo, hi) == 0)


def commit_accept(s, p):
    u = s.saw_upper(p.d)
    return fenced(s, p) + decided(s, p) + now(c.lo(p.d) == u), take(
        s, p, u, c.hi(p.d), ACCEPTED, ending(c.hi(p.d)))


def commit_trim(s, p):
    u = s.saw_upper(p.d)
    return fenced(s, p) + decided(s, p) + now(c.lo(p.d) < u), take(
        s, p, u, c.hi(p.d), TRIMMED, ending(c.hi(p.d)))


def commit_extend(s, p):
    """An accepted piece that holds nothing: the last row's extent moves, no row is written."""
    u, hi = s.saw_upper(p.d), c.hi(p.d)
    return fenced(s, p) + decided(s, p) + holds_nothing(s, p, u, hi), take(
        s, p, u, hi, If(c.lo(p.d) == u, ACCEPTED, TRIMMED), ending(hi), empty=True)


def commit_poison(s, p, empty=False):
    """An error above U: what lies before it is accepted, and the chain ends there."""
    u, e = s.saw_upper(p.d), s.error(p.d)
    guard = fenced(s, p) + decided(s, p, And(e != NO_ERROR, e > u)) + (holds_nothing(s, p, u, e) if empty else [])
    after = take(s, p, u, e, If(c.lo(p.d) == u, ACCEPTED, TRIMMED), POISONED, empty=empty)
    return guard, after.after(poisoned_at=e)


def commit_poison_at_upper(s, p):
    u = s.saw_upper(p.d)
    return fenced(s, p) + decided(s, p, s.error(p.d) == u), s.after(
        status=POISONED, poisoned_at=u, fence=s.fence + 1, **resolve(s, p, c.inc(p.d), REFUSED),
        **queue_all(s, of_batch(s, p.d)))


def covered(s, p):
    return now(Or(s.saw_status(p.d) != OPEN, And(s.error(p.d) == NO_ERROR, c.hi(p.d) <= s.saw_upper(p.d))))


def commit_drop(s, p, queues=True):
    """A covered batch, or one of a chain that takes nothing: its parts are queued."""
    queue = queue_all(s, of_batch(s, p.d)) if queues else {}
    return fenced(s, p) + covered(s, p), s.after(**resolve(s, p, c.inc(p.d), REFUSED), **queue)


def pop(s, d):
    i = c.inc(d)
    return dict(done=put(s.done, i, s.done(i) + 1), position=put(s.position, i, c.hi(d)), saw=put(s.saw, d, False))


def drop_unwritten(s, p):
    """A covered batch without parts, not its incarnation's first: nothing is written."""
    i = c.inc(p.d)
    guard = now(s.saw(p.d), c.ord(p.d) == s.done(i), Not(s.ended(i)), s.saw_resolved(p.d) != s.as_of(i),
                s.outcome(p.d) == NONE)
    guard += covered(s, p) + every(K, lambda k: Not(of_batch(s, p.d)(k)))
    return guard, s.after(**pop(s, p.d))


def learn_outcome(s, p):
    """The answer to the commit, the read-back, or a new decision that finds it recorded: the handles are settled."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, s.in_offer(k))
    guard = now(s.merged(p.d), c.ord(p.d) == s.done(i), c.hi(p.d) <= s.resolved(i), Not(s.ended(i)),
                Not(s.dead(c.minter(i))))
    return guard, s.after(in_offer=where(s.in_offer, of, False), **pop(s, p.d))


def outcome_unknown(s, p, queues=False):
    """No answer: the handles are given up to the ledger, which queues only what is proven; the queue goes on."""
    i = c.inc(p.d)
    of = lambda k: And(c.desc(k) == p.d, s.in_offer(k))
    guard = now(s.merged(p.d), c.ord(p.d) == s.done(i), Not(s.ended(i)), Not(s.dead(c.minter(i))))
    queue = queue_all(s, of) if queues else {}
    popped = {name: value for name, value in pop(s, p.d).items() if name != "saw"}
    return guard, s.after(in_offer=where(s.in_offer, of, False),
                          given_up_merge=where(s.given_up_merge, of, True), skipped=put(s.skipped, i, True),
                          **popped, **queue)


# Consumers.

def register(s, p):
    """A new consumer starts anywhere that is still linked; a known one gets a new session."""
    guard = now(s.status != DROPPED, s.status != UNDECLARED,
                Or(s.registered(p.c), And(s.released <= p.t, p.t <= s.upper)))
    return guard, s.after(registered=put(s.registered, p.c, True),
                          acked=put(s.acked, p.c, If(s.registered(p.c), s.acked(p.c), p.t)),
                          session=put(s.session, p.c, s.session(p.c) + 1), fence=s.fence + 1)


def unregister(s, p):
    return now(s.registered(p.c)), s.after(registered=put(s.registered, p.c, False), fence=s.fence + 1)


def acknowledge(s, p, newest=True):
    guard = now(s.registered(p.c), s.status != DROPPED, s.acked(p.c) < p.t, p.t <= s.upper)
    if newest:
        guard += now(p.session == s.session(p.c))
    return guard, s.after(acked=put(s.acked, p.c, p.t), acked_by=put(s.acked_by, p.c, p.session))


def unlink_below(s, p, queues=True):
    """Rows before `f` go, and of row `f` what lies below `t`, which does not cut its updates."""
    cut = And(s.row_lo(p.f) <= p.t, p.t < s.row_extent(p.f), Or(p.t == s.row_lo(p.f), s.row_hi(p.f) <= p.t))
    guard = now(s.status != DROPPED, s.released <= p.t, p.t <= s.upper, s.first <= p.f, p.f <= s.next,
                If(p.f == s.next, p.t == s.upper, cut))
    rest = And(p.f < s.next, s.row_hi(p.f) <= p.t)
    goes = lambda k: And(s.linked(k), Or(s.row(k) < p.f, And(rest, s.row(k) == p.f)))
    # Uppers of rows rise with their numbers, so "a row whose updates lie below t" is what is meant here.
    guard += every(Q, lambda q: Or(q < s.first, q >= p.f, s.row_hi(q) <= p.t))
    queue = queue_all(s, goes) if queues else {}
    return guard, s.after(
        released=p.t, first=p.f, linked=where(s.linked, goes, False),
        row_lo=put(s.row_lo, p.f, If(p.f < s.next, p.t, s.row_lo(p.f))),
        row_hi=put(s.row_hi, p.f, If(rest, s.row_extent(p.f), s.row_hi(p.f))),
        fence=s.fence + 1, **queue)


def release(s, p, queues=True):
    """What all consumers acknowledged is unlinked and queued in one transaction."""
    guard, after = unlink_below(s, p, queues)
    return guard + now(s.registered(p.c)) + every(C, lambda x: Or(Not(s.registered(x)), p.t <= s.acked(x))), after


def expire(s, p):
    """Without consumers, retention takes rows."""
    guard, after = unlink_below(s, p)
    return guard + every(C, lambda x: Not(s.registered(x))), after


def drop_sink(s, p):
    every_row = lambda k: s.linked(k)
    return now(s.status != DROPPED, s.status != UNDECLARED), s.after(
        status=DROPPED, fence=s.fence + 1, open=lambda i: BoolVal(False), linked=lambda k: BoolVal(False),
        first=s.next, **queue_all(s, every_row))


# The deleter and the sweep.

def ledger_judges(s, p):
    """A deleter asks the catalog about what was given up; only what is proven garbage may be queued."""
    return now(Or(s.given_up(p.k), s.given_up_merge(p.k)), garbage(s, p.k)), s.after(judged=put(s.judged, p.k, True))


def ledger_queues(s, p):
    guard = now(s.judged(p.k), Not(s.linked(p.k)), s.queued(p.k) == 0)
    return guard, s.after(judged=put(s.judged, p.k, False), **queue_all(s, lambda k: k == p.k))


def ledger_settles(s, p):
    """A ledger forgets what the catalog owns."""
    return now(Or(s.linked(p.k), s.queued(p.k) > 0)), s.after(
        given_up=put(s.given_up, p.k, False), given_up_merge=put(s.given_up_merge, p.k, False))


def delete(s, p):
    return now(s.queued(p.k) > 0), s.after(stored=put(s.stored, p.k, False), deleted=put(s.deleted, p.k, True))


def dequeue(s, p):
    """What the store said is gone. A late PUT may have brought it back: then the sweep finds it."""
    return now(s.queued(p.k) > 0, s.deleted(p.k)), s.after(queued=put(s.queued, p.k, 0))


def sweep_lists(s, p):
    """A listing shows some of what stands in the store, and forgets what an older one had planned."""
    guard = every(K, lambda k: Or(Not(p.seen(k)), s.stored(k)))
    return guard, s.after(listed=lambda v, k: If(v == p.v, p.seen(k), s.listed(v, k)),
                          planned=lambda v, k: And(v != p.v, s.planned(v, k)))


def sweep_reads(s, p, verdict=lambda s, k: garbage(s, k)):
    """References, queue and incarnations in one snapshot, after the listing."""
    return now(), s.after(planned=lambda v, k: If(v == p.v, And(s.listed(v, k), verdict(s, k)), s.planned(v, k)))


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
        dead=put(s.dead, p.p, True), in_upload=where(s.in_upload, writer, False),
        given_up=where(s.given_up, writer, False), in_merge=where(s.in_merge, mine, False),
        in_offer=where(s.in_offer, mine, False), given_up_merge=where(s.given_up_merge, mine, False),
        ended=lambda i: Or(s.ended(i), c.minter(i) == p.p))
    return now(Not(s.dead(p.p))), forgetting(s, after)


OFFER = {"d": D}
ACTIONS = [
    Action("declare", {}, declare),
    Action("open-incarnation", {"i": I}, open_incarnation),
    Action("close", {"i": I}, close),
    Action("compact", {"t": "time"}, compact),
    Action("mint", {"d": D}, mint),
    Action("put-part", {"k": K}, put_part),
    Action("put-lands", {"k": K}, put_lands),
    Action("put-is-seen", {"k": K}, put_is_seen),
    Action("give-up-part", {"k": K}, give_up_part),
    Action("send-share", {"d": D, "w": W, "parts": (K,)}, send_share),
    Action("send-failure", {"d": D, "w": W}, send_failure),
    Action("lose-share", {"k": K}, lose_share),
    Action("report-share", {"d": D, "w": W}, report_share),
    Action("refuse-share", {"d": D, "w": W}, refuse_share),
    Action("let-go", {"i": I}, let_go),
    Action("complete-batch", {"d": D, "e": "time"}, complete_batch),
    Action("look", OFFER, look),
    Action("lose-race", OFFER, lose_race),
    Action("commit-accept", OFFER, commit_accept),
    Action("commit-trim", OFFER, commit_trim),
    Action("commit-extend", OFFER, commit_extend),
    Action("commit-poison", OFFER, commit_poison),
    Action("commit-poison-extend", OFFER, lambda s, p: commit_poison(s, p, empty=True)),
    Action("commit-poison-at-upper", OFFER, commit_poison_at_upper),
    Action("commit-drop", OFFER, commit_drop),
    Action("drop-unwritten", OFFER, drop_unwritten),
    Action("learn-outcome", OFFER, learn_outcome),
    Action("outcome-unknown", OFFER, outcome_unknown),
    Action("register", {"c": C, "t": "time"}, register),
    Action("unregister", {"c": C}, unregister),
    Action("acknowledge", {"c": C, "t": "time", "session": "time"}, acknowledge),
    Action("release", {"c": C, "t": "time", "f": Q}, release),
    Action("expire", {"t": "time", "f": Q}, expire),
    Action("drop-sink", {}, drop_sink),
    Action("ledger-judges", {"k": K}, ledger_judges),
    Action("ledger-queues", {"k": K}, ledger_queues),
    Action("ledger-settles", {"k": K}, ledger_settles),
    Action("delete", {"k": K}, delete),
    Action("dequeue", {"k": K}, dequeue),
    Action("sweep-lists", {"v": S, "seen": (K,)}, sweep_lists),
    Action("sweep-reads", {"v": S}, sweep_reads),
    Action("sweep-queues", {"v": S}, sweep_queues),
    Action("crash", {"p": P}, crash),
]
ACTION = {action.name: action for action in ACTIONS}


def initial(s):
    """Before the sink is declared: nothing there, no queue, no key, no consumer."""
    zero = lambda name: lambda *args: getattr(s, name)(*args) == 0
    no = lambda name: lambda *args: Not(getattr(s, name)(*args))
    start = [((), lambda: And(s.status == UNDECLARED, s.upper == c.ASOF, s.released == c.ASOF, s.first == s.next,
                              s.compacted <= c.ASOF))]
    start += [((I,), no(name)) for name in ("known", "open", "ended", "skipped")]
    start += [((I,), zero(name)) for name in ("next_ord", "left", "done")]
    start += [((D,), no(name)) for name in ("minted", "merged", "saw")]
    start += [((D,), zero("outcome")), ((D,), lambda d: s.error(d) == NO_ERROR)]
    start += [((D, W), zero(name)) for name in ("said", "counted", "content")]
    start += [((K,), no(name)) for name in (
        "stored", "seen", "in_upload", "in_share", "in_merge", "in_offer", "given_up", "given_up_merge", "judged",
        "named", "batched", "linked", "ever_linked", "ever_queued", "deleted", "lost")]
    start += [((K,), zero(name)) for name in ("puts", "queued")]
    start += [((C,), no("registered")), ((S, K), no("listed")), ((S, K), no("planned")), ((P,), no("dead"))]
    start += [((X,), zero("delivered"))]
    return start
