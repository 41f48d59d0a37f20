"""The state of one sink's chain and of everything that may still touch it, as symbols.

Nothing is bounded: replicas, processes, workers, incarnations, descriptions, parts, updates, consumers and
sweeps are elements of uninterpreted sorts, times and sequence numbers are integers. A state component is a
function of such elements; an action says what it makes of a state as a new set of functions, so that there are
no frame conditions to forget.

- `Const.*` are facts that never change: what is in a name, what an update's time is.
- `State` holds what changes. `COMPONENTS` lists each with its sorts.
- `Universe` is the set of terms at which universal statements are instantiated. All statements of this proof are
  universal and the functions between sorts go one way only (part to description to incarnation to replica), so
  finitely many terms suffice: a check that fails has a model in just these elements.

Times: `TOP` is the empty frontier. All times lie below it.
"""

from itertools import product

from z3 import And, Bool, BoolSort, DeclareSort, Function, If, Int, IntSort, Not, Or
from z3 import Const as Z3Const

SORT_NAMES = [
    "Replica",
    "Process",
    "Worker",
    "Incarnation",
    "Description",
    "Part",
    "Update",
    "Consumer",
    "Sweep",
]
SORTS = {name: DeclareSort(name) for name in SORT_NAMES}
SORTS["Seq"] = IntSort()
R, P, W, I, D, K, X, C, S, Q = (
    "Replica",
    "Process",
    "Worker",
    "Incarnation",
    "Description",
    "Part",
    "Update",
    "Consumer",
    "Sweep",
    "Seq",
)

# What a chain can still do, what became of an offer, what a share says.
UNDECLARED, OPEN, COMPLETE, POISONED, DROPPED = range(5)
NONE, ACCEPTED, TRIMMED, REFUSED = range(4)
SILENT, GOOD, FAILED = range(3)
NO_ERROR = -1


def fixed(name, sorts, result):
    return Function(
        name, *[SORTS[sort] for sort in sorts], SORTS[result] if isinstance(result, str) else result
    )


class Const:
    """What never changes."""

    ASOF, UPTO, TOP, SEALS = Int("as_of"), Int("up_to"), Int("TOP"), Bool("seals")
    # An incarnation's replica, the process that mints, merges and offers for it, and whether a worker is its.
    replica, minter = fixed("replica", [I], R), fixed("minter", [I], P)
    is_worker = fixed("is_worker", [W, I], BoolSort())
    # What is minted as a description: of which incarnation, its place among them, its bounds, its floor.
    inc, ord = fixed("inc", [D], I), fixed("ord", [D], IntSort())
    lo, hi, floor = (fixed(name, [D], IntSort()) for name in ("lo", "hi", "floor"))
    # A part's name, who reports it, and the least and greatest time in it.
    desc, process, n = fixed("desc", [K], D), fixed("process", [K], P), fixed("n", [K], IntSort())
    reporter = fixed("reporter", [K], W)
    tmin, tmax = fixed("tmin", [K], IntSort()), fixed("tmax", [K], IntSort())
    # An update's own time, and the worker that holds it on an incarnation.
    time, holder = fixed("time", [X], IntSort()), fixed("holder", [X, I], W)

    @classmethod
    def axioms(cls):
        """What is assumed of names and times."""
        return [
            ((), lambda: And(0 <= cls.ASOF, cls.ASOF < cls.UPTO, cls.UPTO <= cls.TOP)),
            ((X,), lambda x: And(0 <= cls.time(x), cls.time(x) < cls.TOP)),
            ((X, I), lambda x, i: cls.is_worker(cls.holder(x, i), i)),
            ((K,), lambda k: cls.tmin(k) <= cls.tmax(k)),
        ]


