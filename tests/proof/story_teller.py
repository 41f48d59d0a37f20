"""Plays a story: composes its actions from the start on, and asks whether all guards and the end can hold."""

from z3 import Const as Z3Const
from z3 import Distinct, Int, Or, Solver, sat

from action import Params
from actions import ACTION, initial
from model import SORTS, Const, K, Q, State, Universe, X
from stories import SORT_OF


def names_of(story):
    """The elements that a story names, by sort; one update `x` besides."""
    names = {"x": X}
    for _, params in story.steps:
        for name, value in params.items():
            for one in value if isinstance(value, tuple) else [value]:
                if isinstance(one, str):
                    names[one] = K if name == "parts" else SORT_OF[name]
    return names


class Names(dict):
    __getattr__ = dict.__getitem__


def element(name, sort):
    return Int(name) if sort in ("time", Q) else Z3Const(name, SORTS[sort])


def play(story, instead=None):
    """`None` if the story can happen, else the step at which it cannot. `instead` takes its action's place."""
    sorts = names_of(story)
    names = Names({name: element(f"n_{name}", sort) for name, sort in sorts.items()})
    given = {}
    for name, sort in sorts.items():
        if sort in SORTS:
            given.setdefault(sort, []).append(names[name])
    state, solver = State.symbolic(), Solver()
    for terms in given.values():
        if len(terms) > 1:
            solver.add(Distinct(*terms))
    solver.add(story.given(names))

    def add(guards, at):
        universe = Universe(at, given)
        for sorts, statement in guards:
            solver.add(*universe.instances(sorts, statement))

    add(Const.axioms() + initial(state), state)
    for number, (name, params) in enumerate(story.steps):
        action = instead if instead is not None and instead.name == name else ACTION[name]
        guards, state_after = action.does(state, Params(bind(action, params, names, state)))
        add(guards, state)
        state = state_after
        if solver.check() != sat:
            return f"      step {number + 1}, {name} {params}, cannot happen"
    solver.add(story.ends(state, names))
    return None if solver.check() == sat else "      it cannot end so"


def bind(action, params, names, state):
    bound = {}
    for name, kind in action.params.items():
        if isinstance(kind, tuple):
            parts = [names[part] for part in params["parts"]]
            bound[name] = lambda k, parts=parts: Or([k == part for part in parts])
        elif params.get(name) is None:
            bound[name] = state.session(bound["c"])
        else:
            value = params[name]
            bound[name] = (
                names[value] if isinstance(value, str) else value(state) if callable(value) else value
            )
    return bound
