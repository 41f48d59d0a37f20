"""Changed actions, each with the invariant that it must break.

A mutant that breaks nothing would show that the invariants do not ask for what the change took away. Strict lower
equality breaks no invariant, but progress: it is a lemma that must be refuted, see `lemmas.py`. `IN_CODE` says which
of them stands for which rule that can be broken in the code.
"""

from dataclasses import dataclass, replace

from z3 import And, BoolVal, If, Not, Or

import cleanup
import offers
import writing
from action import Action, every, now, queue_all
from actions import ACTION
from model import ACCEPTED, OPEN, POISONED, TRIMMED, I, K, put, settled
from model import Const as c


@dataclass(frozen=True)
class Mutant:
    name: str
    breaks: str
    action: Action


def changed(name, does, **more):
    """The action of that name, doing something else."""
    params = {**ACTION[name].params, **more}
    return replace(ACTION[name], params=params, does=does)


def taken(s, p, **options):
    """A straddler, taken in another way."""
    u = s.saw_upper(p.d)
    lo = options.pop("lo", u)
    return offers.take(s, p, lo, c.hi(p.d), TRIMMED, offers.ending(c.hi(p.d)), **options)


def straddles(s, p):
    return offers.decided(s, p) + now(c.lo(p.d) < s.saw_upper(p.d))


def no_trim(s, p):
    return offers.fenced(s, p) + straddles(s, p), taken(s, p, lo=c.lo(p.d))


def queue_kept(s, p):
    """The replica's new incarnation offers what its closed one had queued."""
    old, u, hi = c.inc(p.d), s.saw_upper(p.d), c.hi(p.d)
    reconnected = now(p.j != old, c.replica(p.j) == c.replica(old), Not(s.open(old)), c.lo(p.d) == u)
    guard = offers.fenced(s, p, by=lambda p: p.j) + offers.decided(s, p) + reconnected
    return guard, offers.take(s, p, u, hi, ACCEPTED, offers.ending(hi), i=p.j)


def trim_deletes(s, p):
    return offers.fenced(s, p) + straddles(s, p), taken(s, p, kept=lambda k: BoolVal(False))


def without_fence(s, p):
    """Accepted where the chain ended when the offerer looked, whatever happened since."""
    u, hi = s.saw_upper(p.d), c.hi(p.d)
    guard = offers.fenced(s, p, cas=False) + offers.decided(s, p) + now(c.lo(p.d) == u)
    return guard, offers.take(s, p, u, hi, ACCEPTED, offers.ending(hi))


def unresolved(s, p):
    return offers.fenced(s, p) + straddles(s, p), taken(s, p, resolves=False)


def history_unchecked(s, p):
    """After a refused offer the queue goes on, and what begins above U is taken all the same."""
    u = s.saw_upper(p.d)
    guard = offers.fenced(s, p) + now(s.saw_status(p.d) == OPEN, s.status == OPEN, c.lo(p.d) > u)
    return guard, offers.take(s, p, c.lo(p.d), c.hi(p.d), ACCEPTED, offers.ending(c.hi(p.d)))


def references_first(s, p):
    """`before` is what was referenced when the references were read, ahead of the listing."""
    guard = every(K, lambda k: Or(Not(p.before(k)), s.ever_linked(k)))
    found = lambda k: And(settled(s, k), Not(p.before(k)), s.queued(k) == 0)
    return guard, s.after(
        planned=lambda v, k: Or(And(v == p.v, s.listed(v, k), found(k)), And(v != p.v, s.planned(v, k)))
    )


def poison_takes_all(s, p):
    guard, _ = offers.commit_poison(s, p)
    u, hi = s.saw_upper(p.d), c.hi(p.d)
    return guard, offers.take(s, p, u, hi, TRIMMED, POISONED).after(poisoned_at=s.error(p.d))


def no_snapshot(s, p):
    """A replica that was there before (as `j`) and renders anew while nothing is accepted, without its snapshot."""
    i, u, hi = c.inc(p.d), s.saw_upper(p.d), c.hi(p.d)
    restarts = now(p.j != i, s.known(p.j), c.replica(p.j) == c.replica(i), s.as_of(i) == c.ASOF, u == c.ASOF)
    guard = offers.fenced(s, p) + offers.decided(s, p) + restarts + now(c.lo(p.d) == u)
    after = offers.take(s, p, u, hi, ACCEPTED, offers.ending(hi))
    updates = lambda x: If(c.time(x) <= s.as_of(i), s.delivered(x), after.delivered(x))
    return guard, after.after(delivered=updates)


