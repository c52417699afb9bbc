"""Templates from model files can neither reach out nor run away; honest ones notice nothing."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from datetime import datetime

import pytest

from tandem.core.errors import InvalidRequest, ModelDamaged
from tandem.engine.text.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "a" * 1000}]
DOUBLING = "{% set ns = namespace(x='a', l=['a']) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
NESTING = "{% set ns = namespace(x=['a']) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"

REACHING_OUT = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{% include '/etc/hostname' %}",
    "{% import '/etc/hostname' as x %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{{ messages[0].pop('role') }}",
    "{{ '{0.__class__.__mro__}'.format(1)[99] + 1 }}",
    "{{ (['{0.__class__.__mro__}'] | map(attribute='format') | first)(1) + 1 }}",
    "{{ messages | attr('__class__') }}",
    "{{ raise_exception.__globals__['x'] }}",
    "{{ namespace.__init__.__globals__ }}",
]
RUNNING_AWAY = [
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{{ 'x' * 10000000000 }}",
    "{{ [1] * 10000000000 }}",
    "{{ 9 ** 9999999 }}",
    "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "{{ 'x'.center(1000000000) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.zfill(1000000000) }}",
    "{{ 'x' | indent(1000000000) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ [1] | batch(1000000000, 'x') | list }}",
    "{{ 5 | round(-1000000000) }}",
    "{{ lipsum(n=1000000) }}",
    "{{ strftime_now('%1000000000d') }}",
    "{% set x %}{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}{% endset %}",
    *(
        "{% set ns = namespace(x='aa', s='a' * 9999) %}{% for i in range(99999) %}" + step + "{% endfor %}"
        for step in (
            "{% set ns.x = {'a': ns.x, 'b': ns.s[1:]} %}",
            "{% set ns.x = ns.x | replace('a', 'aaaa') %}",
            "{% set ns.x = (ns.x | safe).replace('a', 'aaaa') %}",
            "{% set ns.x = ns.x.join([ns.x, ns.x]) %}",
            "{% set ns.x = ns.x.join(ns.x | map('upper')) %}",
            "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        )
    ),
    DOUBLING + "{{ ns.x }}",
    DOUBLING.replace("+", "~") + "{{ ns.x }}",
    DOUBLING.replace("ns.x", "ns.l") + "{{ ns.l }}",
    *(
        NESTING + use
        for use in ("{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x ~ '' }}", "{{ '%s' % ns.x }}", "{{ ns }}")
    ),
    *(NESTING + use for use in ("{{ '{}'.format(ns.x) }}", "{{ ns.x | string | length }}", "{{ ns.x | join }}")),
]


@pytest.fixture(autouse=True)
def _little_time_and_memory() -> Iterator[None]:
    """sec-03: stopped within 2 s, with less than 200 MB."""
    tracemalloc.start(1)
    start = time.monotonic()
    yield
    elapsed_s, (_, peak_bytes) = time.monotonic() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert elapsed_s < 2
    assert peak_bytes < 200 << 20


@pytest.mark.parametrize("source", [*REACHING_OUT, *RUNNING_AWAY])
def test_hostile_templates_are_refused(source: str) -> None:
    """sec-03: as a client error, with nothing read, run or changed."""
    messages = [dict(message) for message in MESSAGES]
    with pytest.raises(InvalidRequest, match="chat template"):
        ChatTemplate(source, time_limit_s=0.15).render(messages)
    assert messages == MESSAGES


@pytest.mark.parametrize(
    "source", ["{{ 0x" + "f" * 9999 + " }}", "{% if 1 %}" * 500 + "{% endif %}" * 500, "x" * (1 << 21)]
)
def test_hostile_templates_do_not_even_compile(source: str) -> None:
    with pytest.raises(ModelDamaged, match="template"):
        ChatTemplate(source)


def test_other_threads_go_on_while_a_template_runs_away() -> None:
    """The template stops itself; no thread has to be killed, and nothing of the kind can hit another one."""
    from threading import Thread

    source = "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}"
    hostile, honest = ChatTemplate(source, time_limit_s=0.5), ChatTemplate("{{ messages[0].role }}")
    ended: list[str] = []

    def run() -> None:
        try:
            hostile.render(MESSAGES)
        except InvalidRequest as error:
            ended.append(error.message)

    thread = Thread(target=run)
    thread.start()
    served = 0
    while thread.is_alive():
        assert honest.render(MESSAGES) == "user"
        served += 1
    thread.join()
    assert "0.5 s" in ended[0]
    assert served > 10


HONEST = [
    ("{{ {'a': '<é>&'} | tojson }}", '{"a": "<é>&"}'),
    ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
    ("{% set ns = namespace(n=0) %}{% for m in [1, 2, 3] %}{% set ns.n = ns.n + m %}{% endfor %}{{ ns.n }}", "6"),
    ("{% for i in [0, 1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
    ("{% for i in [0, 1, 2] %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "0"),
    ("{% generation %}a{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "aFalse"),
    ("a\n    {% if true %}\nb\n    {% endif %}\nc\n", "a\nb\nc"),
    ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') ~ f(1) }}", "[a][1]"),
    ("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}", "<x>"),
    ("{{ 'a b'.split(' ')[-1] }}{{ messages[0]['content'][:3] }}{{ 'abc'[::-1] }}", "baaacba"),
    ("{{ '%s is %d, %5.1f' % ('x', 3, 2.25) }}", "x is 3,   2.2"),
    ("{{ '{0}-{a:>4}'.format(1, a='b') }}{{ 'x' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}", "1-   bxxx10243"),
    ("{{ ['b', 'a'] | sort | join(', ') }} {{ [{'n': 1}] | map(attribute='n') | list }}", "a, b [1]"),
    ("{{ ' x ' | trim }}{{ 'ab' | replace('a', 'c') | upper }}{{ 'x\ny' | indent(2) }}", "xCBx\n  y"),
    ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ none | default('d', true) }}", "1d"),
    ("{% filter upper %}a{% endfilter %}{% set b %}x{{ 1 }}{% endset %}{{ b }}{{ ('a' | safe) + 'b' }}", "Ax1ab"),
    ("{% for x in [1, [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "12"),
    ("{{ undefined_thing }}{{ missing is defined }}{{ dict(a=1).items() | list }}", "False[('a', 1)]"),
]


@pytest.mark.parametrize(("source", "text"), HONEST)
def test_honest_templates_notice_nothing(source: str, text: str) -> None:
    assert ChatTemplate(source).render(MESSAGES) == text


def test_today() -> None:
    before = datetime.now().strftime("%d %b %Y")
    assert ChatTemplate("{{ strftime_now('%d %b %Y') }}").render(MESSAGES) in (
        before,
        datetime.now().strftime("%d %b %Y"),
    )
