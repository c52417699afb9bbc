"""A small reader of OpenAPI schemas: enough to say whether a value has the required keys with the right types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[4] / "shared" / "data" / "openai_openapi.json"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


class OpenApi:
    """A description, by the names of its schemas."""

    def __init__(self, path: Path = PATH) -> None:
        self._schemas: dict[str, Any] = json.loads(path.read_text())["components"]["schemas"]

    def check(self, value: Any, name: str) -> None:
        """Raises `AssertionError` that names the place of what is wrong."""
        problem = self._problem(value, self._schemas[name], name)
        assert problem is None, problem

    def _problem(self, value: Any, schema: dict[str, Any], path: str) -> str | None:
        if value is None and schema.get("nullable"):
            return None
        if "$ref" in schema:
            return self._problem(value, self._schemas[schema["$ref"].rsplit("/", 1)[1]], path)
        for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
            if alternatives:
                problems = [self._problem(value, one, path) for one in alternatives]
                return None if None in problems else f"none fits: {problems}"
        for part in schema.get("allOf", ()):
            if problem := self._problem(value, part, path):
                return problem
        return self._own_problem(value, schema, path)

    def _own_problem(self, value: Any, schema: dict[str, Any], path: str) -> str | None:
        kind = schema.get("type")
        if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
            return f"{path} is {value!r:.80}, not {kind}"
        if "enum" in schema and value not in schema["enum"]:
            return f"{path} is {value!r:.80}, not one of {schema['enum']}"
        if isinstance(value, dict):
            return self._object_problem(value, schema, path)
        if isinstance(value, list):
            problems = (self._problem(v, schema.get("items", {}), f"{path}[{i}]") for i, v in enumerate(value))
            return next(filter(None, problems), None)
        return None

    def _object_problem(self, value: dict[str, Any], schema: dict[str, Any], path: str) -> str | None:
        missing = [key for key in schema.get("required", ()) if key not in value]
        if missing:
            return f"{path} has no {missing}"
        known = schema.get("properties", {})
        problems = (self._problem(v, known[key], f"{path}.{key}") for key, v in value.items() if key in known)
        return next(filter(None, problems), None)
