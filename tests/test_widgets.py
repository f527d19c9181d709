"""Widgets: what the site's scripts are given must be what the model computed, to the accuracy that is stated."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load

from gptbook import widgets


def file_of(shown) -> tuple[dict, dict[str, torch.Tensor]]:
    """What the published file holds, read as anybody would: what is about it, and its tensors."""
    content = shown.data().content
    length = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"]), load(content)


def elements(html: str):
    bs4 = pytest.importorskip("bs4", reason="Beautiful Soup comes with the extra 'site'")
    return bs4.BeautifulSoup(html, "html.parser")


def symbol(i: int) -> str:
    return f" <{i}>"


# Next tokens ----------------------------------------------------------------------------------------------------------

TEMPERATURES = [step / 20 for step in range(1, 61)]  # of the slider, 0 aside


def rows_of_logits() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    noise = torch.randn(49_152, generator=made)
    pairs = torch.tensor([0.0, -0.0029]).repeat(24_576)  # the ends of a group, the middle empty
    return {
        "like a model's": 2.5 * noise + 8 * (torch.arange(49_152) == 7),
        "like GPT-2's": 2.5 * torch.randn(50_257, generator=made) - 35,
        "flat": 0.01 * noise,
        "all equal": torch.zeros(50_257),
        "very wide": 12 * noise,
        "at the ends of groups": pairs,
        "at the ends of groups, below one token": torch.cat((torch.tensor([1.0]), pairs)),
    }  # fmt: skip


def off(row: torch.Tensor, groups, temperature: float) -> tuple[float, float]:
    """How far the chances from groups are off PyTorch's softmax over all logits, relatively; and their entropy."""
    falling = row.double().sort(descending=True).values
    means, counts = (torch.from_numpy(part).double() for part in groups)
    scaled = torch.cat((falling[: widgets.EXACT], means)) / temperature
    counts = torch.cat((torch.ones(widgets.EXACT, dtype=torch.float64), counts))
    log_chances = scaled - torch.logsumexp(scaled + counts.log(), dim=0)
    right = torch.log_softmax(falling / temperature, dim=0)
    relative = (log_chances[: widgets.EXACT] - right[: widgets.EXACT]).expm1().abs().max().item()
    entropies = [-(n * p.exp() * p).sum().item() for n, p in ((counts, log_chances), (torch.ones_like(right), right))]
    return relative, abs(entropies[0] - entropies[1])


@pytest.mark.parametrize("kind", rows_of_logits())
def test_chances_from_groups_are_those_of_softmax(kind):
    """If this fails, the bars on a page show other chances than the model's, at some temperature."""
    row = rows_of_logits()[kind]
    groups = widgets.grouped(row.sort(descending=True).values.numpy())
    assert groups[1].sum() == len(row) - widgets.EXACT
    for temperature in TEMPERATURES:
        relative, nats = off(row, groups, temperature)
        assert relative < 6e-4, temperature  # the bound is 4.6e-4, and float32 adds to that
        assert nats < 2e-3, temperature
    assert len(groups[0]) < 1500


def test_coarser_groups_would_be_seen(monkeypatch):
    """A control: the test above is no test if any grouping passes it."""
    monkeypatch.setattr(widgets, "WIDTH", 10 * widgets.WIDTH)
    row = torch.tensor([0.0, -0.029]).repeat(24_576)
    assert off(row, widgets.grouped(row.sort(descending=True).values.numpy()), 0.05)[0] > 1e-3
    row = rows_of_logits()["like a model's"]
    dropped = [part[:-200] for part in widgets.grouped(row.sort(descending=True).values.numpy())]
    assert off(row, dropped, 3.0)[0] > 1e-3  # the tail matters where it is hot


