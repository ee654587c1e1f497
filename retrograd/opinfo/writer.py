"""Generates the source of an op's public functions, for PyTorch or JAX, from its declaration."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from retrograd.core.declaration import Argument, Bundle, Option, Result
from retrograd.core.op import Function, Op
from retrograd.core.spec import CallSpec, arguments, autocast_ranks, options, parameters

WIDTH = 120
Asked = dict[str, bool]  # option that returns a result -> whether it is set


@dataclass(frozen=True)
class Face:
    """What the generated functions for one framework contain.

    Attributes:
        array: the framework's array type.
        dtype: the annotation of a dtype option.
        checked_dtype: the function that checks a dtype option and converts it for the op.
        copy: an expression that copies an argument; `{}` is replaced by its name.
        namespace: the function that returns the framework's array functions.
        face: the module that users import.
        context: what the argument `context` is, in a docstring.
    """

    array: str
    dtype: str
    checked_dtype: str
    copy: str
    namespace: str
    face: str
    context: str


TORCH = Face(
    "Tensor",
    "torch.dtype | None",
    "torch_dtype",
    "{}.clone()",
    "torch_namespace",
    "retrograd",
    """where steps are divided over processes, a `retrograd.distributed.ContextParallel`; all arrays with steps are then
    this process's steps.""",
)
JAX = Face(
    "Array",
    "Any",
    "jax_dtype",
    "jnp.asarray({})",
    "jax_namespace",
    "retrograd.jax",
    """where steps are divided over devices, a `retrograd.jax.distributed.ContextParallel`, within `jax.shard_map`; all
    arrays with steps are then this device's steps.""",
)
OPTION_TYPES = {
    "bool": "bool",
    "float": "float",
    "float?": "float | None",
    "float[]": "tuple[float, float]",
    "int[]?": "tuple[int, int] | None",
    "SymInt?": "int | None",
}

JAX_NOTES = """\
On an NVIDIA GPU it launches the same kernels; on a CPU or TPU it is plain JAX.{kept} The function has derivatives of
every order, in reverse and in forward mode. First gradients in reverse mode come from the kernels; all others from
plain JAX, slower and with more memory."""


def function(call: type[CallSpec], face: Face) -> str:
    """The source of the public function that a call declares: of an op, or of an op's arguments in one array.

    It returns a tuple of the results that are asked for, in the declared order, or the result itself where it is the
    only one. There is an overload for each set of results.

    Raises:
        ValueError: for results among which a user could not choose by options.
    """
    ways = _ways(call)
    if len(ways) == 1:
        return _definition(call, face, _annotation(call.results, face)) + _body(call, face)
    parts = [
        f"@overload\n{_definition(call, face, _annotation(returned, face), asked)} ...\n" for asked, returned in ways
    ]
    numbers = sorted({len(returned) for _, returned in ways})
    kinds = [face.array if number == 1 else f"tuple[{', '.join([face.array] * number)}]" for number in numbers]
    return "\n\n".join([*parts, _definition(call, face, " | ".join(kinds))]) + _body(call, face)


def _ways(call: type[CallSpec]) -> list[tuple[Asked, tuple[Result, ...]]]:
    """The results that are returned for each setting of the options that ask for results, from none set to all."""
    asked_by = {result: _asked_by(call, result) for result in call.results}
    names = list(dict.fromkeys(name for name in asked_by.values() if name is not None))
    settings = [dict(zip(names, values, strict=True)) for values in product((False, True), repeat=len(names))]
    ways = [(asked, tuple(r for r, name in asked_by.items() if name is None or asked[name])) for asked in settings]
    if not ways[0][1]:
        raise ValueError(f"{call.op}: expected a result that is always returned")
    return ways


def caller(op: Op, other: Function, face: Face) -> str:
    """The source of the public function of a `Function` that calls an op."""
    call = other.call
    checked = f"_check_{call.op}({_dict(call)}, {_options(call, face)})"
    kernels = f", _kernels_{call.op}" if other.kernels and face is TORCH else ""
    body = f"    return {call.op.upper()}.run(_xp, _{op.name}, *{checked}{kernels})\n"
    bundles = tuple(bundle.kind for bundle in call.bundles.values())
    returns = _annotation(call.results, face, bundles)
    return _definition(call, face, returns) + _docstring(call, face) + _refusal(call) + body


