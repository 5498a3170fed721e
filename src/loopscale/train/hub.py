"""Whether the Hugging Face hub answers: asked once, before its library tries for a minute."""

from __future__ import annotations

import urllib.error
import urllib.request

PATIENCE = 10.0


def hub_answers() -> bool:
    """Tell whether the hub can be reached from here, by the way that the environment's proxies say."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            return True
    except urllib.error.HTTPError:
        return True  # it answered, if only to complain
    except (OSError, ValueError):
        return False
