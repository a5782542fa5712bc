"""Translates lines of Python into Lua and JavaScript, so that one table of cases runs in the three languages.

A line is an expression, or an assignment of one to a name. What a script writes differently follows from the syntax:
functions of objects are called with a colon in Lua, everything is awaited in JavaScript, keyword arguments are the
options, which come last.
"""

from __future__ import annotations

import ast
import json

SETUP = {
    "lua": "function fail(problem) error(problem, 0) end",
    "javascript": "globalThis.fail = (problem) => { throw problem }",
}
"""What the lines use beside the API: `fail` raises an error, as a lambda cannot."""

_OPERATORS = {ast.Add: "+", ast.Mult: "*", ast.Sub: "-"}


def translate(line: str, language: str) -> str:
    """Return a line as the source of a script, which returns the value."""
    (statement,) = ast.parse(line).body
    write = _Lua().write if language == "lua" else _JavaScript().write
    if isinstance(statement, ast.Assign):
        (target,) = statement.targets
        assert isinstance(target, ast.Name)
        prefix = "" if language == "lua" else "globalThis."
        return f"{prefix}{target.id} = {write(statement.value)}; return true"
    assert isinstance(statement, ast.Expr)
    return f"return {write(statement.value)}"


class _Lua:
    null, true, false = "holdfast.null", "true", "false"

    def write(self, node: ast.expr) -> str:
        """Write an expression."""
        written: str = getattr(self, type(node).__name__)(node)
        return written

    def Constant(self, node: ast.Constant) -> str:
        value = node.value
        if value is None or isinstance(value, bool):
            return {None: self.null, True: self.true, False: self.false}[value]
        if isinstance(value, bytes):
            return self.bytes(value)
        assert isinstance(value, str | int | float)
        return json.dumps(value) if isinstance(value, str) else repr(value)

    def bytes(self, value: bytes) -> str:
        return 'holdfast.bytes("' + "".join(f"\\{byte:03d}" for byte in value) + '")'

    def Name(self, node: ast.Name) -> str:
        if node.id in ("Increment", "Append", "AddToSet", "Max", "MISSING", "ReplaceValue"):
            return f"holdfast.{node.id}"
        if node.id == "replay":
            return "holdfast.replay"
        return f"holdfast.errors.{node.id}" if node.id.endswith("Error") else node.id

    def List(self, node: ast.List) -> str:
        items = ", ".join(map(self.write, node.elts))
        return "{" + items + "}" if items else "holdfast.list()"

    def Tuple(self, node: ast.Tuple) -> str:
        return f"holdfast.tuple({', '.join(map(self.write, node.elts))})"

    def Set(self, node: ast.Set) -> str:
        return "holdfast.set{" + ", ".join(map(self.write, node.elts)) + "}"

    def Dict(self, node: ast.Dict) -> str:
        pairs = zip(node.keys, node.values, strict=True)
        return "{" + ", ".join(f"[{self.write(key)}] = {self.write(value)}" for key, value in pairs if key) + "}"

    def options(self, node: ast.Call) -> str:
        return "{" + ", ".join(f"{each.arg} = {self.write(each.value)}" for each in node.keywords) + "}"

    def BinOp(self, node: ast.BinOp) -> str:
        return f"({self.write(node.left)} {_OPERATORS[type(node.op)]} {self.write(node.right)})"

    def UnaryOp(self, node: ast.UnaryOp) -> str:
        return f"-{self.write(node.operand)}"

    def Attribute(self, node: ast.Attribute) -> str:
        return f"{self.write(node.value)}.{node.attr}"

    def Subscript(self, node: ast.Subscript) -> str:
        index = node.slice
        if isinstance(index, ast.Constant) and isinstance(index.value, int):
            return f"{self.write(node.value)}[{index.value + 1}]"
        return f"{self.write(node.value)}[{self.write(index)}]"

    def Lambda(self, node: ast.Lambda) -> str:
        names = ", ".join(each.arg for each in node.args.args)
        return f"function({names}) return {self.write(node.body)} end"

    def arguments(self, node: ast.Call) -> str:
        given = [self.write(each) for each in node.args]
        return ", ".join([*given, self.options(node)] if node.keywords else given)

    def Call(self, node: ast.Call) -> str:
        function = node.func
        if isinstance(function, ast.Attribute):
            name = "end_" if function.attr == "end" else function.attr
            is_module = isinstance(function.value, ast.Name) and function.value.id == "replay"
            return f"{self.write(function.value)}{'.' if is_module else ':'}{name}({self.arguments(node)})"
        if isinstance(function, ast.Name) and function.id in ("list", "len"):
            return ("#" if function.id == "len" else "") + self.write(node.args[0])
        return f"{self.write(function)}({self.arguments(node)})"


class _JavaScript(_Lua):
    null = "null"

    def Constant(self, node: ast.Constant) -> str:
        is_whole = isinstance(node.value, float) and node.value.is_integer()
        return f"holdfast.float({node.value!r})" if is_whole else super().Constant(node)

    def bytes(self, value: bytes) -> str:
        return f"new Uint8Array({list(value)})"

    def List(self, node: ast.List) -> str:
        return f"[{', '.join(map(self.write, node.elts))}]"

    def Set(self, node: ast.Set) -> str:
        return f"new Set([{', '.join(map(self.write, node.elts))}])"

    def Name(self, node: ast.Name) -> str:
        text = super().Name(node)
        return f"new {text}" if node.id.endswith("Error") else text

    def Dict(self, node: ast.Dict) -> str:
        pairs = zip(node.keys, node.values, strict=True)
        return "({" + ", ".join(f"[{self.write(key)}]: {self.write(value)}" for key, value in pairs if key) + "})"

    def options(self, node: ast.Call) -> str:
        return "{" + ", ".join(f"{each.arg}: {self.write(each.value)}" for each in node.keywords) + "}"

    def Attribute(self, node: ast.Attribute) -> str:
        return f"(await {self.write(node.value)}.{node.attr})"

    def Subscript(self, node: ast.Subscript) -> str:
        return f"{self.write(node.value)}[{self.write(node.slice)}]"

    def Lambda(self, node: ast.Lambda) -> str:
        names = ", ".join(each.arg for each in node.args.args)
        return f"async ({names}) => {self.write(node.body)}"

    def Call(self, node: ast.Call) -> str:
        function = node.func
        if isinstance(function, ast.Attribute):
            return f"(await {self.write(function.value)}.{function.attr}({self.arguments(node)}))"
        if isinstance(function, ast.Name) and function.id in ("list", "len"):
            return self.write(node.args[0]) + (".length" if function.id == "len" else "")
        if isinstance(function, ast.Name):
            return f"{self.write(function)}({self.arguments(node)})"
        return f"(await {self.write(function)}({self.arguments(node)}))"