def test_the_file_holds_the_highest_logits_as_they_are():
    logits = torch.randn(2, 1000, generator=torch.Generator().manual_seed(1))
    shown = widgets.next_tokens(["a b", "c\n"], logits, symbol)
    about, tensors = file_of(shown)
    for i, row in enumerate(logits):
        values, ids = row.topk(widgets.EXACT)
        assert torch.equal(tensors[f"logits.{i}"], values)
        assert about["symbols"][i] == [f"␣<{j}>" for j in ids.tolist()]
    assert (about["prompts"], about["V"], about["top"]) == (["a␣b", "c↵"], 1000, 15)
    right = logits[0].double().softmax(0).topk(15)
    assert [p for _, p in shown.bars()] == pytest.approx(right.values.tolist(), rel=1e-6)
    assert str(shown).splitlines()[1].split()[0] == f"␣<{right.indices[0]}>"


def test_next_tokens_of_equal_logits_come_by_their_ids():
    shown = widgets.next_tokens(["a"], [[1.0] * 300], symbol, top=3)
    assert [name for name, _ in shown.bars()] == ["␣<0>", "␣<1>", "␣<2>"]


@pytest.mark.parametrize(
    ("prompts", "logits"),
    [([], []), (["a"], []), (["a", "b"], [[1.0, 2.0]]), (["a", "b"], [[1.0, 2.0], [1.0]]), (["a"], [[[1.0]]]),
     (["a"], [[1.0, math.nan]]), (["a"], [[1.0, math.inf]])],
)  # fmt: skip
def test_next_tokens_that_do_not_fit_are_refused(prompts, logits):
    with pytest.raises(ValueError, match="logits"):
        widgets.next_tokens(prompts, logits, symbol)
    assert len(widgets.next_tokens(["a"], [[1.0, 2.0]], symbol).bars()) == 2


# Attention ------------------------------------------------------------------------------------------------------------


def attention(*lengths: int, L: int = 3, H: int = 2) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(2)
    scores = [3 * torch.randn(L, H, T, T, generator=made) for T in lengths]
    return [s.masked_fill(torch.ones(s.shape[2:], dtype=torch.bool).triu(1), -math.inf).softmax(-1) for s in scores]


TEXTS = [["A", " <b>", "\n", " c"], ["A", " d"]]
TEXTS_READ = ["A", "␣<b>", "↵", "␣c"]  # the first, as it is shown


