"""What reaches a node: each input of the kind that the node's schema says.

ComfyUI looks at values that are written into a graph. What comes over a link it hands on as it is, where the other
end says that it gives anything; so it does with inputs that have no widget, whatever a graph says.
"""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from comfy_api.latest import io

from .common import MAKERS, check_wire

LONGEST_SHOWN = 40          # characters of a value in an error,
LONGEST_NAMES = 200         # and of names

KINDS = {wire: kind for kind, (wire, _) in MAKERS.items()}


def checked(execute: Callable) -> Callable:
    """``execute`` of a node, called with inputs of the kinds in its schema: numbers as int and float, switches as
    bool, text as str, and our own wires' values.

    Nothing in an optional input is as if it were not there; in a text it is "". ``ValueError`` for all else.
    """
    names = list(inspect.signature(execute).parameters)[1:]

    @functools.wraps(execute)
    def call(cls: type[io.ComfyNode], *values, **named) -> io.NodeOutput:
        given = {**dict(zip(names, values)), **named}
        schema = cls.define_schema()
        _check_names(schema, given)
        return execute(cls, **_all(schema.inputs, given, f"{schema.display_name}: "))

    return call


def shown(value: object) -> str:
    """A value in an error: small ones as they are, of others the kind."""
    if value is None:
        return "nothing"
    if isinstance(value, (str, bool, float)) or isinstance(value, int) and abs(value) < 10**LONGEST_SHOWN:
        text = repr(value)
        return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
    return f"a value of type {type(value).__name__}"


def _check_names(schema: io.Schema, given: Iterable[str]) -> None:
    """ValueError for inputs that there are not: links to such ComfyUI hands on like all others.

    What belongs to a choice comes so too, where that is unknown, which is an error of its own.
    """
    known = {one.id: one for one in schema.inputs}
    unknown = [name for name in sorted(given) if name not in known
               and not isinstance(known.get(name.split(".")[0]), io.DynamicCombo.Input)]
    if unknown:
        growing = [(one.id, one.template.names) for one in schema.inputs if isinstance(one, io.Autogrow.Input)]
        advice = "; ".join([f"connect at most {len(names)} {name}, as {name}.{names[0]} to {name}.{names[-1]}"
                            for name, names in growing] or ["disconnect it"])
        raise ValueError(f"{schema.display_name}: {', '.join(unknown)[:LONGEST_NAMES]} is no input of it; {advice}.")


def _all(inputs: Sequence[io.Input], given: Mapping, role: str) -> dict:
    """These inputs by name, without the optional ones that have nothing in them."""
    def counts(one: io.Input) -> bool:
        return (not one.optional or given.get(one.id) is not None
                or isinstance(one, io.String.Input) and one.id in given)

    return {one.id: _one(one, given.get(one.id), f"{role}{one.id}") for one in inputs if counts(one)}


def _one(one: io.Input, value: object, role: str) -> object:
    """The value of an input as ``execute`` takes it. Sound is left to ``audio.clips``."""
    if one.io_type in KINDS:
        check_wire(value, KINDS[one.io_type], role)
    elif isinstance(one, io.Autogrow.Input):
        value = _grown(one, value, role)
    elif isinstance(one, io.DynamicCombo.Input):
        value = _choice(one, value, role)
    elif isinstance(one, io.String.Input):
        value = _text(one, value, role)
    elif isinstance(one, io.Int.Input):
        value = _number(one, value, int, f"{role}: expected a whole number")
    elif isinstance(one, io.Float.Input):
        value = _number(one, value, float, f"{role}: expected a number")
    elif isinstance(one, io.Boolean.Input):
        value = _switch(value, role)
    elif isinstance(one, io.Combo.Input) and not isinstance(value, str):
        raise ValueError(f"{role}: expected a choice, got {shown(value)}; choose one from the list.")
    return value


def _number(one: io.Input, value: object, kind: type, problem: str) -> int | float:
    """Numbers of every kind are numbers, those of numpy and torch too: other packs' nodes send what they like."""
    try:
        number = kind(value)
        # A bool is a slip, and a text that reads as a number is still a text.
        fine = not isinstance(value, (bool, np.bool_, str, bytes, bytearray)) and (
            kind is float or bool(number == value))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        fine = False
    if not fine:
        raise ValueError(f"{problem}, got {shown(value)}; give one, such as {one.default}.")
    return number


def _switch(value: object, role: str) -> bool:
    """True, False, 1 or 0. That 'False' is text, and as such on, nobody means."""
    if not isinstance(value, (bool, np.bool_, int, float)) or value not in (0, 1):
        raise ValueError(f"{role}: expected true or false, got {shown(value)}; give one of them.")
    return bool(value)


def _text(one: io.Input, value: object, role: str) -> str:
    """"" for nothing, and for "None", which ComfyUI makes of a null that comes over its interface."""
    if value is None or isinstance(value, str) and value == "None":
        if not one.optional:
            raise ValueError(f"{role}: expected text, got nothing, or None, which ComfyUI makes of nothing; write what "
                             "is to be said, that word with a stop: 'None.'")
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{role}: expected text, got {shown(value)}; connect a text, or write it.")
    return value


def _choice(one: io.DynamicCombo.Input, given: object, role: str) -> dict:
    """A choice and what belongs to it. ComfyUI leaves an unknown choice out of the call."""
    if not isinstance(given, (Mapping, type(None))):
        raise ValueError(f"{role}: expected a choice, got {shown(given)}; choose one from the list.")
    given = given or {}
    inner = next((option.inputs for option in one.options if option.key == given.get(one.id)), [])
    return {one.id: given.get(one.id), **_all(inner, given, f"{role}.")}


def _grown(one: io.Autogrow.Input, given: object, role: str) -> dict:
    """What is connected to an input that grows, by name."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{role}: expected connections, got {shown(given)}; connect them one by one, as {one.id}."
                         f"{one.template.names[0]} and so on.")
    connected = {name: value for name, value in given.items() if value is not None}
    for value in connected.values():
        check_wire(value, KINDS[one.template.input.io_type], role)
    return connected
