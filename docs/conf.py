"""Sphinx configuration of the site: `make docs` builds it into build/docs, without access to the network.

Its source is the repository, so that the links of the Markdown pages lead to the same pages on the site as on a forge. What
only the site needs, the tables of contents, is added when a page is read (``CONTENTS``).

The reference is made from docstrings. A link or a reference that does not resolve fails the build (``-n -W``): document
the name on a page of ``docs/api``, or, if it belongs to another library, add it to ``nitpick_ignore_regex`` with the reason.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import txnstore
from txnstore.errors import TxnStoreError

project = "txnstore"
copyright = "the txnstore authors"
version = release = txnstore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**", "docker/*/README.md"]
exclude_patterns = [".*", "benchmarks", "build", "dist", "examples", "tests", "txnstore", "**/__pycache__"]
myst_heading_anchors = 4  # the anchors that a forge gives to headings
suppress_warnings = ["misc.highlighting_failure"]  # examples of JSON and shell with an ellipsis

#: The tables of contents, by page: of each its caption, if it has one, and its pages.
CONTENTS: dict[str, dict[str, list[str]]] = {
    "README": {
        "Use": [
            "docs/tutorial",
            "docs/howto/README",
            "docs/gateway",
            "docs/tables",
            "docs/operations",
            "docs/monitoring",
            "docs/spark",
            "docs/storage",
            "docker/minio/README",
            "docker/gateway/README",
        ],
        "Reference": ["docs/api/index"],
        "Understand": [
            "docs/guarantees",
            "docs/protocol",
            "docs/kafka-differences",
            "docs/glossary",
            "docs/internals/design/README",
        ],
        "Check": [
            "docs/format",
            "docs/internals/format-writing",
            "docs/format/schemas/README",
            "docs/format/vectors/README",
            "docs/internals/testing",
            "docs/internals/conformance",
        ],
        "Project": ["CHANGELOG", "CONTRIBUTING"],
    },
    "docs/howto/README": {"": ["*"]},
    "docs/internals/design/README": {"": ["*"]},
}
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
    (r"py:class", r"(.*\.)?(T|V|_SendFuture|Batch|CatalogTopic|Connection|CountingStore|Map|ObjectStore)"),
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
    matches = [
        (full, entry)
        for full, entry in domain.objects.items()
        if full.endswith(suffix) and entry.objtype in _DOCUMENTED and not entry.aliased
    ]
    if len(matches) != 1:
        return None
    full, entry = matches[0]
    fromdoc = node.get("refdoc", env.docname)
    uri = env.app.builder.get_relative_uri(fromdoc, entry.docname)
    return nodes.reference("", "", content, internal=True, refuri=f"{uri}#{entry.node_id}", reftitle=full)


def _exists(target: str) -> bool:
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part, None)
            if value is None:
                return False
        return True
    return len(parts) == 2  # Class.method, written without its module: it is looked up among what is documented.


def add_contents(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Append its tables of contents to a page."""
    for caption, pages in CONTENTS.get(docname, {}).items():
        options = [":hidden:", ":glob:", *([f":caption: {caption}"] if caption else [])]
        names = [page if page[0] in "*/" else f"/{page}" for page in pages]
        source[0] += "\n\n" + "\n".join(["```{toctree}", *options, "", *names, "```"]) + "\n"


def lead_to_front_page(app: Sphinx, error: Exception | None) -> None:
    """Let the folder of the site open the README."""
    if error is None:
        page = '<!DOCTYPE html><meta http-equiv="refresh" content="0; url=README.html"><a href="README.html">txnstore</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", add_contents)
    app.connect("build-finished", lead_to_front_page)
    app.connect("autodoc-process-docstring", keep_colons, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", describe_error)
    app.connect("missing-reference", resolve_reference)
