"""Prints a model: its elements, and what each state component says of them before and after the action."""

from itertools import product

from model import COMPONENTS, Const, D, I, K, Q, R, X

FACTS = {
    "replica": (I,),
    "inc": (D,),
    "ord": (D,),
    "lo": (D,),
    "hi": (D,),
    "floor": (D,),
    "desc": (K,),
    "n": (K,),
    "tmin": (K,),
    "tmax": (K,),
    "time": (X,),
}
RESULT_SORT = {"replica": R, "inc": I, "desc": D}


class Printer:
    """Names the elements of a model, `part 0`, `part 1`, and prints each fact once."""

    def __init__(self, model, universe):
        self.model, self.universe = model, universe
        self.names, self.counts, self.lines, self.shown = {}, {}, [], set()

    def value(self, expression):
        is_term = hasattr(expression, "as_ast")
        return str(self.model.eval(expression, model_completion=True) if is_term else expression)

    def name_elements(self):
        for sort, terms in self.universe.terms.items():
            for term in terms:
                value = self.value(term)
                if (sort, value) not in self.names:
                    number = self.counts.setdefault(sort, 0)
                    self.counts[sort] += 1
                    self.names[sort, value] = value if sort == Q else f"{sort.lower()} {number}"
                if str(term).startswith("p_"):
                    self.lines.append(f"      the action's {str(term)[2:]} is {self.names[sort, value]}")

    def fact(self, name, sorts, before, after=None):
        for args in product(*[self.universe.terms[sort] for sort in sorts]):
            of = tuple(self.names[sort, self.value(arg)] for sort, arg in zip(sorts, args))
            if (name, of) in self.shown:
                continue
            self.shown.add((name, of))
            old = self.value(before(*args) if sorts else before)
            new = old if after is None else self.value(after(*args) if sorts else after)
            if old == new and (old == "False" or (name in COMPONENTS and old == "0")):
                continue
            old, new = (self.names.get((RESULT_SORT.get(name), value), value) for value in (old, new))
            arguments = f"({', '.join(of)})" if of else ""
            self.lines.append(f"      {name}{arguments} = {old}" + (f" -> {new}" if new != old else ""))


def describe(model, universe, before, after=None):
    """The lines to print. What is false or 0 and stays so is left out."""
    printer = Printer(model, universe)
    printer.name_elements()
    for name in ("ASOF", "UPTO", "TOP", "SEALS"):
        printer.lines.append(f"      {name} = {printer.value(getattr(Const, name))}")
    for name, sorts in FACTS.items():
        printer.fact(name, sorts, getattr(Const, name))
    for name, (sorts, _) in COMPONENTS.items():
        printer.fact(name, sorts, getattr(before, name), getattr(after, name) if after else None)
    return "\n".join(printer.lines)
