"""vLLM as the place where weights live: what is independent of vLLM itself.

`pieces` and `livemap` know where each element of a checkpoint lies in fused, sharded parameters; `probing` learns that
from a model's own loader; `writer` writes one rank's part of a version; `ranks` keeps the ranks of an engine in step;
`engine` is the engine that the swarm drives. The backend that vLLM loads is `p2psync.actor.vllm.backend`.
"""
