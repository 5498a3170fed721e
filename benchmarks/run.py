"""Every benchmark, one after the other: ``make bench``."""

from __future__ import annotations

import plan_speed

if __name__ == "__main__":
    print("== plan ==", flush=True)
    plan_speed.main()
