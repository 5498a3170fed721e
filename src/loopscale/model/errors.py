# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The error for bad input, also where loopscale is not installed."""

try:
    from loopscale.core.errors import InputError as InputError
except ImportError:  # a checkpoint's own copy of this file
    InputError = ValueError  # type: ignore[misc, assignment]
