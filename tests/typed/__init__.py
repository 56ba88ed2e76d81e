"""Right and wrong uses of the types that slotmesh has, for mypy and pyright. Nothing here is run.

`assert_type` states the type of a right use. A wrong use has a comment for each type checker that expects its error: a
checker that does not report it reports the comment as unused.
"""
