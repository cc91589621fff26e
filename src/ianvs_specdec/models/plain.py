"""Chat templates of which can be told that they end soon: one loop over the messages, and nothing that grows.

A template is a program from whoever made the model. Jinja's sandbox keeps it from files and from Python's insides, not
from running for ever or from filling the memory: a product of numbers or a width in a format string is enough. What is
listed here takes time and memory in proportion to the template times the chat. The templates of most models consist of
it. All others are run where they can be ended (``templates``).
"""

from __future__ import annotations

import functools
from typing import NoReturn

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

LOOPS = ["jinja2.ext.loopcontrols"]
LONGEST = 100_000
"""Characters of a template."""
LISTS = ("messages", "tools", "documents")
"""What is handed to a template to go through."""
METHODS = ("strip", "lstrip", "rstrip", "startswith", "endswith", "split", "get", "items", "upper", "lower", "title")
FILTERS = ("trim", "length", "count", "upper", "lower", "capitalize", "first", "last", "list", "string", "default", "d")
GROWING = (nodes.Concat, nodes.List, nodes.Dict, nodes.Tuple, nodes.Mod)
"""What may be more than its parts together: quotes inside of quotes are written twice. Of a variable it may not be
assigned to another, since ten such lines are a thousandfold."""
ALLOWED = (
    *(*GROWING, nodes.Add),
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.Break, nodes.Continue),
    *(nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Pair, nodes.Filter, nodes.Call),
    *(nodes.Test, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.Sub, nodes.Neg),
)


@functools.lru_cache(maxsize=64)
def compiled(template: str) -> Template:
    """A plain template, as transformers compiles it. Raises TemplateError."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=LOOPS)
    environment.globals["raise_exception"] = _raise
    return environment.from_string(template)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


@functools.lru_cache(maxsize=64)
def is_plain(template: str) -> bool:
    """Whether a chat template surely ends soon. What cannot be read is not plain."""
    if len(template) > LONGEST:
        return False
    try:
        tree = Environment(extensions=LOOPS).parse(template)
        return all(_known(node) for node in _all(tree)) and _loops_are_plain(tree) and _variables_stay_small(tree)
    except (TemplateError, RecursionError):
        return False


def _all(node: nodes.Node) -> list[nodes.Node]:
    return [node, *node.find_all(nodes.Node)]


def _known(node: nodes.Node) -> bool:
    if not isinstance(node, ALLOWED):
        return False
    if isinstance(node, nodes.Call):
        named = isinstance(node.node, nodes.Name) and node.node.name == "raise_exception"
        method = isinstance(node.node, nodes.Getattr) and node.node.attr in METHODS
        return (named or method) and not (node.kwargs or node.dyn_args or node.dyn_kwargs)
    if isinstance(node, nodes.Filter):
        # A block of text can be filtered, too; then there is no node.
        return node.node is not None and node.name in FILTERS and not (node.dyn_args or node.dyn_kwargs)
    if isinstance(node, nodes.Mod):
        # Of a text it is a format, which may ask for any width.
        return isinstance(node.left, nodes.Getattr) and _is_name(node.left.node, "loop")
    if isinstance(node, nodes.Assign):
        return isinstance(node.target, nodes.Name)
    return True


def _loops_are_plain(tree: nodes.Template) -> bool:
    """No loop in a loop, and each over the messages, or over some of them."""
    assigned = list(tree.find_all(nodes.Assign))
    lists = set(LISTS)
    while True:
        values = {name: [one.node for one in assigned if _is_name(one.target, name)] for name in _targets(assigned)}
        more = {name for name, given in values.items() if all(_is_list(value, lists) for value in given)} - lists
        if not more:
            break
        lists |= more
    # A list's name may be given to something else.
    lists -= {name for name, given in values.items() if not all(_is_list(value, lists) for value in given)}
    loops = list(tree.find_all(nodes.For))
    nested = any(inner for loop in loops for part in loop.body for inner in _all(part) if isinstance(inner, nodes.For))
    return not nested and all(not loop.recursive and _is_list(loop.iter, lists) for loop in loops)


def _is_list(value: nodes.Node, lists: set[str]) -> bool:
    if isinstance(value, nodes.Getitem) and isinstance(value.arg, nodes.Slice):
        return _is_list(value.node, lists)
    return isinstance(value, nodes.Name) and value.name in lists


def _variables_stay_small(tree: nodes.Template) -> bool:
    assigned = list(tree.find_all(nodes.Assign))
    names = _targets(assigned)
    for one in assigned:
        inside = _all(one.node)
        variables = sum(isinstance(node, nodes.Name) and node.name in names for node in inside)
        grows = any(isinstance(node, GROWING) or getattr(node, "name", "") == "string" for node in inside)
        # A sum of one variable and texts is longer by the texts; a sum of two may be twice as long.
        if (variables and grows) or (variables > 1 and any(isinstance(node, nodes.Add) for node in inside)):
            return False
    return True


def _targets(assigned: list[nodes.Assign]) -> set[str]:
    return {one.target.name for one in assigned if isinstance(one.target, nodes.Name)}


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