def _asked_by(call: type[CallSpec], result: Result) -> str | None:
    """The option that a user sets to get a result; None where it is always returned."""
    where, asked = f"{call.op}: {result.name}", result.returned if result.instead else result.returned or result.when
    if result.instead and result.when not in arguments(call):
        raise ValueError(f"{where} is computed when {result.when}, expected an argument, since it has `instead`")
    if result.returned and result.when not in (None, result.returned) and not result.instead:
        raise ValueError(f"{where} may be returned where it is not computed, expected an argument `instead`")
    if asked is not None and (asked not in options(call) or options(call)[asked].kind != "bool"):
        raise ValueError(f"{where} is returned by {asked}, expected a bool option")
    return asked


def _definition(call: type[CallSpec], face: Face, returns: str, asked: Asked | None = None) -> str:
    """The `def` line; `asked` for an overload."""
    positional: list[str] = []
    others: list[str] = []
    for name, declared in parameters(call).items():
        default = "" if not declared.optional else " = ..." if asked else " = None"
        text = f"{name}: {_type(declared, face)}{default}"
        (positional if not declared.optional or declared.positional else others).append(text)
    for name, option in options(call).items():
        kind, default = _option_type(option, face), "..." if asked else _default(option)
        if asked and name in asked:
            others.append(f"{name}: Literal[{asked[name]}]" + (" = ..." if asked[name] == option.default else ""))
        else:
            others.append(f"{name}: {kind} = {default}")
    if call.divides_time:
        others.append(f"context: Context | None = {'...' if asked else 'None'}")
    unknown = [] if asked else ["**unknown: Unknown"]  # an overload takes none
    taken = ", ".join([*positional, *(["*", *others] if others else []), *unknown])
    return f"def {call.op}({taken},) -> {returns}:"


def _type(declared: Argument | Bundle, face: Face) -> str:
    if isinstance(declared, Bundle):
        return declared.kind.__name__
    text = _arrays(declared.shape, declared.kinds, face)
    if declared.number:
        text = f"{'int' if declared.number == 'int32' else 'float'} | {text}"
    return f"{text} | None" if declared.optional else text


def _arrays(shape: str, kinds: tuple[str, ...], face: Face) -> str:
    # jaxtyping computes `S+1` only where an earlier argument has S.
    shape = re.sub(r"(\w)\+(\d)", r"\1_plus_\2", re.sub(r"(\w)-(\d)", r"\1_minus_\2", shape))
    forms = [form.strip() for form in shape.split("|")]
    spaced = [form if " " in form or not form else f" {form}" for form in forms]  # jaxtyping's syntax for one axis
    return " | ".join(f'{kind}[{face.array}, "{form}"]' for form in spaced for kind in kinds)


def _annotation(results: tuple[Result, ...], face: Face, bundles: tuple[type, ...] = ()) -> str:
    types = [*(_arrays(result.shape, result.kinds, face) for result in results), *(kind.__name__ for kind in bundles)]
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def _option_type(option: Option, face: Face) -> str:
    if option.kind == "ScalarType?":
        return face.dtype
    if option.choices:
        named = ", ".join(repr(choice) for choice in option.choices if choice is not None)
        return f"Literal[{named}]" + (" | None" if option.kind.endswith("?") else "")
    return OPTION_TYPES[option.kind]


def _default(option: Option) -> str:
    text = repr(option.default)
    return text.replace("inf", "math.inf")


def _dict(call: type[CallSpec]) -> str:
    first = next(iter(arguments(call)))

    def item(name: str, declared: Argument | Bundle) -> str:
        if isinstance(declared, Bundle):
            return f'**fields_of("{call.op}", "{name}", {name}, {declared.kind.__name__})'
        value = name
        if declared.number:
            value = f'as_array("{call.op}", "{name}", {name}, "{declared.number}", {first})'
        elif declared.labels or declared.reaches:
            value = f"{'labels_in_int32' if declared.labels else 'in_int32'}({name})"
        return f'"{name}": {value}'

    return "{" + ", ".join(item(name, declared) for name, declared in parameters(call).items()) + "}"


def _options(call: type[CallSpec], face: Face) -> str:
    def value(name: str, option: Option) -> str:
        if option.kind == "ScalarType?":
            return f'{face.checked_dtype}("{call.op}", "{name}", {name})'
        return f"as_tuple({name})" if "[]" in option.kind else name

    return "{" + ", ".join(f'"{name}": {value(name, option)}' for name, option in options(call).items()) + "}"


