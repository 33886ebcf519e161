"""What the fork server imports last (`vllm_forks`): no collection of its children looks at what was imported."""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
