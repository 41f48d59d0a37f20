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
import sys
import time

from z3 import And, Const as Z3Const, Int, Not, Solver, is_false, is_true, sat, simplify, unsat

from actions import ACTIONS, Params, initial
from invariants import INVARIANTS
from lemmas import LEMMAS
from model import COMPONENTS, Const, Q, SORTS, State, Universe
from mutants import MUTANTS


def witnesses(params):
    """Two elements of each sort that an invariant may fail at, and the action's own."""
    given = {}
    for sort in SORTS:
        make = Int if sort == Q else (lambda name, sort=sort: Z3Const(name, SORTS[sort]))
        given[sort] = params.get(sort, []) + [make(f"{sort.lower()}_{n}") for n in (1, 2)]
    return given


def at_witnesses(statement, *states):
    seen = {}
    args = []
    for sort in statement.sorts:
        seen[sort] = seen.get(sort, 0) + 1
        make = Int if sort == Q else (lambda name, sort=sort: Z3Const(name, SORTS[sort]))
        args.append(make(f"{sort.lower()}_{seen[sort]}"))
    return statement.holds(*states, *args)


class Setting:
    """The state before, and everything that is assumed of it."""

    def __init__(self, assumed, params, guards):
        self.before = State.symbolic()
        self.universe = Universe(self.before, witnesses(params))
        self.solver = Solver()
        for sorts, statement in Const.axioms() + guards(self.before):
            self.solver.add(*self.universe.instances(sorts, statement))
        for invariant in assumed:
            self.solver.add(*self.universe.instances(
                invariant.sorts, lambda *args, holds=invariant.holds: holds(self.before, *args)))

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
            print(f"{name:48} {note:12} {took * 1000:8.1f} ms")
        if failure is not None:
            self.failed += 1
            print(failure)
        sys.stdout.flush()


def describe(model, setting, after=None):
    """The elements of a model, and what each state component says of them before and after."""
    names, lines = {}, []
    for sort, terms in setting.universe.terms.items():
        for term in terms:
            value = model.eval(term, model_completion=True)
            label = names.setdefault((sort, str(value)), str(value) if sort == Q else f"{sort.lower()} {len([k for k in names if k[0] == sort])}")
            if term.num_args() == 0 and not str(term).startswith(sort.lower()):
                lines.append(f"      {term} is {label}")
    def value_of(expression):
        is_term = hasattr(expression, "as_ast")
        return str(model.eval(expression, model_completion=True) if is_term else expression)

    for name in ("ASOF", "UPTO", "TOP", "SEALS"):
        lines.append(f"      {name} = {value_of(getattr(Const, name))}")
    shown = set()
    facts = {"replica": ("Incarnation",), "inc": ("Description",), "ord": ("Description",), "lo": ("Description",),
             "hi": ("Description",), "floor": ("Description",), "desc": ("Part",), "n": ("Part",), "tmin": ("Part",),
             "tmax": ("Part",), "time": ("Update",)}
    def rows(name, sorts, before, later):
        from itertools import product
        for args in product(*[setting.universe.terms[sort] for sort in sorts]):
            key = tuple(names[(sort, value_of(arg))] for sort, arg in zip(sorts, args))
            if (name, key) in shown:
                continue
            shown.add((name, key))
            old = value_of(before(*args) if sorts else before)
            new = old if later is None else value_of(later(*args) if sorts else later)
            old, new = (names.get((kind, v), v) if (kind := {"replica": "Replica", "inc": "Incarnation", "desc": "Description"}.get(name)) else v for v in (old, new))
            if old == new and (old == "False" or (name in COMPONENTS and old == "0")):
                continue
            lines.append(f"      {name}({', '.join(key)}) = {old}" + (f" -> {new}" if new != old else ""))
    for name, sorts in facts.items():
        rows(name, sorts, getattr(Const, name), None)
    for name, (sorts, _) in COMPONENTS.items():
        rows(name, sorts, getattr(setting.before, name), getattr(after, name) if after else None)
    return "\n".join(lines)


def prove(only, report):
    start = State.symbolic()
    setting = Setting([], {}, initial)
    for invariant in (v for v in INVARIANTS if not v.step):
        name = f"{invariant.name} / start"
        if only in name:
            began = time.monotonic()
            model = setting.refute(at_witnesses(invariant, start))
            report.add(name, "proved" if model is None else "FAILED", began,
                       None if model is None else describe(model, setting))
    for action in ACTIONS:
        if not any(only in f"{invariant.name} / {action.name}" for invariant in INVARIANTS):
            continue
        setting, before, after = for_action(action)
        began = time.monotonic()
        # An action that could never happen would prove anything.
        possible = setting.solver.check() == sat
        report.add(f"possible / {action.name}", "yes" if possible else "FAILED", began, None if possible else "")
        for invariant in INVARIANTS:
            name = f"{invariant.name} / {action.name}"
            if only not in name:
                continue
            began = time.monotonic()
            if unchanged(invariant, before, after):
                report.add(name, "untouched", began)
                continue
            model = setting.refute(goal_of(invariant, before, after))
            report.add(name, "proved" if model is None else "FAILED", began,
                       None if model is None else describe(model, setting, after))
    for lemma in LEMMAS:
        if only in lemma.name:
            began = time.monotonic()
            failure = check_lemma(lemma)
            holds = failure is None
            note = "proved" if holds and lemma.holds else "refuted" if not holds and not lemma.holds else "FAILED"
            report.add(lemma.name, note, began, (failure or "") if note == "FAILED" else None)


def check_lemma(lemma):
    given = {}
    terms = {}
    for name, kind in lemma.params.items():
        terms[name] = Int(f"p_{name}") if kind in ("time", Q) else Z3Const(f"p_{name}", SORTS[kind])
        if kind != "time":
            given.setdefault(kind, []).append(terms[name])
    setting = Setting([v for v in INVARIANTS if not v.step], given,
                      lambda s: [((), lambda: lemma.given(s, Params(terms)))])
    if setting.solver.check() != sat:
        return "      its premise cannot hold"
    model = setting.refute(lemma.then(setting.before, Params(terms), setting.universe))
    return None if model is None else describe(model, setting)


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
        report.add(name, "caught" if caught else "MISSED", began, None if caught else f"      breaks only {broken}")
        print(f"{name:72} {', '.join(broken)}")
        if show and model is not None:
            print(describe(model, setting, after))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--show", action="store_true", help="with --mutants: print each counterexample")
    args = parser.parse_args()
    began = time.monotonic()
    report = Report(args.list)
    if args.mutants:
        mutate(args.only, report, args.show)
    else:
        prove(args.only, report)
        table(report)
    count = len(report.rows)
    if count == 0:
        print("no check has such a name")
        return 1
    print(f"{count} checks, {report.failed} failed, {time.monotonic() - began:.1f} s")
    return 1 if report.failed else 0


def table(report):
    """One line per action: how many invariants were proved, and how many it does not touch."""
    lines = {}
    for name, note, took in report.rows:
        _, _, action = name.partition(" / ")
        line = lines.setdefault(action or "lemmas", {"proved": 0, "untouched": 0, "FAILED": 0, "took": 0.0})
        line[note if note in line else "proved"] += 1
        line["took"] += took
    print(f"{'action':26} {'proved':>7} {'untouched':>10} {'failed':>7} {'time':>9}")
    for action, line in lines.items():
        print(f"{action:26} {line['proved']:7} {line['untouched']:10} {line['FAILED']:7} {line['took']:7.2f} s")


if __name__ == "__main__":
    sys.exit(main())
