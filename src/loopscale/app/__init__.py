"""The explorer in the browser, and the HTTP API under it."""
