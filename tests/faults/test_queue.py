"""Two people at one server: jobs of both in its queue, on the same models, some cancelled and some taken out."""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_workflows import sound_of

from kit.server import Comfy
from kit.short import short

NAMES = ["cosyvoice3_zero_shot", "ogg_text_to_speech", "voice_conversion"]


@pytest.mark.parametrize("name", NAMES)
def test_jobs_of_two_people(comfy: Comfy, name: str):
    """One held, two that wait; of these one is taken out, and the held one cancelled: the last gives what it gave
    alone, and so do both people's jobs that follow one another."""
    seeds = [31, 32, 33]
    alone = {seed: sound_of(comfy, comfy.queue(short(name, seed))).samples for seed in seeds[:2]}
    other = Comfy(comfy.booted)
    comfy.hold()
    with ThreadPoolExecutor(3) as pool:
        held = pool.submit(comfy.queue, short(name, seeds[2]))
        comfy.await_held()
        waits = pool.submit(other.queue, short(name, seeds[0]))
        gone = other.post("/prompt", {"prompt": short(name, 34)})["prompt_id"]
        other.post("/queue", {"delete": [gone]})
        running, = comfy.get("/queue")["queue_running"]
        comfy.post("/interrupt", {"prompt_id": running[1]})
        cancelled, after = held.result(), waits.result()
        assert cancelled.of("execution_interrupted") and not cancelled.files
        assert np.array_equal(sound_of(comfy, after).samples, alone[seeds[0]])
        jobs = [pool.submit(client.queue, short(name, seed)) for seed in (*seeds[:2], *seeds[:2])
                for client in (comfy, other)][:4]
        found = [sound_of(comfy, job.result()).samples for job in jobs]
    for samples, seed in zip(found, (seeds[0], seeds[0], seeds[1], seeds[1])):
        assert np.array_equal(samples, alone[seed])
    assert gone not in comfy.get(f"/history/{gone}") and comfy.load() == 0
