"""The engine for vLLM, as far as it does not import vLLM itself.

`strided_runs` and `live_map` know where each unit of a checkpoint lies in fused, sharded parameters; `loader_probe`
learns that from a model's own loader; `rank_writer` writes one rank's part of a version; `ranks` keeps the ranks of an
engine in step; `engine` is the engine that the swarm drives. vLLM loads the backend `p2psync.actor.vllm.backend`.
"""
