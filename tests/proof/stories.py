"""Runs from the start, each step an action whose guards hold, to an end that says what came of it.

They show that the actions can happen in truth and not only in states that the invariants admit: guards that
contradict each other would prove anything. Every action occurs in one of them. A step is an action and its
parameters by name; names of one sort stand for different elements.

A misdeed is a run with a mutant in it that ends in harm; with the action as it is, the same run must be impossible.
"""

from dataclasses import dataclass
from typing import Callable

from z3 import And, Not

from model import (
    COMPLETE,
    DROPPED,
    NO_ERROR,
    POISONED,
    REFUSED,
    TRIMMED,
    C,
    D,
    I,
    K,
    P,
    Q,
    S,
    W,
    may_complete,
    owned,
)
from model import Const as c

SORT_OF = {
    "i": I,
    "j": I,
    "d": D,
    "e": "time",
    "k": K,
    "w": W,
    "c": C,
    "p": P,
    "v": S,
    "f": Q,
    "t": "time",
    "session": "time",
}


@dataclass(frozen=True)
class Story:
    name: str
    steps: list
    given: Callable
    ends: Callable
    mutant: str = ""


def step(name, **params):
    return name, params


def part(k):
    """A part is put, lands, and is seen to."""
    return [step("put-part", k=k), step("put-lands", k=k), step("put-is-seen", k=k)]


def batch(d, *parts, w="w"):
    """A description is minted, its one worker reports these parts, and it joins the offer queue."""
    steps = [step("mint", d=d)]
    for k in parts:
        steps += part(k)
    return steps + [
        step("send-share", d=d, w=w, parts=parts),
        step("report-share", d=d, w=w),
        step("complete-batch", d=d, e=NO_ERROR),
    ]


def offer(d, how):
    return [step("look", d=d), step(how, d=d), step("learn-outcome", d=d)]


def gone(k):
    return [step("delete", k=k), step("dequeue", k=k)]


def upper(s):
    return s.upper


READ = Story(
    "a snapshot is written, accepted, read, acknowledged and deleted",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        *batch("d1", "k1"),
        *offer("d1", "commit-accept"),
        step("compact", t=lambda s: c.ASOF),
        step("register", c="c", t=lambda s: c.ASOF),
        step("acknowledge", c="c", t=upper, session=None),
        step("release", c="c", t=upper, f=lambda s: s.next),
        step("ledger-settles", k="k1"),
        *gone("k1"),
        step("unregister", c="c"),
    ],
    lambda n: c.time(n.x) <= c.ASOF,
    lambda s, n: And(
        s.upper == c.ASOF + 1,
        s.delivered(n.x) == 1,
        Not(s.stored(n.k1)),
        Not(owned(s, n.k1)),
        Not(s.lost(n.k1)),
    ),
)

CUTOVER = Story(
    "a replica dies, the other's straddler is trimmed, the sweep takes what was left, and a late PUT too",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        step("open-incarnation", i="j"),
        *batch("d1"),
        *batch("e1"),
        step("look", d="d1"),
        step("look", d="e1"),
        step("commit-extend", d="d1"),
        step("learn-outcome", d="d1"),
        step("lose-race", d="e1"),
        *offer("e1", "commit-drop"),
        *batch("d2", "k1"),
        *batch("e2", "k2", "k3"),
        *offer("d2", "commit-accept"),
        step("mint", d="d3"),
        *part("k4"),
        step("crash", p="p"),
        *offer("e2", "commit-trim"),
        step("close", i="i"),
        step("sweep-lists", v="v", parts=("k4",)),
        step("sweep-reads", v="v"),
        step("sweep-queues", v="v"),
        *gone("k4"),
        step("put-lands", k="k4"),
        step("sweep-lists", v="v", parts=("k4",)),
        step("sweep-reads", v="v"),
        step("sweep-queues", v="v"),
        *gone("k4"),
        step("ledger-settles", k="k3"),
        *gone("k3"),
    ],
    lambda n: And(
        c.minter(n.i) == n.p,
        c.process(n.k4) == n.p,
        c.process(n.k1) == n.p,
        c.minter(n.j) != n.p,
        c.process(n.k2) != n.p,
        c.process(n.k3) != n.p,
        c.lo(n.e2) < c.hi(n.d2),
        c.hi(n.d2) <= c.time(n.x),
        c.time(n.x) < c.hi(n.e2),
    ),
    lambda s, n: And(
        s.outcome(n.e2) == TRIMMED,
        s.linked(n.k1),
        s.linked(n.k2),
        Not(s.linked(n.k3)),
        s.delivered(n.x) == 1,
        s.upper == c.hi(n.e2),
        Not(s.stored(n.k4)),
        Not(s.stored(n.k3)),
        s.outcome(n.e1) == REFUSED,
    ),
)