def forgets_on_failure(s, p):
    guard, after = writing.let_go(s, p)
    return guard, after.after(given_up_merge=s.given_up_merge)


def unregistered_put(s, p):
    guard, after = writing.put_part(s, p)
    return guard, after.after(in_upload=s.in_upload)


def keeps_predecessors(s, p):
    guard, after = writing.open_incarnation(s, p)
    return guard, after.after(open=put(s.open, p.i, True))


def one_consumer_decides(s, p):
    guard, after = cleanup.unlink_below(s, p)
    return guard + now(s.registered(p.c), p.t <= s.acked(p.c)), after


def queues_unproven(s, p):
    return now(Or(s.given_up(p.k), s.given_up_merge(p.k)), Not(s.linked(p.k)), s.queued(p.k) == 0), s.after(
        **queue_all(s, lambda k: k == p.k)
    )


def forgets_undeleted(s, p):
    return now(s.queued(p.k) > 0), s.after(queued=put(s.queued, p.k, 0))


def sweep_by_age(s, p):
    return now(), s.after(
        planned=lambda v, k: Or(
            And(v == p.v, s.listed(v, k), p.old(k), Not(s.linked(k)), s.queued(k) == 0),
            And(v != p.v, s.planned(v, k)),
        )
    )


def with_as_of(as_of, ready=lambda s: BoolVal(True)):
    return changed("open-incarnation", lambda s, p: writing.open_incarnation(s, p, as_of=as_of, ready=ready))


def without_raising(name, does):
    """The action, but the head's fence stays."""

    def stays(s, p):
        guard, after = does(s, p)
        return guard, after.after(fence=s.fence)

    return changed(name, stays)


