"""All actions by name, and the state before the first."""

from z3 import And, Not

from action import Action
from cleanup import (
    acknowledge,
    be_heard,
    crash,
    delete,
    dequeue,
    drop_sink,
    expire,
    grow_absent,
    ledger_judges,
    ledger_queues,
    ledger_settles,
    register,
    release,
    release_expired,
    sweep_lists,
    sweep_queues,
    sweep_reads,
    unregister,
)
from model import NO_ERROR, UNDECLARED, C, D, I, K, P, Q, S, W, X
from model import Const as c
from offers import (
    commit_accept,
    commit_drop,
    commit_extend,
    commit_poison,
    commit_poison_at_upper,
    commit_trim,
    drop_unwritten,
    learn_outcome,
    look,
    lose_race,
    outcome_unknown,
)
from writing import (
    close,
    compact,
    complete_batch,
    declare,
    give_up_part,
    let_go,
    lose_share,
    mint,
    open_incarnation,
    put_is_seen,
    put_lands,
    put_part,
    refuse_share,
    report_share,
    send_failure,
    send_share,
)

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
    Action("release-expired", {"c": C, "t": "time"}, release_expired),
    Action("grow-absent", {"c": C}, grow_absent),
    Action("be-heard", {"c": C}, be_heard),
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
    start = [
        (
            (),
            lambda: And(
                s.status == UNDECLARED,
                s.upper == c.ASOF,
                s.released == c.ASOF,
                s.expired <= c.ASOF,
                s.first == s.next,
                s.compacted <= c.ASOF,
            ),
        )
    ]
    start += [((I,), no(name)) for name in ("known", "open", "ended", "skipped")]
    start += [((I,), zero(name)) for name in ("next_ord", "left", "done")]
    start += [((D,), no(name)) for name in ("minted", "merged", "saw")]
    start += [((D,), zero("outcome")), ((D,), lambda d: s.error(d) == NO_ERROR)]
    start += [((D, W), zero(name)) for name in ("said", "counted", "content")]
    start += [
        ((K,), no(name))
        for name in (
            "stored",
            "seen",
            "in_upload",
            "in_share",
            "in_merge",
            "in_offer",
            "given_up",
            "given_up_merge",
            "judged",
            "named",
            "batched",
            "linked",
            "ever_linked",
            "ever_queued",
            "deleted",
            "lost",
        )
    ]
    start += [((K,), zero(name)) for name in ("puts", "queued")]
    start += [((C,), no("registered")), ((C,), no("absent")), ((S, K), no("listed")), ((S, K), no("planned")), ((P,), no("dead"))]
    start += [((X,), zero("delivered"))]
    return start