FAILURE = Story(
    "a share fails and a frame is lost: all is deleted, and the replica renders anew",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        step("mint", d="d1"),
        *part("k1"),
        step("mint", d="d2"),
        *part("k2"),
        step("send-share", d="d1", w="w", parts=("k1",)),
        step("lose-share", k="k1"),
        step("give-up-part", k="k2"),
        step("send-failure", d="d2", w="w"),
        step("let-go", i="i"),
        step("refuse-share", d="d2", w="w"),
        step("open-incarnation", i="j"),
        step("ledger-judges", k="k1"),
        step("ledger-queues", k="k1"),
        step("ledger-judges", k="k2"),
        step("ledger-queues", k="k2"),
        *gone("k1"),
        *gone("k2"),
    ],
    lambda n: c.replica(n.i) == c.replica(n.j),
    lambda s, n: And(
        Not(s.open(n.i)),
        s.open(n.j),
        s.as_of(n.j) == c.ASOF,
        Not(s.stored(n.k1)),
        Not(s.stored(n.k2)),
        Not(s.lost(n.k1)),
    ),
)

UNKNOWN = Story(
    "a commit lands unseen, the sender does not delete, and the sink is dropped",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        *batch("d1", "k1"),
        step("look", d="d1"),
        *batch("d2", "k2"),
        step("commit-accept", d="d1"),
        step("outcome-unknown", d="d1"),
        *offer("d2", "commit-accept"),
        step("ledger-settles", k="k1"),
        step("drop-sink"),
        *gone("k1"),
        *gone("k2"),
    ],
    lambda n: And(c.hi(n.d2) == c.TOP),
    lambda s, n: And(s.status == DROPPED, s.upper == c.TOP, Not(s.stored(n.k1)), Not(s.stored(n.k2))),
)


def poisoned(d, *parts, at):
    steps = batch(d, *parts)
    return steps[:-1] + [step("complete-batch", d=d, e=at)]


POISON = Story(
    "an error above U: the piece before it is accepted; another replica's batches are then dropped",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        step("open-incarnation", i="j"),
        *batch("e1"),
        *batch("e2"),
        *batch("d1", "k1"),
        *poisoned("d2", "k2", at="t"),
        *offer("d1", "commit-accept"),
        *offer("d2", "commit-poison"),
        *offer("e1", "commit-drop"),
        step("look", d="e2"),
        step("drop-unwritten", d="e2"),
        step("expire", t=upper, f=lambda s: s.next),
    ],
    lambda n: And(c.lo(n.d2) < n.t, n.t < c.hi(n.d2), c.tmin(n.k2) < n.t),
    lambda s, n: And(s.status == POISONED, s.upper == n.t, s.ever_linked(n.k2), s.queued(n.k2) == 1),
)

POISON_EMPTY = Story(
    "an error above U with nothing before it",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        *batch("d1"),
        *poisoned("d2", "k2", at="t"),
        *offer("d1", "commit-extend"),
        *offer("d2", "commit-poison-extend"),
    ],
    lambda n: And(c.lo(n.d2) < n.t, n.t < c.hi(n.d2), c.tmin(n.k2) >= n.t),
    lambda s, n: And(s.status == POISONED, s.upper == n.t, s.queued(n.k2) == 1),
)

POISON_AT = Story(
    "an error at U itself",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        *poisoned("d1", "k1", at=lambda s: c.ASOF),
        *offer("d1", "commit-poison-at-upper"),
    ],
    lambda n: True,
    lambda s, n: And(s.status == POISONED, s.upper == c.ASOF, s.queued(n.k1) == 1),
)

