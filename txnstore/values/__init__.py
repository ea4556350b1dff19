"""Text, JSON, cells of CSV files, Python and pandas values as Arrow values, and back: one rule for each type.

The command line, the typed topics of the gateway and ``send`` convert by these modules. A value that a type cannot hold
is refused, with two exceptions that are in the nature of the types: a decimal fraction becomes the nearest float, and a
time is rounded down to the unit of its column.

- :mod:`.json_text`: JSON as text and as Python values, without Arrow.
- :mod:`.scalars`: a JSON value, or a cell of a CSV file, for a type of Arrow.
- :mod:`.columns`: columns of such values, and their errors by row.
- :mod:`.python`: Python values for Arrow, and Arrow's as Python values.
- :mod:`.printing`: columns of Arrow as JSON.
"""
