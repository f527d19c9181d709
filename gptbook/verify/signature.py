"""How a reader's function takes what the contract gives it: by name, by place, or not at all."""

import inspect

from gptbook.verify.subject import CannotLook


class Signature:
    """What `function` calls the parameters that the contract names, in this order.

    `spare` holds what else it may ask for: name -> value. A parameter under another name is found by its place.
    """

    def __init__(self, function, names: tuple[str, ...], spare: dict | None = None):
        self.spare = spare or {}
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # some built-in functions do not tell: the first by place, the rest by name
            self.own, self.any, self.parameters = {name: name for name in names[1:]}, True, None
            self.own[names[0]] = 0
            return
        self.any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        places = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.parameters = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        known = {p.name for p in self.parameters}
        self.own = {name: name for name in names if name in known}
        for place, name in enumerate(names):
            if name in self.own or place >= len(self.parameters):
                continue
            other = self.parameters[place]
            if other.kind is not other.KEYWORD_ONLY and other.name not in {*names, *self.spare}:
                self.own[name] = other.name
        if not self.parameters and places:  # f(*args)
            self.own[names[0]] = 0

    def takes(self, name: str) -> bool:
        """Whether the function can be told this."""
        return name in self.own or self.any

    def arguments(self, **values) -> tuple[list, dict]:
        """How to call the function with these values: arguments by place and by name.

        Raises CannotLook naming what it does not take, or needs and nobody can give.
        """
        named, first = {}, []
        for name, value in values.items():
            if not self.takes(name):
                raise CannotLook(f"the function takes no {name}")
            own = self.own.get(name, name)
            if own == 0:
                first.append(value)
            else:
                named[own] = value
        if self.parameters is None:
            return first, named
        for p in self.parameters:
            if p.name not in named and p.default is p.empty and not first:
                if p.name not in self.spare:
                    raise CannotLook(f"the function needs `{p.name}`, which this check cannot give")
                named[p.name] = self.spare[p.name]
        first += [named.pop(p.name) for p in self.parameters if p.kind is p.POSITIONAL_ONLY and p.name in named]
        return first, named
