"""Adds the weighted partials of a layer call; a library inside a router, or a process of its own."""
