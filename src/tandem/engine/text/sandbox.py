"""Jinja's immutable sandbox, with a meter in every place where a template computes. Knows no messages.

Jinja's own sandbox keeps a template from Python's innards and from changing its inputs. It doesn't keep it from
computing for ever or filling the memory. So each compiled template is rewritten: loops and macros pay for every turn,
and the few operations that Jinja compiles straight to Python (`~`, slices) become filters, which pay as all others do.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.visitor import NodeTransformer

from tandem.engine.text import template_rules as rules
from tandem.engine.text.template_budget import check_bits, spend, spend_result, spend_text
from tandem.engine.text.template_filters import template_filters


class _GenerationExtension(Extension):
    """`{% generation %}…{% endgeneration %}` marks the answer for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class Sandbox(ImmutableSandboxedEnvironment):
    """Rendering needs a budget: see `template_budget.spending`."""

    intercepted_binops = rules.INTERCEPTED
    concat = staticmethod(rules.concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=rules.finalize,
            extensions=[LoopControlExtension, _GenerationExtension],
        )
        self.filters = template_filters()
        self.globals.pop("lipsum")  # writes as much text as it is told to
        self.globals["raise_exception"] = rules.raise_exception
        self.globals["strftime_now"] = rules.strftime_now

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = next((names for kind, names in rules.METHODS.items() if isinstance(obj, kind)), None)
        if allowed is not None and attr not in allowed:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` isn't wrapped when it is looked up: `call` sees to it."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return rules.binary(operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        spend()
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            if name == "format":
                return _Formatter(self).vformat(owner, args, kwargs)
            if name == "join" and args:
                args = (list(args[0]), *args[1:])  # an iterator could be gone through only once
            rules.spend_method(owner, name, args)
        result = super().call(context, obj, *args, **kwargs)
        spend_result(result)
        return result

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        metered = _Meter().visit(source)
        metered.set_environment(self)
        return super()._generate(metered, *args, **kwargs)


class _Formatter(SandboxedFormatter):
    """`str.format`, without widths that fill the memory."""

    def format_field(self, value: Any, format_spec: str) -> str:
        for digits in re.findall(r"\d+", format_spec):
            rules.check_width(digits)
        spend_text(value)
        text: str = super().format_field(value, format_spec)
        spend(len(text))
        return text

    def convert_field(self, value: Any, conversion: Any) -> Any:
        spend_text(value)
        return super().convert_field(value, conversion)


class _Meter(NodeTransformer):
    """Rewrites a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (Jinja's naming)
        return self._with_tick(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._with_tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._with_tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "_concat", [])

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _filter(node.node, "_cut", [bound or nodes.Const(None, lineno=node.lineno) for bound in bounds])

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        if isinstance(node.value, int):
            check_bits(node.value.bit_length())
        return node

    def _with_tick(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        tick = _filter(nodes.Const(None, lineno=node.lineno), "_tick", [])
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node


def _filter(value: nodes.Expr, name: str, args: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(value, name, args, [], None, None, lineno=value.lineno)