ABSENT = Story(
    "a consumer stays away: what the other has read expires, and the one that comes back is told so",
    [
        step("declare"),
        step("open-incarnation", i="i"),
        *batch("d1", "k1"),
        *offer("d1", "commit-accept"),
        step("register", c="slow", t=lambda s: c.ASOF),
        step("register", c="c", t=lambda s: c.ASOF),
        step("acknowledge", c="c", t=upper, session=None),
        step("grow-absent", c="slow"),
        step("expire", t=upper, f=lambda s: s.next),
        step("ledger-settles", k="k1"),
        *gone("k1"),
        step("be-heard", c="slow"),
        step("acknowledge", c="slow", t=upper, session=None),
        step("release-expired", c="c", t=upper),
    ],
    lambda n: True,
    lambda s, n: And(s.expired == s.upper, s.released == s.upper, Not(s.stored(n.k1)), Not(owned(s, n.k1))),
)

STORIES = [READ, CUTOVER, FAILURE, UNKNOWN, POISON, POISON_EMPTY, POISON_AT, ABSENT]


# Two renderings of one replica: the first accepts its snapshot, the second what follows.
REOPENED = [
    step("declare"),
    step("open-incarnation", i="i"),
    *batch("d1", "k1"),
    *offer("d1", "commit-accept"),
    step("open-incarnation", i="j"),
]


def twice(s, n):
    return s.delivered(n.x) == 2


def lost(s, n):
    return And(c.time(n.x) < s.upper, c.time(n.x) < c.UPTO, s.delivered(n.x) == 0)


def dangling(s, n):
    return And(s.linked(n.k1), Not(s.stored(n.k1)))