N, B = IntSort(), BoolSort()
COMPONENTS = {
    # The head row, and the frontier up to which the inputs were compacted.
    "status": ((), N),
    "upper": ((), N),
    "poisoned_at": ((), N),
    "fence": ((), N),
    "released": ((), N),
    "expired": ((), N),
    "compacted": ((), N),
    # The rows of the chain: `first <= seq < next` are linked.
    "first": ((), N),
    "next": ((), N),
    "row_lo": ((Q,), N),
    "row_hi": ((Q,), N),
    "row_extent": ((Q,), N),
    # Incarnations in the catalog.
    "known": ((I,), B),
    "open": ((I,), B),
    "as_of": ((I,), N),
    "resolved": ((I,), N),
    # The minter, the merge and the offer queue of an incarnation, all in its minting process. `left` and `done`
    # count what left the merge and what left the offer queue; `position` is where the next offer begins.
    "next_lo": ((I,), N),
    "next_ord": ((I,), N),
    "left": ((I,), N),
    "done": ((I,), N),
    "position": ((I,), N),
    "ended": ((I,), B),
    "skipped": ((I,), B),
    # Descriptions: minted, gone from the merge into the offer queue, the earliest dataflow error.
    "minted": ((D,), B),
    "merged": ((D,), B),
    "error": ((D,), N),
    # What the offerer saw of head and incarnation when it decided.
    "saw": ((D,), B),
    "saw_upper": ((D,), N),
    "saw_fence": ((D,), N),
    "saw_resolved": ((D,), N),
    "saw_status": ((D,), N),
    # The recorded outcome, and the accepted piece (for the statements only).
    "outcome": ((D,), N),
    "piece_lo": ((D,), N),
    "piece_hi": ((D,), N),
    # Shares: what was sent, how often the merge counted one, and how often its updates are in the batch.
    "said": ((D, W), N),
    "counted": ((D, W), N),
    "content": ((D, W), N),
    # Parts: PUTs that were begun, whether it stands in the store, whether its writer saw that.
    "puts": ((K,), N),
    "stored": ((K,), B),
    "seen": ((K,), B),
    "next_n": ((I, P), N),
    # Who holds a handle: the upload, a share on its way, the merge, the offer queue.
    "in_upload": ((K,), B),
    "in_share": ((K,), B),
    "in_merge": ((K,), B),
    "in_offer": ((K,), B),
    # The ledgers that have it as given up: its writer's, its minter's; and what a deleter found to be garbage.
    "given_up": ((K,), B),
    "given_up_merge": ((K,), B),
    "judged": ((K,), B),
    # Whether it was named by a share that was sent, and by one that the merge counted.
    "named": ((K,), B),
    "batched": ((K,), B),
    # The chain's reference, and the deletion queue (a count, so that double entries show).
    "linked": ((K,), B),
    "row": ((K,), N),
    "queued": ((K,), N),
    # For the statements only: was it ever linked, queued, deleted from the store, lost with a crash or a frame.
    "ever_linked": ((K,), B),
    "ever_queued": ((K,), B),
    "deleted": ((K,), B),
    "lost": ((K,), B),
    # Consumers, and the session that acknowledged last.
    "registered": ((C,), B),
    "acked": ((C,), N),
    "session": ((C,), N),
    "acked_by": ((C,), N),
    # Not heard for so long that it holds nothing.
    "absent": ((C,), B),
    # Sweeps: what was listed, and what was judged garbage.
    "listed": ((S, K), B),
    "planned": ((S, K), B),
    # Processes that died. A restarted one is another process.
    "dead": ((P,), B),
    # How often an update was delivered to the chain's readers (for the statements only).
    "delivered": ((X,), N),
}


class State:
    """One state: every component as a constant or a function."""

    def __init__(self, components):
        self.__dict__["components"] = components

    def __getattr__(self, name):
        return self.components[name]

    @staticmethod
    def symbolic():
        made = {}
        for name, (sorts, result) in COMPONENTS.items():
            made[name] = fixed(name, sorts, result) if sorts else Z3Const(name, result)
        return State(made)

    def after(self, **changes):
        """The state in which these components are other ones, and all others the same."""
        unknown = set(changes) - set(COMPONENTS)
        assert not unknown, f"no such component: {unknown}"
        made = {name: remembered(new) if COMPONENTS[name][0] else new for name, new in changes.items()}
        return State({**self.components, **made})