def test_attention_weights_are_those_of_the_model_to_a_byte():
    """If this fails, the map shows a head, a row or a column for another."""
    weights = attention(4, 2)
    shown = widgets.attention_view(TEXTS, [w.requires_grad_() for w in weights], (2, 1), {"induction": (1, 0)}, 2)
    about, tensors = file_of(shown)
    assert about == {
        "texts": [["A", "␣<b>", "↵", "␣c"], ["A", "␣d"]], "start": [2, 1], "known": [["induction", 1, 0]], "token": 2,
    }  # fmt: skip
    for i, given in enumerate(weights):
        T = given.size(-1)
        assert tensors[f"weights.{i}"].shape == (3, 2, T * (T + 1) // 2)
        for layer, head, t in np.ndindex(3, 2, T):
            row = given[layer, head, t].tolist()
            assert shown.row(i, layer, head, t).tolist() == pytest.approx(row[: t + 1], abs=0.002)
            begin = t * (t + 1) // 2
            published = tensors[f"weights.{i}"][layer, head, begin : begin + t + 1] / 255
            assert published.tolist() == pytest.approx(row[: t + 1], abs=0.002)
    assert shown.row(0, 2, 1, 3).tolist() != pytest.approx(weights[0][1, 1, 3].tolist(), abs=0.002)  # a control


def test_the_map_that_stands_is_that_of_the_head_to_start_with():
    weights = attention(4, 2)
    shown = widgets.attention_view(TEXTS, weights, (2, 1), {"known": (2, 1)})
    (element,) = elements(shown._repr_html_()).select("attention-view")
    assert element["data-file"] == shown.data().name
    assert element.select_one("p").get_text().startswith("Layer 2, head 1, known.")
    assert [name.get_text() for name in element.select(".row")] == ["A", "␣<b>", "↵", "␣c"]
    cells = [float(cell.get("style", "--p:0").removeprefix("--p:")) for cell in element.select("i")]
    right = [weights[0][2, 1, t, s].item() for t in range(4) for s in range(t + 1)]
    assert cells == pytest.approx(right, abs=0.0025)
    assert [name.get_text() for name in element.select(".row.now")] == ["␣c"]
    at = [widgets.attention_view(TEXTS, weights, (2, 1), token=t)._repr_html_() for t in range(4)]
    for t, (shown_at,) in enumerate(elements(html).select("attention-view") for html in at):
        best = weights[0][2, 1, t].argmax()
        token, looks = TEXTS_READ[t], TEXTS_READ[best]
        assert f": {token}, in the row in bold, looks at {looks} " in shown_at.select_one("p").get_text()
        assert [name.get_text() for name in shown_at.select(".row.now")] == [token]
    best = weights[0][2, 1, 3].argmax()
    assert str(shown).splitlines()[-1].split()[1] == ["A", "␣<b>", "↵", "␣c"][best]


@pytest.mark.parametrize(
    ("texts", "weights", "start", "known", "words"),
    [
        ([], [], (0, 0), {}, "one text"),
        ([["a"]], attention(2), (0, 0), {}, "1 tokens need weights"),
        (TEXTS, [*attention(4), *attention(2, L=2)], (0, 0), {}, "the same L and H"),
        (TEXTS[1:], [torch.full((3, 2, 2, 2), 0.5)], (0, 0), {}, "later tokens are 0"),
        (TEXTS[1:], [2 * attention(2)[0]], (0, 0), {}, "between 0 and 1"),
        (TEXTS[1:], [attention(2)[0] * math.nan], (0, 0), {}, "between 0 and 1"),
        (TEXTS[1:], attention(2), (3, 0), {}, "no head 0 in layer 3"),
        (TEXTS[1:], attention(2), (0, 0), {"x": (0, 2)}, "no head 2 in layer 0"),
    ],
)
def test_attention_that_does_not_fit_is_refused(texts, weights, start, known, words):
    """If this fails, weights of a model that looks ahead, or of another text, are shown as if they were right."""
    with pytest.raises(ValueError, match=words):
        widgets.attention_view(texts, weights, start, known)


@pytest.mark.parametrize("token", [-1, 4])
def test_a_token_that_the_first_text_has_not_is_refused(token):
    """If this fails, the view opens on nothing, and the site's script stops."""
    with pytest.raises(ValueError, match=f"no token {token} in the first text"):
        widgets.attention_view(TEXTS, attention(4, 2), token=token)


# The logit lens -------------------------------------------------------------------------------------------------------


def lens():
    made = torch.Generator().manual_seed(3)
    logits = [4 * torch.randn(5, T, 600, generator=made) for T in (3, 2)]
    answers = [[5, 17], [599]]
    texts = [["a", " b", " <c>"], ["d", "\n"]]
    return logits, answers, widgets.lens_grid(texts, iter(logits), answers, symbol)


def test_the_lens_shows_what_softmax_gives_each_layer():
    """If this fails, a layer is shown to say what it does not, or the answer to stand where it does not."""
    logits, answers, shown = lens()
    about, tensors = file_of(shown)
    assert about["answers"] == [["␣<5>", "␣<17>"], ["␣<599>"]]
    for i, given in enumerate(logits):
        p = given.double().softmax(-1)  # (L+1, T, V)
        values, ids = p.topk(5)
        names = [about["symbols"][j] for j in tensors[f"said.{i}"].flatten()]
        assert names == [f"␣<{j}>" for j in ids.flatten().tolist()]
        torch.testing.assert_close(tensors[f"chances.{i}"].double(), values, rtol=1e-6, atol=0)
        for k, answer in enumerate(answers[i]):
            ranks = [1 + row.tolist().index(answer) for row in given[:, -1].argsort(descending=True)]
            assert tensors[f"ranks.{i}"][:, k].tolist() == ranks
            assert tensors[f"answered.{i}"][:, k].tolist() == pytest.approx(p[:, -1, answer].tolist(), rel=1e-6)


def test_the_table_that_stands_is_that_of_the_first_text():
    logits, _, shown = lens()
    (element,) = elements(shown._repr_html_()).select("lens-grid")
    rows = [[cell.get_text() for cell in row.select("th, td")] for row in element.select("tr")]
    assert rows[0] == ["layer", "rank of ␣<5>", "its chance", "a", "␣b", "␣<c>"]
    for layer, row in enumerate(rows[1:]):
        assert row[0] == str(layer)
        assert row[3:] == [f"␣<{i}>" for i in logits[0][layer].argmax(-1).tolist()]
    assert str(shown).splitlines()[-1].split()[1] == rows[-1][-1]


@pytest.mark.parametrize(
    ("texts", "logits", "answers"),
    [
        ([], [], []),
        ([["a"]], [torch.zeros(2, 1, 9)], [[]]),
        ([["a"]], [torch.zeros(2, 2, 9)], [[1]]),
        ([["a"]], [torch.zeros(1, 9)], [[1]]),
        ([["a"]], [torch.full((2, 1, 9), math.nan)], [[1]]),
        ([["a"], ["b"]], [torch.zeros(2, 1, 9)], [[1], [1]]),
        ([["a"], ["b"]], [torch.zeros(2, 1, 9), torch.zeros(3, 1, 9)], [[1], [1]]),
    ],
)
def test_a_lens_that_does_not_fit_is_refused(texts, logits, answers):
    with pytest.raises(ValueError):  # noqa: PT011 (from Python's own zip as well)
        widgets.lens_grid(texts, logits, answers, symbol)


# Arithmetic with words ------------------------------------------------------------------------------------------------


def embeddings() -> torch.Tensor:
    """Rows as a model has them: a common direction, families of words that lie together, and noise, more or less."""
    made = torch.Generator().manual_seed(4)
    common, families = torch.randn(384, generator=made), torch.randn(40, 384, generator=made)
    noise = (
        torch.randn(400, 384, generator=made) * torch.linspace(0.2, 2, 400)[torch.randperm(400, generator=made), None]
    )
    return 0.8 * common + families.repeat(10, 1) + noise


WORDS = ["king", "man", "woman", *(f"word{i}" for i in range(397))]


def cosines(vectors: torch.Tensor, a: int, b: int, c: int) -> torch.Tensor:
    return F.cosine_similarity(vectors, (vectors[a] - vectors[b] + vectors[c])[None], dim=-1)


@pytest.mark.parametrize("centred", [False, True])
def test_nearest_words_are_those_of_the_model_itself(centred):
    """If this fails, bytes are too coarse: a page answers with other words than the model's own embeddings do."""
    raw = embeddings()
    shown = widgets.arithmetic(WORDS, raw.clone().requires_grad_(), mean=raw.mean(0))
    vectors = (raw - raw.mean(0) if centred else raw).double()
    compared = 0
    for a, b, c in torch.randint(len(WORDS), (200, 3), generator=torch.Generator().manual_seed(5)).tolist():
        right = cosines(vectors, a, b, c)
        found = shown.nearest(WORDS[a], WORDS[b], WORDS[c], count=400, inputs=True, centred=centred)
        assert [cosine for _, cosine in found] == pytest.approx(
            [right[WORDS.index(word)].item() for word, _ in found], abs=0.005
        )
        right[[a, b, c]] = -math.inf
        values, ids = right.topk(6)
        if (values.diff() < -0.005).all():  # nearer ones may change places
            compared += 1
            found = shown.nearest(WORDS[a], WORDS[b], WORDS[c], count=5, centred=centred)
            assert [word for word, _ in found] == [WORDS[i] for i in ids[:5]]
    assert compared > 30
    wrong = cosines((raw if centred else raw - raw.mean(0)).double(), 3, 50, 90)  # a control: the other kind
    found = shown.nearest(WORDS[3], WORDS[50], WORDS[90], count=400, inputs=True, centred=centred)
    assert [p for _, p in found] != pytest.approx([wrong[WORDS.index(word)].item() for word, _ in found], abs=0.005)


def test_fewer_bits_would_be_seen():
    """A control: the test above is no test if it passes four bits."""
    raw = embeddings()
    right = cosines(raw.double(), 3, 50, 90)
    scales = raw.abs().amax(1, keepdim=True) / 7
    coarse = cosines(((raw / scales).round() * scales).double(), 3, 50, 90)
    assert (coarse - right).abs().max() > 0.005


def test_the_file_holds_the_words_and_the_picture_their_first_answer():
    raw = embeddings()
    shown = widgets.arithmetic(
        [f" {word}" for word in WORDS], raw, [("king", "man", "woman")], {"tokenise": [" token", "ise"]}
    )
    about, tensors = file_of(shown)
    assert about["words"] == WORDS
    assert about["split"] == {"tokenise": ["␣token", "ise"]}
    assert tensors["rows"].dtype == torch.int8
    torch.testing.assert_close(tensors["mean"], raw.mean(0))
    half_a_step = raw.abs().amax(1, keepdim=True) / 254
    assert ((tensors["rows"] * tensors["scales"][:, None] - raw).abs() <= half_a_step * 1.001).all()
    (element,) = elements(shown._repr_html_()).select("word-arithmetic")
    found = shown.nearest("king", "man", "woman", centred=True)
    assert [item.code.get_text() for item in element.select("li")] == [word for word, _ in found]
    assert element.select_one(".share").get_text() == f"{found[0][1]:.2f}".replace("-", "−")
    assert found[0][0] in str(shown)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"words": WORDS[:-1]}, "a row of embeddings"),
        ({"words": ["king", *WORDS[1:-1], "king"]}, "each word once"),
        ({"words": ["", *WORDS[1:]]}, "a row of embeddings"),
        ({"vectors": torch.zeros(400, 384)}, "'king' is all zeros"),
        ({"vectors": torch.full((400, 384), math.nan)}, "embeddings hold NaN"),
        ({"examples": []}, "one example"),
        ({"examples": [("king", "man")]}, "three words"),
        ({"examples": [("king", "man", "strawberry")]}, "'strawberry' is not in the list"),
    ],
)
def test_words_that_do_not_fit_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        widgets.arithmetic(**{"words": WORDS, "vectors": embeddings()} | change)


