"""A handler that calls another one, from its event loop and from threads."""

from __future__ import annotations

import threading

import slotmesh


class Rank:
    async def score(self, number: int) -> int:
        return number * 10


class Front:
    async def score(self, number: int) -> int:
        return int(await slotmesh.mesh().endpoint("rank").score(number))

    def score_in_thread(self, number: int) -> int:
        return int(slotmesh.mesh_sync().endpoint("rank").score(number))

    def score_in_a_thread_of_its_own(self, number: int) -> int:
        scores: list[int] = []
        thread = threading.Thread(target=lambda: scores.append(self.score_in_thread(number)))
        thread.start()
        thread.join()
        return scores[0]
