"""The faults that can be put into a source file: each replaces the text of one expression or statement."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache

#: An operator and what it is flipped to.
_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.Mod: ast.FloorDiv,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
#: What a log line says, and how an object shows itself, decides nothing.
_SHOWN = frozenset({"__repr__", "__str__"})
#: Arguments that only refuse what correct code does not do, or save memory: lengths that differ, an assignment.
_GUARDS = frozenset({"strict", "frozen", "slots"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: ``operator``, ``condition``, ``bound``, ``statement`` or ``argument``.
        line: The line that it changes.
        first: The first line of the statement.
        last: The last line of the statement, without its body.
        start: The first character of the text that it replaces.
        end: The character after that text.
        before: The text that it replaces.
        after: The replacement.
    """

    kind: str
    line: int
    first: int
    last: int
    start: int
    end: int
    before: str
    after: str

    def put_into(self, source: str) -> str:
        """The source with the fault."""
        return source[: self.start] + self.after + source[self.end :]


@cache
def faults_of(source: str) -> list[Fault]:
    """All faults that can be put into a source, in the order of its text."""
    visitor = _Faults(source)
    visitor.visit(ast.parse(source))
    return sorted(visitor.faults, key=lambda fault: (fault.start, fault.end, fault.kind, fault.after))


class _Faults(ast.NodeVisitor):
    def __init__(self, source: str) -> None:
        self.faults: list[Fault] = []
        self._source = source
        #: The lines of the innermost statement around the node, without its body.
        self._statement = (0, 0)
        # Positions of nodes are counted in bytes of UTF-8.
        self._lines = [line.encode() for line in source.splitlines(keepends=True)]
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line.decode()))

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1][:column].decode())

    def _add(self, kind: str, node: ast.expr | ast.stmt, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)
        before = self._source[start:end]
        if isinstance(node, ast.expr):
            after = f"({after})"
        if " ".join(before.split()) != after:
            self.faults.append(Fault(kind, node.lineno, *self._statement, start, end, before, after))

    def visit(self, node: ast.AST) -> None:
        around = self._statement
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            assert node.end_lineno is not None
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno
            first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
            self._statement = (first, last)
        super().visit(node)
        self._statement = around

    # What holds no behaviour ------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _SHOWN:
            return
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    # Faults -----------------------------------------------------------------------------------------------------------

    def _negate(self, test: ast.expr) -> None:
        negated = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else None
        self._add("condition", test, ast.unparse(negated if negated is not None else ast.UnaryOp(ast.Not(), test)))

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        flipped = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add("operator", node, ast.unparse(ast.BoolOp(flipped, node.values)))
        for number in range(len(node.values)):
            rest = node.values[:number] + node.values[number + 1 :]
            self._add("condition", node, ast.unparse(rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for number, operator in enumerate(node.ops):
            flipped = _COMPARED.get(type(operator))
            if flipped is not None:
                ops = [*node.ops[:number], flipped(), *node.ops[number + 1 :]]
                self._add("operator", node, ast.unparse(ast.Compare(node.left, ops, node.comparators)))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        flipped = _CALCULATED.get(type(node.op))
        is_text = any(isinstance(part, ast.JoinedStr) for part in (node.left, node.right))
        if flipped is not None and not is_text:
            self._add("operator", node, ast.unparse(ast.BinOp(node.left, flipped(), node.right)))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:
            for other in (node.value - 1, node.value + 1):
                self._add("bound", node, str(other))
        elif type(node.value) is bool:
            self._add("condition", node, str(not node.value))

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts are not changed: most of them are messages."""

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _CALLED:
            self._add("operator", node.func, _CALLED[node.func.id])
        for number, keyword in enumerate(node.keywords):
            if keyword.arg is not None and keyword.arg not in _GUARDS:
                keywords = node.keywords[:number] + node.keywords[number + 1 :]
                self._add("argument", node, ast.unparse(ast.Call(node.func, node.args, keywords)))
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in _GUARDS:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _is_log(node.value):
            return
        if isinstance(node.value, ast.Call | ast.Await):
            self._add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        # Without the first value of a local variable, every test would fail.
        if any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._add("statement", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("statement", node, "pass")
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("statement", node, "pass")

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add("statement", node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add("statement", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._add("statement", node, "pass")


def _is_log(node: ast.expr) -> bool:
    called: ast.expr = node
    while isinstance(called, ast.Call | ast.Attribute):
        called = called.func if isinstance(called, ast.Call) else called.value
    return isinstance(called, ast.Name) and called.id == "_LOG"