def remembered(function):
    """The function, which computes its value at the same terms only once. A long run would else take for ever."""
    known = {}

    def at(*args):
        key = tuple(arg.get_id() if hasattr(arg, "get_id") else arg for arg in args)
        if key not in known:
            known[key] = (args, function(*args))
        return known[key][1]

    return at


def put(function, *at_and_value):
    """`function`, but `value` at the given arguments."""
    *at, value = at_and_value
    return lambda *args: If(And([a == b for a, b in zip(args, at)]), value, function(*args))


def where(function, condition, value):
    """`function`, but `value(...)` wherever the condition holds."""
    return lambda *args: If(condition(*args), value(*args) if callable(value) else value, function(*args))


def larger(a, b):
    return If(a >= b, a, b)


def smaller(a, b):
    return If(a <= b, a, b)


def granted(upper):
    """The as-of that is granted: `U - 1`, or the original one while nothing is accepted."""
    return larger(upper - 1, Const.ASOF)


def begin(s):
    """Where the chain begins: what was released and what was expired is gone."""
    return larger(s.released, s.expired)


def may_complete():
    return Or(Const.SEALS, Const.UPTO < Const.TOP)


def incarnation_of(k):
    return Const.inc(Const.desc(k))


def settled(s, k):
    """No row can come to reference it: its incarnation is closed, or its description is resolved."""
    i = incarnation_of(k)
    return And(s.known(i), Or(Not(s.open(i)), Const.hi(Const.desc(k)) <= s.resolved(i)))


def garbage(s, k):
    """The verdict of the sweep and the deleter."""
    return And(settled(s, k), Not(s.linked(k)), s.queued(k) == 0)


def held(s, k):
    """Somebody's handle has it."""
    return Or(s.in_upload(k), s.in_share(k), s.in_merge(k), s.in_offer(k))


def owned(s, k):
    return Or(held(s, k), s.given_up(k), s.given_up_merge(k), s.linked(k), s.queued(k) > 0)


def keeps(k, lo, hi):
    """Whether a part holds, by its times, anything of a piece."""
    return And(Const.tmax(k) >= lo, Const.tmin(k) < hi)


def presented(s, x, i):
    """The time at which an incarnation presents an update: what its snapshot accumulates stands at its as-of."""
    return larger(Const.time(x), s.as_of(i))


def brought(s, d, x, lo, hi):
    """How often the piece `[lo, hi)` of a batch brings an update."""
    i = Const.inc(d)
    at = presented(s, x, i)
    within = And(
        lo <= at, at < hi, Const.lo(d) <= at, at < Const.hi(d), at >= Const.floor(d), at < Const.UPTO
    )
    return If(within, s.content(d, Const.holder(x, i)), 0)


class Universe:
    """The terms at which universal statements are instantiated."""

    def __init__(self, s, given):
        terms = {sort: [] for sort in SORTS}

        def add(sort, *new):
            for term in new:
                if not any(term.eq(old) for old in terms[sort]):
                    terms[sort].append(term)

        for sort, some in given.items():
            add(sort, *some)
        add(D, *[Const.desc(k) for k in terms[K]])
        add(I, *[Const.inc(d) for d in terms[D]])
        add(R, *[Const.replica(i) for i in terms[I]])
        add(P, *[Const.minter(i) for i in terms[I]], *[Const.process(k) for k in terms[K]])
        add(
            W,
            *[Const.holder(x, i) for x in terms[X] for i in terms[I]],
            *[Const.reporter(k) for k in terms[K]],
        )
        add(
            Q,
            *[t for s_ in list(terms[Q]) for t in (s_ + 1, s_ - 1)],
            s.first,
            s.next - 1,
            *[s.row(k) for k in terms[K]],
        )
        self.terms = terms

    def instances(self, sorts, statement):
        return [statement(*args) for args in product(*[self.terms[sort] for sort in sorts])]