MUTANTS = [
    Mutant("no trim", "I4", changed("commit-trim", no_trim)),
    Mutant("no trim, by content", "I11", changed("commit-trim", no_trim)),
    Mutant(
        "out of order",
        "I8.order",
        changed("complete-batch", lambda s, p: writing.complete_batch(s, p, in_order=False)),
    ),
    Mutant("rehydrate beyond U", "I9", with_as_of(lambda s: s.upper + 1)),
    Mutant("rehydrate at U", "I9", with_as_of(lambda s: s.upper)),
    Mutant("rehydrate below the original", "I9", with_as_of(lambda s: c.ASOF - 1, lambda s: c.ASOF > 0)),
    Mutant("queue kept across a reconnect", "I20", changed("commit-accept", queue_kept, j=I)),
    Mutant(
        "drop without delete",
        "I5",
        changed("commit-drop", lambda s, p: offers.commit_drop(s, p, queues=False)),
    ),
    Mutant("ack without delete", "I16", changed("release", lambda s, p: cleanup.release(s, p, queues=False))),
    Mutant(
        "sweep ignores the queue",
        "I14",
        changed("sweep-queues", lambda s, p: cleanup.sweep_queues(s, p, heeds_queue=False)),
    ),
    Mutant(
        "sweep reads references before the listing",
        "I18",
        changed("sweep-reads", references_first, before=(K,)),
    ),
    Mutant("sweep by age", "I18", changed("sweep-reads", sweep_by_age, old=(K,))),
    Mutant(
        "no snapshot on restart before the first accept", "I11", changed("commit-accept", no_snapshot, j=I)
    ),
    Mutant("trim deletes the kept part", "I6", changed("commit-trim", trim_deletes)),
    Mutant(
        "description skipped",
        "I1.follow",
        changed(
            "mint", lambda s, p: writing.mint(s, p, lower=lambda s, p: c.lo(p.d) > s.next_lo(c.inc(p.d)))
        ),
    ),
    Mutant(
        "compaction past a pending render",
        "I10",
        changed("compact", lambda s, p: writing.compact(s, p, heeds_pending=False)),
    ),
    Mutant("accept without fence", "I4", changed("commit-accept", without_fence)),
    Mutant("accept without fence, by content", "I11", changed("commit-accept", without_fence)),
    Mutant(
        "a poison at U does not raise the fence",
        "I20.head",
        without_raising("commit-poison-at-upper", offers.commit_poison_at_upper),
    ),
    Mutant("closing does not raise the fence", "I20.head", without_raising("close", writing.close)),
    Mutant("resolved upper not kept", "I8.resolved", changed("commit-trim", unresolved)),
    Mutant(
        "hand-over deletes on unknown outcome",
        "I14",
        changed("outcome-unknown", lambda s, p: offers.outcome_unknown(s, p, queues=True)),
    ),
    Mutant(
        "merge accepts a duplicate",
        "I2.once",
        changed("report-share", lambda s, p: writing.report_share(s, p, once=False)),
    ),
    Mutant(
        "error share counted as empty",
        "I2.once",
        changed("report-share", lambda s, p: writing.report_share(s, p, failed=True)),
    ),
    Mutant(
        "empty frontier completes the chain",
        "Said.minted",
        changed("mint", lambda s, p: writing.mint(s, p, complete=lambda: BoolVal(True))),
    ),
    Mutant(
        "floor above U",
        "I7.floor",
        changed("mint", lambda s, p: writing.mint(s, p, floor=lambda s, p: BoolVal(True))),
    ),
    Mutant("accepted although it begins above U", "I4", changed("commit-accept", history_unchecked)),
    Mutant("a poisoned batch is taken whole", "Said", changed("commit-poison", poison_takes_all)),
    Mutant("a failed merge forgets what it counted", "I17", changed("let-go", forgets_on_failure)),
    Mutant("PUT before the ledger knows", "I17", changed("put-part", unregistered_put)),
    Mutant(
        "a number is used again", "I19", changed("put-part", lambda s, p: writing.put_part(s, p, fresh=False))
    ),
    Mutant("opening leaves predecessors open", "I20.one", changed("open-incarnation", keeps_predecessors)),
    Mutant(
        "expire passes a present consumer",
        "I15.present",
        changed("expire", lambda s, p: cleanup.expire(s, p, heeds_present=False)),
    ),
    Mutant(
        "expire unlinks without queueing",
        "I16",
        changed("expire", lambda s, p: cleanup.expire(s, p, queues=False)),
    ),
    Mutant(
        "expire takes what is no prefix",
        "I15.unread",
        changed("expire", lambda s, p: cleanup.expire(s, p, prefix=False)),
    ),
    Mutant("one consumer releases for all", "I15.acked", changed("release", one_consumer_decides)),
    Mutant(
        "an old session acknowledges",
        "I20.session",
        changed("acknowledge", lambda s, p: cleanup.acknowledge(s, p, newest=False)),
    ),
    Mutant("a ledger queues what is not proven", "I15.proven", changed("ledger-queues", queues_unproven)),
    Mutant("dequeued before it is deleted", "I16.queue", changed("dequeue", forgets_undeleted)),
]

# The rules that can be broken in the code, by their names there.
IN_CODE = {
    "StrictLower": "strict lower equality",
    "NoTrim": "no trim",
    "OutOfOrder": "out of order",
    "RehydrateBeyond": "rehydrate beyond U",
    "RehydrateAt": "rehydrate at U",
    "RehydrateBelow": "rehydrate below the original",
    "QueueKept": "queue kept across a reconnect",
    "DropKeepsBlobs": "drop without delete",
    "AckKeepsBlobs": "ack without delete",
    "SweepIgnoresQueue": "sweep ignores the queue",
    "SweepReadsFirst": "sweep reads references before the listing",
    "NoSnapshot": "no snapshot on restart before the first accept",
    "TrimDeletesKept": "trim deletes the kept part",
    "DescriptionSkipped": "description skipped",
    "CompactedPast": "compaction past a pending render",
    "NoFence": "accept without fence",
    "ResolvedForgotten": "resolved upper not kept",
    "HandOverDeletes": "hand-over deletes on unknown outcome",
    "MergeTakesDuplicate": "merge accepts a duplicate",
    "ErrorAsEmpty": "error share counted as empty",
    "EmptyCompletes": "empty frontier completes the chain",
    "FloorAbove": "floor above U",
}
