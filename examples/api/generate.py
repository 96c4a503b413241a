#!/usr/bin/env python3
"""Makes a client of the API in Python, which needs nothing but Python, from its description.

    python3 generate.py < openapi.json > linus_api.py

Each schema becomes a TypedDict, each operation a method of Client.
"""

import json
import keyword
import re
import sys

HEAD = '''"""A client of linus's HTTP API. generate.py has made it of openapi.json: do not edit it."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Literal, TypedDict


class ProblemError(Exception):
    """What the server has refused. problem is its whole answer."""

    def __init__(self, problem: Problem):
        super().__init__(f"{problem.get('code')}: {problem.get('detail')}")
        self.problem = problem


class Bytes(bytes):
    """The bytes of a response, with its headers."""

    headers: dict[str, str]
'''

CLIENT = '''

class Client:
    """The API of a server, for whom the token is."""

    def __init__(self, url: str, token: str, timeout: float = 120):
        self._url, self._token, self._timeout = url.rstrip("/"), token, timeout

    def _call(self, method: str, path: str, query: dict[str, Any], headers: dict[str, Any], body: Any) -> Any:
        query = {k: str(v).lower() if isinstance(v, bool) else v for k, v in query.items() if v is not None}
        sent = {k: str(v) for k, v in headers.items() if v is not None}
        sent["Authorization"] = "Bearer " + self._token
        if body is not None and not isinstance(body, bytes):
            body, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        url = self._url + path + ("?" + urllib.parse.urlencode(query, doseq=True) if query else "")
        request = urllib.request.Request(url, data=body, headers=sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                data = response.read()
                if response.headers.get_content_type() == "application/json":
                    return json.loads(data)
                answer = Bytes(data)
                answer.headers = dict(response.headers)
                return answer if data or response.status == 200 else None
        except urllib.error.HTTPError as error:
            raise ProblemError(json.loads(error.read())) from None
'''


def name_of(text: str) -> str:
    """A name in Python's manner: getVM is get_vm, Idempotency-Key idempotency_key."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text.replace("-", "_")).lower()
    return text + "_" if keyword.iskeyword(text) else text


def type_of(schema: dict) -> str:
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "enum" in schema:
        return "Literal[" + ", ".join(repr(v) for v in schema["enum"]) + "]"
    kind = schema.get("type")
    if kind == "array":
        return f"list[{type_of(schema['items'])}]"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"dict[str, {type_of(more) if more else 'Any'}]"
    return {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}.get(kind, "Any")


def typed_dict(name: str, schema: dict) -> str:
    required = set(schema.get("required", []))
    fields = schema.get("properties", {})
    lines = [f"\n\n{name} = TypedDict(  # {schema.get('description', '')}".rstrip(), f"    {name!r},", "    {"]
    lines += [f"        {field!r}: {type_of(one)!r}," for field, one in sorted(fields.items())]
    # All may be left out: which must not be is in the server's answer, by its name.
    lines += ["    },", "    total=False,", f")  # always there: {', '.join(sorted(required)) or 'nothing'}"]
    return "\n".join(lines)


def method(path: str, verb: str, operation: dict) -> str:
    params = operation.get("parameters", [])
    path_names = [p["name"] for p in params if p["in"] == "path"]
    arguments = [f"{name_of(n)}: str" for n in path_names]
    rest = sorted((p for p in params if p["in"] != "path"), key=lambda p: not p.get("required"))
    body = operation.get("requestBody")
    if body:
        (kind, content), = body["content"].items()
        arguments.append("body: " + (type_of(content["schema"]) if kind == "application/json" else "bytes"))
    if rest:
        arguments.append("*")
    for p in rest:
        default = "" if p.get("required") else " | None = None"
        arguments.append(f"{name_of(p['name'])}: {type_of(p['schema'])}{default}")
    content = next((r.get("content", {}) for code, r in operation["responses"].items() if code in ("200", "201", "202")), {})
    returns = "Bytes"
    if "application/json" in content:
        returns = type_of(content["application/json"]["schema"])
    elif not content:
        returns = "None"
    text = "".join(path)
    for n in path_names:
        quoted = f"urllib.parse.quote({name_of(n)}, safe={'/' if n == 'path' else ''!r})" if n != "path" else f'urllib.parse.quote({name_of(n)}, safe="/")'
        text = text.replace("{" + n + "}", '" + ' + quoted + ' + "')
    query = ", ".join(f"{p['name']!r}: {name_of(p['name'])}" for p in rest if p["in"] == "query")
    headers = ", ".join(f"{p['name']!r}: {name_of(p['name'])}" for p in rest if p["in"] == "header")
    return (
        f"\n    def {name_of(operation['operationId'])}(self, {', '.join(arguments)}) -> {returns}:\n".replace("(self, )", "(self)")
        + f'        """{operation["description"]}"""\n'
        + f'        return self._call("{verb.upper()}", "{text}", {{{query}}}, {{{headers}}}, {"body" if body else "None"})\n'
    )


def main() -> None:
    document = json.load(sys.stdin)
    out = [HEAD]
    out += [typed_dict(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    out.append("\n" + CLIENT)
    for path, methods in sorted(document["paths"].items()):
        out += [method(path, verb, operation) for verb, operation in sorted(methods.items())]
    sys.stdout.write("".join(out))


main()