# All of them ----------------------------------------------------------------------------------------------------------


def each() -> list:
    return [
        widgets.next_tokens(["<b>x</b>"], torch.arange(200.0)[None], symbol),
        widgets.attention_view(TEXTS, attention(4, 2)),
        lens()[2],
        widgets.arithmetic(["<king>", *WORDS[1:]], embeddings(), [("<king>", "man", "woman")]),
    ]


def test_what_stands_holds_no_markup_of_tokens_and_no_script():
    """If this fails, a token breaks out of the page, or the theme runs what it takes for a script."""
    for shown in each():
        html = shown._repr_html_()
        assert "<script" not in html
        names = {element.name for element in elements(html).find_all()}
        assert names <= {
            "next-tokens", "attention-view", "lens-grid", "word-arithmetic",
            "p", "code", "ol", "li", "span", "div", "i", "table", "thead", "tbody", "tr", "th", "td",
        }  # fmt: skip


def test_a_cell_gives_the_build_the_file_and_a_notebook_the_picture_alone(monkeypatch):
    for first, again in zip(each(), each(), strict=True):
        assert first.data().name == again.data().name  # the same numbers make the same file
        monkeypatch.delenv("GPTBOOK_PUBLISH", raising=False)
        assert set(first._repr_mimebundle_()) == {"text/plain", "text/html"}
        monkeypatch.setenv("GPTBOOK_PUBLISH", "1")
        (published,) = set(first._repr_mimebundle_()) - {"text/plain", "text/html"}
        assert list(first._repr_mimebundle_()[published]) == [first.data().name]
