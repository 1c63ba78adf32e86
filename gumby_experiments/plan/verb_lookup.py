"""Marks methods as verbs of scenarios, and finds the verb of a line."""

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tunnel_pool.gumby_experiments.plan.errors import ScenarioError
from tunnel_pool.gumby_experiments.plan.scenario import Line, Scenario

Method = TypeVar("Method", bound=Callable[..., Any])
_OF_A_NODE, _OF_THE_RUN = "node", "run"


def of_a_node(method: Method) -> Method:
    """Mark a verb that is done once for each node that its line names; its first argument is the node's number."""
    method.verb_of = _OF_A_NODE  # type: ignore[attr-defined]
    return method


def of_the_run(method: Method) -> Method:
    """Mark a verb that is done once."""
    method.verb_of = _OF_THE_RUN  # type: ignore[attr-defined]
    return method


def is_of_a_node(method: Callable[..., Any]) -> bool:
    return getattr(method, "verb_of", None) == _OF_A_NODE


def load_modules(scenario: Scenario) -> list[type]:
    """Return the classes that a scenario names. Raises ScenarioError."""
    classes = []
    for dotted in scenario.modules:
        module, _, name = dotted.rpartition(".")
        try:
            classes.append(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError, ValueError) as error:
            raise ScenarioError(f"&module {dotted}: {error}") from None
    return classes


def find_verb(owners: Iterable[Any], line: Line) -> Callable[..., Any]:
    """Return the method of an object, or class, that does this line. Raises ScenarioError."""
    found: Callable[..., Any] | None = None
    for owner in owners:
        method = getattr(owner, line.verb, None)
        if getattr(method, "verb_of", None) is not None:
            found = method
    if found is None:
        raise ScenarioError(f"{line.where}: no &module has the verb {line.verb}")
    return found


def check_arguments(method: Callable[..., Any], line: Line, of_class: bool) -> None:
    """Check that the verb takes what the line gives it. Raises ScenarioError."""
    before = [None] * (is_of_a_node(method) + of_class)
    try:
        inspect.signature(method).bind(*before, *line.arguments, **line.named)
    except TypeError as error:
        raise ScenarioError(f"{line.where}: {line.verb}: {error}") from None


def check(scenario: Scenario) -> None:
    """Check that every line can be done. Raises ScenarioError."""
    classes = load_modules(scenario)
    for line in scenario.lines:
        check_arguments(find_verb(classes, line), line, of_class=True)
