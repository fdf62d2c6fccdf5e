from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from capro.models.backbones import FeatureBackbone, load_backbone
from capro.models.heads import Heads
from capro.models.siamese import Siamese


def network(seed: int = 0) -> Siamese:
    torch.manual_seed(seed)
    backbone = load_backbone("small", image_size=16)
    return Siamese(backbone, Heads(backbone.dim, 8, 3, tau=0.1))


def images(b: int = 4) -> Tensor:
    return torch.randn(b, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def snapshot(net: Siamese, part: str) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in net.state_dict().items() if k.startswith(part)}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {key for key in before if not torch.equal(before[key], after[key])}


def step(net: Siamese) -> None:
    """One step on everything that asks for a gradient."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    out = net(images()).query
    loss = out.p.logsumexp(1).sum() + out.q.logsumexp(1).sum() + (out.v_rec - out.v).square().sum()
    loss.backward()
    optimiser.step()


def test_branches_are_identical_at_the_start() -> None:
    net = network().eval()
    out = net(images(), images())
    assert torch.equal(out.query.z, out.z_key)
    assert len(list(net.key_encoder.parameters())) == len(list(net.encoder.parameters())) > 0
    assert not any(p.requires_grad for p in net.key_encoder.parameters())
    assert not any(p.requires_grad for p in net.key_projector.parameters())
    shared = {p.data_ptr() for p in net.encoder.parameters()}
    assert not shared & {p.data_ptr() for p in net.key_encoder.parameters()}  # a copy, not an alias


def test_key_view_is_optional_and_without_gradient() -> None:
    net = network()
    assert net(images()).z_key is None
    z_key = net(images(), images()).z_key
    assert z_key is not None
    assert not z_key.requires_grad
    assert z_key.shape == (4, 8)


def test_momentum_by_hand() -> None:
    net = Siamese(FeatureBackbone(1), Heads(1, 1, 2, tau=0.1))
    with torch.no_grad():
        net.key_projector.out.weight.fill_(1.0)
        net.heads.projector.out.weight.fill_(5.0)
    net.update_key(0.9)  # 0.9 * 1 + 0.1 * 5
    torch.testing.assert_close(net.key_projector.out.weight, torch.tensor([[1.4]]))
    net.update_key(0.9)  # 0.9 * 1.4 + 0.1 * 5
    torch.testing.assert_close(net.key_projector.out.weight, torch.tensor([[1.76]]))
    assert net.heads.projector.out.weight.item() == 5.0


def test_momentum_reaches_every_weight_and_no_buffer() -> None:
    net = network()
    step(net)
    before = copy.deepcopy(net)
    net.update_key(0.75)
    old, new, query = before.state_dict(), net.state_dict(), net.state_dict()
    weights = {name for name, _ in net.named_parameters()}
    moved = 0
    for key in old:
        if not key.startswith(("key_encoder.", "key_projector.")):
            assert torch.equal(old[key], new[key]), key
            continue
        twin = key.replace("key_encoder.", "encoder.").replace("key_projector.", "heads.projector.")
        if key in weights:
            torch.testing.assert_close(new[key], 0.75 * old[key] + 0.25 * query[twin])
            moved += not torch.equal(new[key], old[key])
        else:
            assert torch.equal(old[key], new[key]), key
    assert moved == len(list(net.key_encoder.parameters())) + 4  # the projector: 2 layers


@pytest.mark.parametrize(("momentum", "same_as_query"), [(0.0, True), (1.0, False)])
def test_momentum_limits(momentum: float, same_as_query: bool) -> None:
    net = network()
    step(net)
    key = snapshot(net, "key_projector.")
    net.update_key(momentum)
    after = snapshot(net, "key_projector.")
    assert bool(changed(key, after)) == same_as_query
    query = net.heads.projector.out.weight
    assert torch.equal(net.key_projector.out.weight, query) == same_as_query


def test_key_batch_statistics_are_its_own() -> None:
    net = network().train()
    query = snapshot(net, "encoder.")
    net.embed_key(images())
    assert changed(query, snapshot(net, "encoder.")) == set()
    assert not torch.equal(
        net.key_encoder.state_dict()["body.norm.running_mean"],
        net.encoder.state_dict()["body.norm.running_mean"],
    )


def test_reset_key_copies_weights_and_statistics() -> None:
    net = network()
    step(net)
    net.reset_key()
    out = net.eval()(images(), images())
    assert torch.equal(out.query.z, out.z_key)
    for key, value in net.encoder.state_dict().items():
        assert torch.equal(value, net.key_encoder.state_dict()[key]), key


def test_frozen_is_frozen_and_released_learns_again() -> None:
    net = network().train()
    net.freeze_encoder(True)
    encoder, key, heads = (snapshot(net, part) for part in ("encoder.", "key_encoder.", "heads."))
    net.train()  # a loop calls this each epoch: it must not thaw the statistics
    step(net)
    net(images(), images())
    net.update_key(0.5)
    assert changed(encoder, snapshot(net, "encoder.")) == set()  # weights and BatchNorm statistics
    assert changed(key, snapshot(net, "key_encoder.")) == set()
    assert changed(heads, snapshot(net, "heads.")) == set(heads)

    net.freeze_encoder(False)
    assert net.encoder.training
    assert net.key_encoder.training
    step(net)
    weights = {f"encoder.{name}" for name, _ in net.encoder.named_parameters()}
    after = changed(encoder, snapshot(net, "encoder."))
    assert weights <= after  # every one of them
    assert "encoder.body.norm.running_mean" in after


def test_releasing_keeps_eval_mode_and_the_weights_that_never_trained() -> None:
    backbone = load_backbone("small", image_size=16)
    backbone.body.norm.bias.requires_grad_(False)  # type: ignore[union-attr, operator]
    net = Siamese(backbone, Heads(backbone.dim, 8, 3, tau=0.1)).eval()
    net.freeze_encoder(True)
    net.freeze_encoder(False)
    assert not net.encoder.training
    idle = [name for name, p in net.encoder.named_parameters() if not p.requires_grad]
    assert idle == ["body.norm.bias"]


def test_works_on_cached_features() -> None:
    net = Siamese(FeatureBackbone(6), Heads(6, 4, 3, tau=0.1))
    v = torch.randn(5, 6)
    net.freeze_encoder(True)
    out = net(v, v)
    assert torch.equal(out.query.v, v)
    assert out.z_key is not None
    assert out.z_key.shape == (5, 4)
    net.update_key(0.9)
    net.reset_key()
