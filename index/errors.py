"""What can be wrong with vectors handed to an index."""


class VectorError(ValueError):
    """Vectors that cannot be indexed or searched; the message is written for the user."""
