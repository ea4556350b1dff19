"""Sphinx configuration of the API reference: `make docs` builds it into build/docs, without access to the network.

The reference is made from docstrings. A reference that does not resolve fails the build (``-n -W``): document the name
on a page of this folder, or, if it belongs to another library, add it to ``nitpick_ignore_regex`` with the reason.
"""

from __future__ import annotations

import importlib
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import txnstore
from txnstore.errors import TxnStoreError

project = "txnstore"
copyright = "the txnstore authors"
version = release = txnstore.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
html_theme = "furo"
html_title = f"txnstore {release}"
html_copy_source = False

napoleon_numpy_docstring = False
# The section "Attributes:" of a dataclass becomes a list of fields, not a second description of each member.
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
default_role = None

# Names of other libraries and of internal modules that signatures mention. Nothing is fetched from the network, so
# they cannot become links; every other name must resolve.
nitpick_ignore_regex = [
    # The standard library. Its inventory is not at hand without the network.
    (r"py:(class|exc)", r"(builtins|collections|concurrent|datetime|os|pathlib|random|threading|types|typing)\..*"),
    (r"py:(class|exc)", r"bool|bytes|dict|float|frozenset|int|list|object|set|str|tuple|type|None|BaseException"),
    (r"py:(class|exc)", r"Exception|TimeoutError|ValueError|TypeError|NamedTuple|Enum|StrEnum|Path|PathLike|datetime"),
    (r"py:class", r"MeterProvider"),  # OpenTelemetry, which is optional.
    # Annotations that autodoc shows as text are cut at their commas and brackets.
    (r"py:class", r"(dict|Map)\[.*"),
    (r"py:class", r"Any|Callable|Collection|Executor|Future|Generator|Generic|Iterable|Iterator|Literal|Mapping"),
    (r"py:class", r"Protocol|Random|Self|Sequence|TracebackType|enum\..*"),
    # PyArrow: results and schemas of scans and SQL, filters.
    (r"py:(class|exc)", r"(pa|pc|pyarrow)\..*"),
    # pandas and Polars: results of scans.
    (r"py:class", r"(pd|pl)\.DataFrame"),
    # DuckDB: connections and relations.
    (r"py:(class|exc)", r"(duckdb|_duckdb)\..*|DuckDBPy(Connection|Relation)"),
    # PySpark: sessions, data frames, queries, their writers and their progress.
    (r"py:(class|exc)", r"pyspark\..*|DataFrame|SparkSession|StructType|DataSource|DataStreamWriter|StreamingQuery(Progress)?"),
    # Internal: a type variable, a protocol, or a value object that signatures mention and callers never name.
    (r"py:class", r"(.*\.)?(T|_SendFuture|Batch|Connection|CountingStore|Map|ObjectStore)"),
    (r"py:class", r"(.*\.)?(Engine|Progress|Reads|RetryingStore|TopicCreator|View)"),
]

_DOCUMENTED = ("class", "exception", "data", "attribute", "type", "function", "method", "property")


def keep_colons(
    _app: Sphinx, what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Stop napoleon from reading what precedes the first colon of an attribute's docstring as its type."""
    if what in {"attribute", "property", "data"} and lines:
        lines[:0] = ["..", ""]  # an empty comment


def describe_error(
    _app: Sphinx, _what: str, _name: str, obj: object, _options: object, lines: list[str]
) -> None:
    """Append to an error class what a caller may do about it: the values of its class attributes."""
    if not (isinstance(obj, type) and issubclass(obj, TxnStoreError)) or obj is TxnStoreError:
        return
    flags = [flag for flag in ("retriable", "abortable", "fatal") if getattr(obj, flag)]
    facts = [f"**{', '.join(flags).capitalize()}.**"] if flags else []
    if obj.kafka_code is not None:
        facts.append(f"Kafka's error code: {obj.kafka_code}.")
    lines += ["", f"{' '.join(facts)} {obj.advice.replace('*', chr(92) + '*')}".strip(), ""]


def resolve_reference(
    _app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Resolve a name as the code writes it (``Producer``, ``txnstore.producer.Producer``) to where it is documented.

    A qualified name must exist: a reference to something that was renamed stays broken.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip(".")
    domain = env.domains["py"]
    owner, _, name = target.rpartition(".")
    if owner and not _exists(target):
        return None
    last = target.split(".")[-2:] if node["reftype"] == "meth" and owner else [name]
    suffix = "." + ".".join(last)
    found = [
        (full, entry)
        for full, entry in domain.objects.items()
        if full.endswith(suffix) and entry.objtype in _DOCUMENTED and not entry.aliased
    ]
    if len(found) != 1:
        return None
    full, entry = found[0]
    fromdoc = node.get("refdoc", env.docname)
    uri = env.app.builder.get_relative_uri(fromdoc, entry.docname)
    return nodes.reference("", "", content, internal=True, refuri=f"{uri}#{entry.node_id}", reftitle=full)


def _exists(target: str) -> bool:
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
            if found is None:
                return False
        return True
    return len(parts) == 2  # Class.method, written without its module: it is looked up among what is documented.


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", keep_colons, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", describe_error)
    app.connect("missing-reference", resolve_reference)
