#!/usr/bin/env python3
"""Proves every invariant against every action: what holds before an action holds after it.

    python prove.py              all checks, and a table; 1 if one fails
    python prove.py --mutants    changed actions, each of which must break the invariant named
    python prove.py --only X     the checks whose name contains X
    python prove.py --list       every check with its result and time

A check is: axioms and all invariants, instantiated at the terms at hand, and the action, and not the invariant
afterwards. `unsat` proves it, since fewer instances assume less. `sat` yields a state, printed.
"""

import argparse
import re
import sys
import time
from pathlib import Path

from z3 import Const as Z3Const
from z3 import Int, Not, Solver, sat, unsat

from action import Params
from actions import ACTIONS, initial
from counterexample import describe
from invariants import INVARIANT, INVARIANTS
from lemmas import LEMMAS
from model import SORTS, Const, Q, State, Universe
from mutants import IN_CODE, MUTANTS
from stories import MISDEEDS, STORIES
from story_teller import play


def witness(sort, number):
    """An element at which an invariant may fail."""
    name = f"{sort.lower()}_{number}"
    return Int(name) if sort == Q else Z3Const(name, SORTS[sort])


def witnesses(sorts):
    """One element for each of the sorts."""
    return [witness(sort, sorts[: place + 1].count(sort)) for place, sort in enumerate(sorts)]


def elements(params, sorts):
    """An action's own elements, and the witnesses of these sorts, by sort."""
    given = {sort: list(some) for sort, some in params.items()}
    for sort, element in zip(sorts, witnesses(sorts)):
        given.setdefault(sort, []).append(element)
    return given


def at_witnesses(statement, *states):
    return statement.holds(*states, *witnesses(statement.sorts))


class Setting:
    """The state before, and everything that is assumed of it."""

    def __init__(self, assumed, params, guards):
        self.before = State.symbolic()
        self.params = params
        self.universe = Universe(self.before, elements(params, [sort for sort in SORTS for _ in range(2)]))
        self.solver = Solver()
        for sorts, statement in Const.axioms() + guards(self.before):
            self.solver.add(*self.universe.instances(sorts, statement))
        for invariant in assumed:
            self.solver.add(
                *self.universe.instances(
                    invariant.sorts, lambda *args, holds=invariant.holds: holds(self.before, *args)
                )
            )

    def concerned(self, sorts=()):
        """The elements that a counterexample is about: the action's, and those an invariant of these sorts names."""
        return Universe(self.before, elements(self.params, sorts))

    def refute(self, goal):
        """`None` if the goal follows, else a model in which it fails."""
        self.solver.push()
        self.solver.add(Not(goal))
        answer = self.solver.check()
        model = self.solver.model() if answer == sat else None
        self.solver.pop()
        if answer == unsat:
            return None
        assert answer == sat, f"the solver gave up: {self.solver.reason_unknown()}"
        return model


def for_action(action):
    params, given = action.make_params()
    before = State.symbolic()
    guards, after = action.does(before, Params(params))
    setting = Setting([v for v in INVARIANTS if not v.step], given, lambda _: guards)
    return setting, before, after


def unchanged(invariant, before, after):
    """Whether the action does not touch what the invariant speaks of."""
    if invariant.step:
        return False
    return at_witnesses(invariant, before).eq(at_witnesses(invariant, after))


def goal_of(invariant, before, after):
    states = (before, after) if invariant.step else (after,)
    return at_witnesses(invariant, *states)


class Report:
    def __init__(self, every):
        self.every, self.rows, self.failed = every, [], 0

    def add(self, name, note, began, failure=None):
        took = time.monotonic() - began
        self.rows.append((name, note, took))
        if self.every or failure is not None:
            print(f"{note:9} {took * 1000:7.1f} ms  {name}")
        if failure is not None:
            self.failed += 1
            print(failure)
        sys.stdout.flush()


def prove(only, report):
    start = State.symbolic()
    setting = Setting([], {}, initial)
    for invariant in (v for v in INVARIANTS if not v.step):
        name = f"{invariant.name} / start"
        if only in name:
            began = time.monotonic()
            model = setting.refute(at_witnesses(invariant, start))
            report.add(
                name,
                "proved" if model is None else "FAILED",
                began,
                None if model is None else describe(model, setting.concerned(invariant.sorts), before=start),
            )
    for action in ACTIONS:
        if not any(only in f"{invariant.name} / {action.name}" for invariant in INVARIANTS):
            continue
        setting, before, after = for_action(action)
        began = time.monotonic()
        # An action that could never happen would prove anything.
        possible = setting.solver.check() == sat
        report.add(
            f"possible / {action.name}", "yes" if possible else "FAILED", began, None if possible else ""
        )
        for invariant in INVARIANTS:
            name = f"{invariant.name} / {action.name}"
            if only not in name:
                continue
            began = time.monotonic()
            if unchanged(invariant, before, after):
                report.add(name, "untouched", began)
                continue
            model = setting.refute(goal_of(invariant, before, after))
            report.add(
                name,
                "proved" if model is None else "FAILED",
                began,
                None if model is None else describe(model, setting.concerned(invariant.sorts), before, after),
            )
    for lemma in LEMMAS:
        if only in lemma.name:
            began = time.monotonic()
            failure = check_lemma(lemma)
            holds = failure is None
            note = "FAILED" if holds != lemma.holds else "proved" if holds else "refuted"
            report.add(lemma.name, note, began, (failure or "") if note == "FAILED" else None)

    tell("every action occurs in a story", only, report, untold)
    tell("README: every invariant in one line", only, report, readme)
    for story in STORIES:
        tell(f"story: {story.name}", only, report, play, story)