def _body(call: type[CallSpec], face: Face) -> str:
    context = ", context" if call.divides_time else ""
    passed = f"_{call.op}({_dict(call)}, {_options(call, face)}{context})"
    ignored = "  # type: ignore[return-value]" if face is TORCH else ""
    names = {result: _variable(call, result) for result in call.results}
    lines = [f"{', '.join(names.values())}{',' if len(names) == 1 else ''} = {passed}"]
    for result, name in names.items():
        if result.instead:
            wanted = " and ".join(filter(None, (_asked_by(call, result), f"{result.when} is None")))
            lines += [f"if {wanted}:", f"    {name} = {face.copy.format(result.instead)}"]
    values: list[tuple[str, str]] = []  # condition, what is returned under it; the last has no condition
    for asked, returned in reversed(_ways(call)):
        those = f"({', '.join(names[r] for r in returned)})" if len(returned) > 1 else names[returned[0]]
        values.append((" and ".join(name for name, is_set in asked.items() if is_set), those))
    for wanted, those in values[:-2]:
        lines += [f"if {wanted}:", f"    return {those}{ignored}"]
    either = " else ".join(f"{those} if {wanted}" if wanted else those for wanted, those in values[-2:])
    lines.append(f"return {either}{ignored}")
    return _docstring(call, face) + _refusal(call) + textwrap.indent("\n".join(lines), "    ") + "\n"


def _refusal(call: type[CallSpec]) -> str:
    return f"    if unknown:\n        raise no_argument({call.op.upper()}.call, unknown)\n"


def _variable(call: type[CallSpec], result: Result) -> str:
    """The name of a result in the function's body."""
    name = result.name
    taken = name in arguments(call) or name in options(call) or hasattr(builtins, name) or keyword.iskeyword(name)
    return f"{name}_" if taken else name


def _docstring(call: type[CallSpec], face: Face) -> str:
    return "\n" + textwrap.indent('"""' + "\n".join(_documented(call, face)) + '\n"""', "    ") + "\n"


def _documented(call: type[CallSpec], face: Face) -> Iterator[str]:
    """The lines of a docstring.

    Raises:
        ValueError: the declaration lacks a text.
    """
    cls: Any = call
    if missing := [name for name in ("RETURNS", "TORCH_EXAMPLE", "JAX_EXAMPLE") if not hasattr(cls, name)]:
        raise ValueError(
            f"{call.op}: {call.__module__}.{call.__name__} lacks {', '.join(missing)}, texts of the docstring"
        )
    yield inspect.cleandoc(cls.__doc__)
    yield ""
    if face is JAX:
        kept = [f"`{call.op}_{r.name}`" for r in (*call.results, *call.kept) if r in call.kept or r.instead]
        named = (
            f" For `jax.checkpoint` policies, the arrays that the forward pass saves are named {' and '.join(kept)}."
            if kept
            else ""
        )
        same = f"It is the same call as `retrograd.{call.op}`, with the same results and errors."
        yield _wrapped(f"{same} {call.JAX_NOTES or JAX_NOTES.format(kept=named)}", "")
        yield ""
    if face is TORCH and (cast := [name for name, ranks in autocast_ranks(call).items() if ranks]):
        named = f"{', '.join(cast[:-1])} and {cast[-1]}" if cast[1:] else cast[0]
        yield _wrapped(f"`torch.autocast` casts {named} to its dtype.", "")
        yield ""
    yield "Args:"
    declarations: dict[str, Argument | Bundle | Option] = {**parameters(call), **options(call)}
    for name, declared in declarations.items():
        yield _wrapped(f"{name}: {declared.doc}", "    ", "        ")
    if call.divides_time:
        yield _wrapped(f"context: {face.context}", "    ", "        ")
    yield ""
    yield "Returns:"
    yield _wrapped(cls.RETURNS, "    ")
    yield ""
    yield "Raises:"
    yield "    ValueError, TypeError: before any launch; the text names the argument, its value and what was expected."
    if cls.SOURCE:
        yield ""
        yield _wrapped(f"Source: {cls.SOURCE}", "")
    yield ""
    yield "Example:"
    yield textwrap.indent(inspect.cleandoc(cls.TORCH_EXAMPLE if face is TORCH else cls.JAX_EXAMPLE), "    ")


def _wrapped(text: str, first: str, then: str | None = None) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH - 4,
        initial_indent=first,
        subsequent_indent=first if then is None else then,
        break_long_words=False,
        break_on_hyphens=False,
    )