MISDEEDS = [
    Story(
        "what was delivered counts twice",
        [*REOPENED, *batch("e1"), *offer("e1", "commit-accept")],
        lambda n: True,
        twice,
        mutant="rehydrate at U",
    ),
    Story(
        "a straddler counts twice",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            step("open-incarnation", i="j"),
            *batch("d1"),
            *batch("e1"),
            *offer("d1", "commit-accept"),
            *offer("e1", "commit-drop"),
            *batch("d2"),
            *batch("e2"),
            *offer("d2", "commit-accept"),
            *offer("e2", "commit-trim"),
        ],
        lambda n: c.time(n.x) > c.ASOF,
        twice,
        mutant="no trim",
    ),
    Story(
        "updates before the original as-of are missing",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1"),
            *offer("d1", "commit-drop"),
            *batch("d2"),
            *offer("d2", "commit-accept"),
        ],
        lambda n: True,
        lost,
        mutant="rehydrate below the original",
    ),
    Story(
        "updates below a floor are missing",
        [step("declare"), step("open-incarnation", i="i"), *batch("d1"), *offer("d1", "commit-accept")],
        lambda n: True,
        lost,
        mutant="floor above U",
    ),
    Story(
        "a share counts twice",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            step("mint", d="d1"),
            step("send-share", d="d1", w="w", parts=()),
            step("report-share", d="d1", w="w"),
            step("report-share", d="d1", w="w"),
            step("complete-batch", d="d1", e=NO_ERROR),
            *offer("d1", "commit-accept"),
        ],
        lambda n: True,
        twice,
        mutant="merge accepts a duplicate",
    ),
    Story(
        "a failed worker's updates are missing",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            step("mint", d="d1"),
            step("send-failure", d="d1", w="w"),
            step("report-share", d="d1", w="w"),
            step("complete-batch", d="d1", e=NO_ERROR),
            *offer("d1", "commit-accept"),
        ],
        lambda n: True,
        lost,
        mutant="error share counted as empty",
    ),
    Story(
        "a part is deleted that is linked afterwards",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1", "k1"),
            step("look", d="d1"),
            step("ledger-queues", k="k1"),
            *gone("k1"),
            step("commit-accept", d="d1"),
        ],
        lambda n: True,
        dangling,
        mutant="a ledger queues what is not proven",
    ),
    Story(
        "a part is deleted whose commit landed unseen",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1", "k1"),
            step("look", d="d1"),
            step("commit-accept", d="d1"),
            step("outcome-unknown", d="d1"),
            *gone("k1"),
        ],
        lambda n: True,
        dangling,
        mutant="hand-over deletes on unknown outcome",
    ),
    Story(
        "an update is skipped behind a refused offer",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1"),
            *batch("d2"),
            step("outcome-unknown", d="d1"),
            *offer("d2", "commit-accept"),
        ],
        lambda n: True,
        lost,
        mutant="accepted although it begins above U",
    ),
    Story(
        "what two replicas decided at one U is delivered twice",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            step("open-incarnation", i="j"),
            *batch("d1"),
            *batch("e1"),
            step("look", d="d1"),
            step("look", d="e1"),
            step("commit-accept", d="d1"),
            step("commit-accept", d="e1"),
        ],
        lambda n: True,
        twice,
        mutant="accept without fence",
    ),
    Story(
        "a part that was swept after the reconnect is linked",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1", "k1"),
            step("open-incarnation", i="j"),
            step("sweep-lists", v="v", parts=("k1",)),
            step("sweep-reads", v="v"),
            step("sweep-queues", v="v"),
            *gone("k1"),
            step("look", d="d1"),
            step("commit-accept", d="d1", j="j"),
        ],
        lambda n: c.replica(n.i) == c.replica(n.j),
        dangling,
        mutant="queue kept across a reconnect",
    ),
    Story(
        "a straddler is accepted, offered again as covered, and its part deleted",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            step("open-incarnation", i="j"),
            *batch("d1"),
            *batch("e1"),
            *offer("d1", "commit-accept"),
            *offer("e1", "commit-drop"),
            *batch("d2"),
            *batch("e2", "k1"),
            *offer("d2", "commit-accept"),
            step("look", d="e2"),
            step("commit-trim", d="e2"),
            step("look", d="e2"),
            step("commit-drop", d="e2"),
            *gone("k1"),
        ],
        lambda n: True,
        dangling,
        mutant="resolved upper not kept",
    ),
    Story(
        "a batch goes that a slower consumer has not read",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1", "k1"),
            step("register", c="slow", t=lambda s: c.ASOF),
            step("register", c="c", t=lambda s: c.ASOF),
            *offer("d1", "commit-accept"),
            step("acknowledge", c="c", t=upper, session=None),
            step("release", c="c", t=upper, f=lambda s: s.next),
        ],
        lambda n: True,
        lambda s, n: And(s.acked(n.slow) < c.hi(n.d1), Not(s.linked(n.k1))),
        mutant="one consumer releases for all",
    ),
    Story(
        "a batch expires that a consumer who is there has not read",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1", "k1"),
            step("register", c="c", t=lambda s: c.ASOF),
            *offer("d1", "commit-accept"),
            step("expire", t=upper, f=lambda s: s.next),
        ],
        lambda n: True,
        lambda s, n: And(s.registered(n.c), s.acked(n.c) < c.hi(n.d1), Not(s.linked(n.k1))),
        mutant="expire passes a present consumer",
    ),
    Story(
        "the snapshot is missing although a replica that restarted delivered it",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            step("open-incarnation", i="j"),
            *batch("e1"),
            step("look", d="e1"),
            step("commit-accept", d="e1", j="i"),
        ],
        lambda n: And(c.replica(n.i) == c.replica(n.j), c.inc(n.e1) == n.j, c.time(n.x) <= c.ASOF),
        lost,
        mutant="no snapshot on restart before the first accept",
    ),
    Story(
        "a key is written twice",
        [step("declare"), step("open-incarnation", i="i"), step("mint", d="d1"), *part("k1"), *part("k1")],
        lambda n: True,
        lambda s, n: s.puts(n.k1) == 2,
        mutant="a number is used again",
    ),
    Story(
        "the snapshot of a slow replica is gone while it reads it",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            step("open-incarnation", i="j"),
            *batch("d1"),
            *batch("d2"),
            *offer("d1", "commit-accept"),
            *offer("d2", "commit-accept"),
            step("compact", t=lambda s: s.upper - 1),
        ],
        lambda n: And(c.inc(n.d1) == n.i, c.hi(n.d2) < c.TOP),
        lambda s, n: And(s.open(n.j), s.resolved(n.j) == s.as_of(n.j), s.as_of(n.j) < s.compacted),
        mutant="compaction past a pending render",
    ),
    Story(
        "a chain that may not complete is complete",
        [
            step("declare"),
            step("open-incarnation", i="i"),
            *batch("d1"),
            *batch("d2"),
            *offer("d1", "commit-accept"),
            *offer("d2", "commit-accept"),
        ],
        lambda n: Not(may_complete()),
        lambda s, n: s.status == COMPLETE,
        mutant="empty frontier completes the chain",
    ),
]
