"""Networks on a device of no data, which cannot be joined with a tensor that was made without saying where.

The net has holes: products and lookups mix the two without a word. It needs no GPU.
"""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kit.codec import TINY as TINY_CODEC
from kit.flow import tiny_flow_config
from kit.tiny import tiny_config
from speechwright.cosyvoice3.config import LMConfig
from speechwright.cosyvoice3.flow import MelFlow
from speechwright.cosyvoice3.lm import SpeechLM
from speechwright.cosyvoice3.vocoder import CausalHiFT
from speechwright.omnifish.codec import FishCodec
from speechwright.omnifish.codec_layers import Carry
from speechwright.omnifish.config import OmniFishConfig
from speechwright.omnifish.generate import Stream
from speechwright.omnifish.model import OmniFish
from speechwright.s3gen import generate
from speechwright.s3gen.model import S3Token2Wav

HOP = 480       # samples for a frame of mel
META = torch.device("meta")


def given(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def ids(*shape: int) -> Tensor:
    return given(*shape, dtype=torch.int64)


def s3gen(meanflow: bool = False) -> S3Token2Wav:
    return S3Token2Wav(meanflow, tiny_config(meanflow), device="meta")


def s3gen_flow(meanflow: bool) -> Tensor:
    flow = s3gen(meanflow).flow
    voice = (ids(4), given(8, 80), given(12))
    condition = flow.lay_out([ids(5), ids(9)], [voice, voice], True, META)
    estimator = flow.decoder.estimator
    times = generate.schedule(estimator, 2, META)
    return generate.mels(estimator, condition, [given(80, 40)] * 2, times)[0]


def dit() -> Tensor:
    flow = MelFlow(tiny_flow_config(), device="meta")
    voice = (ids(4), given(8, 20), given(12))
    condition = flow.lay_out([ids(5), ids(9)], [voice, voice], True, META)
    return generate.mels(flow.decoder.estimator, condition, [given(20, 40)] * 2,
                         flow.schedule(2, META))[0]


def s3gen_vocoder() -> Tensor:
    vocoder, mel = s3gen().mel2wav, given(1, 80, 12)
    f0 = vocoder.pitch(mel)
    source = vocoder.source(f0, given(1, 9, 1), given(1, 9, 12 * HOP))
    assert vocoder.advance(f0, given(1, 9, 1)).is_meta
    return vocoder.decode(mel, source)


def causal_vocoder() -> Tensor:
    vocoder, mel = CausalHiFT(device="meta"), given(1, 80, 12)
    source = vocoder.source(vocoder.pitch(mel, exact=False), given(1, 12 * HOP, 9))
    return vocoder.decode(mel, source)


def readers() -> Tensor:
    network = s3gen()
    assert network.tokenizer.hidden(given(1, 16, 200)).is_meta
    return network.speaker_encoder(given(1, 200, 80))


def language_model() -> Tensor:
    lm = SpeechLM(LMConfig(), device="meta")
    cache = lm.new_cache(2, 12, META)
    assert torch.cat((lm.start(META), lm.task(META))).is_meta
    cache.length, cache.padded = 5, True        # which is asked of data
    return lm.logits(lm(lm.embed_speech(ids(2))[:, None], cache, ids(2))[:, -1])


def block_diffusion() -> Tensor:
    model = OmniFish(OmniFishConfig(), device="meta")
    stream = Stream(model, torch.zeros(10, 7, dtype=torch.int64), torch.arange(7) > 3, 16, 4, True, META)
    for _ in range(2):
        assert stream.logits(torch.zeros(16, dtype=torch.int64)).is_meta
        stream.commit(torch.zeros(10, 16, dtype=torch.int64))
    return stream.peek(torch.zeros(16, dtype=torch.int64))


def codec() -> Tensor:
    network = FishCodec(TINY_CODEC, device="meta")
    return network.decoder(network.quantizer.decode(ids(1, 10, 5), Carry()), Carry())


NETWORKS: dict[str, Callable] = {
    "flow of S3Gen": lambda: s3gen_flow(False), "flow of S3Gen meanflow": lambda: s3gen_flow(True), "DiT": dit,
    "vocoder of S3Gen": s3gen_vocoder, "vocoder of CosyVoice3": causal_vocoder, "readers of S3Gen": readers,
    "language model": language_model, "block diffusion": block_diffusion, "Fish codec": codec,
}


@pytest.mark.parametrize("name", NETWORKS)
@torch.no_grad()
def test_no_tensor_is_lost_on_the_way(name):
    assert NETWORKS[name]().is_meta
