"""Requests and answers compared with an OpenAPI 3.0 document, as JSON Schema."""

import json
import re
from typing import Any

import jsonschema
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7


class OpenApi:
    """What a document says of requests by method and path."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._paths = document["paths"]
        self._whole = _plain(document)
        self._registry = Registry().with_resource("urn:api", Resource(self._whole, DRAFT7))

    def check(self, method: str, path: str, query: dict[str, str], body: bytes) -> None:
        """Raise ValidationError, or AssertionError for a path or a query that there is not, unless a request fits."""
        place, operation = self._operation(method, path)
        known = {each["name"] for each in operation.get("parameters", []) if each["in"] == "query"}
        assert query.keys() <= known, f"{method} {path}: {query}"
        if "requestBody" in operation:
            self._validate(json.loads(body), f"{place}/requestBody/content/application~1json/schema")
        else:
            assert not body

    def check_answer(self, method: str, path: str, body: bytes) -> None:
        """Raise ValidationError unless the body of a good answer fits."""
        place, _ = self._operation(method, path)
        self._validate(json.loads(body), f"{place}/responses/200/content/application~1json/schema")

    def _operation(self, method: str, path: str) -> tuple[str, Any]:
        for template in sorted(self._paths, key=lambda each: each.count("{")):
            if re.fullmatch(re.sub(r"{[^}]*}", "[^/]+", template), path):
                escaped = template.replace("~", "~0").replace("/", "~1").replace("{", "%7B").replace("}", "%7D")
                return f"paths/{escaped}/{method.lower()}", self._paths[template][method.lower()]
        raise AssertionError(f"the document has no {path}")

    def _validate(self, value: object, place: str) -> None:
        schema = {"$ref": f"urn:api#/{place}"}
        checker = jsonschema.FormatChecker(["uuid"])
        jsonschema.Draft7Validator(schema, registry=self._registry, format_checker=checker).validate(value)


def _plain(node: Any) -> Any:
    """JSON Schema has no `nullable`: null is one more type."""
    if isinstance(node, list):
        return [_plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    made = {key: _plain(value) for key, value in node.items() if key != "nullable"}
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") is True else made
