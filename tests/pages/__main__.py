"""Regenerate the generated pages of ``docs/``."""

from tests.pages import conformance, schemas, sizing, states

if __name__ == "__main__":
    text = conformance.without_proven(conformance.ITEMS.read_text(encoding="utf-8"), conformance.citations())
    conformance.ITEMS.write_text(text, encoding="utf-8")
    conformance.write()
    states.PAGE.write_text(states.with_diagram(states.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sizing.PAGE.write_text(sizing.with_table(sizing.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    schemas.write()