def untold():
    """Which actions no story tells, if any."""
    missing = {action.name for action in ACTIONS} - {name for story in STORIES for name, _ in story.steps}
    return f"      no story tells {sorted(missing)}" if missing else None


def unbroken():
    """Which rules that can be broken in the code have no mutant here, if any."""
    code = Path(__file__).parents[2] / "crates" / "stash-types" / "src" / "fault.rs"
    in_code = re.findall(r"^        Mutant::(\w+),$", code.read_text(encoding="utf-8"), re.MULTILINE)
    here = {mutant.name for mutant in MUTANTS} | {lemma.mutant for lemma in LEMMAS}
    missing = [name for name in in_code if IN_CODE.get(name) not in here]
    return f"      no mutant stands for {missing} of {code.name}" if missing or not in_code else None


def readme():
    """What the README's table lacks, if anything: prose drifts."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    missing = [v.name for v in INVARIANTS if f"| {v.name} | {v.says} |" not in text]
    return f"      the table lacks or misquotes {missing}" if missing else None


def tell(name, only, report, check, *args):
    """A check that answers `None` or what is wrong."""
    if only in name:
        began = time.monotonic()
        wrong = check(*args)
        report.add(name, "proved" if wrong is None else "FAILED", began, wrong)


def misdeed(story):
    """That it comes to harm with its mutant, and cannot with the action as it is."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == story.mutant)
    wrong = play(story, instead=mutant.action)
    if wrong is None and play(story) is None:
        wrong = "      it happens without the mutant"
    return wrong


def check_lemma(lemma):
    given = {}
    terms = {}
    for name, kind in lemma.params.items():
        terms[name] = Int(f"p_{name}") if kind in ("time", Q) else Z3Const(f"p_{name}", SORTS[kind])
        if kind != "time":
            given.setdefault(kind, []).append(terms[name])
    setting = Setting(
        [v for v in INVARIANTS if not v.step], given, lambda s: [((), lambda: lemma.given(s, Params(terms)))]
    )
    if setting.solver.check() != sat:
        return "      its premise cannot hold"
    model = setting.refute(lemma.then(setting.before, Params(terms), setting.universe))
    return None if model is None else describe(model, setting.concerned(), setting.before)


def mutate(only, report, show):
    for mutant in MUTANTS:
        name = f"{mutant.name} breaks {mutant.breaks}"
        if only not in name:
            continue
        began = time.monotonic()
        setting, before, after = for_action(mutant.action)
        broken, model = [], None
        for invariant in INVARIANTS:
            if unchanged(invariant, before, after):
                continue
            found = setting.refute(goal_of(invariant, before, after))
            if found is not None:
                broken.append(invariant.name)
                model = found if invariant.name == mutant.breaks else model
        caught = mutant.breaks in broken
        report.add(
            name, "caught" if caught else "MISSED", began, None if caught else f"      breaks only {broken}"
        )
        print(f"{'':22}{', '.join(broken)}")
        if show and model is not None:
            print(describe(model, setting.concerned(INVARIANT[mutant.breaks].sorts), before, after))

    for lemma in (lemma for lemma in LEMMAS if lemma.mutant):
        name = f"{lemma.mutant} breaks I12, the lemma that some action moves U"
        if only in name:
            began = time.monotonic()
            refuted = check_lemma(lemma)
            report.add(name, "caught" if refuted else "MISSED", began, None if refuted else "      the lemma holds")
            if show and refuted:
                print(refuted)
    tell("every rule that can be broken in the code is broken here", only, report, unbroken)
    for story in MISDEEDS:
        tell(f"{story.mutant}, from the start: {story.name}", only, report, misdeed, story)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--show", action="store_true", help="with --mutants: print each counterexample")
    args = parser.parse_args()
    began = time.monotonic()
    report = Report(args.list or args.mutants)
    if args.mutants:
        mutate(args.only, report, args.show)
    else:
        prove(args.only, report)
        table(report)
    count = len(report.rows)
    if count == 0:
        print("no check has such a name")
        return 1
    untouched = sum(note == "untouched" for _, note, _ in report.rows)
    took = time.monotonic() - began
    aside = f" ({untouched} of what the action does not touch)" if untouched else ""
    print(f"{count} checks{aside}, {report.failed} failed, {took:.1f} s")
    return 1 if report.failed else 0


def table(report):
    """One line per action: how many invariants the solver proved, and how many speak of nothing it touches."""
    lines = {}
    for name, note, took in report.rows:
        _, _, action = name.partition(" / ")
        line = lines.setdefault(action or "lemmas", {"proved": 0, "untouched": 0, "FAILED": 0, "took": 0.0})
        line[note if note in line else "proved"] += 1
        line["took"] += took
    print(f"{'action':26} {'proved':>7} {'untouched':>10} {'failed':>7} {'time':>9}")
    for action, line in lines.items():
        print(
            f"{action:26} {line['proved']:7} {line['untouched']:10} {line['FAILED']:7} {line['took']:7.2f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
